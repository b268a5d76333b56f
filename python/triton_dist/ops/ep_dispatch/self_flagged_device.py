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
from triton_dist.ops.ep.device import of, owners, sent_to
from triton_dist.ops.ep_dispatch.kernels import quantised

_FIRST_KEY = tl.constexpr(-4096037)  # 0xFFC17FDB: in every dtype it has a NaN, so hardly any row has it


@triton.jit
def part_of_row(x, token, first, vector, vectors, there, QUANT: tl.constexpr, N: tl.constexpr):
    """N vectors from `first` on of row `token` of x, which is sent as `vectors`: int32 [N, 4], or as x has them where QUANT."""
    if QUANT:
        cols = 16 * first + tl.arange(0, 16 * N)
        part = tl.load(x + token.to(tl.int64) * (16 * vectors) + cols, mask=there & (cols < 16 * vectors), other=0.0)
    else:
        at = first + vector
        part = tl.load(places(x, token.to(tl.int64) * vectors + at), mask=(there & (at < vectors))[:, None], other=0)
    return part


@triton.jit
def words_of_row(part, QUANT: tl.constexpr, N: tl.constexpr):
    """(int32 [N, 4] that are sent of what part_of_row has loaded, their scales, fp32 [N / 8], where QUANT)."""
    if QUANT:
        found, of_groups = quantised(tl.reshape(part, (1, 16 * N)), 1, 16 * N)
        words, scale = tl.reshape(found, (N, 4)), tl.reshape(of_groups, (N // 8, ))
    else:
        words, scale = part, 0
    return words, scale


@triton.jit
def key_of(words, there):
    """A word, not 0, that is none of int32 `words` [N, 4] where `there`. There are fewer of them than there are keys."""
    key = tl.full((), _FIRST_KEY, tl.int32)
    while tl.max(tl.max((there[:, None] & (words == key)).to(tl.int32), 1), 0) > 0:
        key = tl.where(key == -1, 1, key + 1)
    return key


@triton.jit
def token_in(to, rank, slot):
    """Which token of the chunk lies in `slot` of `rank`: int32."""
    sent = sent_to(to, rank)
    return tl.sum(tl.where((sent > 0) & (tl.cumsum(sent, 0) - 1 == slot), tl.arange(0, to.shape[0]), 0), 0)


@triton.jit
def tell_rows(ids, told, team, m, each, chunks, experts, epoch, K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr,
              WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr):
    """Tells all ranks how many rows of each chunk go there, as `each` << 16 | rows, in packets at `told`."""
    rank, chunk = tl.arange(0, RANKS)[:, None], tl.arange(0, PITCH)
    found = tl.zeros((RANKS, PITCH), tl.int32)
    for t in range(each):
        token = chunk * each + t
        to = owners(ids, token, (chunk < chunks) & (token < m), experts, K, CHOICES, E_LOC)
        for r in range(WORLD):  # not unrolled: the code would grow with the ranks
            found += tl.where(rank == r, sent_to(to, r)[None, :], 0)
    goal = at_member(told + chunk[None, :] + 0 * rank, team, tl.minimum(rank, WORLD - 1) + 0 * chunk[None, :])
    dl.ll_store(goal, each << 16 | found, epoch, (rank < WORLD) & (chunk < chunks)[None, :])


@triton.jit
def words_beside(ids, weights, scales, token, owner, before, word, K: tl.constexpr, E_LOC: tl.constexpr, SCALES: tl.constexpr,
                 WEIGHTS: tl.constexpr, QUANT: tl.constexpr):
    """int32 [len(word)]: a token's choices as `owner` counts them, then their weights, 0 for others', then the token's scales.

    before: for word j the number of equal choices that precede choice j.
    """
    at = token.to(tl.int64) * K + tl.where(word < K, word, word - K)
    found = tl.load(ids + at, mask=word < K * (1 + WEIGHTS), other=-1)
    mine = (found >= owner * E_LOC) & (found < (owner + 1) * E_LOC)
    data = tl.where(mine, (found - owner * E_LOC).to(tl.int32) | before << 16, -1)
    if WEIGHTS:
        weight = tl.load(weights + at, mask=mine & (word >= K), other=0.0)
        data = tl.where(word < K, data, weight.to(tl.int32, bitcast=True))
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
def places_of(head, epoch, first_of, ends, positions, sources, land, fits, part, K: tl.constexpr, CHOICES: tl.constexpr,
              E_PAD: tl.constexpr, EXPANDED: tl.constexpr):
    """int32 [CHOICES]: the row by expert of each choice of row `land`, -1 for none; stored in `positions` and `sources`.

    first_of: where choices of each expert begin that are of the row's source.
    """
    choice, expert = tl.arange(0, CHOICES), tl.arange(0, E_PAD)
    entries = dl.ll_load(head + choice, epoch, choice < K)
    entries = tl.where(choice < K, entries, -1)
    which = (entries & 0xFFFF)[:, None] == expert[None, :]
    spots = (entries >> 16) + tl.sum(tl.where(which, first_of[None, :], 0), 1)
    spots = tl.where((entries >= 0) & (spots < tl.sum(tl.where(which, ends[None, :], 0), 1)), spots, -1)
    there = (choice < K) & fits & (part == 0)
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
