# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Combine: each rank's sums over its own experts go back to the ranks that have the tokens."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import matrix_of, of, owners, sent_to, words_of
from triton_dist.runtime.jit import jit

_AT_ONCE = tl.constexpr(4)


@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts", "chunks"])
def ep_combine_kernel(y, ids, told, positions, weights, bias, residual, out, packets, packets_half, data, half, flags,
                      flags_source, flags_half, control, team, m, most, rounds, row, limit, experts, chunks,
                      K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr, PLACED: tl.constexpr,
                      WEIGHTED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WORLD: tl.constexpr,
                      RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr, COLS: tl.constexpr, ROUND: tl.constexpr,
                      PARTS: tl.constexpr, SEND: tl.constexpr = True, TAKE: tl.constexpr = True):
    """out [m, row] = for each token the sum over ranks of what came of it there, in the order of ranks, + bias + residual.

    What a rank has of a row that came: row `r` of y [limit, row]; or, where PLACED, the sum over its choices j in order of
    weights[r, j] * y[positions[r, j]], in fp32 with one rounding. Rows of `limit` and beyond were cut off, and count as zeros.
    The order of rows and `told` are those of ep_dispatch_kernel, and `ids` is what that was given.
    PARTS programs send the rows of a chunk to each rank, by rounds of ROUND rows, and PARTS others sum the chunk's tokens. A
    program has one row at a time, COLS columns of it, so that it takes few registers and many programs fit an SM. SEND, TAKE: as
    in ep_dispatch_kernel.
    Who writes: a program that sends, its rounds' rows of source s into slots [own index] of s's half `epoch & 1`, and after
    each round the epoch (sys) into flags [own index][epoch & 1][chunk][round] there; program 0 a packet to every rank.
    Who waits: a program that sums, for the rounds that have its tokens' rows; the first of them for the packets of all, which
    bounds the epoch. Those that send have lower numbers and wait for nobody, so programs need not run at the same time.
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
    if SEND:
        to_peers = at_member(inbox + index * PITCH + 0 * rank, team, member)
        dl.ll_store(to_peers, 1 + 0 * rank, epoch, (rank < WORLD) & (pid == 0))
        count_call(control, epoch)  # while the packets travel
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    begin = chunk * each
    giving, landing, first_slot = matrix_of(words_of(told, chunks, WORLD, RANKS, PITCH), chunk)
    slots = chunks * most  # that a rank may fill
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    if SEND:
        if part < PARTS:
            everyone = dl.symm_at(arrived + index * flags_source + 0 * rank, dl.team_world_rank(team, member))
            longest = tl.max(tl.where(rank == index, 0, giving), 0)
            for t in range(part, tl.cdiv(longest, ROUND), PARTS):
                for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
                    peer = (index + i) % WORLD
                    give, land_of_peer, slot = of(giving, peer), of(landing, peer), index * slots + of(first_slot, peer)
                    if t * ROUND < give:
                        dl.trace_start("push", t * WORLD + i, peer)
                        outbox = dl.symm_at(rows_in, dl.team_world_rank(team, peer))
                        for place in range(t * ROUND, tl.minimum((t + 1) * ROUND, give)):
                            land = land_of_peer + place
                            spots, by, count = own_choices(positions, weights, land, land < limit, K, PLACED, WEIGHTED)
                            goal = outbox + (slot + place).to(tl.int64) * row
                            for column in range(0, row, COLS):
                                cols = column + tl.arange(0, COLS)
                                values = own_part(y, spots, by, count, land, land < limit, cols, row, K, PLACED, WEIGHTED)
                                tl.store(goal + cols, values.to(data.dtype.element_ty), mask=cols < row)
                        dl.trace_stop("push", t * WORLD + i)
                dl.notify_each(everyone + t, epoch, (rank < WORLD) & (rank != index) & (t * ROUND < giving))
    if TAKE:
        if part >= senders:
            many = tl.arange(0, TOKENS)
            to = owners(ids, begin + many, (many < each) & (begin + many < m), experts, K, CHOICES, E_LOC)
            tokens = tl.maximum(tl.minimum(m - begin, each), 0)
            land_of_own, sent_to_own = of(landing, index), sent_to(to, index)
            if WORLD == 2:
                sent_to_other = sent_to(to, 1 - index)
            for t in range(part - senders, tokens, PARTS):
                place = place_of(sent_to_own, t)
                land = land_of_own + place
                own_there = (place >= 0) & (land < limit)
                spots, by, count = own_choices(positions, weights, land, own_there, K, PLACED, WEIGHTED)
                places, came = tl.full((RANKS, ), -1, tl.int32), rows_in
                for i in range(1, WORLD):  # all flags before any row, so that all rows of a token are loaded together
                    r = (index + i) % WORLD
                    if WORLD == 2:
                        place = place_of(sent_to_other, t)
                    else:
                        place = place_of(sent_to(to, r), t)
                    if place >= 0:
                        dl.trace_start("wait", t * WORLD + r, r)
                        arrival = dl.wait(arrived + r * flags_source + place // ROUND, 1, "sys", "acquire", epoch)
                        dl.trace_stop("wait", t * WORLD + r)
                        came = dl.consume_token(came, arrival)
                    places = tl.where(rank == r, place, places)
                at = (begin + t).to(tl.int64) * row
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    if WORLD == 2:
                        theirs = row_from(came, 1 - index, of(places, 1 - index), slots, begin, cols, row)
                    if HAS_RESIDUAL:
                        added = tl.load(residual + at + cols, mask=cols < row, other=0.0)
                    own = own_part(y, spots, by, count, land, own_there, cols, row, K, PLACED, WEIGHTED)
                    own = own.to(data.dtype.element_ty).to(tl.float32)  # rounded as others' parts are
                    total = tl.zeros((COLS, ), tl.float32)
                    if WORLD == 2:
                        total += own
                        total += theirs.to(tl.float32)  # the order of two does not matter
                    else:
                        for r in range(WORLD):
                            if r == index:
                                total += own
                            else:
                                total += row_from(came, r, of(places, r), slots, begin, cols, row).to(tl.float32)
                    if HAS_BIAS:
                        total += tl.load(bias + cols, mask=cols < row, other=0.0).to(tl.float32)
                    if HAS_RESIDUAL:
                        total += added.to(tl.float32)
                    dl.trace_start("store", t * tl.cdiv(row, COLS) + column // COLS, index)
                    tl.store(out + at + cols, total.to(out.dtype.element_ty), mask=cols < row)
                    dl.trace_stop("store", t * tl.cdiv(row, COLS) + column // COLS)
        dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == senders * chunks))


@triton.jit
def place_of(sent, t):
    """The slot of token t's row among those of a chunk that were `sent` to a rank, int32 [tokens] of 0 and 1; -1 for none."""
    token = tl.arange(0, sent.shape[0])
    found = tl.sum(sent * tl.where(token == t, 1 << 16, (token < t).to(tl.int32)), 0)  # one sum: threads meet once
    return tl.where(found >> 16 > 0, found & 0xFFFF, -1)


@triton.jit
def row_from(rows_in, r, place, slots, begin, cols, row):
    """Columns of the row in slot `place` of a chunk, which begins at token `begin`, that rank r has sent; 0 where it is -1."""
    source = rows_in + (r * slots + begin + place).to(tl.int64) * row
    return tl.load(source + cols, mask=(place >= 0) & (cols < row), other=0.0)


@triton.jit
def own_choices(positions, weights, land, there, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """Where this rank's choices of row `land` that came lie in y, their weights, and how many they are; none if not `there`.

    Tuples of K numbers: those of its own experts first, in their order, then -1 and 0. Nothing but 0 where not PLACED.
    """
    spots, by, count = (), (), 0
    if PLACED:
        at = land.to(tl.int64) * K
        every, weight, before = (), (), ()
        for j in tl.static_range(K):
            spot = tl.load(positions + at + j, mask=there, other=-1)
            every, before = every + (spot, ), before + (count, )
            count += (spot >= 0).to(tl.int32)
            if WEIGHTED:
                weight = weight + (tl.load(weights + at + j, mask=there, other=0.0), )
        for i in tl.static_range(K):
            spot, share = -1, 0.0
            for j in tl.static_range(i, K):
                here = (every[j] >= 0) & (before[j] == i)
                spot = tl.where(here, every[j], spot)
                if WEIGHTED:
                    share = tl.where(here, weight[j], share)
            spots, by = spots + (spot, ), by + (share, )
    return spots, by, count


@triton.jit
def own_part(y, spots, by, count, land, there, cols, row, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """fp32 [len(cols)]: what this rank has of row `land` that came; 0 where not `there`. spots, by, count: as own_choices.

    _AT_ONCE rows of y are loaded before the first is added, and no more than there are choices.
    """
    if PLACED:
        found = tl.zeros((cols.shape[0], ), tl.float32)
        for first in tl.static_range(0, K, _AT_ONCE):
            if first < count:
                terms = ()
                for i in tl.static_range(_AT_ONCE):
                    if first + i < K:
                        spot = spots[first + i]
                        terms = terms + (tl.load(y + spot.to(tl.int64) * row + cols, mask=(spot >= 0) & (cols < row),
                                                 other=0.0), )
                for i in tl.static_range(_AT_ONCE):
                    if first + i < K:
                        term = terms[i].to(tl.float32)
                        if WEIGHTED:
                            term *= by[first + i]
                        found += term
    else:
        found = tl.load(y + land.to(tl.int64) * row + cols, mask=there & (cols < row), other=0.0).to(tl.float32)
    return found
