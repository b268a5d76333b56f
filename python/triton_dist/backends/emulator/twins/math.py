# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of element-wise mathematics: tl.math."""
from typing import Any, Callable

import torch

from triton_dist.backends.emulator.engine.registry import Tup, invalid, twin
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import NEWER, Info, info, promote, torch_dtype, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Scalar, constant, placed, refuse_float8, scalar
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, broadcast_shape, is_const, scalar_type

_FLOATS = ("fp32", "fp64")


def runtime(x: Any) -> Any:
    return x if isinstance(x, (Scalar, Tensor)) else constant(x)


def pointwise(x: Any, fn: Callable) -> Any:
    """fn on the elements of a float value, kept in its type."""
    if isinstance(x, Tensor):
        return Tensor(fn(x.d), x.ty, x.shape)
    return scalar(fn(torch.tensor(x.v, dtype=torch_dtype(x.ty))).item(), x.ty)


def unary(name: str, fn: Callable, *keys: str, kinds: tuple = _FLOATS) -> None:
    def op(x: Any) -> Any:
        x = runtime(x)
        if x.ty.name not in kinds:
            raise invalid(f"{name} of {x.ty}: expected {' or '.join(kinds)}; cast it first")
        return pointwise(x, fn)
    twin(*(keys or (f"math.{name}", )))(op)


for _name in ("exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "rsqrt", "erf", "floor", "ceil"):
    unary(_name, getattr(torch, _name))
unary("sqrt_rn", torch.sqrt, kinds=("fp32", ))


def _flushed(fn: Callable) -> Callable:
    """`fn` with numbers below the normal range taken and given as 0, as PTX's .ftz does."""
    def normal(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x).copysign(x), x)
    return lambda x: normal(fn(normal(x)))


for _name, _fn in (("exp2_approx", torch.exp2), ("reciprocal_approx", torch.reciprocal)):
    unary(_name, _flushed(_fn), f"hopper_prims.{_name}", kinds=("fp32", ))


@twin("math.abs", "libdevice.abs")
def absolute(x: Any) -> Any:
    x = runtime(x)
    known = info(x.ty)
    if known.integer and not known.signed:
        return x
    if not isinstance(x, Tensor):
        return IntScalar(wrap(abs(x.v), known), x.ty) if known.integer else scalar(abs(x.v), x.ty)
    if known.size == 1 and not known.integer:
        return Tensor((x.d.view(torch.int8) & 0x7F).view(known.torch), x.ty, x.shape)
    return Tensor(x.d.abs(), x.ty, x.shape)


def together(values: tuple, fn: Callable, kinds: Any = None, what: str = "",
             division: bool = False) -> Any:
    """fn on several values in their common type and shape: fn(torch tensors, Info) -> torch tensor."""
    ty, const = scalar_type(values[0]), is_const(values[0])
    for v in values[1:]:
        other = scalar_type(v)
        ty = promote(ty, const, other, is_const(v), division)
        const = const and is_const(v)
    if kinds and ty.name not in kinds:
        raise invalid(f"{what} of {ty}: expected {' or '.join(kinds)}")
    refuse_float8(what or "mathematics", ty)
    shape = Tup()
    for v in values:
        if isinstance(v, Tensor):
            shape = broadcast_shape(shape, v.shape)
    parts = [as_tensor(cast(v, ty), shape or (1, )).d for v in values]
    out = fn(parts, info(ty))
    return Tensor(out, ty, shape) if shape else scalar(out.reshape(()).item(), ty)


def nary(key: str, count: int, fn: Callable, kinds: Any = _FLOATS) -> None:
    def op(*values: Any) -> Any:
        if len(values) != count:
            raise invalid(f"{key} takes {count} values, {len(values)} given")
        return together(values, fn, kinds, key)
    twin(key)(op)


def _fused(parts: list, known: Info) -> torch.Tensor:
    if known.bits >= 64:
        return torch.addcmul(parts[2], parts[0], parts[1])
    return (parts[0].double() * parts[1].double() + parts[2].double()).to(known.torch)


@twin("math.fma", "libdevice.fma", "libdevice.fma_rn")
def fma(x: Any, y: Any, z: Any) -> Any:
    return together((placed(x), placed(y), placed(z)), _fused)


@twin("math.fdiv")
def fdiv(x: Any, y: Any, ieee_rounding: bool = False, approx: bool = False) -> Any:
    found = together((placed(x), placed(y)), lambda p, _: p[0] / p[1], division=NEWER)
    if info(found.ty).kind != "float":
        raise invalid(f"fdiv that gives {found.ty}: it must be a float")
    return found


@twin("math.div_rn")
def div_rn(x: Any, y: Any) -> Any:
    return together((x, y), lambda p, _: p[0] / p[1], ("fp32", ), "div_rn")


def _high(parts: list, known: Info) -> torch.Tensor:
    if known.bits == 32:
        a, b = (p.to(torch.int64) & 0xFFFFFFFF for p in parts)
        low = 0xFFFF                             # the product of two uint32 does not fit int64: by halves
        mid = (a & low) * (b >> 16) + ((a & low) * (b & low) >> 16)
        other = (a >> 16) * (b & low) + (mid & low)
        return ((a >> 16) * (b >> 16) + (mid >> 16) + (other >> 16)).to(torch.int32)
    pairs = zip(*(p.reshape(-1).tolist() for p in parts))
    high = [((a & known.mask) * (b & known.mask)) >> 64 for a, b in pairs]
    high = [h - (1 << 64) if h >> 63 else h for h in high]
    return torch.tensor(high, dtype=torch.int64).reshape(parts[0].shape)


@twin("math.umulhi")
def umulhi(x: Any, y: Any) -> Any:
    """The high half of the product of the bits as unsigned numbers, whatever the type."""
    return together((placed(x), placed(y)), _high, ("int32", "int64", "uint32", "uint64"), "umulhi")
