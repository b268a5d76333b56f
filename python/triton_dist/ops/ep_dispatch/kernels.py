# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch: a row goes once to each rank that has an expert of its token, in one hop."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import (counts_of, floats, four_tokens, matrix_of, of, owners, rows_told, token_in, token_of,
                                       token_of_slot, tokens_in)
from triton_dist.ops.ep.quantise import rounded, vectors_of
from triton_dist.ops.internode.kernels import arrived_from_node
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts", "chunks"])
def ep_dispatch_kernel(x, ids, weights, scales, out, scales_out, ids_out, weights_out, told, hist, packets,
                       packets_half, data, half, meta, meta_half, flags, flags_source, flags_half, control, team, m,
                       most, rounds, row, limit, experts, chunks, K: tl.constexpr, CHOICES: tl.constexpr,
                       SCALES: tl.constexpr, SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr,
                       E_PAD: tl.constexpr, WEIGHTS: tl.constexpr, QUANT: tl.constexpr, INDEX: tl.constexpr,
                       FIRST: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr,
                       TOKENS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                       ROUND: tl.constexpr, PARTS: tl.constexpr, SEND: tl.constexpr = True, TAKE: tl.constexpr = True):
    """Rows of x [m, row] to the ranks of their choices, ids [m, K]; there they lie in the order (source, token).

    out, ids_out, weights_out, scales_out [limit, .]: what this rank gets, its own experts counted from 0, -1 for others'; what
    is beyond `limit` rows is not stored. told: int32 [1 + WORLD * chunks]: how many rows came, and a word of each source's chunk.
    Tokens are cut into `chunks` chunks. PARTS programs send the rows of a chunk, by rounds of ROUND rows, ROWS at a time, and
    PARTS others take those that the same chunk of each source brings. At once every rank is told how many rows of a chunk go
    there, in packets [source][PITCH]. From the matrix of these the receiver knows where rows belong. Rows are sent without
    waiting for it.
    FIRST: 1: own rows go straight to `out`; 0: rows stay in the workspace, own ones as well, for expand_kernel.
    INDEX: hist, int16 [WORLD * chunks, E_PAD], becomes the choices of each expert among the rows of each chunk.
    SEND, TAKE: both in one launch; or a launch that only sends and waits for nobody, and later one that only takes, with no
    other call on this workspace in between.
    Who writes: a program that sends, its rounds' rows and scales into slots [own index] of the receiver's half `epoch & 1`,
    with round 0 the choices of all rows of the chunk, and after each round the epoch (sys) into flags
    [own index][epoch & 1][chunk][round] there.
    Who waits: every program that takes, for the whole matrix, which bounds the epoch, and for its rounds. Those that send have
    lower numbers and wait for nobody, so programs need not run at the same time.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    if SEND:
        epoch = epoch_in_turn(control)
    else:
        epoch = tl.load(control + pid)  # of the call that was sent
    chunk, part = pid % chunks, pid // chunks
    senders: tl.constexpr = PARTS if SEND else 0
    rank = tl.arange(0, RANKS)
    member = tl.minimum(rank, WORLD - 1)
    inbox = packets + (epoch & 1) * packets_half
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    begin = chunk * each
    to = owners(ids, begin + tl.arange(0, TOKENS), (tl.arange(0, TOKENS) < each) & (begin + tl.arange(0, TOKENS) < m),
                experts, K, CHOICES, E_LOC)
    going = counts_of(to, WORLD, RANKS)
    if SEND:
        to_peers = at_member(inbox + index * PITCH + chunk + 0 * rank, team, member)
        dl.ll_store(to_peers, each << 16 | going, epoch, (rank < WORLD) & (part == 0))
        count_call(control, epoch)  # while the packets travel
    slots = chunks * most  # that a source may fill
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    line, many = tl.arange(0, ROWS), tl.arange(0, WIDE)
    if SEND:
        if part < PARTS:
            put_chunk(x, ids, weights, scales, to, going, begin, begin, rows_in, words_in, arrived, flags_source, flags, rounds,
                      team, index, 0, index, part, epoch, slots, row, K, CHOICES, SCALES, SCALES_PAD, META, E_LOC, WEIGHTS, QUANT,
                      FIRST, WORLD, RANKS, WIDE, ROWS, COLS, ROUND, PARTS, False)
    if TAKE:
        if part >= senders:
            share = part - senders
            cells = rank[:, None] * PITCH + tl.arange(0, PITCH)[None, :]
            known = (rank < WORLD)[:, None] & (tl.arange(0, PITCH) < chunks)[None, :]
            dl.trace_start("wait", 0, -1)
            words_told = dl.ll_load(inbox + cells, epoch, known)
            dl.trace_stop("wait", 0)
            coming, landing, first_slot = matrix_of(words_told, chunk)
            total = rows_told(words_told)
            if (chunk == 0) & (share == 0):
                tl.store(told, total)
                tl.store(told + 1 + rank[:, None] * chunks + tl.arange(0, PITCH)[None, :], words_told, mask=known)
            if FIRST == 1:  # own rows, while others' are on their way
                own, land_of_own = of(going, index), of(landing, index)
                dl.trace_start("store", 0, index)
                for t in range(share, tl.cdiv(own, ROWS), PARTS):
                    last = tl.minimum(tl.minimum(t * ROWS + ROWS, own), limit - land_of_own)
                    land = land_of_own.to(tl.int64)
                    put_rows(x, scales, to, index, begin, t * ROWS, last, out + land * row, scales_out + land * SCALES, SCALES,
                             row, SCALES, SCALES_PAD, QUANT, ROWS, COLS)
                if share == 0:
                    at = land_of_own.to(tl.int64) * K
                    put_choices(ids, weights, to, begin, own, limit - land_of_own, index, ids_out + at, weights_out + at, K, K,
                                CHOICES, E_LOC, WEIGHTS, WIDE)
                dl.trace_stop("store", 0)
            longest = tl.max(tl.where((rank == index) & (FIRST == 1), 0, coming), 0)
            for t in range(share, tl.cdiv(longest, ROUND), PARTS):
                for i in range(FIRST, WORLD):
                    peer = (index + WORLD - i) % WORLD  # the one that sends here first
                    come, land_of_peer, slot = of(coming, peer), of(landing, peer), peer * slots + of(first_slot, peer)
                    if t * ROUND < come:
                        dl.trace_start("wait", t * WORLD + i + 1, peer)
                        arrival = dl.wait(arrived + peer * flags_source + t, 1, "sys", "acquire", epoch)
                        dl.trace_stop("wait", t * WORLD + i + 1)
                        dl.trace_start("store", t * WORLD + i + 1, peer)
                        words, rows = dl.consume_token(words_in, arrival), dl.consume_token(rows_in, arrival)
                        for first in range(t * ROUND, tl.minimum((t + 1) * ROUND, come) if FIRST == 1 else 0, ROWS):
                            place = first + line
                            at, land = (slot + place).to(tl.int64), (land_of_peer + place).to(tl.int64)
                            take_rows(rows + at * row, floats(words + at * META + (META - SCALES_PAD)),
                                      (place < come) & (land < limit), out + land * row, scales_out + land * SCALES, row, SCALES,
                                      SCALES_PAD, COLS)
                        if t == 0:
                            words += slot.to(tl.int64) * META
                            goal = land_of_peer.to(tl.int64) * K
                            take_choices(words, floats(words + K), META, tl.minimum(come, limit - land_of_peer), ids_out + goal,
                                         weights_out + goal, K, CHOICES, WEIGHTS, WIDE)
                        dl.trace_stop("store", t * WORLD + i + 1)
            # rows that nothing came for: no expert, no weight
            choice = tl.arange(0, CHOICES)
            for first in range(total + (share * chunks + chunk) * WIDE, limit, PARTS * chunks * WIDE):
                empty = ((first + many) < limit)[:, None] & (choice < K)[None, :]
                at = (first + many).to(tl.int64)[:, None] * K + choice[None, :]
                tl.store(ids_out + at, tl.full((WIDE, CHOICES), -1, tl.int32), mask=empty)
                if WEIGHTS:
                    tl.store(weights_out + at, tl.zeros((WIDE, CHOICES), tl.float32), mask=empty)
            if INDEX:
                ENTRIES: tl.constexpr = TOKENS * CHOICES if TOKENS * CHOICES < 128 else 128
                tl.debug_barrier()  # every thread's part of ids_out is there
                expert = tl.arange(0, E_PAD)
                for source in range(tl.where(share == 0, WORLD, 0)):
                    come, land = of(coming, source), of(landing, source)
                    found = tl.zeros((E_PAD, ), tl.int32)
                    for i in range(0, tl.minimum(come, limit - land) * K, ENTRIES):
                        entry = i + tl.arange(0, ENTRIES)
                        inside = entry < tl.minimum(come, limit - land) * K
                        local = tl.load(ids_out + land.to(tl.int64) * K + entry, mask=inside, other=-1)
                        found += tl.sum((local[:, None] == expert[None, :]).to(tl.int32), 0)
                    tl.store(hist + (source * chunks + chunk) * E_PAD + expert, found.to(tl.int16))


@triton.jit
def put_chunk(x, ids, weights, scales, to, going, begin, slot, rows_in, words_in, arrived, flags_source, signals, rounds, team,
              source, first_rank, here, part, epoch, slots, row, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
              SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, WEIGHTS: tl.constexpr, QUANT: tl.constexpr,
              FIRST: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
              COLS: tl.constexpr, ROUND: tl.constexpr, PARTS: tl.constexpr, FORWARD: tl.constexpr):
    """Stores rows of a chunk, which begins at row `begin` of x, to WORLD ranks from first_rank on, and tells of each round.

    to: the ranks of the choices of its tokens. going: how many of them go to each of these ranks, and lie there in the slots of
    rank `source` from `slot` on. FIRST: 0: also to this rank itself, the one at `here` of them. part: which of PARTS programs
    this is, which share the rounds.
    FORWARD: rank `source` of another node puts the chunk here, with `signals` for `rounds` rounds of rows and as many of scales;
    `to` and ids count from the first of these ranks. K: 0: no choices are sent.
    """
    rank = tl.arange(0, RANKS)
    everyone = dl.symm_at(arrived + source * flags_source + 0 * rank,
                          dl.team_world_rank(team, first_rank + tl.minimum(rank, WORLD - 1)))
    longest = tl.max(tl.where((rank == here) & (FIRST == 1), 0, going), 0)
    known = part * 0  # rounds that have come
    for t in range(part, tl.cdiv(longest, ROUND), PARTS):
        for i in range(FIRST, WORLD):  # not unrolled: the code would grow with the ranks
            beside = (here + i) % WORLD
            go, peer = of(going, beside), first_rank + beside
            owner = beside if FORWARD else peer
            if t * ROUND < go:
                dl.trace_start("push", t * WORLD + i, peer)
                target = dl.team_world_rank(team, peer)
                outbox, words = dl.symm_at(rows_in, target), dl.symm_at(words_in, target)
                last = tl.minimum((t + 1) * ROUND, go)
                if FORWARD:
                    needed = token_in(to, owner, last - 1) // ROUND + 1
                    for u in range(known, needed):
                        x = dl.consume_token(x, arrived_from_node(signals + u, epoch, "eq"))
                        if SCALES > 0:
                            scales = dl.consume_token(scales, arrived_from_node(signals + rounds + u, epoch, "eq"))
                    known = tl.maximum(known, needed)
                base = (source * slots + slot).to(tl.int64)
                put_rows(x, scales, to, owner, begin, t * ROUND, last, outbox + base * row,
                         floats(words + base * META + (META - SCALES_PAD)), META, row, SCALES, SCALES_PAD, QUANT, ROWS, COLS)
                if K > 0:
                    if t == 0:
                        words += base * META
                        put_choices(ids, weights, to, begin, go, go, owner, words, floats(words + K), META, K, CHOICES, E_LOC,
                                    WEIGHTS, WIDE)
                dl.trace_stop("push", t * WORLD + i)
        dl.notify_each(everyone + t, epoch, (rank < WORLD) & ((rank != here) | (FIRST == 0)) & (t * ROUND < going))


@triton.jit
def put_rows(x, scales, to, rank, begin, first, last, goal, scale_goal, pitch, row, SCALES: tl.constexpr,
             SCALES_PAD: tl.constexpr, QUANT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Stores rows `first` to `last` of those of a chunk that go to `rank`.

    Row i at goal + i * row, its scales at scale_goal + i * pitch. The chunk's tokens begin with `begin`. ROWS
    rows at a time, where QUANT as many as take few registers.
    """
    if QUANT:
        put_rounded(x, to, rank, begin, first, last, goal, scale_goal, pitch, row, SCALES, COLS)
    else:
        for some in range(first, last, ROWS):
            place = some + tl.arange(0, ROWS)
            there, at = place < last, place.to(tl.int64)[:, None]
            source = (begin + token_of_slot(to, rank, some, ROWS)).to(tl.int64)[:, None]
            if SCALES > 0:
                group = tl.arange(0, SCALES_PAD)[None, :]
                of_row = there[:, None] & (group < SCALES)
                scale = tl.load(scales + source * SCALES + group, mask=of_row, other=0.0)
                tl.store(scale_goal + at * pitch + group, scale, mask=of_row)
            for column in range(0, row, COLS):
                cols = column + tl.arange(0, COLS)[None, :]
                tile = there[:, None] & (cols < row)
                tl.store(goal + at * row + cols, tl.load(x + source * row + cols, mask=tile, other=0), mask=tile)


@triton.jit
def put_rounded(x, to, rank, begin, first, last, goal, scale_goal, pitch, row, SCALES: tl.constexpr, COLS: tl.constexpr):
    """put_rows where they become fp8 on the way, COLS columns of a row at a time; the next ones are loaded meanwhile."""
    dtype: tl.constexpr = x.dtype.element_ty
    N: tl.constexpr = COLS // 16
    vector, group = tl.arange(0, N), tl.arange(0, COLS // 128)
    steps = tl.cdiv(row, COLS)
    for four in range(first, last, 4):
        tokens = four_tokens(to, rank, four)
        pieces = tl.minimum(last - four, 4) * steps
        ahead = vectors_of(x + (begin + token_of(tokens, 0)).to(tl.int64) * row, 0, row, True, N)
        for u in range(pieces):
            part, at, column = ahead, (four + u // steps).to(tl.int64), u % steps * COLS
            if u + 1 < pieces:
                source = x + (begin + token_of(tokens, (u + 1) // steps)).to(tl.int64) * row
                ahead = vectors_of(source, (u + 1) % steps * COLS, row, True, N)
            words, scale, _ = rounded(part, dtype, N)
            here = (goal + (at * row + column)).to(tl.pointer_type(tl.int32), bitcast=True)
            tl.store(here + (vector[:, None] * 4 + tl.arange(0, 4)[None, :]), words, mask=(column + 16 * vector < row)[:, None])
            of_cols = column // 128 + group
            tl.store(scale_goal + at * pitch + of_cols, scale, mask=of_cols < SCALES)


@triton.jit
def take_rows(source, scale_source, there, goal, scale_goal, row, SCALES: tl.constexpr, SCALES_PAD: tl.constexpr,
              COLS: tl.constexpr):
    """Moves rows, and their scales, from pointers to pointers where `there`."""
    if SCALES > 0:  # loaded first and stored last, so that rows and scales take one latency
        group = tl.arange(0, SCALES_PAD)[None, :]
        of_row = there[:, None] & (group < SCALES)
        scale = tl.load(scale_source[:, None] + group, mask=of_row)
    for column in range(0, row, COLS):
        cols = column + tl.arange(0, COLS)
        tile = there[:, None] & (cols < row)[None, :]
        tl.store(goal[:, None] + cols[None, :], tl.load(source[:, None] + cols[None, :], mask=tile), mask=tile)
    if SCALES > 0:
        tl.store(scale_goal[:, None] + group, scale, mask=of_row)


@triton.jit
def put_choices(ids, weights, to, begin, go, room, owner, goal, weight_goal, pitch, K: tl.constexpr, CHOICES: tl.constexpr,
                E_LOC: tl.constexpr, WEIGHTS: tl.constexpr, WIDE: tl.constexpr):
    """Stores the choices, and their weights, of those `go` tokens of a chunk that go to `owner`, of no more than `room`.

    They are stored `pitch` words apart, as `owner` counts its experts, -1 for those of others.
    """
    BOTH: tl.constexpr = 2 * CHOICES if WEIGHTS else CHOICES
    word, goals = tl.arange(0, BOTH), weight_goal.to(tl.pointer_type(tl.int32), bitcast=True)
    for first in range(0, go, WIDE):
        place = first + tl.arange(0, WIDE)
        inside, at = ((place < go) & (place < room))[:, None], tokens_in(to, owner, place)
        is_id, choice = (word < K)[None, :], tl.where(word < K, word, word - K)[None, :]
        here = inside & (word < (2 * K if WEIGHTS else K))[None, :]
        at = (begin + at).to(tl.int64)[:, None] * K + choice
        local = tl.load(ids + at, mask=here, other=-1)
        mine = (local >= owner * E_LOC) & (local < (owner + 1) * E_LOC)
        value = tl.where(mine, local - owner * E_LOC, -1).to(tl.int32)
        stored_at = goal + place[:, None] * pitch + choice
        if WEIGHTS:
            weight = tl.load(weights + at, mask=mine & here & (word >= K)[None, :], other=0.0)
            value = tl.where(is_id, value, weight.to(tl.int32, bitcast=True))
            stored_at = tl.where(is_id, stored_at, goals + place[:, None] * pitch + choice)
        tl.store(stored_at, value, mask=here)


@triton.jit
def take_choices(words, weight_words, pitch, come, goal, weight_goal, K: tl.constexpr, CHOICES: tl.constexpr,
                 WEIGHTS: tl.constexpr, WIDE: tl.constexpr):
    """Moves the choices, and their weights, of `come` rows, which lie `pitch` words apart."""
    choice = tl.arange(0, CHOICES)
    for first in range(0, come, WIDE):
        place = first + tl.arange(0, WIDE)
        here = (place < come)[:, None] & (choice < K)[None, :]
        at, stored_at = place[:, None] * pitch + choice[None, :], place[:, None] * K + choice[None, :]
        tl.store(goal + stored_at, tl.load(words + at, mask=here), mask=here)
        if WEIGHTS:
            tl.store(weight_goal + stored_at, tl.load(weight_words + at, mask=here), mask=here)
