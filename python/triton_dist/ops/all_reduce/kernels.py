# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce in two hops; that in one hop is in ops.exchange.kernels.

OP is the reduction (ops.device.reduce). Its order is the same on all ranks, with one rounding, so it repeats bit by bit.
"""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.launch_metadata import two_hops
from triton_dist.ops.device.packets import (at_member, count_call, deltas_of_peers, epoch_in_turn, load_words, reduce_over_ranks,
                                      store_words)
from triton_dist.ops.device.reduce import combined, finished, neutral
from triton_dist.ops.device.selfflag import COPIES, finished_words, load_vectors, store_vectors, taken_from_all
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["n", "part"], launch_metadata=two_hops)
def two_shot_kernel(x, out, slots, half, control, team, n, part, WORLD: tl.constexpr, RANKS: tl.constexpr,
                    THREADS: tl.constexpr, WHOLE: tl.constexpr, OP: tl.constexpr):
    """out [n] = reduction over ranks of x [n], in two hops: rank j reduces part j, of `part` words, and sends it to all.

    Packets, threads and RANKS as in one_hop_packets: slots [2 halves of `half`][terms, sums][rank][part][pair].
    Who writes: every rank stores part j of x into row `index` of rank j's terms, and its sum into row `index` of all ranks' sums.
    Who waits: a program, for its words of every peer's term and sum; so the epoch is bounded as there.
    """
    index = dl.team_rank(team)
    rank = tl.arange(0, THREADS) % RANKS
    peer = (rank < WORLD) & (rank != index)
    outbox = at_member(slots + 2 * index * part, team, tl.minimum(rank, WORLD - 1))
    epoch = epoch_in_turn(control)
    inbox = slots + (epoch & 1) * half
    outbox += (epoch & 1) * half
    sums = 2 * WORLD * part
    block: tl.constexpr = THREADS // RANKS
    first, step = tl.program_id(0) * block, tl.num_programs(0) * block
    for start in range(first, part, step):
        word = start + tl.arange(0, THREADS) // RANKS
        send = peer & (word < part)
        dl.trace_start("push", 2 * ((start - first) // step), -1)
        dl.ll_store_pair(outbox + 2 * word, load_words(x, rank * part + word, send, n, WHOLE), epoch, send)
        dl.trace_stop("push", 2 * ((start - first) // step))
    count_call(control, epoch)                  # while the packets travel
    for start in range(first, part, step):
        word = start + tl.arange(0, THREADS) // RANKS
        send = peer & (word < part)
        own = (rank == index) & (word < part)
        mine = load_words(x, rank * part + word, own, n, WHOLE)
        dl.trace_start("wait", 2 * ((start - first) // step), -1)
        theirs = dl.ll_load_pair(inbox + 2 * (rank * part + word), epoch, send)
        dl.trace_stop("wait", 2 * ((start - first) // step))
        total = reduce_over_ranks(mine | theirs, x.dtype.element_ty, WORLD, RANKS, OP)
        dl.trace_start("push", 2 * ((start - first) // step) + 1, -1)
        dl.ll_store_pair(outbox + sums + 2 * word, total, epoch, send)
        dl.trace_stop("push", 2 * ((start - first) // step) + 1)
        store_words(out, rank * part + word, own, n, total, WHOLE)
    for start in range(first, part, step):
        word = start + tl.arange(0, THREADS) // RANKS
        send = peer & (word < part)
        dl.trace_start("wait", 2 * ((start - first) // step) + 1, -1)
        theirs = dl.ll_load_pair(inbox + sums + 2 * (rank * part + word), epoch, send)
        dl.trace_stop("wait", 2 * ((start - first) // step) + 1)
        dl.trace_start("store", (start - first) // step, -1)
        store_words(out, rank * part + word, send, n, theirs, WHOLE)
        dl.trace_stop("store", (start - first) // step)


@jit(do_not_specialize=["n", "part", "rounds"], launch_metadata=two_hops)
def two_hops_self_flagged(x, out, slots, half, control, team, n, part, rounds, OP: tl.constexpr, WORLD: tl.constexpr,
                          THREADS: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr):
    """out [n] = reduction over ranks of x [n], in two hops: rank j reduces part j, of `part` vectors, and sends it to all.

    Stores and rounds as in one_hop_self_flagged: int32 slots [2 buffers of `half`][terms, results][rank][part][4].
    Who writes: every rank stores part j of x into row `index` of rank j's terms, and its result into row `index` of all ranks'.
    Who waits: a program, for its vectors of every peer's term and result. A rank whose part is empty hears of every peer by the
    results that it waits for, and is heard by its terms; so the epoch is bounded as there.
    """
    index = dl.team_rank(team)
    dtype: tl.constexpr = x.dtype.element_ty
    vectors = tl.cdiv(n * (dtype.primitive_bitwidth // 8), 16)
    deltas = deltas_of_peers(team, WORLD)
    epoch = epoch_in_turn(control)
    inbox, results = slots + (epoch & 1) * half, 4 * WORLD * part
    outbox = inbox + 4 * index * part
    first, step = tl.program_id(0) * THREADS + tl.arange(0, THREADS), tl.num_programs(0) * THREADS
    for t in range(rounds):
        for v in tl.static_range(EACH):
            at = first + (t * EACH + v) * step
            for i in tl.static_range(1, WORLD):
                source = (index + i) % WORLD * part + at
                send = (at < part) & (source < vectors)
                dl.trace_start("push", 2 * (t * EACH + v) * WORLD + i, (index + i) % WORLD)
                dl.sf_store(outbox + deltas[i - 1] + 4 * at, dl.sf_filled(load_vectors(x, source, send, n, WHOLE)), send)
                dl.trace_stop("push", 2 * (t * EACH + v) * WORLD + i)
        if t == 0:
            count_call(control, epoch, COPIES)  # while the data travels
        for v in tl.static_range(EACH):
            at = first + (t * EACH + v) * step
            target = index * part + at
            inside = (at < part) & (target < vectors)
            own = dl.sf_filled(load_vectors(x, target, inside, n, WHOLE))
            dl.trace_start("wait", 2 * (t * EACH + v) * WORLD, -1)
            terms = taken_from_all(own, inbox + 4 * at, 4 * part, inside, index, dtype, WORLD, OP)
            dl.trace_stop("wait", 2 * (t * EACH + v) * WORLD)
            total = dl.sf_filled(finished_words(terms, dtype, WORLD, OP))
            for i in tl.static_range(1, WORLD):
                dl.trace_start("push", (2 * (t * EACH + v) + 1) * WORLD + i, (index + i) % WORLD)
                dl.sf_store(outbox + deltas[i - 1] + results + 4 * at, total, inside)
                dl.trace_stop("push", (2 * (t * EACH + v) + 1) * WORLD + i)
            dl.trace_start("store", t * EACH + v, index)
            store_vectors(out, target, inside, n, dl.sf_plain(total), WHOLE)
            dl.trace_stop("store", t * EACH + v)
        for v in tl.static_range(EACH):
            at = first + (t * EACH + v) * step
            for i in tl.static_range(1, WORLD):
                source = (index + i) % WORLD
                target = source * part + at
                inside = (at < part) & (target < vectors)
                dl.trace_start("wait", (2 * (t * EACH + v) + 1) * WORLD + i, source)
                taken = dl.sf_take(inbox + results + 4 * (source * part + at), inside)
                dl.trace_stop("wait", (2 * (t * EACH + v) + 1) * WORLD + i)
                store_vectors(out, target, inside, n, dl.sf_plain(taken), WHOLE)


@jit(do_not_specialize=["blocks", "rounds"], launch_metadata=two_hops)
def push_kernel(x, out, data, half, flags, flags_half, control, team, n, blocks, rounds, WORLD: tl.constexpr,
                RANKS: tl.constexpr, BLOCK: tl.constexpr, OP: tl.constexpr):
    """out [n] = reduction over ranks of x [n] in two hops of plain stores: data [terms, sums; of `half` each][rank][part].

    A part is `blocks` blocks; in round t a program takes block t * programs + pid of every part. It sends the terms of round t,
    sums what came in round t - 1 and sends the sums, and copies to `out` the sums of round t - 2, so that the links never idle.
    Who writes: every rank stores block by block part j of x into row `index` of rank j's terms, later its sum into that row of
    all ranks' sums, and behind each releases the epoch (sys) into flags[terms, sums; of `flags_half`][round][pid][index].
    Who waits: the same program of the receiver, for the flags of all ranks.
    What bounds the epoch: a rank that has all sums of call n knows that all terms of n have been read, so terms of n + 1 may take
    their place; one that has all terms of n + 1 knows that all ranks have ended call n, so the sums may. No parity is needed.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    part = blocks.to(tl.int64) * BLOCK
    outboxes = ()                               # this rank's row of the terms of peer index + 1, index + 2, ...
    for i in tl.static_range(1, WORLD):
        outboxes = outboxes + (dl.symm_at(data + index * part, dl.team_world_rank(team, (index + i) % WORLD)), )
    arrived, summed = flags + pid * WORLD, flags + flags_half + pid * WORLD
    rank = tl.arange(0, RANKS)
    everyone = dl.symm_at(arrived + index + 0 * rank, dl.team_world_rank(team, tl.minimum(rank, WORLD - 1)))
    count_call(control, epoch)
    for t in range(rounds + 2):
        if t * programs + pid < blocks:
            dl.trace_start("push", 2 * t, -1)
            offs = (t * programs + pid).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            for i in tl.static_range(1, WORLD):
                at = (index + i) % WORLD * part + offs
                tl.store(outboxes[i - 1] + offs, tl.load(x + at, mask=at < n, other=0.0))
            dl.notify_each(everyone + t * programs * WORLD, epoch, rank < WORLD)
            dl.trace_stop("push", 2 * t)
        if (t >= 1) & ((t - 1) * programs + pid < blocks):
            dl.trace_start("wait", 2 * t - 2, -1)
            token = dl.wait(arrived + (t - 1) * programs * WORLD, WORLD, "sys", "acquire", epoch)
            dl.trace_stop("wait", 2 * t - 2)
            dl.trace_start("add", t - 1, -1)
            offs = ((t - 1) * programs + pid).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            at = index * part + offs
            mine = tl.load(x + at, mask=at < n, other=0.0)
            here = dl.consume_token(data, token)
            total = neutral((BLOCK,), x.dtype.element_ty, OP)
            for r in tl.static_range(WORLD):
                theirs = tl.load(here + r * part + offs, mask=(offs >= 0) & (index != r), other=0.0)
                total = combined(total, tl.where(index == r, mine, theirs).to(total.dtype), OP)
            total = finished(total, WORLD, OP).to(out.dtype.element_ty)
            dl.trace_stop("add", t - 1)
            dl.trace_start("push", 2 * t - 1, -1)
            for i in tl.static_range(1, WORLD):
                tl.store(outboxes[i - 1] + half + offs, total)
            tl.store(out + at, total, mask=at < n)
            dl.notify_each(everyone + flags_half + (t - 1) * programs * WORLD, epoch, rank < WORLD)
            dl.trace_stop("push", 2 * t - 1)
        if (t >= 2) & ((t - 2) * programs + pid < blocks):
            dl.trace_start("wait", 2 * t - 3, -1)
            token = dl.wait(summed + (t - 2) * programs * WORLD, WORLD, "sys", "acquire", epoch)
            dl.trace_stop("wait", 2 * t - 3)
            dl.trace_start("store", t - 2, -1)
            offs = ((t - 2) * programs + pid).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            here = dl.consume_token(data, token) + half
            for i in tl.static_range(1, WORLD):
                source = (index + i) % WORLD * part + offs
                tl.store(out + source, tl.load(here + source), mask=source < n)
            dl.trace_stop("store", t - 2)
