# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce with what follows it in a decoder: bias, residual, RMSNorm. One kernel of packets, for few rows."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops._packets import at_member, count_call, epoch_in_turn, load_words, store_words, sum_and_add, unpacked
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m"])
def all_reduce_rmsnorm_kernel(x, weight, bias, residual, out, residual_out, slots, half, control, team, m, n, EPS: tl.constexpr,
                              TWO_SHOT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WORLD: tl.constexpr,
                              RANKS: tl.constexpr, THREADS: tl.constexpr, WHOLE: tl.constexpr):
    """residual_out [m, n] = sum over ranks of x [m, n], + bias [n] + residual [m, n]; out = its rows over their root mean square,
    times weight [n]. `residual_out` may be the residual: what reads a word of that writes it.

    All programs share the words that are to be sent; then a program takes whole rows. Rows go to every rank, which sums them
    itself; or with TWO_SHOT row r goes to rank r % WORLD, which sends its sum to all. A rank sends to itself, too.
    int64 slots [2 halves of `half`][terms: rank, own rows of a rank; sums: rows][row_words][pair].
    Who writes: every rank stores its term into row `index` of the receiver's terms, in the half `epoch & 1`; likewise a sum.
    Who waits: a program, for the words of every rank, or for sums of all ranks. That also bounds the epoch: with TWO_SHOT a rank
    that has no row of its own is heard all the same, as it sends no sum, by those that wait for its terms, and so on.
    All terms are sent before anything is waited for, all sums before a sum is.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    dtype: tl.constexpr = x.dtype.element_ty
    row_words = tl.cdiv(n * (dtype.primitive_bitwidth // 8), 8)
    each = tl.cdiv(m, WORLD) if TWO_SHOT else m          # rows of terms that a rank gets
    inbox = slots + (epoch & 1) * half
    sums = inbox + 2 * WORLD * each * row_words
    outbox = inbox + 2 * index * each * row_words
    thread = tl.arange(0, THREADS)
    rank, lane = thread % RANKS, thread // RANKS
    block: tl.constexpr = THREADS // RANKS
    pid, programs = tl.program_id(0), tl.num_programs(0)
    if TWO_SHOT:
        for start in range(pid * THREADS, m * row_words, programs * THREADS):
            row, word = (start + thread) // row_words, (start + thread) % row_words
            data = load_words(x + row.to(tl.int64) * n, word, row < m, n, WHOLE)
            dl.ll_store_pair(at_member(outbox + 2 * (row // WORLD * row_words + word), team, row % WORLD), data, epoch, row < m)
    else:
        for start in range(pid * block, m * row_words, programs * block):
            row, word = (start + lane) // row_words, (start + lane) % row_words
            send = (row < m) & (rank < WORLD)
            data = load_words(x + row.to(tl.int64) * n, word, send, n, WHOLE)
            dl.ll_store_pair(at_member(outbox + 2 * (start + lane), team, tl.minimum(rank, WORLD - 1)), data, epoch, send)
    count_call(control, epoch)                           # while the packets travel
    if TWO_SHOT:
        own = tl.cdiv(m - index, WORLD) * row_words
        for start in range(pid * block, own, programs * block):
            at = start + lane
            inside = at < own
            row = (at // row_words * WORLD + index).to(tl.int64)
            total = summed(inbox + 2 * (rank * each * row_words + at), epoch, inside & (rank < WORLD), bias, residual + row * n,
                           at % row_words, inside, n, dtype, RANKS, HAS_BIAS, HAS_RESIDUAL, WHOLE)
            store_words(residual_out + row * n, at % row_words, inside & (rank == 0), n, total, WHOLE)
            to = at_member(sums + 2 * (row * row_words + at % row_words), team, tl.minimum(rank, WORLD - 1))
            dl.ll_store_pair(to, total, epoch, inside & (rank < WORLD))
    for row in range(pid, m, programs):
        offset = row.to(tl.int64) * n
        squares = tl.zeros((THREADS, ), tl.float32)
        if TWO_SHOT:
            for start in range(0, row_words, THREADS):
                word = start + thread
                total = dl.ll_load_pair(sums + 2 * (row * row_words + word), epoch, word < row_words)
                store_words(residual_out + offset, word, (word < row_words) & (row % WORLD != index), n, total, WHOLE)
                store_words(out + offset, word, word < row_words, n, total, WHOLE)
                squares += squares_of(total, word < row_words, dtype)
        else:
            for start in range(0, row_words, block):
                word = start + lane
                inside = word < row_words
                one = inside & (rank == 0)               # of the neighbours the one whose total counts
                total = summed(inbox + 2 * ((rank * m + row) * row_words + word), epoch, inside & (rank < WORLD), bias,
                               residual + offset, word, one, n, dtype, RANKS, HAS_BIAS, HAS_RESIDUAL, WHOLE)
                store_words(residual_out + offset, word, one, n, total, WHOLE)
                store_words(out + offset, word, one, n, total, WHOLE)
                squares += squares_of(total, one, dtype)
        scale = tl.rsqrt(tl.sum(squares) / n + EPS)
        tl.debug_barrier()                               # every thread's part of the sum is in out
        for start in range(0, n, 4 * THREADS):
            column = start + tl.arange(0, 4 * THREADS)
            value = tl.load(out + offset + column, mask=column < n).to(tl.float32)
            value = value * scale * tl.load(weight + column, mask=column < n).to(tl.float32)
            tl.store(out + offset + column, value.to(dtype), mask=column < n)


@triton.jit
def summed(terms, epoch, arriving, bias, residual, word, adding, n, dtype: tl.constexpr, RANKS: tl.constexpr,
           HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WHOLE: tl.constexpr):
    """Waits for words [THREADS] of all ranks, RANKS neighbours each; adds, where `adding`, word `word` of bias and residual."""
    added = ()
    if HAS_BIAS:
        added = added + (load_words(bias, word, adding, n, WHOLE), )
    if HAS_RESIDUAL:
        added = added + (load_words(residual, word, adding, n, WHOLE), )
    return sum_and_add(dl.ll_load_pair(terms, epoch, arriving), added, dtype, RANKS)


@triton.jit
def squares_of(words, mask, dtype: tl.constexpr):
    """The sum of the squares of the elements of each of `words`, in fp32, 0 where not `mask`."""
    found = tl.zeros(words.shape, tl.float32)
    for e in tl.static_range(64 // dtype.primitive_bitwidth):
        found += unpacked(words, e, dtype) * unpacked(words, e, dtype)
    return tl.where(mask, found, 0.0)
