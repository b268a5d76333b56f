# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Combine: each rank's sums over its own experts go back to the ranks that have the tokens. One program a chunk of tokens."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import matrix_of, of, owners, slots_of
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts"])
def ep_combine_kernel(y, ids, told, positions, weights, bias, residual, out, packets, packets_half, data, half, flags,
                      flags_source, flags_half, control, team, m, most, rounds, row, limit, experts, K: tl.constexpr,
                      CHOICES: tl.constexpr, E_LOC: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr,
                      HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                      PITCH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                      SEND: tl.constexpr = True, TAKE: tl.constexpr = True):
    """out [m, row] = for each token the sum over ranks of what came of it there, in the order of ranks, + bias + residual.

    What a rank has of a row that came: row `r` of y [limit, row]; or, where PLACED, the sum over its choices j in order of
    weights[r, j] * y[positions[r, j]], in fp32 with one rounding. Rows of `limit` and beyond were cut off, and count as zeros.
    The order of rows and `told` are those of ep_dispatch_kernel, and `ids` is what that was given.
    In a round a program sends ROWS rows of its chunk to each rank, and sums the tokens of the round before: these need no later
    one. SEND, TAKE: as in ep_dispatch_kernel.
    Who writes: a chunk's program the rows of source s into slots [own index] of s's half `epoch & 1`, and after each round
    the epoch (sys) into flags [own index][epoch & 1][chunk][round] there; program 0 a packet to every rank.
    Who waits: the same chunk's program of the owner for rows; program 0 for the packets of all, which bounds the epoch.
    """
    index = dl.team_rank(team)
    pid, chunks = tl.program_id(0), tl.num_programs(0)
    if SEND:
        epoch = epoch_in_turn(control)
    else:
        epoch = tl.load(control + pid)  # of the call that was sent
    rank = tl.arange(0, RANKS)
    member = tl.minimum(rank, WORLD - 1)
    inbox = packets + (epoch & 1) * packets_half
    if SEND:
        to_peers = at_member(inbox + index * PITCH + 0 * rank, team, member)
        dl.ll_store(to_peers, 1 + 0 * rank, epoch, (rank < WORLD) & (pid == 0))
        count_call(control, epoch)  # while the packets travel
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    to = owners(ids, pid * each + tl.arange(0, TOKENS),
                (tl.arange(0, TOKENS) < each) & (pid * each + tl.arange(0, TOKENS) < m), experts, K, CHOICES, E_LOC)
    chunk = tl.arange(0, PITCH)
    counts = tl.load(told + 1 + rank[:, None] * chunks + chunk[None, :],
                     mask=(rank < WORLD)[:, None] & (chunk < chunks)[None, :],
                     other=0)
    giving, landing, first = matrix_of(counts, pid)
    slots = chunks * most  # that a rank may fill
    arrived = flags + (epoch & 1) * flags_half + pid * rounds
    everyone = dl.symm_at(arrived + index * flags_source + 0 * rank, dl.team_world_rank(team, member))
    rows_in = data + (epoch & 1).to(tl.int64) * half
    line = tl.arange(0, ROWS)
    tokens = tl.maximum(tl.minimum(m - pid * each, each), 0)
    longest = tl.maximum(tl.max(tl.where(rank == index, 0, giving), 0), tokens)
    for t in range(tl.cdiv(longest, ROWS) + 1):
        if SEND:
            for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
                peer = (index + i) % WORLD
                give = of(giving, peer)
                if t * ROWS < give:
                    place = t * ROWS + line
                    dl.trace_start("push", t * WORLD + i, peer)
                    land = of(landing, peer) + place
                    outbox = dl.symm_at(rows_in, dl.team_world_rank(team, peer))
                    outbox += (index * slots + of(first, peer) + place).to(tl.int64)[:, None] * row
                    for column in range(0, row, COLS):
                        cols = column + tl.arange(0, COLS)
                        part = part_of(y, positions, weights, land, (place < give) & (land < limit), cols, row, K, PLACED,
                                       WEIGHTED)
                        tl.store(outbox + cols[None, :],
                                 part.to(data.dtype.element_ty),
                                 mask=(place < give)[:, None] & (cols < row)[None, :])
                    dl.trace_stop("push", t * WORLD + i)
            dl.notify_each(everyone + t, epoch, (rank < WORLD) & (rank != index) & (t * ROWS < giving))
        if TAKE:
            if (t >= 1) & ((t - 1) * ROWS < tokens):
                local = (t - 1) * ROWS + line
                token = (pid * each + local).to(tl.int64)
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tile = (local < tokens)[:, None] & (cols < row)[None, :]
                    total = tl.zeros((ROWS, COLS), tl.float32)
                    for r in range(WORLD):
                        place = slots_of(to, r, local)
                        sent = (place >= 0) & (local < tokens)
                        last = tl.max(tl.where(sent, place, 0), 0) // ROWS  # its flag follows those of earlier rounds
                        if tl.max(sent.to(tl.int32), 0) > 0:  # some of these tokens went to rank r
                            if r == index:
                                land = of(landing, index) + place
                                own = part_of(y, positions, weights, land, sent & (land < limit), cols, row, K, PLACED,
                                              WEIGHTED)
                                total += own.to(data.dtype.element_ty).to(tl.float32)  # rounded as others' parts are
                            else:
                                dl.trace_start("wait", ((t - 1) * tl.cdiv(row, COLS) + column // COLS) * WORLD + r, r)
                                arrival = dl.wait(arrived + r * flags_source + last, 1, "sys", "acquire", epoch)
                                dl.trace_stop("wait", ((t - 1) * tl.cdiv(row, COLS) + column // COLS) * WORLD + r)
                                source = dl.consume_token(rows_in, arrival)
                                source += (r * slots + pid * each + place).to(tl.int64)[:, None] * row
                                theirs = tl.load(source + cols[None, :],
                                                 mask=sent[:, None] & (cols < row)[None, :],
                                                 other=0.0)
                                total += theirs.to(tl.float32)
                    if HAS_BIAS:
                        total += tl.load(bias + cols, mask=cols < row, other=0.0).to(tl.float32)[None, :]
                    if HAS_RESIDUAL:
                        total += tl.load(residual + token[:, None] * row + cols[None, :], mask=tile,
                                         other=0.0).to(tl.float32)
                    dl.trace_start("store", ((t - 1) * tl.cdiv(row, COLS) + column // COLS), index)
                    tl.store(out + token[:, None] * row + cols[None, :], total.to(out.dtype.element_ty), mask=tile)
                    dl.trace_stop("store", ((t - 1) * tl.cdiv(row, COLS) + column // COLS))
    if TAKE:
        dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == 0))


@triton.jit
def part_of(y, positions, weights, land, there, cols, row, K: tl.constexpr, PLACED: tl.constexpr,
            WEIGHTED: tl.constexpr):
    """fp32 [len(land), len(cols)]: what this rank has of rows `land` that came; 0 where not `there`."""
    if PLACED:
        found = tl.zeros((land.shape[0], cols.shape[0]), tl.float32)
        for j in range(K):
            at = land.to(tl.int64) * K + j
            spot = tl.load(positions + at, mask=there, other=-1)
            term = tl.load(y + spot.to(tl.int64)[:, None] * row + cols[None, :],
                           mask=(spot >= 0)[:, None] & (cols < row)[None, :],
                           other=0.0).to(tl.float32)
            if WEIGHTED:
                term *= tl.load(weights + at, mask=there, other=0.0)[:, None]
            found += term
    else:
        found = tl.load(y + land.to(tl.int64)[:, None] * row + cols[None, :],
                        mask=there[:, None] & (cols < row)[None, :],
                        other=0.0).to(tl.float32)
    return found
