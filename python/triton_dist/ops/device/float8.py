# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of quantised outputs: float8_e4m3fn, and scales by which its numbers are multiplied to give values."""
import triton
import triton.language as tl

from triton_dist.language.float8 import e4m3_word_in_one_step, has_e4m3_word

LARGEST = tl.constexpr(448.0)           # of float8_e4m3fn
_LEAST = tl.constexpr(1e-10)            # what a largest size of less counts as, so that zeros have a scale


@triton.jit
def e4m3(values):
    """int8 bits of fp32 `values` as float8_e4m3fn: to nearest, ties to even, larger ones cut to 448. By integer arithmetic.

    Not every device has an instruction for it; so all give the same bits.
    """
    bits = values.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(values), 448.0)
    raw = size.to(tl.int32, bitcast=True)
    normal = ((raw + 0x7FFFF + ((raw >> 20) & 1)) >> 20) - (120 << 3)  # 3 bits of mantissa, exponents biased by 7
    tiny = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # the last bit of a float near 16384 is 2^-9
    found = tl.where(size < 0.015625, tiny, normal)
    found = tl.where(values != values, 0x7F, found)
    return (found | sign).to(tl.int8)


@triton.jit
def e4m3_word(a, b, c, d):
    """int32 of four float8_e4m3fn, that of `a` in the lowest byte: the bits of `e4m3`. A NaN gives one of either sign."""
    if has_e4m3_word():
        word = e4m3_word_in_one_step(a, b, c, d)
    else:
        low = (e4m3(a).to(tl.int32) & 0xFF) | (e4m3(b).to(tl.int32) & 0xFF) << 8
        word = low | (e4m3(c).to(tl.int32) & 0xFF) << 16 | (e4m3(d).to(tl.int32) & 0xFF) << 24
    return word


@triton.jit
def scale_and_inverse(most):
    """(the scale of values whose largest size is fp32 `most`, what values are multiplied with before they are rounded).

    A NaN or an infinity among the values makes the scale one, so that all of them are NaN once they are scaled back.
    """
    most = tl.where(most < _LEAST, _LEAST, most)
    return most * (1.0 / LARGEST), tl.div_rn(tl.zeros_like(most) + LARGEST, most)


@triton.jit
def size_bits(values):
    """The sizes of fp32 `values` as int32 that are ordered as they are, NaN above all others."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
