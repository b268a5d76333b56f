# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The norm of a row that a program holds in registers, and its quantised form. Nothing is read back from memory.

A row is a tuple of blocks of int32 words [THREADS, 4], as load_vectors gives them. Words beyond the end of the row are 0.
"""
import triton
import triton.language as tl

from triton_dist.language.selfflag import split_words
from triton_dist.ops.device.float8 import e4m3_word, scale_and_inverse, size_bits
from triton_dist.ops.device.selfflag import (combined_words, elements, from_elements, load_vectors, store_vectors,
                                             store_word)

GROUP = tl.constexpr(128)               # columns that have a scale of their own where QUANT is "group"


@triton.jit
def extras(bias, residual, at, inside, n, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, WHOLE: tl.constexpr):
    """What is added to the sum over ranks: a tuple of words."""
    found = ()
    if HAS_BIAS:
        found = found + (load_vectors(bias, at, inside, n, WHOLE), )
    if HAS_RESIDUAL:
        found = found + (load_vectors(residual, at, inside, n, WHOLE), )
    return found


@triton.jit
def rounded(sums, extra, dtype: tl.constexpr):
    """fp32 `sums` with each of `extra` added, in that order, as words of `dtype`. Zeros that travelled as -0.0 become 0.0."""
    if len(extra) == 0:
        sums = combined_words(sums, tl.zeros_like(sums[0]).to(tl.int32), dtype, "sum")
    for i in tl.static_range(len(extra)):
        sums = combined_words(sums, extra[i], dtype, "sum")
    return from_elements(sums, dtype)


@triton.jit
def store_normed(row, totals, weights, shift, given, out, quantised, scales, n, vectors, row_step, group_step,
                 EPS: tl.constexpr, WEIGHT_BIAS: tl.constexpr, CENTER: tl.constexpr, HAS_SHIFT: tl.constexpr,
                 HAS_OUT: tl.constexpr, QUANT: tl.constexpr, dtype: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
                 WHOLE: tl.constexpr):
    """Stores the norm of row `row`, `totals`: times `weights` + WEIGHT_BIAS, and plus shift [n] where HAS_SHIFT.

    CENTER: of the differences from the row's mean (LayerNorm), else of the values (RMSNorm). HAS_OUT: rounded to `dtype`, to
    `out`. QUANT: what was rounded so is rounded again, to float8_e4m3fn, and stored to int8 `quantised`. Its scales are fp32:
    "tensor": `given`, 1 over one scale for all; "row": one for a row; "group": one for each 128 columns of a row. The last two
    go to scales [m, 1 or groups], whose rows are row_step apart and whose groups are group_step apart.
    """
    tl.static_assert(not (CENTER and QUANT != ""), "only an RMS norm is quantised")
    offset = row.to(tl.int64) * n
    share = 1.0 / n
    mean = mean_of(totals, share, dtype, EACH) if CENTER else 0.0
    squares = tl.zeros(totals[0].shape, tl.float32)
    sizes = tl.zeros(totals[0].shape, tl.float32)
    largest = ()                        # of each group
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        values, by = elements(totals[v], dtype), biased(weights[v], WEIGHT_BIAS, dtype)
        for e in tl.static_range(len(values)):
            if CENTER:
                column = (at[:, None] * 4 + tl.arange(0, 4)[None, :]) * len(values) + e
                difference = tl.where(column < n, values[e] - mean, 0.0)
                squares += difference * difference
            else:
                squares += values[e] * values[e]
            if QUANT == "row" or QUANT == "group" and e > 0:
                sizes = larger_size(sizes, values[e] * by[e])
            elif QUANT == "group":
                sizes = tl.abs(values[e] * by[e])
        if QUANT == "group":            # before the exchange of squares, in whose shadow it is
            largest = largest + (largest_of_group(sizes, dtype), )
    inverse = given
    if QUANT == "row":                  # one exchange between warps for both
        total, most = sum_and_largest_of_all(squares, size_bits(largest_of_four(sizes)))
        root = tl.rsqrt(total * share + EPS)
        scale, inverse = scale_and_inverse(largest_stored(most, root, dtype))
        thread = tl.arange(0, THREADS)
        tl.store(scales + wide_product(row, row_step) + thread, scale, mask=thread == 0)
    else:
        root = tl.rsqrt(sum_of_all(squares) * share + EPS)
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        inside = at < vectors
        values, by = elements(totals[v], dtype), biased(weights[v], WEIGHT_BIAS, dtype)
        if HAS_SHIFT:
            more = elements(load_vectors(shift, at, inside, n, WHOLE), dtype)
        normed = ()
        for e in tl.static_range(len(values)):
            value = (values[e] - mean) * by[e] * root[:, None]
            if HAS_SHIFT:
                value += more[e]
            normed = normed + (value, )
        words = from_elements(normed, dtype)
        if HAS_OUT:
            store_vectors(out + offset, at, inside, n, words, WHOLE)
        if QUANT == "group":
            scale, inverse = scale_and_inverse(largest_stored(largest[v], root, dtype))
            store_scales_of_groups(scales + wide_product(row, row_step), scale, v * THREADS, n, group_step, dtype)
        if QUANT != "":
            store_quantised(quantised + offset, at, inside, n, words, inverse, dtype, WHOLE)


@triton.jit
def biased(words, WEIGHT_BIAS: tl.constexpr, dtype: tl.constexpr):
    """The elements of a weight's words in fp32, plus a number."""
    found = elements(words, dtype)
    if WEIGHT_BIAS != 0.0:
        if len(found) == 1:
            found = (found[0] + WEIGHT_BIAS, )
        else:
            found = (found[0] + WEIGHT_BIAS, found[1] + WEIGHT_BIAS)
    return found


@triton.jit
def mean_of(totals, share, dtype: tl.constexpr, EACH: tl.constexpr):
    """[THREADS, 1]: the mean of a row of 1 / `share` elements."""
    sums = tl.zeros(totals[0].shape, tl.float32)
    for v in tl.static_range(EACH):
        values = elements(totals[v], dtype)
        for e in tl.static_range(len(values)):
            sums += values[e]
    return (sum_of_all(sums) * share)[:, None]


@triton.jit
def sum_of_all(values):
    """[N]: in each place the sum of all `values` [N, 4]. Of threads, of warps, and of all."""
    return everywhere(tl.reduce(of_all_warps(tl.reduce(by_lanes(sum_of_four(values)), 1, _sum)), 1, _sum))


@triton.jit
def sum_and_largest_of_all(values, bits):
    """Two of [N]: sum_of_all of `values`, and the largest of `bits` [N], which are not negative."""
    largest = tl.max(by_lanes(bits), 1)                     # one instruction, of integers
    total = tl.reduce(by_lanes(sum_of_four(values)), 1, _sum)
    both = of_all_warps((largest.to(tl.int64) << 32) | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF))
    return (everywhere(tl.reduce(both.to(tl.int32).to(tl.float32, bitcast=True), 1, _sum)),
            everywhere(tl.max((both >> 32).to(tl.int32), 1)))


@triton.jit
def by_lanes(values):
    """[N / 32, 32] of [N]: the threads of a warp, or of half of one."""
    return tl.reshape(values, (values.shape[0] // 32, 32))


@triton.jit
def of_all_warps(values):
    """[N, N] of [N]: each warp gets what all have, in its lanes. One exchange, in place of one to a warp and one back."""
    return tl.broadcast_to(values[None, :], (values.shape[0], values.shape[0]))


@triton.jit
def everywhere(values):
    """[32 * N] of [N]: each thread gets its warp's."""
    return tl.reshape(tl.broadcast_to(values[:, None], (values.shape[0], 32)), (32 * values.shape[0], ))


@triton.jit
def larger_size(sizes, values):
    """The larger of `sizes` and the sizes of `values`, NaN if one is."""
    return tl.maximum(sizes, tl.abs(values), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sum_of_four(values):
    """[N] of [N, 4]. Not by tl.sum, for which the compiler may move the words to other threads first."""
    a, b, c, d = split_words(values)
    return (a + b) + (c + d)


@triton.jit
def largest_of_four(values):
    """[N] of sizes [N, 4], likewise."""
    a, b, c, d = split_words(values)
    return larger_size(larger_size(a, b), larger_size(c, d))


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def largest_of_group(sizes, dtype: tl.constexpr):
    """int32 [N]: the bits of the largest of `sizes` [N, 4] in the group of each of these vectors."""
    vectors: tl.constexpr = sizes.shape[0]
    each: tl.constexpr = GROUP * dtype.primitive_bitwidth // 128         # vectors of a group, which neighbouring threads hold
    most = tl.max(tl.reshape(size_bits(largest_of_four(sizes)), (vectors // each, each)), 1, keep_dims=True)
    return tl.reshape(tl.broadcast_to(most, (vectors // each, each)), (vectors, ))


@triton.jit
def largest_stored(bits, root, dtype: tl.constexpr):
    """What the largest size before the norm's division, as `bits`, is stored as. Roundings keep the order of sizes."""
    value = bits.to(tl.float32, bitcast=True) * root
    return elements(from_elements((value, ) if dtype == tl.float32 else (value, value), dtype), dtype)[0]


@triton.jit
def store_scales_of_groups(scales, scale, first, n, group_step, dtype: tl.constexpr):
    """Stores fp32 `scale` [N] of vectors from `first` on once for each group, to the scales of a row."""
    vectors: tl.constexpr = scale.shape[0]
    each: tl.constexpr = GROUP * dtype.primitive_bitwidth // 128
    at = first + tl.arange(0, vectors)
    tl.store(scales + wide_product(at // each, group_step), scale, mask=(at % each == 0) & (at // each * GROUP < n))


@triton.jit
def wide_product(a, b):
    """int64 of a * b, which are not negative: of two int32 one instruction, since the compiler knows that."""
    if b.dtype == tl.int32:
        b &= 0x7FFFFFFF
    return a.to(tl.int64) * b.to(tl.int64)


@triton.jit
def store_quantised(out, vector, mask, n, words, inverse, dtype: tl.constexpr, WHOLE: tl.constexpr):
    """Stores the elements of `words` [N, 4], times `inverse`, as float8_e4m3fn into a row of int8 out [n]."""
    a, b, c, d = split_words(words)
    a, b, c, d = elements(a, dtype), elements(b, dtype), elements(c, dtype), elements(d, dtype)
    if dtype == tl.float32:
        low = e4m3_word(a[0] * inverse, b[0] * inverse, c[0] * inverse, d[0] * inverse)
        if WHOLE:
            tl.store(tl.multiple_of(out, 4).to(tl.pointer_type(tl.int32), bitcast=True) + vector, low, mask=mask)
        else:
            store_word(out, vector, mask, n, low)
    else:
        low = e4m3_word(a[0] * inverse, a[1] * inverse, b[0] * inverse, b[1] * inverse)
        high = e4m3_word(c[0] * inverse, c[1] * inverse, d[0] * inverse, d[1] * inverse)
        if WHOLE:
            both = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
            tl.store(tl.multiple_of(out, 8).to(tl.pointer_type(tl.int64), bitcast=True) + vector, both, mask=mask)
        else:
            store_word(out, 2 * vector, mask, n, low)
            store_word(out, 2 * vector + 1, mask, n, high)
