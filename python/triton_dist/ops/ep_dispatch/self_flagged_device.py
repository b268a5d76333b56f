# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of a dispatch whose rows are their own flags: keys, words beside rows, and places by expert.

A choice travels as one word: the expert, counted from its rank's first, and above 16 bits the number of equal choices that
precede it in the order of its source; -1 for a choice of another rank's expert or of none.
"""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member
from triton_dist.ops.device.selfflag import places
from triton_dist.ops.ep.device import of, owners, rows_told, sent_to
from triton_dist.ops.ep.quantise import rounded

_FIRST_KEY = tl.constexpr(-4096037)  # 0xFFC17FDB: in every dtype it has a NaN, so hardly any row has it


@triton.jit
def part_of_row(x, token, first, vector, vectors, there, QUANT: tl.constexpr, N: tl.constexpr):
    """What is sent as N vectors from `first` on of row `token` of x, which is sent as `vectors`: blocks of int32 [N, 4].

    One block, or where QUANT as many as x's elements have bytes: block s has vector s of those of x that become one.
    """
    BLOCKS: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8 if QUANT else 1
    at, found = first + vector, ()
    for s in tl.static_range(BLOCKS):
        found = found + (tl.load(places(x, (token.to(tl.int64) * vectors + at) * BLOCKS + s),
                                 mask=(there & (at < vectors))[:, None],
                                 other=0), )
    return found


@triton.jit
def words_of_row(part, dtype: tl.constexpr, QUANT: tl.constexpr, N: tl.constexpr):
    """(int32 [N, 4] that are sent of what part_of_row has loaded, where QUANT the scale of each vector, fp32 [N], else 0)."""
    if QUANT:
        words, _, scale = rounded(part, dtype, N)
    else:
        words, scale = part[0], 0
    return words, scale


@triton.jit
def key_of(words, there, QUANT: tl.constexpr):
    """A word, not 0, that is none of int32 `words` [N, 4] where `there`. There are fewer of them than there are keys.

    QUANT: words of `rounded`, none of which is -1. Nothing is searched then, so no thread waits for another.
    """
    key = tl.full((), -1 if QUANT else _FIRST_KEY, tl.int32)
    if not QUANT:
        while tl.max(tl.max((there[:, None] & (words == key)).to(tl.int32), 1), 0) > 0:
            key = tl.where(key == -1, 1, key + 1)
    return key


@triton.jit
def tell_rows(ids, told, deltas, index, m, each, chunks, experts, epoch, K: tl.constexpr, CHOICES: tl.constexpr,
              E_LOC: tl.constexpr, WORLD: tl.constexpr, PITCH: tl.constexpr):
    """Tells all ranks of each chunk, in a pair of packets [PITCH][2] at `told`, how many of its rows go there.

    The first has `each` << 16 | rows, the second the rows of this chunk and of all before it.
    deltas: from word 1 on, the distances of the other members from this one on, in turn.
    """
    chunk = tl.arange(0, PITCH)
    for i in range(1, WORLD + 1):  # not unrolled: the code would grow with the ranks
        rank = index + i - tl.where(index + i < WORLD, 0, WORLD)
        away = tl.load(deltas + i, mask=i < WORLD, other=0)
        # from the first token on, so that counts stay in the layout of their sums: a conversion takes two barriers
        found = sent_to(owners(ids, chunk * each, (chunk < chunks) & (chunk * each < m) & (each > 0), experts, K, CHOICES, E_LOC),
                        rank)
        for t in range(1, each):
            token = chunk * each + t
            found += sent_to(owners(ids, token, (chunk < chunks) & (token < m), experts, K, CHOICES, E_LOC), rank)
        both = tl.cumsum(found, 0).to(tl.int64) << 32 | each << 16 | found
        dl.ll_store_pair(told + (away >> 3) + 2 * chunk, both, epoch, chunk < chunks)


@triton.jit
def keep_told(inbox, epoch, told, chunks, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr):
    """Stores what all ranks have told by tell_rows: all rows, then the first word of each chunk [WORLD, chunks]."""
    rank, chunk = tl.arange(0, RANKS)[:, None], tl.arange(0, PITCH)[None, :]
    known = (rank < WORLD) & (chunk < chunks)
    words = dl.ll_load_pair(inbox + 2 * (rank * PITCH + chunk), epoch, known).to(tl.int32)
    tl.store(told, rows_told(words))
    tl.store(told + 1 + rank * chunks + chunk, words, mask=known)


@triton.jit
def choices_of(ids, weights, token, word, there, K: tl.constexpr, WEIGHTS: tl.constexpr):
    """(a token's choices, -1 elsewhere, and their weights, if any) as words_beside wants them: [len(word)]."""
    at = token.to(tl.int64) * K + tl.where(word < K, word, word - K)
    chosen, weight = tl.load(ids + at, mask=there & (word < K * (1 + WEIGHTS)), other=-1), 0
    if WEIGHTS:
        weight = tl.load(weights + at, mask=there & (word >= K) & (word < 2 * K), other=0.0)
    return chosen, weight


@triton.jit
def words_beside(chosen, weight, scales, token, owner, before, word, K: tl.constexpr, E_LOC: tl.constexpr, SCALES: tl.constexpr,
                 WEIGHTS: tl.constexpr, QUANT: tl.constexpr):
    """int32 [len(word)]: a token's choices as `owner` counts them, then their weights, 0 for others', then the token's scales.

    chosen, weight: of choices_of. before: for word j the number of equal choices that precede choice j.
    """
    mine = (chosen >= owner * E_LOC) & (chosen < (owner + 1) * E_LOC)
    data = tl.where(mine, (chosen - owner * E_LOC).to(tl.int32) | before << 16, -1)
    if WEIGHTS:
        data = tl.where(word < K, data, tl.where(mine, weight, 0.0).to(tl.int32, bitcast=True))
    if SCALES > 0 and not QUANT:
        of_row = word - K * (1 + WEIGHTS)
        scale = tl.load(scales + token.to(tl.int64) * SCALES + of_row, mask=(of_row >= 0) & (of_row < SCALES), other=0.0)
        data = tl.where(of_row < 0, data, scale.to(tl.int32, bitcast=True))
    return data


@triton.jit
def keep_choices(data, word, there, land, ids_out, weights_out, K: tl.constexpr, WEIGHTS: tl.constexpr):
    """Stores what words_beside made of a token's choices and their weights as row `land`."""
    tl.store(ids_out + land * K + word, tl.where(data < 0, -1, data & 0xFFFF), mask=there & (word < K))
    if WEIGHTS:
        tl.store(weights_out + land * K + (word - K),
                 data.to(tl.float32, bitcast=True),
                 mask=there & (word >= K) & (word < 2 * K))


@triton.jit
def spread_words(words, at, row, land, fits, spots, out, K: tl.constexpr, EXPANDED: tl.constexpr):
    """Stores parts `at` of a row of `row` parts: as row `land` of out, or where EXPANDED as each of its `spots`, -1 for none.

    Parts are vectors of int32 [N, 4], or elements of out [N].
    """
    if EXPANDED:
        for j in range(K):
            spot = of(spots, j)
            if spot >= 0:
                put_words(words, at, row, spot, True, out)
    else:
        put_words(words, at, row, land, fits, out)


@triton.jit
def put_words(words, at, row, land, fits, out):
    """Stores parts `at` of row `land` of out."""
    goal = land.to(tl.int64) * row + at
    if len(words.shape) == 2:
        tl.store(places(out, goal), words, mask=(fits & (at < row))[:, None])
    else:
        tl.store(out + goal, words, mask=fits & (at < row))


# -- by expert -------------------------------------------------------------------------------------------------------------
@triton.jit
def moved_to(values, word):
    """int32 [len(word)] that begins with `values`, one word a thread: a thread's stores are then no other's as well."""
    at = tl.arange(0, values.shape[0])
    return tl.sum(tl.where(word[:, None] == at[None, :], values[None, :], 0), 1)


@triton.jit
def order_of(ids, token, word, K: tl.constexpr, CHOICES: tl.constexpr, BLOCK: tl.constexpr):
    """int32 [len(word)]: how many equal choices precede choice `word` of a token in the order of (token, choice)."""
    choice = tl.arange(0, CHOICES)
    chosen = tl.load(ids + token.to(tl.int64) * K + choice, mask=choice < K, other=-1)
    found = tl.zeros((CHOICES, ), tl.int32)
    for first in range(0, (token + 1) * K, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        earlier = tl.load(ids + entry, mask=entry < (token + 1) * K, other=-1)
        same = (earlier[:, None] == chosen[None, :]) & (entry[:, None] < (token * K + choice)[None, :])
        found += tl.sum(same.to(tl.int32), 0)
    return moved_to(found, word)


@triton.jit
def tell_totals(ids, totals, team, m, experts, epoch, K: tl.constexpr, E_LOC: tl.constexpr, COUNTED: tl.constexpr,
                BLOCK: tl.constexpr):
    """Tells ranks how many choices of each of their experts this one has, in packets at `totals`. Each teller has COUNTED."""
    expert = tl.program_id(0) * COUNTED + tl.arange(0, COUNTED)
    found = tl.zeros((COUNTED, ), tl.int32)
    for first in range(0, m * K, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        chosen = tl.load(ids + entry, mask=entry < m * K, other=-1)
        found += tl.sum((chosen[:, None] == expert[None, :]).to(tl.int32), 0)
    owner = tl.where(expert < experts, expert // E_LOC, 0)
    dl.ll_store(at_member(totals + expert % E_LOC, team, owner), found, epoch, expert < experts)


@triton.jit
def begins_of(counts, room, align, E_PAD: tl.constexpr, MASKED: tl.constexpr):
    """Where each expert's rows begin, and where their room ends: int32 [E_PAD], from the number of rows of each."""
    if MASKED:
        begins = tl.arange(0, E_PAD) * room
        ends = begins + room
    else:
        wide = tl.cdiv(counts, align) * align
        begins = tl.cumsum(wide, 0) - wide
        ends = 0 * begins + room
    return begins, ends


@triton.jit
def of_source_in(first_of, rank, source):
    """Row `source` of [RANKS, E_PAD]."""
    return tl.sum(tl.where((rank == source)[:, None], first_of, 0), 0)


@triton.jit
def places_of(head, epoch, first_of, ends, positions, sources, land, fits, first, K: tl.constexpr, CHOICES: tl.constexpr,
              E_PAD: tl.constexpr, EXPANDED: tl.constexpr):
    """int32 [CHOICES]: the row by expert of each choice of row `land`, -1 for none.

    first_of: where choices of each expert begin that are of the row's source. first: whether to store them in `positions` and
    `sources`, which one program of a row's does.
    """
    choice, expert = tl.arange(0, CHOICES), tl.arange(0, E_PAD)
    entries = dl.ll_load(head + choice, epoch, choice < K)
    entries = tl.where(choice < K, entries, -1)
    which = (entries & 0xFFFF)[:, None] == expert[None, :]
    spots = (entries >> 16) + tl.sum(tl.where(which, first_of[None, :], 0), 1)
    spots = tl.where((entries >= 0) & (spots < tl.sum(tl.where(which, ends[None, :], 0), 1)), spots, -1)
    there = (choice < K) & fits & first
    tl.store(positions + land.to(tl.int64) * K + choice, spots, mask=there)
    if not EXPANDED:
        tl.store(sources + spots, land + 0 * spots, mask=there & (spots >= 0))
    return spots


@triton.jit
def nothing_came(total, limit, program, programs, ids_out, weights_out, positions, lane, K: tl.constexpr, WEIGHTS: tl.constexpr,
                 ORDERED: tl.constexpr):
    """Rows from `total` to `limit` have no expert, no weight and no place."""
    for first in range(total * K + program * lane.shape[0], limit * K, programs * lane.shape[0]):
        there = first + lane < limit * K
        tl.store(ids_out + first + lane, 0 * lane - 1, mask=there)
        if WEIGHTS:
            tl.store(weights_out + first + lane, 0.0 * lane, mask=there)
        if ORDERED:
            tl.store(positions + first + lane, 0 * lane - 1, mask=there)


@triton.jit
def zeros_between(out, vectors, counts, begins, room, align, program, programs, vector, E_LOC: tl.constexpr):
    """Fills the rows between experts with zeros."""
    for e in range(program, E_LOC, programs):
        count, begin = of(counts, e), of(begins, e)
        for gap in range(begin + count, tl.minimum(begin + tl.cdiv(count, align) * align, room)):
            for first in range(0, vectors, vector.shape[0]):
                put_words(tl.zeros((vector.shape[0], 4), tl.int32), first + vector, vectors, gap, True, out)
