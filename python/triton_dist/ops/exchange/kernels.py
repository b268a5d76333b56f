# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels in which every rank sends something to every rank once, and reduces or keeps what arrives.

SCATTER: x is [WORLD, n] and rank j gets row j, else x is [n] and all ranks get it. OP: out is [n], the reduction over ranks
of what arrived (ops.device.reduce), or where OP is None it is [WORLD, n], a row from each rank. So all-reduce has OP alone,
reduce-scatter both, all-to-all SCATTER alone, and all-gather neither. `out` may be x, or where one of them has one row, this
rank's row of the other. Reductions are in an order that all ranks share, with one rounding.
"""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.launch_metadata import one_hop
from triton_dist.ops.device.packets import (at_member, count_call, deltas_of_peers, epoch_in_turn, load_words, reduce_over_ranks,
                                      store_words)
from triton_dist.ops.device.reduce import combined, finished, neutral
from triton_dist.ops.device.selfflag import COPIES, finished_words, load_vectors, store_vectors, taken_from_all
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["n", "words"], launch_metadata=one_hop)
def one_hop_packets(x, out, slots, half, control, team, n, words, SCATTER: tl.constexpr, OP: tl.constexpr, WORLD: tl.constexpr,
                    RANKS: tl.constexpr, THREADS: tl.constexpr, WHOLE: tl.constexpr):
    """Packets: int64 slots [2 halves of `half`][rank][words][pair], for n elements in `words` words.

    Thread t of a program exchanges word t // RANKS with rank t % RANKS: one pair of packets to store and one to poll, so that all
    latencies pass at the same time. RANKS is WORLD rounded up to a power of two.
    Who writes: every rank stores into its own row of every peer's half `epoch & 1`.
    Who waits: a program, for its words of every peer. That is also what bounds the epoch.
    """
    index = dl.team_rank(team)
    rank = tl.arange(0, THREADS) % RANKS
    peer = (rank < WORLD) & (rank != index)
    outbox = at_member(slots + 2 * index * words, team, tl.minimum(rank, WORLD - 1))
    epoch = epoch_in_turn(control)
    inbox = slots + (epoch & 1) * half
    outbox += (epoch & 1) * half
    source = x + rank * n if SCATTER else x
    target = out if OP is not None else out + rank * n
    block: tl.constexpr = THREADS // RANKS
    first, step = tl.program_id(0) * block, tl.num_programs(0) * block
    for start in range(first, words, step):
        word = start + tl.arange(0, THREADS) // RANKS
        inside = word < words
        dl.trace_start("push", (start - first) // step, -1)
        dl.ll_store_pair(outbox + 2 * word, load_words(source, word, peer & inside, n, WHOLE), epoch, peer & inside)
        dl.trace_stop("push", (start - first) // step)
    count_call(control, epoch)                  # while the packets travel
    for start in range(first, words, step):
        word = start + tl.arange(0, THREADS) // RANKS
        inside = word < words
        own = (rank == index) & inside
        mine = load_words(source, word, own, n, WHOLE)
        dl.trace_start("wait", (start - first) // step, -1)
        arrived = mine | dl.ll_load_pair(inbox + 2 * (rank * words + word), epoch, peer & inside)
        dl.trace_stop("wait", (start - first) // step)
        dl.trace_start("store", (start - first) // step, -1)
        if OP is not None:
            store_words(target, word, own, n, reduce_over_ranks(arrived, x.dtype.element_ty, WORLD, RANKS, OP), WHOLE)
        else:
            store_words(target, word, (rank < WORLD) & inside, n, arrived, WHOLE)
        dl.trace_stop("store", (start - first) // step)


@jit(do_not_specialize=["n", "vectors", "rounds"], launch_metadata=one_hop)
def one_hop_self_flagged(x, out, slots, half, control, team, n, vectors, rounds, SCATTER: tl.constexpr, OP: tl.constexpr,
                         WORLD: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr):
    """Reductions by self-flagged stores: int32 slots [2 buffers of `half`][rank][vectors][4], of n elements in vectors.

    In a round each thread stores EACH vectors of 16 bytes to all peers, then polls the same vectors of every peer.
    Who writes: every rank stores into its own row of every peer's buffer `epoch & 1`.
    Who waits: a program, for its vectors of every peer, and empties what it has taken. That also bounds the epoch.
    """
    index = dl.team_rank(team)
    dtype: tl.constexpr = x.dtype.element_ty
    deltas = deltas_of_peers(team, WORLD)
    epoch = epoch_in_turn(control)
    buffer = (epoch & 1) * half
    outbox = slots + buffer + 4 * index * vectors
    first, step = tl.program_id(0) * THREADS + tl.arange(0, THREADS), tl.num_programs(0) * THREADS
    mine = x + index.to(tl.int64) * n if SCATTER else x
    for t in range(rounds):
        own = ()
        for v in tl.static_range(EACH):
            at = first + (t * EACH + v) * step
            inside = at < vectors
            own = own + (dl.sf_filled(load_vectors(mine, at, inside, n, WHOLE)), )
            for i in tl.static_range(1, WORLD):
                sent = own[v]
                if SCATTER:
                    row = x + ((index + i) % WORLD).to(tl.int64) * n
                    sent = dl.sf_filled(load_vectors(row, at, inside, n, WHOLE))
                dl.trace_start("push", (t * EACH + v) * WORLD + i, (index + i) % WORLD)
                dl.sf_store(outbox + deltas[i - 1] + 4 * at, sent, inside)
                dl.trace_stop("push", (t * EACH + v) * WORLD + i)
        if t == 0:
            count_call(control, epoch, COPIES)  # while the data travels
        for v in tl.static_range(EACH):
            at = first + (t * EACH + v) * step
            inside = at < vectors
            dl.trace_start("wait", t * EACH + v, -1)
            total = taken_from_all(own[v], slots + buffer + 4 * at, 4 * vectors, inside, index, dtype, WORLD, OP)
            dl.trace_stop("wait", t * EACH + v)
            dl.trace_start("store", t * EACH + v, -1)
            store_vectors(out, at, inside, n, dl.sf_plain(finished_words(total, dtype, WORLD, OP)), WHOLE)
            dl.trace_stop("store", t * EACH + v)


@jit(do_not_specialize=["blocks", "rounds"], launch_metadata=one_hop)
def one_hop_push(x, out, data, half, flags, flags_half, control, team, n, blocks, rounds, SCATTER: tl.constexpr,
                 OP: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Plain stores: data [2 halves of `half`][rank][blocks * BLOCK], for n elements in `blocks` blocks.

    In round t a program sends block t * programs + pid to all peers and takes what came in round t - 1, so that links never idle.
    Who writes: every rank stores into its row of every peer's half `epoch & 1`, and behind each block releases the epoch (system
    scope) into flags[half][round][pid][index] there.
    Who waits: the same program of the receiver, for the flags of all ranks. That is also what bounds the epoch.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    pitch = blocks.to(tl.int64) * BLOCK
    inbox = data + (epoch & 1).to(tl.int64) * half
    outboxes = ()                               # this rank's row in the inbox of peer index + 1, index + 2, ...
    for i in tl.static_range(1, WORLD):
        outboxes = outboxes + (dl.symm_at(inbox + index * pitch, dl.team_world_rank(team, (index + i) % WORLD)), )
    arrived = flags + (epoch & 1) * flags_half + pid * WORLD
    rank = tl.arange(0, RANKS)
    everyone = dl.symm_at(arrived + index + 0 * rank, dl.team_world_rank(team, tl.minimum(rank, WORLD - 1)))
    own = x + index.to(tl.int64) * n if SCATTER else x
    count_call(control, epoch)
    for t in range(rounds + 1):
        if t * programs + pid < blocks:
            dl.trace_start("push", t, -1)
            offs = (t * programs + pid).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            if SCATTER:
                for i in tl.static_range(1, WORLD):
                    row = x + ((index + i) % WORLD).to(tl.int64) * n
                    tl.store(outboxes[i - 1] + offs, tl.load(row + offs, mask=offs < n, other=0.0))
            else:
                block = tl.load(x + offs, mask=offs < n, other=0.0)
                for i in tl.static_range(1, WORLD):
                    tl.store(outboxes[i - 1] + offs, block)
            dl.notify_each(everyone + t * programs * WORLD, epoch, rank < WORLD)
            dl.trace_stop("push", t)
        if (t >= 1) & ((t - 1) * programs + pid < blocks):
            dl.trace_start("wait", t - 1, -1)
            token = dl.wait(arrived + (t - 1) * programs * WORLD, WORLD, "sys", "acquire", epoch)
            dl.trace_stop("wait", t - 1)
            dl.trace_start("store", t - 1, -1)
            offs = ((t - 1) * programs + pid).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            here = dl.consume_token(inbox, token) + offs
            mine = tl.load(own + offs, mask=offs < n, other=0.0)
            if OP is not None:
                total = neutral((BLOCK,), x.dtype.element_ty, OP)
                for r in tl.static_range(WORLD):
                    theirs = tl.load(here + r * pitch, mask=(offs >= 0) & (index != r), other=0.0)
                    total = combined(total, tl.where(index == r, mine, theirs).to(total.dtype), OP)
                tl.store(out + offs, finished(total, WORLD, OP).to(out.dtype.element_ty), mask=offs < n)
            else:
                tl.store(out + index.to(tl.int64) * n + offs, mine, mask=offs < n)
                for i in tl.static_range(1, WORLD):
                    source = ((index + i) % WORLD).to(tl.int64)
                    tl.store(out + source * n + offs, tl.load(here + source * pitch), mask=offs < n)
            dl.trace_stop("store", t - 1)
