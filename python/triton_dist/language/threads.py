# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Functions of single threads: who am I in my program, order, accesses of one element. extra/language_extra.py has all."""
import triton.language as tl
from triton.language import core

from triton_dist.compat.triton import constexpr_function
from triton_dist.language._call import helper, primitive, require_runtime
from triton_dist.language._check import choice, scalar, word
from triton_dist.language._linked import libraries
from triton_dist.language.kernels_of_threads import MARK
from triton_dist.language.sync import _barrier_is_not_enough, _drain
from triton_dist.language.threads_abi import (FENCE_SEMANTICS, LIBRARY, LOAD_SEMANTICS, SCOPES, STORE_SEMANTICS,
                                              UPDATE_SEMANTICS, WIDTHS, WORDS)

_SAME_SCOPE = {"workgroup": "cta", "block": "cta", "agent": "gpu", "device": "gpu", "system": "sys"}
_SHUFFLES = {"idx": "shuffle", **{how: f"shuffle_{how}" for how in ("up", "down", "xor")}}
_GPU, _RELAXED = map(tl.constexpr, ("gpu", "relaxed"))


# -- checks ------------------------------------------------------------------------------------------------------------
@constexpr_function
def _scope(function: str, scope) -> str:
    return choice(function, "scope", _SAME_SCOPE.get(scope, scope), SCOPES)


@constexpr_function
def _element_bits(function: str, ptr, allowed) -> int:
    """Bits of what a scalar pointer points to."""
    dtype = getattr(ptr, "dtype", None)
    if dtype is None or not dtype.is_ptr() or getattr(ptr, "shape", ()) or dtype.element_ty.is_block():
        raise TypeError(f"{function}: expected one pointer, got {dtype or type(ptr).__name__}; a block is for tl.load and "
                        "tl.store")
    bits = max(8, dtype.element_ty.primitive_bitwidth)
    if bits not in allowed:
        raise TypeError(f"{function}: expected a pointer to elements of {' or '.join(map(str, allowed))} bits, got {dtype}")
    return bits


@constexpr_function
def _integer_like(ptr):
    """The integer type of the width of what `ptr` points to."""
    return core.dtype(f"int{max(8, ptr.dtype.element_ty.primitive_bitwidth)}")


@constexpr_function
def _integers(function: str, ptr):
    if not ptr.dtype.element_ty.is_int():
        raise TypeError(f"{function}: expected a pointer to integers, got {ptr.dtype}")
    return ptr.dtype.element_ty


def _require(name: str, semantic) -> None:
    require_runtime(name, semantic)
    if LIBRARY not in libraries(semantic):
        raise RuntimeError(f"{name} needs the library of thread functions, which is linked where the kernel, or a jit function "
                           "that it calls by a global name, names one of them")


def _thread(choose):
    """A primitive that each thread calls for itself."""
    made = primitive(choose, _require, "language_extra")
    setattr(made, MARK, True)
    return made


@_thread
def _ld(ptr, scope, semantic):
    bits, scope = _element_bits("ld", ptr, WIDTHS), _scope("ld", scope)
    return f"{LIBRARY}_ld_b{bits}_{choice('ld', 'semantic', semantic, LOAD_SEMANTICS)}_{scope}", (ptr,)


@_thread
def _st(ptr, value, scope, semantic):
    bits, scope = _element_bits("st", ptr, WIDTHS), _scope("st", scope)
    scalar("st", "value", value)
    return f"{LIBRARY}_st_b{bits}_{choice('st', 'semantic', semantic, STORE_SEMANTICS)}_{scope}", (ptr, value)


@_thread
def _update(function, op, ptr, value, scope, semantic):
    bits, scope = _element_bits(function, ptr, WORDS), _scope(function, scope)
    word(function, "value", value, bits, "integer")
    return f"{LIBRARY}_{op}_b{bits}_{choice(function, 'semantic', semantic, UPDATE_SEMANTICS)}_{scope}", (ptr, value)


@_thread
def _cas(ptr, expected, value, scope, semantic):
    bits, scope = _element_bits("atomic_cas", ptr, WORDS), _scope("atomic_cas", scope)
    word("atomic_cas", "expected", expected, bits, "integer")
    word("atomic_cas", "value", value, bits, "integer")
    symbol = f"{LIBRARY}_cas_b{bits}_{choice('atomic_cas', 'semantic', semantic, UPDATE_SEMANTICS)}_{scope}"
    return symbol, (ptr, expected, value)


@_thread
def _st_v4(ptr, a, b, c, d):
    for name, value in zip("abcd", (a, b, c, d), strict=True):
        word("st_v4_b32", name, value, 32, "word")
    return f"{LIBRARY}_st_v4", (ptr, a, b, c, d)


@_thread
def _shuffle(how, mask, value, other):
    word(_SHUFFLES[how], "value", value, 32, "register of a shuffle")
    return f"{LIBRARY}_shfl_{how}", (mask, value, other)


@_thread
def _ballot(mask, predicate):
    return f"{LIBRARY}_ballot", (mask, predicate)


# -- who am I ----------------------------------------------------------------------------------------------------------
@_thread
def tid(axis=0):
    """Index of the calling thread in its program.

    Args:
        axis: 0, 1 or 2. Triton's programs are flat: axes 1 and 2 give 0.

    Returns:
        int32, from 0 to num_threads() - 1.
    """
    if axis not in (0, 1, 2):
        raise ValueError(f"tid: axis must be a constexpr, 0, 1 or 2, got {axis!r}")
    return f"{LIBRARY}_tid_{'xyz'[axis]}", ()


@_thread
def laneid():
    """Index of the calling thread in its warp, int32."""
    return f"{LIBRARY}_lane", ()


@_thread
def smid():
    """Number of the multiprocessor that the program runs on, int32; 0 where the device does not tell it."""
    return f"{LIBRARY}_sm", ()


@_thread
def globaltimer():
    """Nanoseconds of the device's timer, int64. Timers of different devices do not agree."""
    return f"{LIBRARY}_clock", ()


clock = globaltimer


@core.builtin
def threads_per_warp(_semantic=None):
    """Threads of a warp, a constexpr: 32 in the emulator and on most GPUs, 64 where the device says so."""
    return core.constexpr(getattr(_semantic.builder.options, "warp_size", 32))


@core.builtin
def num_warps(_semantic=None):
    """Warps of a program, a constexpr."""
    return core.constexpr(_semantic.builder.options.num_warps)


@core.builtin
def num_threads(_semantic=None):
    """Threads of a program, a constexpr."""
    return core.constexpr(_semantic.builder.options.num_warps * getattr(_semantic.builder.options, "warp_size", 32))


@helper
def ntid(axis: tl.constexpr = 0):
    """Threads of a program along an axis: num_threads() for axis 0, else 1."""
    return num_threads() if axis == 0 else 1


@helper
def simt_exec_region():
    """`with simt_exec_region() as (thread, threads):` binds the calling thread's index and how many there are.

    The code under it may diverge, as all code that depends on `tid` may; the region itself adds nothing.

    Returns:
        (tid(0), num_threads()).
    """
    return tid(0), num_threads()


# -- order -------------------------------------------------------------------------------------------------------------
@helper
def syncthreads():
    """Barrier of all threads of the program, which all must reach. What they have stored before it is seen after it."""
    if _barrier_is_not_enough():
        _drain()
    tl.debug_barrier()


@_thread
def fence(semantic="sc", scope="gpu"):
    """Memory fence of the calling thread.

    Args:
        semantic: "sc" or "acq_rel".
        scope: "cta", "gpu" or "sys".
    """
    scope = _scope("fence", scope)
    return f"{LIBRARY}_fence_{choice('fence', 'semantic', semantic, FENCE_SEMANTICS)}_{scope}", ()


@constexpr_function
def _membar_scope(scope):
    return {"gl": "gpu"}.get(scope, scope)


@helper
def membar(scope: tl.constexpr = "cta"):
    """Fence of the calling thread, "sc"; scope: "cta", "gl" for the device, or "sys"."""
    fence("sc", _membar_scope(scope))


# -- one thread's accesses ---------------------------------------------------------------------------------------------
@helper
def ld(ptr, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Loads one element, for the calling thread.

    Args:
        ptr: one pointer, to elements of 8 to 64 bits.
        scope: "cta", "gpu" or "sys": whose stores it may meet.
        semantic: "relaxed" or "acquire".

    Returns:
        The element.
    """
    return _ld(ptr, scope, semantic).to(ptr.dtype.element_ty, bitcast=True)


@helper
def st(ptr, value, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Stores one element, by the calling thread.

    Args:
        ptr: one pointer, to elements of 8 to 64 bits.
        value: what to store; cast to the pointer's element type.
        scope: "cta", "gpu" or "sys": whose loads may meet it.
        semantic: "relaxed" or "release".
    """
    typed = tl.cast(value, ptr.dtype.element_ty)
    _st(ptr, typed.to(_integer_like(ptr), bitcast=True), scope, semantic)


@helper
def atomic_add(ptr, value, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Adds to a 32- or 64-bit integer, by the calling thread.

    Returns:
        The old value, of the pointer's element type.
    """
    ty: tl.constexpr = _integers("atomic_add", ptr)
    return _update("atomic_add", "add", ptr, value, scope, semantic).to(ty, bitcast=True)


@helper
def atomic_exch(ptr, value, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Stores to a 32- or 64-bit integer, by the calling thread.

    Returns:
        The old value, of the pointer's element type.
    """
    ty: tl.constexpr = _integers("atomic_exch", ptr)
    return _update("atomic_exch", "xchg", ptr, value, scope, semantic).to(ty, bitcast=True)


@helper
def atomic_cas(ptr, expected, value, scope: tl.constexpr = _GPU, semantic: tl.constexpr = _RELAXED):
    """Stores `value` to a 32- or 64-bit integer that holds `expected`, by the calling thread.

    Returns:
        The old value, of the pointer's element type.
    """
    ty: tl.constexpr = _integers("atomic_cas", ptr)
    return _cas(ptr, expected, value, scope, semantic).to(ty, bitcast=True)


@helper
def red_release(ptr, value, scope: tl.constexpr = _GPU):
    """Adds to an integer with release semantics, by the calling thread; gives nothing back."""
    atomic_add(ptr, value, scope, "release")


@helper
def arrive_inc(ptr, value=1, scope: tl.constexpr = _GPU):
    """Barrier of the program, then its first thread adds `value` to an integer with release semantics."""
    syncthreads()
    if tid(0) == 0:
        atomic_add(ptr, value, scope, "release")


@helper
def wait_eq(ptr, value, scope: tl.constexpr = _GPU):
    """The program's first thread spins until an integer holds `value`, and acquires it; then a barrier of the program."""
    if tid(0) == 0:
        while ld(ptr, scope, "acquire") != value:
            pass
    syncthreads()


@helper
def ld_acquire(ptr, scope: tl.constexpr = _GPU):
    """`ld` with acquire semantics."""
    return ld(ptr, scope, "acquire")


@helper
def ld_b32(ptr):
    """32 bits of an address, int32."""
    return ld(ptr.to(tl.pointer_type(tl.int32)))


@helper
def st_b32(ptr, value):
    """Stores 32 bits."""
    st(ptr.to(tl.pointer_type(tl.int32)), value)
