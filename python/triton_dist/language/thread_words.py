# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What single threads do beyond single words: vectors of a thread, shuffles in a warp, the barrier of a grid."""
import triton.language as tl

from triton_dist.language._call import helper
from triton_dist.language._check import pointee_bits
from triton_dist.language.threads import (_ballot, _shuffle, _st_v4, atomic_add, ld, laneid, st, syncthreads, threads_per_warp,
                                          tid)

_GPU, _RELAXED = map(tl.constexpr, ("gpu", "relaxed"))


# -- vectors of one thread ---------------------------------------------------------------------------------------------
@helper
def make_vector(elements):
    """A vector of one thread: a tuple of scalars, as Triton has it. It is indexed by constexprs."""
    return elements


@helper
def zeros_vector(vec_size: tl.constexpr, dtype: tl.constexpr):
    """A tuple of `vec_size` zeros of `dtype`."""
    zero = tl.full((), 0, dtype)
    vector = ()
    for _ in tl.static_range(vec_size):
        vector = vector + (zero,)
    return vector


@helper
def ld_vector(ptr, vec_size: tl.constexpr, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Loads `vec_size` adjacent elements, one after another, for the calling thread.

    Returns:
        A tuple of scalars of the pointer's element type.
    """
    vector = ()
    for i in tl.static_range(vec_size):
        vector = vector + (ld(ptr + i, scope, semantic),)
    return vector


@helper
def st_vector(ptr, vector, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Stores a tuple of scalars to adjacent elements, one after another, by the calling thread."""
    for i in tl.static_range(len(vector)):
        st(ptr + i, vector[i], scope, semantic)


@helper
def load_v4_b32(ptr):
    """Four adjacent 32-bit words, for the calling thread: a tuple of int32. Each word arrives whole."""
    words = ptr.to(tl.pointer_type(tl.int32))
    return ld(words, "sys"), ld(words + 1, "sys"), ld(words + 2, "sys"), ld(words + 3, "sys")


@helper
def load_v4_u32(ptr):
    """Four adjacent 32-bit words, for the calling thread: a tuple of uint32. Each word arrives whole."""
    words = ptr.to(tl.pointer_type(tl.uint32))
    return ld(words, "sys"), ld(words + 1, "sys"), ld(words + 2, "sys"), ld(words + 3, "sys")


load_v4_s32 = load_v4_b32


@helper
def load_v2_b64(ptr):
    """Two adjacent 64-bit words, for the calling thread: a tuple of int64. Each word arrives whole."""
    words = ptr.to(tl.pointer_type(tl.int64))
    return ld(words, "sys"), ld(words + 1, "sys")


@helper
def st_v4_b32(ptr, a, b, c, d):
    """Stores four 32-bit words in one 16-byte access, by the calling thread. Each word arrives whole."""
    _st_v4(ptr, a, b, c, d)


st_v4_u32 = st_v4_b32


@helper
def st_v2_u32(ptr, a, b):
    """Stores two 32-bit words in one 8-byte access, by the calling thread. Both arrive together."""
    st(ptr.to(tl.pointer_type(tl.int64)), pack_b32_v2(a, b), "sys")


@helper
def pack_b32_v2(low, high):
    """Two 32-bit words as one int64."""
    return (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)


@helper
def pack(words, dst_type: tl.constexpr):
    """A tuple of narrower integers as one integer of `dst_type`, the first in the lowest bits."""
    packed = tl.full((), 0, dst_type)
    bits: tl.constexpr = dst_type.primitive_bitwidth // len(words)
    for i in tl.static_range(len(words)):
        packed = packed | ((tl.cast(words[i], dst_type) & ((1 << bits) - 1)) << (i * bits))
    return packed


@helper
def unpack(word, dst_type: tl.constexpr):
    """An integer as a tuple of integers of the narrower `dst_type`, the lowest bits first."""
    parts = ()
    bits: tl.constexpr = dst_type.primitive_bitwidth
    for i in tl.static_range(word.dtype.primitive_bitwidth // bits):
        parts = parts + ((word >> (i * bits)).to(dst_type),)
    return parts


# -- warps -------------------------------------------------------------------------------------------------------------
@helper
def shuffle(mask, value, lane):
    """The int32 `value` of thread `lane` of the warp. All threads of `mask` must call it; some GPUs ignore it."""
    return _shuffle("idx", mask, value, lane)


@helper
def shuffle_up(mask, value, delta):
    """The int32 `value` of the thread `delta` below, or one's own where there is none."""
    return _shuffle("up", mask, value, delta)


@helper
def shuffle_down(mask, value, delta):
    """The int32 `value` of the thread `delta` above, or one's own where there is none."""
    return _shuffle("down", mask, value, delta)


@helper
def shuffle_xor(mask, value, lane_mask):
    """The int32 `value` of the thread whose index differs by exclusive or with `lane_mask`."""
    return _shuffle("xor", mask, value, lane_mask)


@helper
def ballot(mask, predicate):
    """One bit for each thread of the warp whose predicate is true: int32 where warps have 32 threads, else int64."""
    found = _ballot(mask, predicate)
    return found.to(tl.int32) if threads_per_warp() == 32 else found


@helper
def atomic_add_per_warp(ptr, value, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """The first thread of each warp adds `value` to an int32 or uint32; the others get its old value by a shuffle.

    Returns:
        The old value that this warp's add has found.
    """
    pointee_bits("atomic_add_per_warp", ptr, (32, ))
    old = tl.cast(0, ptr.dtype.element_ty)
    if laneid() == 0:
        old = atomic_add(ptr, value, scope, semantic)
    return shuffle(-1, old, 0).to(ptr.dtype.element_ty, bitcast=True)


@helper
def sync_grid(counter):
    """Barrier of all programs of a grid, which must all be resident (launch_cooperative_grid=True).

    Args:
        counter: pointer to an int32 or uint32 of the device that was 0 before the first barrier. It may be used again.
    """
    syncthreads()
    if tid(0) == 0:
        programs = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
        first = tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0
        word = counter.to(tl.pointer_type(tl.int32))
        step = tl.where(first, -2147483648 - (programs - 1), 1).to(tl.int32)
        old = atomic_add(word, step, "gpu", "acq_rel")
        while (old ^ ld(word, "gpu", "acquire")) >= 0:
            pass
    syncthreads()
