# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GEMM-AllReduce kernel for few rows: a GEMM whose tiles travel in packets as soon as they are there."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import few_rows_tile
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn, load_words, packed, store_words, sum_and_add
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import product


@jit(do_not_specialize=["m", "n"], launch_metadata=product(lambda args: args["m"], passes=lambda args: 2 * args["WORLD"]))
def gemm_ar_kernel(x, weight, bias, residual, out, slots, half, control, team, m, n, k, stride_x, stride_w,
                   WORLD: tl.constexpr, RANKS: tl.constexpr, TWO_SHOT: tl.constexpr, SPLIT: tl.constexpr,
                   HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WHOLE: tl.constexpr, BOXES: tl.constexpr,
                   EVEN_K: tl.constexpr, PRECISION: tl.constexpr, THREADS: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out [m, n] = sum over ranks of x [m, k] @ weight [n, k]^T, plus bias [n] and residual [m, n], which may be `out`.

    A program takes pieces: one of SPLIT parts of a tile's sums over k. Terms are those of each rank and piece. The words of a
    tile fall to its pieces in equal shares, which are exchanged as the kernels of all_reduce do: everything to everyone, or with
    TWO_SHOT part j of a share to rank j, which sums it and sends the sum to all. A rank sends to itself too, so a tile's pieces
    need nothing else to meet. int64 slots [2 halves of `half`][terms, sums][share][rank and piece, rank][part][pair].
    Who writes: every piece stores its term into its row of each share of the tile on every rank, in the half `epoch & 1`; the
    program of a share likewise its sum.
    Who waits: the program of the share on the receiver, for the words of every rank; so the epoch is bounded as in all_reduce.
    All terms are sent before anything is waited for, all sums before a sum is: in whatever order pieces end, no program waits
    for one that waits for it.
    """
    index = dl.team_rank(team)
    epoch = epoch_in_turn(control)
    dtype: tl.constexpr = out.dtype.element_ty
    row_words: tl.constexpr = BLOCK_N * dtype.primitive_bitwidth // 64
    tiles_m = tl.cdiv(m, BLOCK_M)
    pieces = tiles_m * tl.cdiv(n, BLOCK_N) * SPLIT
    words = tl.minimum(m, BLOCK_M) * row_words          # of a tile
    share = tl.cdiv(words, SPLIT)
    part = tl.cdiv(share, WORLD) if TWO_SHOT else share
    TERMS: tl.constexpr = WORLD * SPLIT
    inbox = slots + (epoch & 1) * half
    sums = inbox + 2 * TERMS * part * pieces
    pid, programs = tl.program_id(0), tl.num_programs(0)
    for piece in range(pid, pieces, programs):
        dl.trace_start("mma", (piece - pid) // programs, index)
        tile = piece // SPLIT
        acc = piece_of_product(x, weight, tile % tiles_m * BLOCK_M, tile // tiles_m * BLOCK_N, piece % SPLIT, m, n, k, stride_x,
                               stride_w, SPLIT, BOXES, EVEN_K, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K)
        dl.trace_stop("mma", (piece - pid) // programs)
        dl.trace_start("push", (piece - pid) // programs, -1)
        word = tl.arange(0, BLOCK_M * row_words)
        data = words_of(acc, dtype)
        at = word % share
        term = (tile * SPLIT + word // share) * TERMS + index * SPLIT + piece % SPLIT
        outbox = inbox + 2 * (part * term + at % part)
        if TWO_SHOT:
            dl.ll_store_pair(at_member(outbox, team, tl.minimum(at // part, WORLD - 1)), data, epoch, word < words)
        else:
            for i in tl.static_range(WORLD):
                dl.ll_store_pair(at_member(outbox, team, (index + i) % WORLD), data, epoch, word < words)
        dl.trace_stop("push", (piece - pid) // programs)
    count_call(control, epoch)                          # while the packets travel
    LANES: tl.constexpr = RANKS * SPLIT
    term, lane = tl.arange(0, THREADS) % LANES, tl.arange(0, THREADS) // LANES
    own = index * part if TWO_SHOT else 0
    for piece in range(pid, pieces, programs):
        for start in range(0, part, THREADS // LANES):
            word = start + lane
            inside = (word < part) & (own + word < share)
            row, column, inside_tile = place(piece, own + word, share, words, tiles_m, SPLIT, BLOCK_M, row_words)
            inside &= inside_tile
            dl.trace_start("wait", 2 * lap_of((piece - pid) // programs, start, part, THREADS // LANES), -1)
            terms = dl.ll_load_pair(inbox + 2 * (part * (piece * TERMS + term) + word), epoch, inside & (term < TERMS))
            dl.trace_stop("wait", 2 * lap_of((piece - pid) // programs, start, part, THREADS // LANES))
            inside_out = inside & (row < m)
            row = row.to(tl.int64) * n
            added = ()
            if HAS_BIAS:
                added = added + (load_words(bias, column, inside_out, n, WHOLE), )
            if HAS_RESIDUAL:
                added = added + (load_words(residual + row, column, inside_out, n, WHOLE), )
            total = sum_and_add(terms, added, dtype, LANES)
            if TWO_SHOT:
                to = at_member(sums + 2 * (part * (piece * WORLD + index) + word), team, tl.minimum(term, WORLD - 1))
                dl.ll_store_pair(to, total, epoch, inside & (term < WORLD))
            else:
                dl.trace_start("store", lap_of((piece - pid) // programs, start, part, THREADS // LANES), index)
                store_words(out + row, column, inside_out & (term == 0), n, total, WHOLE)
                dl.trace_stop("store", lap_of((piece - pid) // programs, start, part, THREADS // LANES))
    if TWO_SHOT:
        rank, lane = tl.arange(0, THREADS) % RANKS, tl.arange(0, THREADS) // RANKS
        for piece in range(pid, pieces, programs):
            for start in range(0, part, THREADS // RANKS):
                word = start + lane
                inside = (word < part) & (rank < WORLD) & (rank * part + word < share)
                row, column, inside_tile = place(piece, rank * part + word, share, words, tiles_m, SPLIT, BLOCK_M, row_words)
                inside &= inside_tile
                dl.trace_start("wait", 2 * lap_of((piece - pid) // programs, start, part, THREADS // RANKS) + 1, -1)
                total = dl.ll_load_pair(sums + 2 * (part * (piece * WORLD + rank) + word), epoch, inside)
                dl.trace_stop("wait", 2 * lap_of((piece - pid) // programs, start, part, THREADS // RANKS) + 1)
                dl.trace_start("store", lap_of((piece - pid) // programs, start, part, THREADS // RANKS), -1)
                store_words(out + row.to(tl.int64) * n, column, inside & (row < m), n, total, WHOLE)
                dl.trace_stop("store", lap_of((piece - pid) // programs, start, part, THREADS // RANKS))


@triton.jit
def lap_of(turn, start, part, AT_ONCE: tl.constexpr):
    """How many groups of AT_ONCE words a program has taken before those from `start` on, in its piece `turn`."""
    return turn * tl.cdiv(part, AT_ONCE) + start // AT_ONCE


@triton.jit
def place(piece, word, share, words, tiles_m, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, row_words: tl.constexpr):
    """(row of out, word of that row, whether there is one) of a word of the share that falls to `piece`."""
    tile, at = piece // SPLIT, piece % SPLIT * share + word
    return tile % tiles_m * BLOCK_M + at // row_words, tile // tiles_m * row_words + at % row_words, at < words


@triton.jit
def piece_of_product(x, weight, row, column, piece, m, n, k, stride_x, stride_w, SPLIT: tl.constexpr, BOXES: tl.constexpr,
                     EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                     BLOCK_K: tl.constexpr):
    """fp32 [BLOCK_M, BLOCK_N]: the part `piece` of SPLIT of the sums of the tile of x @ weight^T that begins at row, column.

    BOXES: x and weight are tensor descriptors, else pointers. As few_rows_tile says.
    """
    depth = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT) * BLOCK_K
    first = piece * depth
    end = tl.minimum(k, first + depth)
    if BOXES:
        acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
        for start in range(first, end, BLOCK_K):
            acc = tl.dot(weight.load([column, start]), x.load([row, start]).T, acc, input_precision=PRECISION)
    else:
        rows, columns = row + tl.arange(0, BLOCK_M), tl.minimum(column + tl.arange(0, BLOCK_N), n - 1)
        acc = few_rows_tile(x + rows.to(tl.int64) * stride_x, rows < m, weight + columns.to(tl.int64) * stride_w, first, end,
                            EVEN_K, PRECISION, BLOCK_K)
    return acc.T


@triton.jit
def words_of(acc, dtype: tl.constexpr):
    """fp32 [rows, columns] rounded to `dtype` as int64 words, row by row, each in one thread: a sum leaves it in several."""
    even, odd = tl.split(tl.reshape(acc, (acc.shape[0] * acc.shape[1] // 2, 2)))
    pairs = packed(even, 0, dtype) | packed(odd, 1, dtype)
    if dtype.primitive_bitwidth == 16:
        low, high = tl.split(tl.reshape(pairs.to(tl.int32), (pairs.shape[0] // 2, 2)))
        pairs = (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
    return pairs
