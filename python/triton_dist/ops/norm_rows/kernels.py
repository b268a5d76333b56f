# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a decoder does with rows between two linear layers, in one kernel: bias, residual, a norm, and a quantised form."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.launch_metadata import normed_rows
from triton_dist.ops.device.selfflag import elements, load_vectors, store_vectors
from triton_dist.ops.norm_rows.finish import extras, rounded, store_normed
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["row_step", "group_step"], launch_metadata=normed_rows)
def norm_rows_kernel(x, weight, bias, residual, out, total, shift, scale, quantised, scales, n, stride_x, stride_r, row_step,
                     group_step, EPS: tl.constexpr, WEIGHT_BIAS: tl.constexpr, CENTER: tl.constexpr, HAS_BIAS: tl.constexpr,
                     HAS_RESIDUAL: tl.constexpr, HAS_TOTAL: tl.constexpr, HAS_SHIFT: tl.constexpr, NORM: tl.constexpr,
                     HAS_OUT: tl.constexpr, QUANT: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr):
    """A row a program: total [m, n] = x + bias [n] + residual, in fp32 with one rounding. NORM: with a norm of that (finish.py).

    Rows of x are stride_x apart, those of the residual stride_r. HAS_TOTAL: total is stored. A thread writes what it has read of
    total, and of out once the program has its row: so x may be either of them, and the residual may be total.
    """
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    row = tl.program_id(0)
    dtype: tl.constexpr = x.dtype.element_ty
    vectors = tl.cdiv(n * (dtype.primitive_bitwidth // 8), 16)
    given = tl.div_rn(1.0, tl.load(scale)) if QUANT == "tensor" else 1.0
    mine, ours, offset = row.to(tl.int64) * stride_x, row.to(tl.int64) * stride_r, row.to(tl.int64) * n
    totals, weights = (), ()
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        inside = at < vectors
        words = load_vectors(x + mine, at, inside, n, WHOLE)
        extra = extras(bias, residual + ours, at, inside, n, HAS_BIAS, HAS_RESIDUAL, WHOLE)
        if NORM:
            weights = weights + (load_vectors(weight, at, inside, n, WHOLE), )
        if HAS_BIAS or HAS_RESIDUAL:
            words = rounded(elements(words, dtype), extra, dtype)
        if HAS_TOTAL:
            store_vectors(total + offset, at, inside, n, words, WHOLE)
        totals = totals + (words, )
    if NORM:
        store_normed(row, totals, weights, shift, given, out, quantised, scales, n, vectors, row_step, group_step, EPS,
                     WEIGHT_BIAS, CENTER, HAS_SHIFT, HAS_OUT, QUANT, dtype, THREADS, EACH, WHOLE)
