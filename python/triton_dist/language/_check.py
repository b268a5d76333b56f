# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Trace-time checks of what kernels pass to the primitives. All raise TypeError or ValueError; Triton adds the line.

All are constexpr functions, so that Triton hashes them with the helpers that call them."""
from triton.runtime.jit import constexpr_function

from triton_dist.language.abi import SIGNAL_OPS

_COMM_SCOPES = {"gpu": "gpu", "intra_node": "sys", "inter_node": "sys"}


@constexpr_function
def choice(function: str, name: str, value, allowed) -> str:
    """`value`, if it is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{function}: {name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


@constexpr_function
def pointee_bits(function: str, value, allowed) -> int:
    """Width of the integers that pointer `value` (or a tensor of pointers) points to."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not dtype.is_ptr():
        raise TypeError(f"{function}: expected a pointer, got {dtype or type(value).__name__}")
    element = dtype.element_ty
    if element.is_block() or not element.is_int() or element.primitive_bitwidth not in allowed:
        widths = " or ".join(map(str, allowed))
        raise TypeError(f"{function}: expected a pointer to {widths}-bit integers, got {dtype}")
    return element.primitive_bitwidth


@constexpr_function
def notify_scope(ptr, sig_op, comm_scope):
    """Checks notify's arguments; the memory scope of its release."""
    pointee_bits("notify", ptr, (32, 64))
    choice("notify", "sig_op", sig_op, SIGNAL_OPS)
    return _COMM_SCOPES[choice("notify", "comm_scope", comm_scope, tuple(_COMM_SCOPES))]


@constexpr_function
def kind(value):
    """How consume_token ties `value`: "add", "narrow", "float" or "descriptor"."""
    if hasattr(value, "block_shape"):
        return "descriptor"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        if isinstance(value, int):
            return "add"
        raise TypeError(f"consume_token: cannot tie a {type(value).__name__} to a token")
    if dtype.is_ptr():
        if dtype.element_ty.is_block():
            raise TypeError("consume_token: block pointers are not supported; tie the base pointer before "
                            "make_block_ptr, or use a tensor descriptor")
        return "add"
    if dtype.is_floating():
        if dtype.primitive_bitwidth < 16:
            raise TypeError(f"consume_token: {dtype} is not supported; tie the pointer it is loaded from")
        return "float"
    return "add" if dtype.primitive_bitwidth >= 32 else "narrow"


@constexpr_function
def can_hint(value):
    """True if a divisibility hint of one number fits `value` (Triton wants one per axis)."""
    return len(getattr(value, "shape", ())) <= 1


@constexpr_function
def element_shift(ptr):
    """log2 of the bytes of what `ptr` points to."""
    dtype = getattr(ptr, "dtype", None)
    if dtype is None or not dtype.is_ptr() or dtype.element_ty.is_block():
        raise TypeError(f"symm_at: expected a pointer or a tensor of pointers, got {dtype or type(ptr).__name__}")
    return max(1, dtype.element_ty.primitive_bitwidth // 8).bit_length() - 1


@constexpr_function
def int_like(value):
    """The integer dtype as wide as float `value`."""
    from triton.language import core
    return core.dtype(f"int{value.dtype.primitive_bitwidth}")
