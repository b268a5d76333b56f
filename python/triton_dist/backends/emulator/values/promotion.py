# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Types of the emulator: what each Triton dtype is in torch, how numbers wrap and round, what two operands become.

The promotion rules are Triton's own (`TritonSemantic.computation_type_impl` needs no builder), so they follow the
installed version. An unsigned tensor is kept as the signed torch dtype of its width; only operations that depend on the
sign look.
"""
import ctypes
import math
import struct
from typing import Any

import torch
from triton.language import core, semantic

from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature

I1, I32, U32, I64, U64 = core.int1, core.int32, core.uint32, core.int64, core.uint64
F32, F64 = core.float32, core.float64

_FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
           "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2, "fp8e4b8": torch.float8_e4m3fnuz,
           "fp8e5b16": torch.float8_e5m2fnuz}
_SIGNED = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Info:
    """What the emulator needs to know of one Triton scalar type."""
    __slots__ = ("ty", "torch", "size", "kind", "bits", "signed", "lo", "hi", "mask", "integer", "pointer",
                 "stride")

    def __init__(self, ty: Any):
        self.ty, self.pointer = ty, ty.is_ptr()
        self.integer = not self.pointer and ty.is_int()
        self.bits = 64 if self.pointer else ty.primitive_bitwidth
        self.size = max(1, self.bits // 8)
        self.signed = self.integer and ty.is_int_signed()
        self.kind = "ptr" if self.pointer else "bool" if self.bits == 1 else "int" if self.integer else "float"
        if self.kind == "bool":
            self.torch = torch.bool
        elif self.kind == "float":
            self.torch = _FLOATS.get(ty.name)
        else:
            self.torch = _SIGNED[self.bits]
        self.stride = info(ty.element_ty).size if self.pointer and not ty.element_ty.is_block() else 0
        self.mask = (1 << self.bits) - 1
        self.lo = -(1 << self.bits - 1) if self.signed else 0
        self.hi = (1 << self.bits - 1) - 1 if self.signed else self.mask


INFO: dict = {}           # id of a canonical dtype -> Info; the dtypes in it live as long as this module
_canon: dict = {}
_pointers: dict = {}


def canonical(ty: Any) -> Any:
    """The one dtype object that stands for all equal ones, so that `is` compares types."""
    if id(ty) in INFO:
        return ty
    if not isinstance(ty, core.dtype):
        raise InvalidArgument(f"expected a Triton dtype such as tl.float32, found {ty!r}")
    if ty.is_block():
        return canonical(ty.element_ty)
    if ty.is_ptr():
        return pointer_to(ty.element_ty)
    found = _canon.get(ty.name)
    if found is None:
        found = _canon[ty.name] = ty
        INFO[id(ty)] = Info(ty)
    return found


def pointer_to(element: Any) -> Any:
    """The canonical pointer type to an element type."""
    element = canonical(element)
    found = _pointers.get(id(element))
    if found is None:
        found = _pointers[id(element)] = core.pointer_type(element)
        INFO[id(found)] = Info(found)
    return found


for _name in ("int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
              "float8e4nv float8e5 float8e4b8 float8e5b16 float8e4b15").split():
    canonical(getattr(core, _name))

_of_torch = {info.torch: _canon[name] for name, info in ((n, INFO[id(t)]) for n, t in _canon.items())
             if info.torch is not None and not (info.integer and not info.signed and info.bits > 1)}
_of_torch.update({getattr(torch, n): getattr(core, n) for n in ("uint8", "uint16", "uint32", "uint64")})


def info(ty: Any) -> Info:
    """The Info of a canonical dtype."""
    return INFO[id(ty)]


def torch_dtype(ty: Any) -> torch.dtype:
    """The torch dtype that carries a Triton dtype; error where torch has none."""
    found = INFO[id(ty)].torch
    if found is None:
        raise UnsupportedFeature(f"the emulator has no {ty}: torch has no such dtype; use float8e4nv or float8e5")
    return found


def from_torch(dtype: torch.dtype) -> Any:
    """The Triton dtype of a torch dtype."""
    if dtype not in _of_torch:
        raise UnsupportedFeature(f"a kernel cannot take a tensor of {dtype}")
    return _of_torch[dtype]


def constant_type(x: Any) -> Any:
    """The type that a Python number gets at run time (TritonSemantic.to_tensor)."""
    if type(x) is int and -0x80000000 <= x <= 0x7FFFFFFF:
        return I32
    if isinstance(x, bool):
        return I1
    if isinstance(x, int):
        for ty in (I32, U32, I64, U64):
            if INFO[id(ty)].lo <= x <= INFO[id(ty)].hi:
                return ty
        raise InvalidArgument(f"the integer {x} fits no 64-bit type")
    size = abs(x)
    return F32 if size == math.inf or size == 0.0 or x != x or 2.0**-126 <= size <= (2 - 2.0**-23) * 2.0**127 else F64


_rules = semantic.TritonSemantic(None)
NEWER = hasattr(_rules, "ternary_op_type_checking_impl")    # 3.9: -x is fneg, integer clamp, fdiv promotes halves
_promoted: dict = {}


def promote(a: Any, a_const: bool, b: Any, b_const: bool, division: bool = False) -> Any:
    """The type in which `a op b` is computed; *_const: the operand is a Python number."""
    key = (id(a), a_const, id(b), b_const, division)
    found = _promoted.get(key)
    if found is None:
        try:
            found = canonical(_rules.computation_type_impl(a, a_const, b, b_const, division))
        except TypeError as error:
            raise InvalidArgument(str(error)) from None
        _promoted[key] = found
    return found


def check_constant(x: Any, ty: Any) -> None:
    """Triton refuses a constant that the type of the operation cannot hold."""
    known = INFO[id(ty)]
    if known.integer and not known.lo <= x <= known.hi:
        negative = x < 0 and not known.signed
        what = "an unsigned operand and a negative constant" if negative else "a constant out of range"
        raise InvalidArgument(f"{x} does not fit {ty}: {what}; cast one of them")


def wrap(x: int, known: Info) -> int:
    """x modulo 2^bits, in the range of the type."""
    x &= known.mask
    return x - known.mask - 1 if known.signed and x > known.hi else x


def truncated(x: int, y: int) -> int:
    """C division."""
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


_half, _bits32, _word32 = struct.Struct("<e"), struct.Struct("<f"), struct.Struct("<I")


def _round_half(x: float) -> float:
    try:
        return _half.unpack(_half.pack(x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def _round_single(x: float) -> float:
    return ctypes.c_float(x).value


def _round_bfloat(x: float) -> float:
    x = ctypes.c_float(x).value
    if x != x or x in (math.inf, -math.inf):
        return x
    word = _word32.unpack(_bits32.pack(x))[0]
    word = word + 0x7FFF + (word >> 16 & 1) & 0xFFFF0000
    return _bits32.unpack(_word32.pack(word))[0]


_rounders = {"fp16": _round_half, "bf16": _round_bfloat, "fp32": _round_single, "fp64": float}


def rounded(x: float, ty: Any) -> float:
    """x as the nearest number of a floating type (ties to even), as a Python float."""
    rounder = _rounders.get(ty.name)
    return rounder(x) if rounder else to_float8(torch.tensor(x), torch_dtype(ty)).double().item()


_SATURATING = {kind: torch.finfo(kind).max for kind in (torch.float8_e4m3fn, torch.float8_e5m2)}


def to_float8(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """x in an fp8 type. As by NVIDIA's instructions, what is too large becomes the largest number, not NaN or infinity."""
    x, most = x.float(), _SATURATING.get(kind)
    return (x if most is None else x.clamp(-most, most)).to(kind)
