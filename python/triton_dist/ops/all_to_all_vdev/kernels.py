# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-to-all by splits on the device: counts by packets to everyone, then each row to where it will lie."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "capacity"])
def all_to_all_vdev_kernel(x, in_splits, out, out_splits_offsets, slots, slots_half, data, half, flags, control, team,
                           m, row, capacity, WORLD: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """out [capacity, row] = the rows of every rank's x [m, row] that its in_splits [WORLD] give to this one, in ranks' order.

    First every rank tells every rank its splits, cut to what x has: int64 slots [2 halves of `slots_half`][rank][split][pair].
    From the whole matrix all ranks know where each row lies in the receiver's out, and what does not fit. Then as in
    one_hop_push: in round t a program sends block t * programs + pid of its rows for each rank, into data [2 halves of `half`]
    [capacity, row] there, and takes what came in round t - 1.
    out_splits_offsets [2, WORLD]: rows that each rank has for this one, whether they fit or not, and where in out they begin.
    Who writes: every rank its row `index` of the matrix on all ranks, its rows where they will lie in the receiver's half
    `epoch & 1`, and behind each block the epoch (sys) into flags[round][pid][index] there.
    Who waits: every program for the matrix, which bounds the epoch; the same program of the receiver for the flags of the
    blocks that are there. Flags need no halves: who has the matrix knows that all ranks have ended the call before.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    inbox = data + (epoch & 1).to(tl.int64) * half
    rank = tl.arange(0, RANKS)
    cell = tl.arange(0, RANKS * RANKS)                      # of the matrix: from rank cell // RANKS to rank cell % RANKS
    valid = (cell // RANKS < WORLD) & (cell % RANKS < WORLD)
    wanted = tl.load(in_splits + cell % RANKS, mask=valid, other=0)
    wanted = tl.minimum(tl.maximum(wanted, 0), m).to(tl.int32)                      # all ranks' rows together are below 2^31
    wanted = tl.reshape(wanted, (RANKS, RANKS))             # own splits, once for each receiver of them
    ends = tl.cumsum(wanted, 1)
    begins = tl.minimum(ends - wanted, m)
    matrix = slots + (epoch & 1) * slots_half
    to = at_member(matrix + 2 * (index * RANKS + cell % RANKS), team, tl.minimum(cell // RANKS, WORLD - 1))
    told = tl.reshape(tl.minimum(ends, m) - begins, (RANKS * RANKS, )).to(tl.int64)
    dl.ll_store_pair(to, told, epoch, valid & (pid == 0))
    count_call(control, epoch)                              # while the packets travel
    dl.trace_start("wait", 0, -1)
    counts = tl.reshape(dl.ll_load_pair(matrix + 2 * cell, epoch, valid).to(tl.int32), (RANKS, RANKS))
    dl.trace_stop("wait", 0)
    places = tl.cumsum(counts, 0) - counts
    fitting = tl.minimum(tl.maximum(capacity - places, 0), counts)
    source, target = tl.reshape(cell // RANKS, (RANKS, RANKS)), tl.reshape(cell % RANKS, (RANKS, RANKS))
    mine, others = (source == index).to(tl.int32), (target == index).to(tl.int32)
    if pid == 0:
        tl.store(out_splits_offsets + rank, tl.sum(others * counts, 1), mask=rank < WORLD)
        tl.store(out_splits_offsets + WORLD + rank, tl.sum(others * places, 1), mask=rank < WORLD)
    # by rank, in rows: what goes there, from where in x, to where; what comes from there, and to where
    going, begin, place = tl.sum(mine * fitting, 0), tl.sum(mine * begins, 0), tl.sum(mine * places, 0)
    coming, landing = tl.sum(others * fitting, 1), tl.sum(others * places, 1)
    width = tl.cast(row, tl.int64)                          # 1 is a constant
    arrived = flags + pid * WORLD
    everyone = dl.symm_at(arrived + index + 0 * rank, dl.team_world_rank(team, tl.minimum(rank, WORLD - 1)))
    most = tl.max(tl.where(rank == index, 0, tl.maximum(going, coming))) * width
    turn = programs.to(tl.int64) * BLOCK                    # elements that the programs move in a round
    for t in range(tl.cdiv(most, turn).to(tl.int32) + 1):
        first = t * turn + pid * BLOCK
        for i in range(1, WORLD):                           # not unrolled: 64 ranks took 37 s to compile
            peer = (index + i) % WORLD
            go = of(going, peer) * width
            if first < go:
                dl.trace_start("push", t * WORLD + i, peer)
                offs = first + tl.arange(0, BLOCK)
                outbox = dl.symm_at(inbox, dl.team_world_rank(team, peer)) + of(place, peer) * width
                rows = tl.load(x + of(begin, peer) * width + offs, mask=offs < go)
                tl.store(outbox + offs, rows, mask=offs < go)
                dl.trace_stop("push", t * WORLD + i)
        dl.notify_each(everyone + t * programs * WORLD, epoch, (rank < WORLD) & (rank != index) & (first < going * width))
        for i in range(1, WORLD):
            peer = (index + i) % WORLD
            come = of(coming, peer) * width
            if (t >= 1) & (first - turn < come):
                dl.trace_start("wait", t * WORLD + i, peer)
                token = dl.wait(arrived + (t - 1) * programs * WORLD + peer, 1, "sys", "acquire", epoch)
                dl.trace_stop("wait", t * WORLD + i)
                dl.trace_start("store", t * WORLD + i, peer)
                offs = first - turn + tl.arange(0, BLOCK)
                land = of(landing, peer) * width
                rows = tl.load(dl.consume_token(inbox, token) + land + offs, mask=offs < come)
                tl.store(out + land + offs, rows, mask=offs < come)
                dl.trace_stop("store", t * WORLD + i)
    go, read, land = of(going, index) * width, of(begin, index) * width, of(landing, index) * width
    for block in range(pid, tl.cdiv(go, BLOCK).to(tl.int32), programs):
        dl.trace_start("store", (block - pid) // programs * WORLD, index)
        offs = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + land + offs, tl.load(x + read + offs, mask=offs < go), mask=offs < go)
        dl.trace_stop("store", (block - pid) // programs * WORLD)


@triton.jit
def of(values, i):
    """Element `i` of a vector."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == i, values, 0))
