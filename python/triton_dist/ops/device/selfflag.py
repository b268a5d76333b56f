# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device pieces of collectives whose data is its own flag: tensors as vectors of four 32-bit words, and reductions of them."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.language.halves import has_word_of, word_in_one_step
from triton_dist.language.selfflag import join_words, split_words
from triton_dist.ops.device.reduce import combined, finished
from triton_dist.runtime.workspace import SelfFlaggedWorkspace

COPIES = tl.constexpr(SelfFlaggedWorkspace.control_words)       # of the epoch, for count_call


@triton.jit
def load_vectors(x, vector, mask, n, WHOLE: tl.constexpr):
    """int32 [N, 4]: the 16 bytes of x [n] at each of `vector` [N] where `mask`, 0 elsewhere and beyond the end.

    WHOLE: x consists of whole vectors and begins at a multiple of 16 bytes.
    """
    if WHOLE:
        words = tl.load(places(x, vector), mask=mask[:, None], other=0)
    else:
        words = join_words(load_word(x, 4 * vector, mask, n), load_word(x, 4 * vector + 1, mask, n),
                           load_word(x, 4 * vector + 2, mask, n), load_word(x, 4 * vector + 3, mask, n))
    return words


@triton.jit
def store_vectors(out, vector, mask, n, words, WHOLE: tl.constexpr):
    """Stores int32 `words` [N, 4] into out [n], as load_vectors reads them."""
    if WHOLE:
        tl.store(places(out, vector), words, mask=mask[:, None])
    else:
        columns = split_words(words)
        for i in tl.static_range(4):
            store_word(out, 4 * vector + i, mask, n, columns[i])


@triton.jit
def places(x, vector):
    """Addresses [N, 4] of the words of vectors of x, which begins at a multiple of 16 bytes."""
    words = tl.multiple_of(x, 16).to(tl.pointer_type(tl.int32), bitcast=True)
    return words + (vector[:, None] * 4 + tl.arange(0, 4)[None, :])


@triton.jit
def load_word(x, word, mask, n):
    """int32 words of x [n], element by element: one dimension only, so that no layout is converted."""
    bits: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    raw = x.to(tl.pointer_type(tl.int16 if bits == 16 else tl.int32), bitcast=True)
    found = tl.zeros_like(word)
    for e in tl.static_range(32 // bits):
        at = 32 // bits * word + e
        part = tl.load(raw + at, mask=mask & (at < n), other=0).to(tl.int32)
        found |= (part & 0xFFFF) << 16 * e if bits == 16 else part
    return found


@triton.jit
def store_word(out, word, mask, n, value):
    """Stores int32 words into out [n], element by element."""
    bits: tl.constexpr = out.dtype.element_ty.primitive_bitwidth
    raw = out.to(tl.pointer_type(tl.int8 if bits == 8 else (tl.int16 if bits == 16 else tl.int32)), bitcast=True)
    for e in tl.static_range(32 // bits):
        at = 32 // bits * word + e
        tl.store(raw + at, (value >> (bits * e)).to(raw.dtype.element_ty), mask=mask & (at < n))


@triton.jit
def elements(words, dtype: tl.constexpr):
    """int32 words of `dtype` as fp32: one block for each element of a word, the lower one first."""
    if dtype == tl.float32:
        parts = (words.to(tl.float32, bitcast=True), )
    elif dtype == tl.bfloat16:                          # its bits are the upper half of those of fp32
        parts = ((words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True))
    else:
        parts = (words.to(tl.int16).to(dtype, bitcast=True).to(tl.float32),
                 (words >> 16).to(tl.int16).to(dtype, bitcast=True).to(tl.float32))
    return parts


@triton.jit
def from_elements(parts, dtype: tl.constexpr):
    """The inverse of `elements`, with one rounding to `dtype`."""
    if dtype == tl.float32:
        words = parts[0].to(tl.int32, bitcast=True)
    elif has_word_of(dtype):
        words = word_in_one_step(parts[0], parts[1], dtype)
    else:
        low = parts[0].to(dtype).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        words = low | parts[1].to(dtype).to(tl.int16, bitcast=True).to(tl.int32) << 16
    return words


@triton.jit
def combined_words(parts, words, dtype: tl.constexpr, OP: tl.constexpr):
    """`parts`, fp32 blocks as `elements` gives them, combined with int32 `words`."""
    more = elements(words, dtype)
    if len(parts) == 1:
        found = (combined(parts[0], more[0], OP), )
    else:
        found = (combined(parts[0], more[0], OP), combined(parts[1], more[1], OP))
    return found


@triton.jit
def taken_from_all(own, places, step, inside, index, dtype: tl.constexpr, WORLD: tl.constexpr, OP: tl.constexpr):
    """fp32 blocks: the words of every peer, which lie at `places` + `step` * rank, combined with `own`. Empties what it takes.

    In the order of ranks, so that all have the same result. A sum of two terms is the same in either order.
    """
    if WORLD == 2 and (OP == "sum" or OP == "avg"):
        parts = combined_words(elements(own, dtype), dl.sf_take(places + (1 - index) * step, inside), dtype, OP)
    else:
        for r in tl.static_range(WORLD):
            term = tl.where(index == r, own, dl.sf_take(places + r * step, inside & (index != r)))
            if r == 0:
                parts = elements(term, dtype)
            else:
                parts = combined_words(parts, term, dtype, OP)
    return parts


@triton.jit
def finished_words(parts, dtype: tl.constexpr, WORLD: tl.constexpr, OP: tl.constexpr):
    """The result of all ranks' terms as int32 words, rounded to `dtype`."""
    if len(parts) == 1:
        found = (finished(parts[0], WORLD, OP), )
    else:
        found = (finished(parts[0], WORLD, OP), finished(parts[1], WORLD, OP))
    return from_elements(found, dtype)
