# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A linear layer of few rows. It begins under the kernel ahead of it, which may be that of its norm (norm_rows/kernels.py).

In the product's loop every program would make the norm again, for as many rows as an MMA takes. On an H200 that took 1 to 8 us
more for one row, by the best tiling of each way.
"""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import few_rows_tile, silu_mul
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import counting, itemsize

_LINE = tl.constexpr(128)               # bytes that a prefetch brings


def _work(args: dict) -> dict:
    size, rows = itemsize(args["x"]), args["n"] * (1 + args["SILU"])
    m, k = args["m"], args["k"]
    return {f"flops{8 * size}": 2.0 * m * rows * k, "bytes": size * (rows * k + m * k + m * args["n"])}


@jit(do_not_specialize=["m"], launch_metadata=counting(_work))
def few_rows_kernel(x, weight, bias, out, m, n, k, stride_x, stride_w, HAS_BIAS: tl.constexpr, SILU: tl.constexpr,
                    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, AHEAD: tl.constexpr, BLOCK_M: tl.constexpr,
                    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out [m, n] = x [m, k] @ weight [n, k]^T + bias [n], in fp32, rounded once.

    SILU: weight and bias have 2 * n rows, and out is silu(the first n columns of that) * (the others).
    Before the kernel ahead has ended, the program's first AHEAD blocks of weights are brought into the L2 cache. That reads
    nothing, so weights may be what that kernel writes.
    """
    COLUMNS: tl.constexpr = BLOCK_N // 2 if SILU else BLOCK_N           # of out
    line = tl.arange(0, BLOCK_N)
    if SILU:                                            # eight rows of gate, eight of up: both in one thread after an MMA
        near = tl.minimum(tl.program_id(0) * COLUMNS + line // 16 * 8 + line % 8, n - 1) + line // 8 % 2 * n
    else:
        near = tl.minimum(tl.program_id(0) * COLUMNS + line, n - 1)
    w_line = weight + near.to(tl.int64) * stride_w
    if AHEAD > 0:
        EACH: tl.constexpr = _LINE * 8 // weight.dtype.element_ty.primitive_bitwidth
        ahead = tl.arange(0, triton.next_power_of_2(AHEAD * BLOCK_K // EACH)) * EACH
        dl.prefetch(w_line[:, None] + ahead[None, :], mask=ahead[None, :] < k)
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    dl.trace_start("mma", 0, -1)
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    total = few_rows_tile(x + row.to(tl.int64) * stride_x, row < m, w_line, 0, k, EVEN_K, PRECISION, BLOCK_K)
    dl.trace_stop("mma", 0)
    dl.trace_start("store", 0, -1)
    if HAS_BIAS:
        total += tl.load(bias + near).to(tl.float32)[:, None]
    if SILU:
        gate, up = tl.split(tl.permute(tl.reshape(total, (BLOCK_N // 16, 2, 8, BLOCK_M)), (0, 2, 3, 1)))
        total = tl.reshape(silu_mul(gate, up), (COLUMNS, BLOCK_M))
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = out + row.to(tl.int64)[None, :] * n + column[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=(column < n)[:, None] & (row < m)[None, :])
    dl.trace_stop("store", 0)
