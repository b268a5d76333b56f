# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Reductions over ranks inside kernels: OP is "sum", "avg", "max" or "min".

fp16, bf16 and fp32 are reduced in fp32 and rounded once at the end; fp64, int32 and int64 in their own type, where integers wrap.
A maximum or minimum that meets a NaN is NaN. An average of integers is rounded towards zero.
"""
import triton
import triton.language as tl


@triton.jit
def neutral(shape: tl.constexpr, dtype: tl.constexpr, OP: tl.constexpr):
    """A tensor of what changes no term it is combined with, of the type that `dtype` is reduced in."""
    bits: tl.constexpr = dtype.primitive_bitwidth
    if dtype.is_floating():
        wide: tl.constexpr = tl.float64 if bits == 64 else tl.float32
        return tl.full(shape, float("-inf") if OP == "max" else (float("inf") if OP == "min" else 0.0), wide)
    else:
        return tl.full(shape, -(1 << (bits - 1)) if OP == "max" else ((1 << (bits - 1)) - 1 if OP == "min" else 0), dtype)


@triton.jit
def combined(a, b, OP: tl.constexpr):
    """One term of two."""
    if OP == "max":
        return larger(a, b)
    elif OP == "min":
        return smaller(a, b)
    else:
        return a + b


@triton.jit
def reduced(terms, OP: tl.constexpr):
    """One term of each row: [rows, terms] to [rows, 1]."""
    if OP == "max":
        return tl.reduce(terms, 1, larger, keep_dims=True)
    elif OP == "min":
        return tl.reduce(terms, 1, smaller, keep_dims=True)
    else:
        return tl.sum(terms, 1, keep_dims=True)


@triton.jit
def finished(total, WORLD: tl.constexpr, OP: tl.constexpr):
    """The result of all ranks' terms."""
    if OP == "avg":
        return total * (1.0 / WORLD) if total.dtype.is_floating() else total // WORLD
    else:
        return total


@triton.jit
def larger(a, b):
    """The larger of two, NaN if one is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):
    """The smaller of two, NaN if one is."""
    return tl.where((a < b) | (a != a), a, b)
