# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Trace-time checks of what kernels pass to the primitives. All raise TypeError or ValueError; Triton adds the line.

All are constexpr functions, so that Triton hashes them with the helpers that call them."""
from triton_dist.compat.triton import constexpr_function

from triton_dist.language.abi import SIGNAL_OPS

_COMM_SCOPES = {"gpu": "gpu", "intra_node": "sys", "inter_node": "sys"}


@constexpr_function
def choice(function: str, name: str, value, allowed) -> str:
    """`value`, if it is one of `allowed`."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{function}: {name} must be a constexpr, one of {', '.join(map(repr, allowed))}, got "
                        f"{type(value).__name__}")
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
def scalar(function: str, name: str, value) -> None:
    """Refuses a block where one value is needed."""
    shape = getattr(value, "shape", ())
    if len(shape):
        raise TypeError(f"{function}: {name} must be a scalar or one pointer, got a block of shape {list(map(int, shape))}")


@constexpr_function
def fits(function: str, name: str, value, bits: int, what: str = "flag") -> None:
    """Refuses a value, or a block of values, that does not fit a `what` of `bits` bits."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, float) or dtype is not None and not dtype.is_int():
        raise TypeError(f"{function}: {name} must be an integer, got {dtype or value}; convert it with .to(tl.int{bits})")
    if dtype is None and isinstance(value, int) and not -2**(bits - 1) <= value < 2**bits:
        raise ValueError(f"{function}: {name} {value}, an int64, does not fit the {bits}-bit {what}")
    if dtype is not None and dtype.primitive_bitwidth > bits:
        wider = " or use 64-bit flags" if what == "flag" else ""
        raise TypeError(f"{function}: {name} is {dtype}, which does not fit the {bits}-bit {what}; convert it with "
                        f".to(tl.int{bits}){wider}")


@constexpr_function
def word(function: str, name: str, value, bits: int, what: str = "flag") -> None:
    """Refuses a value that is no scalar, or does not fit a `what` of `bits` bits."""
    scalar(function, name, value)
    fits(function, name, value, bits, what)


@constexpr_function
def whole_words(function: str, words) -> None:
    """Refuses self-flagged words that are not of 32 bits: narrower or wider ones would be stored with other bits."""
    dtype = getattr(words, "dtype", None)
    if dtype is None or not dtype.is_int() or dtype.primitive_bitwidth != 32:
        raise TypeError(f"{function}: words must be int32, got {dtype or type(words).__name__}; move 32-bit types with "
                        ".to(tl.int32, bitcast=True), and two 16-bit elements in one word")


@constexpr_function
def notify_each_flags(flags, signal) -> None:
    """Checks notify_each's arguments."""
    pointee_bits("notify_each", flags, (32, ))
    fits("notify_each", "signal", signal, 32, "flags")


@constexpr_function
def notify_scope(ptr, rank, signal, sig_op, comm_scope):
    """Checks notify's arguments; the memory scope of its release."""
    scalar("notify", "ptr", ptr)
    scalar("notify", "rank", rank)
    word("notify", "signal", signal, pointee_bits("notify", ptr, (32, 64)))
    choice("notify", "sig_op", sig_op, SIGNAL_OPS)
    return _COMM_SCOPES[choice("notify", "comm_scope", comm_scope, tuple(_COMM_SCOPES))]


@constexpr_function
def kind(value):
    """How consume_token ties `value`: "add", "narrow", "float", "block pointer", "descriptor" or "gluon descriptor"."""
    dtype = getattr(value, "dtype", None)
    if hasattr(value, "block_shape") and not (hasattr(dtype, "is_ptr") and dtype.is_ptr()):
        return "descriptor" if getattr(value, "layout", None) is None else "gluon descriptor"
    if dtype is None:
        if isinstance(value, int):
            return "add"
        raise TypeError(f"consume_token: cannot tie a {type(value).__name__} to a token")
    if dtype.is_ptr():
        if dtype.element_ty.is_block():
            return "block pointer"
        return "add"
    if dtype.is_floating():
        if dtype.primitive_bitwidth < 16:
            raise TypeError(f"consume_token: {dtype} is not supported; tie the pointer it is loaded from")
        return "float"
    return "add" if dtype.primitive_bitwidth >= 32 else "narrow"


@constexpr_function
def block_rank(pointer):
    """Dimensions of what a block pointer points to."""
    return len(pointer.type.element_ty.shape)


@constexpr_function
def can_hint(value):
    """True if a divisibility hint of one number fits `value` (Triton wants one per axis)."""
    return len(getattr(value, "shape", ())) <= 1


@constexpr_function
def addresses(function: str, ptr):
    """The type of a pointer or a tensor of pointers."""
    dtype = getattr(ptr, "dtype", None)
    if dtype is None or not dtype.is_ptr() or dtype.element_ty.is_block():
        raise TypeError(f"{function}: expected a pointer or a tensor of pointers, got {dtype or type(ptr).__name__}")
    return dtype


@constexpr_function
def element_shift(ptr):
    """log2 of the bytes of what `ptr` points to."""
    dtype = addresses("symm_at", ptr)
    return max(1, dtype.element_ty.primitive_bitwidth // 8).bit_length() - 1


@constexpr_function
def int_like(value):
    """The integer dtype as wide as float `value`."""
    from triton.language import core
    return core.dtype(f"int{value.dtype.primitive_bitwidth}")
