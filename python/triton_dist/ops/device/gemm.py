# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of the portable GEMMs: which tile a program takes, main loops over K, and an epilogue."""
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
def few_rows_tile(x_row, inside, w_line, first, end, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr):
    """fp32 [len(w_line), len(x_row)]: rows of a weight at w_line times rows of x at x_row, elements `first` to `end` of them.

    Weights are the first operand, of whose rows an MMA takes many: nothing of them passes through registers on its way. Of x
    only rows `inside` are read: they would be read by all programs.
    """
    inner = tl.arange(0, BLOCK_K)
    x_ptrs, w_ptrs = x_row[:, None] + first + inner[None, :], w_line[:, None] + first + inner[None, :]
    acc = tl.zeros((w_line.shape[0], x_row.shape[0]), tl.float32)
    for start in range(first, end, BLOCK_K):
        if EVEN_K:
            a = tl.load(x_ptrs, mask=inside[:, None], other=0.0)
            w = tl.load(w_ptrs)
        else:
            a = tl.load(x_ptrs, mask=inside[:, None] & (inner[None, :] < end - start), other=0.0)
            w = tl.load(w_ptrs, mask=inner[None, :] < end - start, other=0.0)
        acc = tl.dot(w, a.T, acc, input_precision=PRECISION)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    return acc


@triton.jit
def silu_mul(gate, up):
    """silu(gate) * up of fp32."""
    return gate * tl.sigmoid(gate) * up
