# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gate and up in one tile of the Hopper core: both halves of a block of weights, and the epilogue that joins them."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_dist.cores.hopper.gemm_ws import acc_layout
from triton_dist.cores.hopper.hopper_prims import exp2_approx, reciprocal_approx, tma_load

_LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def load_gate_and_up(w_desc, gate, up, k, bar, b, HALF: gl.constexpr):
    """Loads HALF rows of weights from row `gate` on, then HALF from row `up` on, both from column `k` on."""
    tma_load(w_desc, [gate, k], bar, b.slice(0, HALF, 0))
    tma_load(w_desc, [up, k], bar, b.slice(HALF, HALF, 0))


@gluon.jit
def silu_mul(acc):
    """fp32 silu(gate) * up [rows, columns] of an accumulator [rows, 2 * columns] that has gate, then up. No thread needs another.

    The MMA warps do this between two tiles, so exponential and reciprocal are one instruction each. Together they are right to
    about 2^-20, which rounding to 16 bits hides. A gate so low that the exponential overflows gives -0.
    """
    ROWS: gl.constexpr = acc.shape[0]
    COLS: gl.constexpr = acc.shape[1] // 2
    gate, up = gl.split(gl.permute(gl.reshape(acc, [ROWS, 2, COLS]), [0, 2, 1]))
    sigmoid = reciprocal_approx(1.0 + exp2_approx(gate * -_LOG2_E))
    return gl.convert_layout(gate * sigmoid * up, acc_layout(ROWS, COLS, 1))
