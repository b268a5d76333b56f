# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A row-parallel linear, its all-reduce, bias, residual and RMSNorm in one kernel, for few rows."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import (at_member, count_call, epoch_in_turn, load_words, packed, store_words, sum_and_add,
                                            unpacked)
from triton_dist.ops.gemm_ar.kernels import piece_of_product, words_of
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import product


@jit(do_not_specialize=["m", "n", "per_row"],
     launch_metadata=product(lambda args: args["m"], passes=lambda args: 2 * args["WORLD"] + 3))
def gemm_ar_rmsnorm_kernel(x, weight, bias, residual, norm_weight, out, residual_out, slots, half, control, team, m, n, k,
                           stride_x, stride_w, per_row, EPS: tl.constexpr, WEIGHT_BIAS: tl.constexpr, WORLD: tl.constexpr,
                           RANKS: tl.constexpr, SPLIT: tl.constexpr, EACH: tl.constexpr, SHARED: tl.constexpr,
                           HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WHOLE: tl.constexpr, BOXES: tl.constexpr,
                           EVEN_K: tl.constexpr, PRECISION: tl.constexpr, THREADS: tl.constexpr, BLOCK_M: tl.constexpr,
                           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """residual_out [m, n] = sum over ranks of x [m, k] @ weight [n, k]^T, plus bias [n] and residual [m, n]; out = its RMS norm.

    The product is cut as by gemm_ar: a program takes pieces, each one of SPLIT parts of a tile's sums over k, and sends them to
    everyone, itself too. Then each row is cut into `per_row` programs, which need not be those that computed its tiles. A program
    sums its words of the row, and holds them. SHARED: it tells the sum of its squares to the row's other programs, in packets
    in memory of its own device, and waits for theirs; so nothing of a row is read back. Without it a program has whole rows.
    int64 slots [2 halves of `half`][[row][rank and piece][word of a row][2], [row][part]].
    Who writes: every piece stores its term of each row to every rank, in the half `epoch & 1`; a row's programs their sums of
    squares, at home only.
    Who waits: a row's program, for the words of every rank; so the epoch is bounded as in all_reduce. Then, with SHARED, for the
    row's other programs on this rank. All terms are sent before anything is awaited, a sum of squares before one is; and with
    SHARED a program has one part of one row at most, of which there are no more than programs that run at the same time.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    dtype: tl.constexpr = out.dtype.element_ty
    per_word: tl.constexpr = 64 // dtype.primitive_bitwidth
    row_words: tl.constexpr = BLOCK_N // per_word
    TERMS: tl.constexpr = WORLD * SPLIT
    words = tl.cdiv(n, per_word)
    inbox = slots + (epoch & 1) * half
    squares_told = inbox + 2 * TERMS * words * m
    tiles_m = tl.cdiv(m, BLOCK_M)
    pieces = tiles_m * tl.cdiv(n, BLOCK_N) * SPLIT
    pid, programs = tl.program_id(0), tl.num_programs(0)
    for piece in range(pid, pieces, programs):
        dl.trace_start("mma", (piece - pid) // programs, index)
        tile = piece // SPLIT
        acc = piece_of_product(x, weight, tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N, piece % SPLIT, m, n, k, stride_x,
                               stride_w, SPLIT, BOXES, EVEN_K, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
        dl.trace_stop("mma", (piece - pid) // programs)
        dl.trace_start("push", (piece - pid) // programs, -1)
        at = tl.arange(0, BLOCK_M * row_words)
        row, word = tile % tiles_m * BLOCK_M + at // row_words, tile // tiles_m * row_words + at % row_words
        data = words_of(acc, dtype)
        outbox = inbox + 2 * ((row * TERMS + index * SPLIT + piece % SPLIT) * words + word)
        for i in tl.static_range(WORLD):
            dl.ll_store_pair(at_member(outbox, team, (index + i) % WORLD), data, epoch, (row < m) & (word < words))
        dl.trace_stop("push", (piece - pid) // programs)
    count_call(control, epoch)                          # while the packets travel
    LANES: tl.constexpr = RANKS * SPLIT
    AT_ONCE: tl.constexpr = THREADS // LANES
    thread = tl.arange(0, THREADS)
    term, lane = thread % LANES, thread // LANES
    for job in range(pid, m * per_row, programs):
        turn, row, part = (job - pid) // programs, job // per_row, job % per_row
        offset = row.to(tl.int64) * n
        added = ()
        for v in tl.static_range(EACH):                 # on their way while the terms are
            word = (part * EACH + v) * AT_ONCE + lane
            found = ()
            if HAS_BIAS:
                found = found + (load_words(bias, word, word < words, n, WHOLE), )
            if HAS_RESIDUAL:
                found = found + (load_words(residual + offset, word, word < words, n, WHOLE), )
            added = added + (found, )
        totals = ()
        squares = tl.zeros((THREADS, ), tl.float32)
        for v in tl.static_range(EACH):
            word = (part * EACH + v) * AT_ONCE + lane
            dl.trace_start("wait", turn * (EACH + 1) + v, -1)
            terms = dl.ll_load_pair(inbox + 2 * ((row * TERMS + term) * words + word), epoch, (word < words) & (term < TERMS))
            dl.trace_stop("wait", turn * (EACH + 1) + v)
            total = sum_and_add(terms, added[v], dtype, LANES)
            store_words(residual_out + offset, word, (word < words) & (term == 0), n, total, WHOLE)
            for e in tl.static_range(per_word):
                value = tl.where((term == 0) & (word * per_word + e < n), unpacked(total, e, dtype), 0.0)
                squares += value * value
            totals = totals + (total, )
        square = tl.sum(squares, 0)
        if SHARED:
            told = squares_told + row * per_row
            dl.ll_store(told + part + thread, square.to(tl.int32, bitcast=True), epoch, thread == 0)
        by = ()
        for v in tl.static_range(EACH):                 # on their way while the sums are
            word = (part * EACH + v) * AT_ONCE + lane
            by = by + (load_words(norm_weight, word, word < words, n, WHOLE), )
        if SHARED:
            dl.trace_start("wait", turn * (EACH + 1) + EACH, index)
            squares = dl.ll_load(told + thread, epoch, thread < per_row).to(tl.float32, bitcast=True)
            dl.trace_stop("wait", turn * (EACH + 1) + EACH)
            square = tl.sum(squares, 0)
        root = tl.rsqrt(square / n + EPS)
        dl.trace_start("store", turn, -1)
        for v in tl.static_range(EACH):
            word = (part * EACH + v) * AT_ONCE + lane
            normed = tl.zeros((THREADS, ), tl.int64)
            for e in tl.static_range(per_word):
                value = unpacked(totals[v], e, dtype) * (unpacked(by[v], e, dtype) + WEIGHT_BIAS) * root
                normed |= packed(value, e, dtype)
            store_words(out + offset, word, (word < words) & (term == 0), n, normed, WHOLE)
        dl.trace_stop("store", turn)
