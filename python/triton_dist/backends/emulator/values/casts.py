# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""tl.cast: conversions between types, bit casts, and rounding toward zero."""
import math
from typing import Any

import torch

from triton_dist.backends.emulator.engine.registry import invalid, twin
from triton_dist.backends.emulator.values.elementwise import unsigned_view
from triton_dist.backends.emulator.values.promotion import I64, Info, canonical, info, rounded, to_float8, torch_dtype, wrap
from triton_dist.backends.emulator.values.scalars import FloatScalar, IntScalar, Pointer, Scalar, constant
from triton_dist.backends.emulator.values.tensors import Tensor, filled, item, line


def cast_scalar(x: Scalar, ty: Any) -> Scalar:
    """A scalar in another canonical type."""
    source, target = info(x.ty), info(ty)
    if source is target:
        return x
    if target.pointer:
        if not (source.pointer or source.integer):
            raise invalid(f"cast of {x.ty} to {ty}")
        return Pointer(x.v, ty)
    if source.pointer:
        if target.bits not in (1, 64) or not target.integer:
            raise invalid(f"cast of {x.ty} to {ty}: a pointer becomes int64 only")
        return IntScalar(int(x.v != 0) if target.bits == 1 else wrap(x.v, target), ty)
    if target.bits == 1:
        return IntScalar(int(x.v != 0), ty)
    if not target.integer:
        return FloatScalar(rounded(float(x.v), ty), ty)
    if source.integer:
        return IntScalar(wrap(x.v, target), ty)
    if x.v != x.v:
        return IntScalar(0, ty)
    whole = math.trunc(x.v) if abs(x.v) < 2.0**70 else int(math.copysign(2.0**70, x.v))
    return IntScalar(max(target.lo, min(target.hi, whole)), ty)       # the GPU's conversion saturates


def _float_to_integer(d: torch.Tensor, target: Info) -> torch.Tensor:
    wide = torch.nan_to_num(d.double(), nan=0.0)
    if target.bits == 64:
        if not target.signed:
            over = wide >= 2.0**63
            low = torch.where(over, wide - 2.0**63, wide).clamp(min=0.0, max=2.0**63 - 1024).to(torch.int64)
            return torch.where(over, low ^ -2**63, low)
        r = wide.clamp(-2.0**63, 2.0**63 - 1024).to(torch.int64)
        return torch.where(wide >= 2.0**63, torch.full_like(r, 2**63 - 1), r)
    return wide.clamp(float(target.lo), float(target.hi)).to(torch.int64).to(target.torch)


def _unsigned_wide(x: Tensor) -> torch.Tensor:
    """The elements of an unsigned tensor as non-negative int64 (below 64 bits)."""
    return x.d.to(torch.int64) & info(x.ty).mask


@twin("cast_tensor")
def cast_tensor(x: Tensor, ty: Any) -> Tensor:
    """A tensor in another canonical type."""
    source, target = info(x.ty), info(ty)
    if source is target:
        return x
    if target.pointer or source.pointer:
        to_narrow = source.pointer and not target.pointer and target.bits not in (1, 64)
        if target.pointer and source.kind == "float" or to_narrow:
            raise invalid(f"cast of {x.ty} to {ty}")
        if target.bits == 1:
            return Tensor(x.d != 0, ty, x.shape)
        if x.line is not None and (target.pointer or line(*x.line, ty, x.shape) is not None):
            return Tensor(None, ty, x.shape, x.line)
        return Tensor(x.d if source.bits == 64 else cast_tensor(x, I64).d, ty, x.shape)
    if target.bits == 1:
        return Tensor(x.d != 0, ty, x.shape)
    if target.integer:
        if x.line is not None:
            found = line(*x.line, ty, x.shape)
            if found is not None:
                return found
        if source.kind == "float":
            return Tensor(_float_to_integer(x.d, target), ty, x.shape)
        if source.kind == "int" and not source.signed and target.bits > source.bits:
            return Tensor(_unsigned_wide(x).to(target.torch), ty, x.shape)
        return Tensor(x.d.to(target.torch), ty, x.shape)
    kind = torch_dtype(ty)
    if source.kind == "int" and not source.signed:
        d = torch.from_numpy(unsigned_view(x.d, 64).astype("f8" if target.bits == 64 else "f4")) if source.bits == 64 \
            else _unsigned_wide(x)
        return Tensor(d.to(kind), ty, x.shape)
    if target.size == 1:
        return Tensor(to_float8(x.d, kind), ty, x.shape)
    return Tensor(x.d.to(kind), ty, x.shape)


def _toward_zero(x: Tensor, ty: Any) -> Tensor:
    """Floating point down-conversion that never grows the magnitude."""
    kind = torch_dtype(ty)
    near = to_float8(x.d, kind) if kind.itemsize == 1 else x.d.to(kind)
    bits = {2: torch.int16, 1: torch.int8, 4: torch.int32}[info(ty).size]
    grown = near.double().abs() > x.d.double().abs()
    return Tensor(torch.where(grown, near.view(bits) - 1, near.view(bits)).view(kind), ty, x.shape)


@twin("core.cast")
def cast(input: Any, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> Any:
    x = input
    if not isinstance(x, (Tensor, Scalar)):
        x = constant(x)
    if x.ty is dtype:
        return x
    ty = canonical(dtype)
    if bitcast and not (info(x.ty).pointer or info(ty).pointer):
        return _bitcast(x, ty)
    if fp_downcast_rounding is not None and x.ty is not ty:
        source, target = info(x.ty), info(ty)
        if source.kind != "float" or target.kind != "float" or target.bits >= source.bits:
            raise invalid(f"fp_downcast_rounding is only for narrower floats, here {x.ty} to {ty}")
        if fp_downcast_rounding == "rtz":
            return _toward_zero(x, ty) if isinstance(x, Tensor) else item(_toward_zero(filled(x, (1, )), ty))
        if fp_downcast_rounding != "rtne":
            raise invalid(f"fp_downcast_rounding={fp_downcast_rounding!r}: expected 'rtne' or 'rtz'")
    return cast_tensor(x, ty) if isinstance(x, Tensor) else cast_scalar(x, ty)


def _bitcast(x: Any, ty: Any) -> Any:
    if x.ty is ty:
        return x
    if info(x.ty).bits != info(ty).bits:
        raise invalid(f"bitcast of {x.ty} to {ty}: widths differ")
    if not isinstance(x, Tensor):
        return item(_bitcast(filled(x, (1, )), ty))
    d, kind = x.d, torch_dtype(ty)
    return Tensor(d if d.dtype is kind else d.contiguous().view(kind), ty, x.shape)
