# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Chunks for each (rank, expert): rows go to slots that the sender knows, sizes by packets; the receiver puts rows in order."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "capacity", "most", "rounds"])
def all_to_all_vdev_2d_kernel(x, in_splits, out, out_splits_offsets, packets, packets_half, data, half, flags, flags_source,
                              flags_half, control, team, m, row, capacity, most, rounds, align, BY_RANK: tl.constexpr,
                              EXPERTS: tl.constexpr, E_PAD: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                              ROWS: tl.constexpr, COLS: tl.constexpr):
    """out [capacity, row] = this rank's chunks of every rank's x [m, row].

    BY_RANK: in_splits [WORLD * EXPERTS] are rows for (rank, expert), one chunk after the other in x. In `out` chunks lie by
    (expert, source), and an expert's begin at a multiple of `align`; one without rows takes `align` rows. Otherwise in_splits [2,
    EXPERTS * WORLD] has rows and begins in x of (expert, rank), and in `out` chunks lie by (source, expert) without gaps.
    out_splits_offsets [2, WORLD * EXPERTS]: rows of each chunk in the order of `out`, fitting or not, and where they begin.
    A rank's list for another one is its chunks in the order of experts, up to `most` rows, which is enough for all that can fit.
    In round t a program sends block t * programs + pid of ROWS rows of each list, into slots [own index][most] of the receiver's
    half `epoch & 1`, and takes what came in round t - 1. Nobody is waited for before rows are sent.
    Who writes: program 0 a packet for each chunk into [own index][expert] of its receiver; every program its rows, and after each
    block the epoch (sys) into flags [own index][epoch & 1][program][round] there.
    Who waits: every program for the packets of all ranks, which bounds the epoch; the same program of the receiver for rows.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    rank, expert, slot = tl.arange(0, RANKS), tl.arange(0, E_PAD), tl.arange(0, ROWS)
    cell = tl.arange(0, RANKS * E_PAD)                      # of a table [RANKS, E_PAD]
    of_rank, of_expert = cell // E_PAD, cell % E_PAD
    valid = (of_rank < WORLD) & (of_expert < EXPERTS)
    if BY_RANK:
        wanted = tl.load(in_splits + of_rank * EXPERTS + of_expert, mask=valid, other=0)
        wanted = tl.minimum(tl.maximum(wanted, 0), m).to(tl.int64)
        end = tl.cumsum(wanted, 0)
        begin = tl.minimum(end - wanted, m).to(tl.int32)
        giving = tl.minimum(end, m).to(tl.int32) - begin
    else:
        given = in_splits + of_expert * WORLD + of_rank
        begin = tl.load(given + WORLD * EXPERTS, mask=valid, other=0)
        begin = tl.minimum(tl.maximum(begin, 0), m).to(tl.int32)
        giving = tl.minimum(tl.maximum(tl.load(given, mask=valid, other=0), 0), m - begin).to(tl.int32)
    begin, giving = tl.reshape(begin, (RANKS, E_PAD)), tl.reshape(giving, (RANKS, E_PAD))
    inbox = packets + (epoch & 1) * packets_half
    to = at_member(inbox + index * E_PAD + of_expert, team, tl.minimum(of_rank, WORLD - 1))
    dl.ll_store(to, tl.reshape(giving, (RANKS * E_PAD, )), epoch, valid & (pid == 0))
    count_call(control, epoch)                              # while the packets travel
    rows_in = data + (epoch & 1).to(tl.int64) * half
    arrived = flags + (epoch & 1) * flags_half + pid * rounds
    everyone = dl.symm_at(arrived + index * flags_source + 0 * rank,
                          dl.team_world_rank(team, tl.minimum(rank, WORLD - 1)))
    going = tl.minimum(tl.sum(giving, 1), most)
    mine = tl.where(rank == index, 0, going)
    turn = programs * ROWS                                  # rows that the programs move in a round
    last = tl.cdiv(tl.max(mine, 0), turn)
    coming, places, taking = 0 * giving, 0 * giving, 0 * going
    t = 0
    while t <= last:
        first = t * turn + pid * ROWS
        for i in range(1, WORLD):                           # not unrolled: the code would grow with the ranks
            peer = (index + i) % WORLD
            go = of(going, peer)
            if first < go:
                dl.trace_start("push", t * WORLD + i, peer)
                place = first + slot
                source = spots(begin, giving, peer, place).to(tl.int64)[:, None] * row
                outbox = dl.symm_at(rows_in, dl.team_world_rank(team, peer))
                outbox += (index.to(tl.int64) * most + place)[:, None] * row
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tile = (place < go)[:, None] & (cols < row)[None, :]
                    tl.store(outbox + cols[None, :], tl.load(x + source + cols[None, :], mask=tile), mask=tile)
                dl.trace_stop("push", t * WORLD + i)
        dl.notify_each(everyone + t, epoch, (rank < WORLD) & (first < mine))
        if t == 0:                                          # the sizes, once the first round is on its way
            dl.trace_start("wait", 0, -1)
            told = dl.ll_load(inbox + cell, epoch, valid)
            dl.trace_stop("wait", 0)
            coming = tl.reshape(tl.where(valid, told, 0), (RANKS, E_PAD))
            if BY_RANK:
                wide = tl.cdiv(tl.sum(coming, 0), align) * align
                wide = tl.where(expert < EXPERTS, tl.maximum(wide, align), 0)
                places = (tl.cumsum(wide, 0) - wide)[None, :] + tl.cumsum(coming, 0) - coming
                at = of_expert * WORLD + of_rank
            else:
                flat = tl.reshape(coming, (RANKS * E_PAD, ))
                places = tl.reshape(tl.cumsum(flat, 0) - flat, (RANKS, E_PAD))
                at = of_rank * EXPERTS + of_expert
            if pid == 0:
                tl.store(out_splits_offsets + at, tl.reshape(coming, (RANKS * E_PAD, )), mask=valid)
                tl.store(out_splits_offsets + WORLD * EXPERTS + at, tl.reshape(places, (RANKS * E_PAD, )), mask=valid)
            taking = tl.minimum(tl.sum(coming, 1), most)
            last = tl.cdiv(tl.max(tl.where(rank == index, 0, tl.maximum(going, taking)), 0), turn)
        else:
            first -= turn
            for i in range(1, WORLD):
                peer = (index + i) % WORLD
                come = of(taking, peer)
                if first < come:
                    dl.trace_start("wait", t * WORLD + i, peer)
                    token = dl.wait(arrived + peer * flags_source + t - 1, 1, "sys", "acquire", epoch)
                    dl.trace_stop("wait", t * WORLD + i)
                    dl.trace_start("store", t * WORLD + i, peer)
                    place = first + slot
                    land = spots(places, coming, peer, place)
                    source = dl.consume_token(rows_in, token) + (peer.to(tl.int64) * most + place)[:, None] * row
                    for column in range(0, row, COLS):
                        cols = column + tl.arange(0, COLS)
                        tile = ((place < come) & (land < capacity))[:, None] & (cols < row)[None, :]
                        rows = tl.load(source + cols[None, :], mask=tile)
                        tl.store(out + land.to(tl.int64)[:, None] * row + cols[None, :], rows, mask=tile)
                    dl.trace_stop("store", t * WORLD + i)
        t += 1
    own = of(going, index)
    for first in range(pid * ROWS, own, turn):
        dl.trace_start("store", first // turn * WORLD, index)
        place = first + slot
        source, land = spots(begin, giving, index, place), spots(places, coming, index, place)
        for column in range(0, row, COLS):
            cols = column + tl.arange(0, COLS)
            tile = ((place < own) & (land < capacity))[:, None] & (cols < row)[None, :]
            rows = tl.load(x + source.to(tl.int64)[:, None] * row + cols[None, :], mask=tile)
            tl.store(out + land.to(tl.int64)[:, None] * row + cols[None, :], rows, mask=tile)
        dl.trace_stop("store", first // turn * WORLD)


@triton.jit
def spots(begins, counts, rank, place):
    """int32 [len(place)]: where rows `place` of a rank's list lie. Its chunks [RANKS, E_PAD] have `counts` rows from `begins`."""
    line = (tl.arange(0, counts.shape[0]) == rank)[:, None]
    count, begin = tl.sum(tl.where(line, counts, 0), 0), tl.sum(tl.where(line, begins, 0), 0)
    end = tl.cumsum(count, 0)
    here = (place[:, None] >= (end - count)[None, :]) & (place[:, None] < end[None, :])
    return tl.sum(tl.where(here, (begin - end + count)[None, :] + place[:, None], 0), 1)


@triton.jit
def of(values, i):
    """Element `i` of a vector."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == i, values, 0))
