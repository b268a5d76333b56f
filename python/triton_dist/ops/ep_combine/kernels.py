# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Combine: each rank's sums over its own experts go back to the ranks that have the tokens."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import column_of, matrix_of, of, owners, slots_of, words_of
from triton_dist.runtime.jit import jit

_AT_ONCE = tl.constexpr(4)

@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts", "chunks"])
def ep_combine_kernel(y, ids, told, positions, weights, bias, residual, out, packets, packets_half, data, half, flags,
                      flags_source, flags_half, control, team, m, most, rounds, row, limit, experts, chunks,
                      K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr, PLACED: tl.constexpr,
                      WEIGHTED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WORLD: tl.constexpr,
                      RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
                      COLS: tl.constexpr, ROUND: tl.constexpr, PARTS: tl.constexpr, SINGLE: tl.constexpr,
                      SEND: tl.constexpr = True, TAKE: tl.constexpr = True):
    """out [m, row] = for each token the sum over ranks of what came of it there, in the order of ranks, + bias + residual.

    What a rank has of a row that came: row `r` of y [limit, row]; or, where PLACED, the sum over its choices j in order of
    weights[r, j] * y[positions[r, j]], in fp32 with one rounding. Rows of `limit` and beyond were cut off, and count as zeros.
    The order of rows and `told` are those of ep_dispatch_kernel, and `ids` is what that was given.
    PARTS programs send the rows of a chunk to each rank, by rounds of ROUND rows, ROWS at a time, and PARTS others sum the
    chunk's tokens, ROWS at a time. SINGLE: one row at a time, of which a thread has so few elements that it can hold more rows of
    y. SEND, TAKE: as in ep_dispatch_kernel.
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
    line = tl.arange(0, ROWS)
    if SEND:
        if part < PARTS:
            everyone = dl.symm_at(arrived + index * flags_source + 0 * rank, dl.team_world_rank(team, member))
            longest = tl.max(tl.where(rank == index, 0, giving), 0)
            for t in range(part, tl.cdiv(longest, ROUND), PARTS):
                for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
                    peer = (index + i) % WORLD
                    give = of(giving, peer)
                    if t * ROUND < give:
                        dl.trace_start("push", t * WORLD + i, peer)
                        outbox = dl.symm_at(rows_in, dl.team_world_rank(team, peer))
                        for begin_of_rows in range(t * ROUND, tl.minimum((t + 1) * ROUND, give), ROWS):
                            place = begin_of_rows + line
                            land = of(landing, peer) + place
                            there = (place < give) & (land < limit)
                            spots, by, most_here = own_choices(positions, weights, land, there, K, CHOICES, PLACED, WEIGHTED,
                                                                SINGLE)
                            at = (index * slots + of(first_slot, peer) + place).to(tl.int64)[:, None] * row
                            for column in range(0, row, COLS):
                                cols = column + tl.arange(0, COLS)
                                values = own_part(y, spots, by, most_here, land, there, cols, row, K, PLACED, WEIGHTED, SINGLE)
                                tl.store(outbox + at + cols[None, :],
                                         values.to(data.dtype.element_ty),
                                         mask=(place < give)[:, None] & (cols < row)[None, :])
                        dl.trace_stop("push", t * WORLD + i)
                dl.notify_each(everyone + t, epoch, (rank < WORLD) & (rank != index) & (t * ROUND < giving))
    if TAKE:
        if part >= senders:
            to = owners(ids, begin + tl.arange(0, TOKENS),
                        (tl.arange(0, TOKENS) < each) & (begin + tl.arange(0, TOKENS) < m), experts, K, CHOICES, E_LOC)
            tokens = tl.maximum(tl.minimum(m - begin, each), 0)
            for t in range(part - senders, tl.cdiv(tokens, ROWS), PARTS):
                local = t * ROWS + line
                token = (begin + local).to(tl.int64)
                place_of_own = slots_of(to, index, local)
                land = of(landing, index) + place_of_own
                own_there = (place_of_own >= 0) & (local < tokens) & (land < limit)
                spots, by, most_here = own_choices(positions, weights, land, own_there, K, CHOICES, PLACED, WEIGHTED,
                                                    SINGLE)
                came = rows_in
                if SINGLE:  # all flags before any row, so that all rows of a token are loaded together
                    for i in range(1, WORLD):
                        r = (index + i) % WORLD
                        place = slots_of(to, r, local)
                        sent = (place >= 0) & (local < tokens)
                        if tl.max(sent.to(tl.int32), 0) > 0:
                            arrival = wait_for(r, place, sent, slots, arrived, flags_source, epoch, t * WORLD + r, ROUND)
                            came = dl.consume_token(came, arrival)
                    if WORLD == 2:
                        place = slots_of(to, 1 - index, local)
                        other_at = came + ((1 - index) * slots + begin + place).to(tl.int64)[:, None] * row
                        of_other = ((place >= 0) & (local < tokens))[:, None]
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tile = (local < tokens)[:, None] & (cols < row)[None, :]
                    if SINGLE and WORLD == 2:
                        theirs = tl.load(other_at + cols[None, :], mask=of_other & (cols < row)[None, :], other=0.0)
                    if SINGLE and HAS_RESIDUAL:
                        added = tl.load(residual + token[:, None] * row + cols[None, :], mask=tile, other=0.0)
                    own = own_part(y, spots, by, most_here, land, own_there, cols, row, K, PLACED, WEIGHTED, SINGLE)
                    own = own.to(data.dtype.element_ty).to(tl.float32)  # rounded as others' parts are
                    total = tl.zeros((ROWS, COLS), tl.float32)
                    if SINGLE and WORLD == 2:
                        total += own
                        total += theirs.to(tl.float32)  # the order of two does not matter
                    else:
                        for r in range(WORLD):
                            if r == index:
                                total += own
                            else:
                                place = slots_of(to, r, local)
                                sent = (place >= 0) & (local < tokens)
                                if tl.max(sent.to(tl.int32), 0) > 0:  # some of these tokens went to rank r
                                    source = came
                                    if not SINGLE:
                                        number = (t * tl.cdiv(row, COLS) + column // COLS) * WORLD + r
                                        arrival = wait_for(r, place, sent, slots, arrived, flags_source, epoch, number, ROUND)
                                        source = dl.consume_token(came, arrival)
                                    source += (r * slots + begin + place).to(tl.int64)[:, None] * row
                                    theirs = tl.load(source + cols[None, :],
                                                     mask=sent[:, None] & (cols < row)[None, :],
                                                     other=0.0)
                                    total += theirs.to(tl.float32)
                    if HAS_BIAS:
                        total += tl.load(bias + cols, mask=cols < row, other=0.0).to(tl.float32)[None, :]
                    if HAS_RESIDUAL:
                        if not SINGLE:
                            added = tl.load(residual + token[:, None] * row + cols[None, :], mask=tile, other=0.0)
                        total += added.to(tl.float32)
                    dl.trace_start("store", t * tl.cdiv(row, COLS) + column // COLS, index)
                    tl.store(out + token[:, None] * row + cols[None, :], total.to(out.dtype.element_ty), mask=tile)
                    dl.trace_stop("store", t * tl.cdiv(row, COLS) + column // COLS)
        dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == senders * chunks))


@triton.jit
def wait_for(r, place, sent, slots, arrived, flags_source, epoch, number, ROUND: tl.constexpr):
    """Waits for the rounds of rank r that have the rows at the places where they are `sent`; a token. number: for traces."""
    first = tl.min(tl.where(sent, place, slots), 0) // ROUND
    last = tl.max(tl.where(sent, place, 0), 0) // ROUND
    dl.trace_start("wait", number, r)
    arrival = dl.wait(arrived + r * flags_source + first, last - first + 1, "sys", "acquire", epoch)
    dl.trace_stop("wait", number)
    return arrival


@triton.jit
def own_choices(positions, weights, land, there, K: tl.constexpr, CHOICES: tl.constexpr, PLACED: tl.constexpr,
                WEIGHTED: tl.constexpr, SINGLE: tl.constexpr):
    """What own_part takes of rows `land` that came: choices_of, or where SINGLE present_first."""
    most = 0
    if PLACED and SINGLE:
        spots, by, most = present_first(positions, weights, land, there, K, WEIGHTED)
    else:
        spots, by = choices_of(positions, weights, land, there, tl.arange(0, CHOICES), K, PLACED, WEIGHTED)
    return spots, by, most


@triton.jit
def own_part(y, spots, by, most, land, there, cols, row, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr,
             SINGLE: tl.constexpr):
    """part_of. Where SINGLE, _AT_ONCE rows of y are loaded before the first is added, and no more than there are choices."""
    if PLACED and SINGLE:
        found = tl.zeros((land.shape[0], cols.shape[0]), tl.float32)
        for first in tl.static_range(0, K, _AT_ONCE):
            if first < most:
                terms = ()
                for i in tl.static_range(_AT_ONCE):
                    if first + i < K:
                        spot = spots[first + i]
                        terms = terms + (tl.load(y + spot.to(tl.int64)[:, None] * row + cols[None, :],
                                                 mask=(spot >= 0)[:, None] & (cols < row)[None, :],
                                                 other=0.0), )
                for i in tl.static_range(_AT_ONCE):
                    if first + i < K:
                        term = terms[i].to(tl.float32)
                        if WEIGHTED:
                            term *= by[first + i][:, None]
                        found += term
    else:
        found = part_of(y, spots, by, land, there, cols, row, K, PLACED, WEIGHTED)
    return found


@triton.jit
def choices_of(positions, weights, land, there, choice, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """For rows `land` that came, [ROWS, CHOICES]: where each choice lies in y, -1 for none, and its weight; 0 if not needed."""
    spots, by = 0, 0
    if PLACED:
        at = land.to(tl.int64)[:, None] * K + choice[None, :]
        here = there[:, None] & (choice < K)[None, :]
        spots = tl.load(positions + at, mask=here, other=-1)
        if WEIGHTED:
            by = tl.load(weights + at, mask=here, other=0.0)
    return spots, by


@triton.jit
def part_of(y, spots, by, land, there, cols, row, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """fp32 [len(land), len(cols)]: what this rank has of rows `land` that came; 0 where not `there`."""
    if PLACED:
        found = tl.zeros((land.shape[0], cols.shape[0]), tl.float32)
        for j in tl.static_range(K):
            spot = column_of(spots, j)
            term = tl.load(y + spot.to(tl.int64)[:, None] * row + cols[None, :],
                           mask=(spot >= 0)[:, None] & (cols < row)[None, :],
                           other=0.0).to(tl.float32)
            if WEIGHTED:
                term *= column_of(by, j)[:, None]
            found += term
    else:
        found = tl.load(y + land.to(tl.int64)[:, None] * row + cols[None, :],
                        mask=there[:, None] & (cols < row)[None, :],
                        other=0.0).to(tl.float32)
    return found


@triton.jit
def present_first(positions, weights, land, there, K: tl.constexpr, WEIGHTED: tl.constexpr):
    """choices_of for one row at a time: K entries [len(land)] of each, the choices of this rank first, in their order.

    And how many there are.
    """
    at = land.to(tl.int64) * K
    every, weight, before = (), (), ()
    count = tl.zeros(land.shape, tl.int32)
    for j in tl.static_range(K):
        spot = tl.load(positions + at + j, mask=there, other=-1)
        every, before = every + (spot, ), before + (count, )
        count += (spot >= 0).to(tl.int32)
        if WEIGHTED:
            weight = weight + (tl.load(weights + at + j, mask=there, other=0.0), )
    spots, by = (), ()
    for i in tl.static_range(K):
        spot = tl.full(land.shape, -1, tl.int32)
        share = tl.zeros(land.shape, tl.float32)
        for j in tl.static_range(i, K):
            here = (every[j] >= 0) & (before[j] == i)
            spot = tl.where(here, every[j], spot)
            if WEIGHTED:
                share = tl.where(here, weight[j], share)
        spots, by = spots + (spot, ), by + (share, )
    return spots, by, tl.max(count, 0)
