# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GEMM-AllReduce kernel for few rows: a GEMM whose tiles travel in packets as soon as they are there."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops._gemm import matmul_tile
from triton_dist.ops._packets import at_member, count_call, load_words, packed, store_words, sum_and_add, this_epoch
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "n"])
def gemm_ar_kernel(x, weight, bias, residual, out, slots, half, partials, tickets, control, team, m, n, k, stride_x, stride_w,
                   WORLD: tl.constexpr, RANKS: tl.constexpr, TWO_SHOT: tl.constexpr, SPLIT: tl.constexpr,
                   HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WHOLE: tl.constexpr, EVEN_K: tl.constexpr,
                   PRECISION: tl.constexpr, THREADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                   BLOCK_K: tl.constexpr):
    """out [m, n] = sum over ranks of x [m, k] @ weight [n, k]^T, plus bias [n] and residual [m, n], which may be `out`.

    A program takes tiles, or with SPLIT > 1 one of SPLIT pieces of a tile's sums over k. The program of a tile exchanges its
    words as the kernels of all_reduce do: everything to everyone, or with TWO_SHOT part j of the tile to rank j, which sums it
    and sends the sum to all. It sends to its own rank too. int64 slots [2 halves of `half`][terms, sums][tile][rank][part][pair].
    Who writes: every rank stores its term into row `index` of a tile on every rank, in the half `epoch & 1`; likewise its sum.
    Who waits: the program of the tile on the receiver, for the words of every rank; so the epoch is bounded as in all_reduce.
    All terms are sent before anything is waited for, all sums before a sum is: in whatever order tiles end, no rank waits for
    a program of a peer that waits for it.
    Local memory: fp32 partials [tile][SPLIT][BLOCK_M, BLOCK_N], int32 tickets [tile], 0 between calls.
    """
    epoch = this_epoch(control)
    index = dl.team_rank(team)
    dtype: tl.constexpr = out.dtype.element_ty
    row_words: tl.constexpr = BLOCK_N * dtype.primitive_bitwidth // 64
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles = tiles_m * tl.cdiv(n, BLOCK_N)
    words = tl.minimum(m, BLOCK_M) * row_words          # of a tile
    part = tl.cdiv(words, WORLD) if TWO_SHOT else words
    inbox = slots + (epoch & 1) * half
    sums = inbox + 2 * WORLD * part * tiles
    pid, programs = tl.program_id(0), tl.num_programs(0)
    last = tiles * SPLIT
    for piece in range(pid, tiles * SPLIT, programs):
        tile = piece // SPLIT
        rows = tile % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
        depth = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT) * BLOCK_K
        first = piece % SPLIT * depth
        acc = matmul_tile(x + first, stride_x, tl.minimum(rows, m - 1), weight + first, stride_w, tl.minimum(cols, n - 1),
                          tl.minimum(depth, k - first), BLOCK_K, EVEN_K, PRECISION)
        if SPLIT > 1:
            acc, ended = sum_of_pieces(acc, partials, tickets + tile, piece, SPLIT)
            last = tl.where(ended, last, 0)             # of the pieces of a tile, the last one to end goes on with the tile
        word = tl.arange(0, BLOCK_M * row_words)
        send = (word < words) & (last > 0)
        outbox = inbox + 2 * part * (tile * WORLD + index)
        data = words_of(acc, dtype)
        if TWO_SHOT:
            dl.ll_store_pair(at_member(outbox + 2 * (word % part), team, tl.minimum(word // part, WORLD - 1)), data, epoch, send)
        else:
            for i in tl.static_range(WORLD):
                dl.ll_store_pair(at_member(outbox, team, (index + i) % WORLD) + 2 * word, data, epoch, send)
    count_call(control, epoch)                          # while the packets travel
    rank, lane = tl.arange(0, THREADS) % RANKS, tl.arange(0, THREADS) // RANKS
    own = index * part if TWO_SHOT else 0
    for piece in range(pid, last, programs):
        tile = piece // SPLIT
        for start in range(0, part, THREADS // RANKS):
            word = start + lane
            at = own + word
            inside = (word < part) & (at < words)
            terms = dl.ll_load_pair(inbox + 2 * (part * (tile * WORLD + rank) + word), epoch, inside & (rank < WORLD))
            row = tile % tiles_m * BLOCK_M + at // row_words
            column = tile // tiles_m * row_words + at % row_words
            inside_out = inside & (row < m)
            row = row.to(tl.int64) * n
            added = ()
            if HAS_BIAS:
                added = added + (load_words(bias, column, inside_out, n, WHOLE), )
            if HAS_RESIDUAL:
                added = added + (load_words(residual + row, column, inside_out, n, WHOLE), )
            total = sum_and_add(terms, added, dtype, RANKS)
            if TWO_SHOT:
                to = at_member(sums + 2 * (part * (tile * WORLD + index) + word), team, tl.minimum(rank, WORLD - 1))
                dl.ll_store_pair(to, total, epoch, inside & (rank < WORLD))
            else:
                store_words(out + row, column, inside_out & (rank == 0), n, total, WHOLE)
    if TWO_SHOT:
        for piece in range(pid, last, programs):
            tile = piece // SPLIT
            for start in range(0, part, THREADS // RANKS):
                word = start + lane
                at = rank * part + word
                inside = (word < part) & (rank < WORLD) & (at < words)
                total = dl.ll_load_pair(sums + 2 * (part * (tile * WORLD + rank) + word), epoch, inside)
                row = tile % tiles_m * BLOCK_M + at // row_words
                column = tile // tiles_m * row_words + at % row_words
                store_words(out + row.to(tl.int64) * n, column, inside & (row < m), n, total, WHOLE)


@triton.jit
def sum_of_pieces(acc, partials, ticket, piece, SPLIT: tl.constexpr):
    """(the sum of a tile's SPLIT pieces, in their order; whether `piece`, of which `acc` is the part, was the last to end).

    The sum holds for the last one only. It leaves `ticket` at 0.
    """
    size: tl.constexpr = acc.shape[0] * acc.shape[1]
    offs = tl.arange(0, acc.shape[0])[:, None] * acc.shape[1] + tl.arange(0, acc.shape[1])[None, :]
    tl.store(partials + piece * size + offs, acc)
    tl.debug_barrier()                                  # Triton 3.6 orders other threads' stores before a release only by this
    ended = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == SPLIT - 1
    if ended:
        acc = tl.zeros_like(acc)
        for s in tl.static_range(SPLIT):
            acc += tl.load(partials + (piece // SPLIT * SPLIT + s) * size + offs)
        tl.store(ticket, 0)
    return acc, ended


@triton.jit
def words_of(acc, dtype: tl.constexpr):
    """fp32 [rows, columns] rounded to `dtype` as int64 words, row by row, each in one thread: a sum leaves it in several."""
    even, odd = tl.split(tl.reshape(acc, (acc.shape[0] * acc.shape[1] // 2, 2)))
    pairs = packed(even, 0, dtype) | packed(odd, 1, dtype)
    if dtype.primitive_bitwidth == 16:
        low, high = tl.split(tl.reshape(pairs.to(tl.int32), (pairs.shape[0] // 2, 2)))
        pairs = (low.to(tl.int64) & 0xFFFFFFFF) | (high.to(tl.int64) << 32)
    return pairs
