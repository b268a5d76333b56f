# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Grouped GEMM: persistent programs find their tiles from counts on the device. And the gradient of its weights."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.language.experts import rows_of
from triton_dist.ops.device.gemm import silu_mul
from triton_dist.runtime.jit import jit


@triton.jit
def at(values, i):
    """Element `i` of a vector."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == i, values, 0))


@jit(do_not_specialize=["experts", "room"])
def grouped_gemm_kernel(x, weight, begins, counts, sources, row_weights, out, n, k, stride_x, stride_e, stride_n,
                        stride_k, experts, room, EXPERTS: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr,
                        GATHER: tl.constexpr, WEIGHTED: tl.constexpr, SILU: tl.constexpr, EVEN_K: tl.constexpr,
                        PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                        PARTS: tl.constexpr = 1):
    """out [rows, n]: each expert's rows of x [., k] times its weight [n, k]^T, in fp32, rounded once.

    A row r by expert is row sources[r] of x where GATHER. SILU: weight has 2 * n rows, and out is silu(the first n) * the others.
    WEIGHTED: row r counts row_weights[r] times. Tiles of an expert follow each other down its rows, so that programs which run at
    the same time share its weight in the cache. PARTS: so many entries of begins and counts after each other are of one expert.
    """
    e = tl.arange(0, EXPERTS)
    begin, count = rows_of(begins, counts, e, e < experts, room, MASKED, COUNTED)
    tiles_m, tiles_n = tl.cdiv(count, BLOCK_M), tl.cdiv(n, BLOCK_N)
    ends = tl.cumsum(tiles_m * tiles_n, 0)
    inner = tl.arange(0, BLOCK_K)
    for t in range(tl.program_id(0), tl.max(ends, 0), tl.num_programs(0)):
        expert = tl.sum((ends <= t).to(tl.int32), 0)
        down = at(tiles_m, expert)
        tile = t - at(ends, expert) + down * tiles_n
        row = tile % down * BLOCK_M + tl.arange(0, BLOCK_M)
        col = tile // down * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = row < at(count, expert)
        row = (at(begin, expert) + tl.minimum(row, at(count, expert) - 1)).to(tl.int64)
        source = tl.load(sources + row).to(tl.int64) if GATHER else row
        expert = expert // PARTS
        near = tl.minimum(col, n - 1)
        x_at = x + source[:, None] * stride_x + inner[None, :]
        w_at = weight + expert.to(tl.int64) * stride_e + near.to(tl.int64)[None, :] * stride_n
        w_at += inner[:, None] * stride_k
        dl.trace_start("mma", (t - tl.program_id(0)) // tl.num_programs(0), expert)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if SILU:
            other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            other_at = weight + expert.to(tl.int64) * stride_e + (near + n).to(tl.int64)[None, :] * stride_n
            other_at += inner[:, None] * stride_k
        for start in range(0, k, BLOCK_K):
            if EVEN_K:
                a = tl.load(x_at)
                b = tl.load(w_at)
            else:
                a = tl.load(x_at, mask=inner[None, :] < k - start, other=0.0)
                b = tl.load(w_at, mask=inner[:, None] < k - start, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
            if SILU:
                if EVEN_K:
                    c = tl.load(other_at)
                else:
                    c = tl.load(other_at, mask=inner[:, None] < k - start, other=0.0)
                other = tl.dot(a, c, other, input_precision=PRECISION)
                other_at += BLOCK_K * stride_k
            x_at += BLOCK_K
            w_at += BLOCK_K * stride_k
        dl.trace_stop("mma", (t - tl.program_id(0)) // tl.num_programs(0))
        dl.trace_start("store", (t - tl.program_id(0)) // tl.num_programs(0), expert)
        if SILU:
            total = silu_mul(total, other)
        if WEIGHTED:
            total *= tl.load(row_weights + row)[:, None]
        tl.store(out + row[:, None] * n + col[None, :],
                 total.to(out.dtype.element_ty),
                 mask=inside[:, None] & (col < n)[None, :])
        dl.trace_stop("store", (t - tl.program_id(0)) // tl.num_programs(0))


@jit(do_not_specialize=["experts", "room"])
def grouped_weight_kernel(grad, x, begins, counts, sources, out, n, k, stride_grad, stride_x, experts, room,
                          EXPERTS: tl.constexpr, MASKED: tl.constexpr, COUNTED: tl.constexpr, GATHER: tl.constexpr,
                          PRECISION: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr):
    """out [experts, n, k]: each expert's rows of grad [., n]^T times its rows of x [., k], in fp32, rounded once.

    0 for an expert without rows.
    """
    e = tl.arange(0, EXPERTS)
    begin, count = rows_of(begins, counts, e, e < experts, room, MASKED, COUNTED)
    tiles_n, tiles_k = tl.cdiv(n, BLOCK_N), tl.cdiv(k, BLOCK_K)
    line = tl.arange(0, BLOCK_R)
    for t in range(tl.program_id(0), experts * tiles_n * tiles_k, tl.num_programs(0)):
        expert, tile = t // (tiles_n * tiles_k), t % (tiles_n * tiles_k)
        down = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        col = tile // tiles_n * BLOCK_K + tl.arange(0, BLOCK_K)
        first, rows = at(begin, expert), at(count, expert)
        dl.trace_start("mma", (t - tl.program_id(0)) // tl.num_programs(0), expert)
        total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
        for start in range(0, rows, BLOCK_R):
            there = start + line < rows
            row = (first + start + line).to(tl.int64)
            source = tl.load(sources + row, mask=there, other=0).to(tl.int64) if GATHER else row
            a = tl.load(grad + row[None, :] * stride_grad + down[:, None],
                        mask=there[None, :] & (down < n)[:, None],
                        other=0.0)
            b = tl.load(x + source[:, None] * stride_x + col[None, :],
                        mask=there[:, None] & (col < k)[None, :],
                        other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        dl.trace_stop("mma", (t - tl.program_id(0)) // tl.num_programs(0))
        dl.trace_start("store", (t - tl.program_id(0)) // tl.num_programs(0), expert)
        tl.store(out + (expert.to(tl.int64) * n + down)[:, None] * k + col[None, :],
                 total.to(out.dtype.element_ty),
                 mask=(down < n)[:, None] & (col < k)[None, :])
        dl.trace_stop("store", (t - tl.program_id(0)) // tl.num_programs(0))
