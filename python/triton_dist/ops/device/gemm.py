# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of the portable GEMM: which tile a program takes, the main loop over K, and an epilogue."""
import triton
import triton.language as tl


@triton.jit
def tile_of(t, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """(row, column) of tile `t` of a tiles_m x tiles_n grid, in groups of GROUP_M rows so that operands stay in L2."""
    width = GROUP_M * tiles_n
    first = t // width * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    return first + t % width % rows, t % width // rows


@triton.jit
def matmul_tile(a, stride_a, rows, b, stride_b, cols, k, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr):
    """fp32 [len(rows), len(cols)]: a[rows, :] @ b[cols, :]^T. `a` [., k] and `b` [., k] have unit stride along k."""
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a + rows.to(tl.int64)[:, None] * stride_a + offs_k[None, :]
    b_ptrs = b + cols.to(tl.int64)[None, :] * stride_b + offs_k[:, None]
    acc = tl.zeros((rows.shape[0], cols.shape[0]), tl.float32)
    for start in range(0, k, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_ptrs)
            w = tl.load(b_ptrs)
        else:
            x = tl.load(a_ptrs, mask=offs_k[None, :] < k - start, other=0.0)
            w = tl.load(b_ptrs, mask=offs_k[:, None] < k - start, other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    return acc


@triton.jit
def silu_mul(gate, up):
    """silu(gate) * up of fp32."""
    return gate * tl.sigmoid(gate) * up
