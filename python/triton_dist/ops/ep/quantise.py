# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of rows that become float8_e4m3fn on the way, with a scale for each 128 columns.

What becomes a vector of 16 bytes lies in one thread, and the 8 vectors of a scale in neighbours: no shared memory is needed.
"""
import triton
import triton.language as tl

from triton_dist.language.selfflag import join_words, split_words
from triton_dist.ops.device.float8 import e4m3_word
from triton_dist.ops.device.selfflag import elements


@triton.jit
def rounded(part, dtype: tl.constexpr, N: tl.constexpr):
    """Vectors as float8_e4m3fn: (int32 [N, 4], the scales, fp32 [N / 8], the scale of each vector, fp32 [N]).

    No word is -1: of four NaNs with a sign, one loses it.
    part: a block of int32 [N, 4] for each byte of an element of `dtype`; block s has vector s of those that become one.
    """
    most = tl.zeros((N, 4), tl.float32)
    for s in tl.static_range(len(part)):
        values = elements(part[s], dtype)
        for e in tl.static_range(len(values)):
            most = tl.maximum(most, tl.abs(values[e]))
    of_groups = tl.maximum(tl.max(tl.reshape(tl.max(most, 1), (N // 8, 8)), 1), 1e-4)
    of_vectors = tl.reshape(tl.broadcast_to(of_groups[:, None], (N // 8, 8)), (N, ))
    inverse = tl.div_rn(tl.full((N, ), 448.0, tl.float32), of_vectors)
    found = ()
    for s in tl.static_range(len(part)):
        values = elements(part[s], dtype)
        if len(values) == 1:
            a, b, c, d = split_words(values[0])
            found = found + (e4m3_word(a * inverse, b * inverse, c * inverse, d * inverse), )
        else:
            a, c, e, g = split_words(values[0])
            b, d, f, h = split_words(values[1])
            found = found + (e4m3_word(a * inverse, b * inverse, c * inverse, d * inverse),
                             e4m3_word(e * inverse, f * inverse, g * inverse, h * inverse))
    words = join_words(found[0], found[1], found[2], found[3])
    return tl.where(words == -1, 0x7FFFFFFF, words), of_groups * (1.0 / 448.0), of_vectors * (1.0 / 448.0)


@triton.jit
def vectors_of(source, column, row, there, N: tl.constexpr):
    """What `rounded` takes: what becomes N vectors, from `column` on, of the row of `row` elements at `source`, if `there`."""
    BLOCKS: tl.constexpr = source.dtype.element_ty.primitive_bitwidth // 8
    vector, found = tl.arange(0, N), ()
    words = (source + column).to(tl.pointer_type(tl.int32), bitcast=True)
    for s in tl.static_range(BLOCKS):
        found = found + (tl.load(words + ((vector * BLOCKS + s)[:, None] * 4 + tl.arange(0, 4)[None, :]),
                                 mask=(there & (column + 16 * vector < row))[:, None],
                                 other=0), )
    return found
