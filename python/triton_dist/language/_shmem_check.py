# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Trace-time checks of what kernels pass to libshmem_device, one for each kind of parameter (`shmem_abi.PARAMETERS`)."""
from triton_dist.language._check import scalar, word
from triton_dist.language.shmem_abi import PARAMETERS, REDUCED, Function

SIGNAL_OPS = {9: 9, 10: 10, 0: 9, 1: 10}      # the published numbers of set and add -> the row's
_COMPARISONS = 6


def is_address(value) -> bool:
    """Whether `value` is a 64-bit integer of a kernel: an address, as some callers hold them."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and not dtype.is_ptr() and dtype.is_int() and dtype.primitive_bitwidth == 64


def _pointer(function: str, name: str, value) -> None:
    dtype = getattr(value, "dtype", None)
    scalar(function, name, value)
    if is_address(value):
        return
    if dtype is None or not dtype.is_ptr() or dtype.element_ty.is_block():
        raise TypeError(f"{function}: {name} must be a pointer, got {dtype or type(value).__name__}")


def _flag(function: str, name: str, value) -> None:
    _pointer(function, name, value)
    if is_address(value):
        return
    element = value.dtype.element_ty
    if not element.is_int() or element.primitive_bitwidth != 64:
        raise TypeError(f"{function}: {name} must point to a 64-bit integer, got {value.dtype}")


def _count(function: str, name: str, value) -> None:
    word(function, name, value, 64)
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{function}: {name} must be at least 0, got {value}")


def _index(function: str, name: str, value) -> None:
    scalar(function, name, value)
    dtype = getattr(value, "dtype", None)
    if dtype is None and (not isinstance(value, int) or isinstance(value, bool)) or dtype is not None and not dtype.is_int():
        raise TypeError(f"{function}: {name} must be an int32, got {dtype or value}")
    if dtype is not None and dtype.primitive_bitwidth > 32:
        raise TypeError(f"{function}: {name} must be an int32, got {dtype}; convert it with .to(tl.int32)")
    if dtype is None and not 0 <= value < 2**31:
        raise ValueError(f"{function}: {name} must be at least 0, got {value}")


def _constant(function: str, name: str, value, allowed, words: str) -> None:
    if not isinstance(value, int) or value not in allowed:
        found = value if isinstance(value, int) else f"a runtime value, {getattr(value, 'dtype', type(value).__name__)}"
        error = ValueError if isinstance(value, int) else TypeError
        raise error(f"{function}: {name} must be a constexpr, {words}, got {found}")


def _code(function: str, name: str, value, allowed, words: str) -> None:
    """A constexpr among `allowed`, or an integer of the kernel, which is taken as it is."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and dtype.is_int() and not len(getattr(value, "shape", ())):
        return
    _constant(function, name, value, allowed, words)


_CHECKS = {
    "pointer": _pointer,
    "flag": _flag,
    "count": _count,
    "index": _index,
    "word": lambda function, name, value: word(function, name, value, 64),
    "word32": lambda function, name, value: word(function, name, value, 32),
    "operand": lambda function, name, value: word(function, name, value, 64),
    "signal_op": lambda *a: _code(*a, SIGNAL_OPS, "NVSHMEM_SIGNAL_SET or NVSHMEM_SIGNAL_ADD"),
    "comparison": lambda *a: _code(*a, range(_COMPARISONS), "one of NVSHMEM_CMP_EQ, NE, GT, LE, LT, GE"),
    "queue_pair": lambda *a: _constant(*a, (0,), "0: no backend lets kernels choose a queue pair"),
}


_REDUCED = {ty: code for code, ty in enumerate(REDUCED)}


def _element(function: str, name: str, value):
    """What a pointer points to, where a call must know it."""
    if is_address(value):
        raise TypeError(f"{function}: {name} must be a pointer: the type of its elements matters; cast the address")
    return value.dtype.element_ty


def _itemsize(element) -> int:
    return max(1, element.primitive_bitwidth // 8)


def _ends(function: Function, name: str, given: dict):
    """The type of the elements of dest and source, which must be the same."""
    ends = [end for end in ("dest", "source") if end in given]
    types = [_element(name, end, given[end]) for end in ends]
    found = " and ".join(str(given[end].dtype) for end in ends)
    if function.typed > 0 and not all(ty.is_int() and ty.primitive_bitwidth == 8 * function.typed for ty in types):
        raise TypeError(f"{name}: {' and '.join(ends)} must point to {8 * function.typed}-bit integers, got {found}")
    if types[0] != types[-1]:
        raise TypeError(f"{name}: dest and source must be of one type, got {found}")
    return types[0]


def _symbol(function: Function, name: str, given: dict) -> str:
    """The row's symbol, by the width of what the first pointer points to."""
    if not function.widths:
        return function.symbol
    first = next(p for p in function.params if PARAMETERS[p][0] == "pointer")
    element = _element(name, first, given[first])
    symbol = dict(function.widths).get(8 * _itemsize(element))
    integers = any(PARAMETERS[p][0] == "operand" for p in function.params) or function.name in ("atomic_inc", "atomic_fetch_inc")
    if symbol is None or integers and not element.is_int():
        widths = " or ".join(str(bits) for bits, _ in function.widths)
        raise TypeError(f"{name}: {first} must point to {widths}-bit {'integers' if integers else 'elements'}, got "
                        f"{given[first].dtype}")
    for p in function.params:
        if PARAMETERS[p][0] == "operand":
            word(name, p, given[p], 8 * _itemsize(element))
    return symbol


def arguments(function: Function, given: dict) -> tuple[str, tuple]:
    """Checks a call's arguments, by parameter; the row's symbol and arguments."""
    name = f"libshmem_device.{function.name}"
    for parameter, value in given.items():
        _CHECKS[PARAMETERS[parameter][0]](name, parameter, value)
    symbol, values = _symbol(function, name, given), dict(given)
    if function.typed:
        element = _ends(function, name, given)
        values["itemsize"] = _itemsize(element)
        if "typecode" in function.call:
            if element.name not in _REDUCED:
                raise TypeError(f"{name}: elements must be one of {', '.join(_REDUCED)}, got {element}")
            values["typecode"] = _REDUCED[element.name]
    if isinstance(given.get("sig_op"), int):
        values["sig_op"] = SIGNAL_OPS[given["sig_op"]]
    return symbol, tuple(item if isinstance(item, int) else values[item] for item in function.call)
