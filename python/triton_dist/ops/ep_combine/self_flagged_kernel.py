# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Combine of few tokens: each rank's sums over its own experts are their own flags."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.device.selfflag import elements, from_elements, places
from triton_dist.ops.ep.device import distance, matrix_of, of, owners, slot_in, words_of
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "limit", "experts", "chunks"])
def ep_combine_self_flagged(y, ids, told, positions, weights, bias, residual, out, packets, packets_half, slots, half, control,
                            team, m, most, vectors, limit, experts, chunks, K: tl.constexpr, CHOICES: tl.constexpr,
                            E_LOC: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr, HAS_BIAS: tl.constexpr,
                            HAS_RESIDUAL: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr,
                            TOKENS: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, PIECES: tl.constexpr,
                            PARTS: tl.constexpr):
    """What ep_combine_kernel does, bit by bit, for rows of `vectors` vectors of 16 bytes.

    PARTS programs share a chunk's rows, a row at a time, each some of the PIECES pieces of THREADS * EACH vectors: first they
    send what this rank has of the rows that came from each source's chunk, then they sum this rank's tokens of the chunk. A word
    of 0 is sent as -0.0 in its upper element, which adds alike.
    Who writes: a program, its pieces of source s into slots [own index] of s's half `epoch & 1`; program 0 a packet to every
    rank.
    Who waits: a program, for its pieces from all ranks that its tokens have experts on, whose slots it empties; program 0 for the
    packets of all, which bounds the epoch. It waits for what programs of its own number send on other ranks, and has sent all of
    its own before. So programs need not run at the same time.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    chunk, part = pid % chunks, pid // chunks
    rank, lane, choice = tl.arange(0, RANKS), tl.arange(0, THREADS), tl.arange(0, CHOICES)
    token, vector = tl.arange(0, TOKENS), tl.arange(0, THREADS * EACH)
    inbox = packets + (epoch & 1) * packets_half
    dl.ll_store(at_member(inbox + index * PITCH + 0 * lane, team, tl.minimum(lane, WORLD - 1)), 1 + 0 * lane, epoch,
                (lane < WORLD) & (pid == 0))
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    begin = chunk * each
    tokens = tl.maximum(tl.minimum(m - begin, each), 0)
    giving, landing, first_slot = matrix_of(words_of(told, chunks, WORLD, RANKS, PITCH), chunk)
    rows_in = slots + (epoch & 1) * half
    slots_of_rank = chunks * most
    for t in range(tl.max(tl.where(rank == index, 0, giving), 0)):
        for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
            peer = (index + i) % WORLD
            if t < of(giving, peer):
                land = of(landing, peer) + t
                spots, by = choices_of(positions, weights, land, land < limit, choice, K, PLACED, WEIGHTED)
                outbox = rows_in + (distance(team, peer) >> 2)
                slot = index * slots_of_rank + of(first_slot, peer) + t
                for number in range(part, PIECES, PARTS):
                    at = number * THREADS * EACH + vector
                    dl.trace_start("push", (t * WORLD + i) * PIECES + number, peer)
                    words = sum_of_row(y, spots, by, land, land < limit, at, vectors, K, PLACED, WEIGHTED)
                    dl.sf_store(outbox + 4 * (slot * vectors + at), dl.sf_filled(words), at < vectors)
                    dl.trace_stop("push", (t * WORLD + i) * PIECES + number)
    count_call(control, epoch)  # while rows travel
    to = owners(ids, begin + token, token < tokens, experts, K, CHOICES, E_LOC)
    for t in range(tokens):
        at_own, place = slot_in(to, index, t, token)
        land = of(landing, index) + place
        there = at_own & (land < limit)
        spots, by = choices_of(positions, weights, land, there, choice, K, PLACED, WEIGHTED)
        for number in range(part, PIECES, PARTS):
            at = number * THREADS * EACH + vector
            own = sum_of_row(y, spots, by, land, there, at, vectors, K, PLACED, WEIGHTED)
            total = elements(0 * own, y.dtype.element_ty)
            for r in range(WORLD):
                if r == index:
                    total = added(total, own, y.dtype.element_ty)
                else:
                    sent, place = slot_in(to, r, t, token)
                    if sent:
                        dl.trace_start("wait", (t * PIECES + number) * WORLD + r, r)
                        taken = dl.sf_take(rows_in + 4 * ((r * slots_of_rank + begin + place) * vectors + at), at < vectors)
                        dl.trace_stop("wait", (t * PIECES + number) * WORLD + r)
                        total = added(total, taken, y.dtype.element_ty)
            goal = (begin + t).to(tl.int64) * vectors + at
            inside = (at < vectors)[:, None]
            if HAS_BIAS:
                total = added(total, tl.load(places(bias, at), mask=inside, other=0), y.dtype.element_ty)
            if HAS_RESIDUAL:
                total = added(total, tl.load(places(residual, goal), mask=inside, other=0), y.dtype.element_ty)
            dl.trace_start("store", t * PIECES + number, index)
            tl.store(places(out, goal), from_elements(total, y.dtype.element_ty), mask=inside)
            dl.trace_stop("store", t * PIECES + number)
    dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == 0))


@triton.jit
def choices_of(positions, weights, land, there, choice, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """Where each choice of row `land` that came lies in y, -1 for none, and its weight: [CHOICES]; 0 if not needed."""
    spots, by = 0, 0
    if PLACED:
        at = land.to(tl.int64) * K + choice
        spots = tl.load(positions + at, mask=there & (choice < K), other=-1)
        if WEIGHTED:
            by = tl.load(weights + at, mask=there & (choice < K), other=0.0)
    return spots, by


@triton.jit
def sum_of_row(y, spots, by, land, there, at, vectors, K: tl.constexpr, PLACED: tl.constexpr, WEIGHTED: tl.constexpr):
    """int32 [len(at), 4]: vectors of what this rank has of row `land` that came, rounded to y's dtype; 0 where not `there`."""
    dtype: tl.constexpr = y.dtype.element_ty
    MOST: tl.constexpr = 4 if dtype.primitive_bitwidth == 16 else 2
    LOADED: tl.constexpr = MOST if K > 2 else K  # rows at a time, all of which take registers
    if PLACED:
        total = elements(tl.zeros((at.shape[0], 4), tl.int32), dtype)
        for first in range(0, K, LOADED):
            for j in tl.static_range(LOADED):
                spot = of(spots, first + j)
                term = tl.load(places(y, spot.to(tl.int64) * vectors + at),
                               mask=((spot >= 0) & (at < vectors))[:, None],
                               other=0)
                if WEIGHTED:
                    total = plus(total, times(elements(term, dtype), of(by, first + j)))
                else:
                    total = added(total, term, dtype)
        words = from_elements(total, dtype)
    else:
        words = tl.load(places(y, land.to(tl.int64) * vectors + at), mask=(there & (at < vectors))[:, None], other=0)
    return words


@triton.jit
def added(total, words, dtype: tl.constexpr):
    """fp32 blocks as `elements` gives them, with int32 `words` of `dtype` added."""
    return plus(total, elements(words, dtype))


@triton.jit
def plus(a, b):
    """Sums of two tuples of one or two blocks."""
    if len(a) == 1:
        found = (a[0] + b[0], )
    else:
        found = (a[0] + b[0], a[1] + b[1])
    return found


@triton.jit
def times(a, factor):
    """A tuple of one or two blocks, times a number."""
    if len(a) == 1:
        found = (a[0] * factor, )
    else:
        found = (a[0] * factor, a[1] * factor)
    return found
