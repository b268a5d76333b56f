# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Binary operators on elements, with the results of compiled code where torch or the CPU would differ.

Unsigned operands are carried by signed torch dtypes: what depends on the sign goes through numpy's unsigned types.
Integer division by -1 of the smallest integer traps on x86, and by zero raises in torch; the GPU gives a wrapped value
and all ones.
"""
import operator
from typing import Any, Callable, Optional

import numpy as np
import torch

from triton_dist.backends.emulator.values.promotion import Info, info

_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_PLAIN: dict = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
                "xor": operator.xor, "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
                "gt": operator.gt, "ge": operator.ge, "truediv": lambda x, y: torch.div(_tensor_of(x, y), y)}
_SIGN_FREE = {"add", "sub", "mul", "and", "or", "xor", "eq", "ne"}


def unsigned_view(x: Any, bits: int) -> Any:
    """A carrier tensor, or a carried number, as numpy unsigned."""
    kind = _UNSIGNED[bits]
    return x.contiguous().numpy().view(kind) if isinstance(x, torch.Tensor) else kind(x & (1 << bits) - 1)


def _unsigned(fn: Callable, x: Any, y: Any, known: Info) -> torch.Tensor:
    with np.errstate(all="ignore"):
        r = fn(unsigned_view(x, known.bits), unsigned_view(y, known.bits))
    return torch.from_numpy(np.asarray(r)) if r.dtype == np.bool_ else torch.from_numpy(
        np.ascontiguousarray(r).view(_UNSIGNED[known.bits]).view(f"i{known.size}"))


def _unsigned_div(x: Any, y: Any) -> Any:
    zero = y == 0
    return np.where(zero, np.array(~np.array(0, x.dtype), x.dtype), x // np.where(zero, np.array(1, x.dtype), y))


def _unsigned_mod(x: Any, y: Any) -> Any:
    return x - _unsigned_div(x, y) * y


def _tensor_of(x: Any, like: torch.Tensor) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=like.dtype)


def _signed_div(x: Any, y: Any) -> torch.Tensor:
    if isinstance(y, int) and y not in (0, -1):
        return torch.div(x, y, rounding_mode="trunc")
    some = x if isinstance(x, torch.Tensor) else y
    x, y = _tensor_of(x, some), _tensor_of(y, some)
    safe = torch.where((y == 0) | (y == -1), torch.ones_like(y), y)
    q = torch.where(y == -1, -x, torch.div(x, safe, rounding_mode="trunc"))
    return torch.where(y == 0, torch.full_like(y, -1), q)


def _shift(name: str, x: Any, y: Any, known: Info, left_signed: bool) -> torch.Tensor:
    if isinstance(y, int) and 0 <= y < known.bits:
        if name == "lshift":
            return x << y
        return x >> y if left_signed else _unsigned(np.right_shift, x, y, known)
    some = x if isinstance(x, torch.Tensor) else y
    x, y = _tensor_of(x, some), _tensor_of(y, some)
    over = (y < 0) | (y >= known.bits)
    amount = torch.where(over, torch.zeros_like(y), y)
    if name == "lshift":
        return torch.where(over, torch.zeros_like(x), x << amount)
    if left_signed:
        return torch.where(over, x >> known.bits - 1, x >> amount)
    kept = _unsigned(np.right_shift, x, amount, known)
    return torch.where(over, torch.zeros_like(kept), kept)


def plain(name: str, known: Info) -> Optional[Callable]:
    """The operator of torch that does what `apply` does; None where there is none."""
    if known.kind == "float" or known.kind == "int" and (known.signed or name in _SIGN_FREE):
        return _PLAIN.get(name)
    return None


def apply(name: str, x: Any, y: Any, known: Info, left: Any) -> torch.Tensor:
    """x op y in the type `known`; one at least is a torch tensor of its carrier, the other may be a carried number.

    `left` is the type of the operand that decides whether >> is arithmetic, before promotion: the left one unless it is a number.
    """
    if known.kind == "bool":
        return _boolean(name, x, y)
    if known.kind == "float":
        if name == "mod":
            return torch.fmod(x, y) if isinstance(x, torch.Tensor) else torch.fmod(_tensor_of(x, y), y)
        return _PLAIN[name](x, y)
    if name in ("lshift", "rshift"):
        return _shift(name, x, y, known, info(left).signed)
    if known.signed:
        if name == "floordiv":
            return _signed_div(x, y)
        return x - _signed_div(x, y) * y if name == "mod" else _PLAIN[name](x, y)
    if name in _SIGN_FREE:
        return _PLAIN[name](x, y)
    fn = {"floordiv": _unsigned_div, "mod": _unsigned_mod}.get(name) or _PLAIN[name]
    return _unsigned(fn, x, y, known)


def _boolean(name: str, x: Any, y: Any) -> torch.Tensor:
    """int1 arithmetic is modulo two, compares unsigned."""
    x, y = torch.broadcast_tensors(*(v if isinstance(v, torch.Tensor) else torch.full((), bool(v)) for v in (x, y)))
    if name in ("add", "sub", "xor", "ne"):
        return x ^ y
    if name in ("mul", "and"):
        return x & y
    if name == "or":
        return x | y
    if name in ("floordiv", "lshift", "rshift", "mod"):
        return {"floordiv": x, "mod": torch.zeros_like(x)}.get(name, x & ~y)
    return _PLAIN[name](x.to(torch.int8), y.to(torch.int8))
