# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the functions of libdevice that torch has, or that a line makes of it."""
from typing import Any, Callable

import numpy as np
import torch
from triton.language import core

from triton_dist.backends.emulator.engine.registry import invalid, twin
from triton_dist.backends.emulator.twins.math import absolute, nary, runtime, together, unary
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I1, I32, F32, F64, canonical, torch_dtype
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, carried, item

_BOTH, _SINGLE = ("fp32", "fp64"), ("fp32", )


def _round(x: torch.Tensor) -> torch.Tensor:
    """To the nearest whole number; halves go away from zero."""
    whole = x.trunc()
    return torch.where((x - whole).abs() >= 0.5, whole + x.sign(), whole)


def _tgamma(x: torch.Tensor) -> torch.Tensor:
    """It is negative where the whole number to the left of x is odd, and has no value at -1, -2, ..."""
    left, size = x.floor(), torch.exp(torch.lgamma(x))
    signed = torch.where(x == 0, size.copysign(x), torch.where((x < 0) & (left % 2 == 1), -size, size))
    return torch.where((x < 0) & (left == x), torch.nan, signed)


def _ldexp(parts: list, _: Any) -> torch.Tensor:
    x, n = parts
    half = (n.double() / 2).floor()
    return (x.double() * torch.exp2(half) * torch.exp2(n.double() - half)).to(x.dtype)


for _name in ("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "cos", "sin", "tan", "acos", "asin", "atan", "cosh",
              "sinh", "tanh", "acosh", "asinh", "atanh", "sqrt", "rsqrt", "erf", "erfc", "erfinv", "floor", "ceil", "trunc",
              "lgamma"):
    unary(_name, getattr(torch, _name), f"libdevice.{_name}")
for _name, _fn in (
    ("rint", torch.round), ("nearbyint", torch.round), ("round", _round), ("tgamma", _tgamma), ("sqrt_rn", torch.sqrt),
    ("rcp_rn", torch.reciprocal), ("exp10", lambda x: torch.pow(10.0, x)), ("erfcx", torch.special.erfcx),
    ("cbrt", lambda x: x.abs().pow(1 / 3).copysign(x)), ("rcbrt", lambda x: x.abs().pow(-1 / 3).copysign(x)),
    ("sinpi", lambda x: torch.sin(x.double() % 2 * torch.pi).to(x.dtype)),
    ("cospi", lambda x: torch.cos(x.double() % 2 * torch.pi).to(x.dtype)), ("normcdf", torch.special.ndtr),
    ("normcdfinv", torch.special.ndtri),
):
    unary(_name, _fn, f"libdevice.{_name}")
for _name, _fn in (
    ("fast_expf", torch.exp), ("fast_logf", torch.log), ("fast_log2f", torch.log2), ("fast_log10f", torch.log10),
    ("fast_sinf", torch.sin), ("fast_cosf", torch.cos), ("fast_tanf", torch.tan), ("fast_tanhf", torch.tanh),
    ("fast_exp10f", lambda x: torch.pow(10.0, x)), ("rsqrt_rn", lambda x: x.double().rsqrt().float()),
    ("saturatef", lambda x: x.nan_to_num(0.0).clamp(0, 1)),
):
    unary(_name, _fn, f"libdevice.{_name}", kinds=_SINGLE)
for _name, _fn in (
    ("pow", torch.pow), ("atan2", torch.atan2), ("fmod", torch.fmod), ("hypot", torch.hypot), ("copysign", torch.copysign),
    ("fmax", torch.fmax), ("fmin", torch.fmin), ("div_rn", torch.div), ("add_rn", torch.add), ("sub_rn", torch.sub),
    ("mul_rn", torch.mul), ("nextafter", torch.nextafter), ("fast_powf", torch.pow), ("fast_dividef", torch.div),
    ("fdim", lambda x, y: torch.where(x > y, x - y, torch.where(x <= y, 0.0, torch.nan).to(x.dtype))),
    ("remainder", lambda x, y: (x.double() - y.double() * (x.double() / y.double()).round()).to(x.dtype)),
    ("rhypot", lambda x, y: torch.hypot(x, y).reciprocal()),
):
    nary(f"libdevice.{_name}", 2, lambda p, _, fn=_fn: fn(*p), _BOTH)
nary("libdevice.norm3d", 3, lambda p, _: torch.hypot(torch.hypot(p[0], p[1]), p[2]), _BOTH)
nary("libdevice.rnorm3d", 3, lambda p, _: torch.hypot(torch.hypot(p[0], p[1]), p[2]).reciprocal(), _BOTH)


@twin("libdevice.ldexp", "libdevice.scalbn")
def ldexp(x: Any, n: Any) -> Any:
    """x times 2**n, in the type of x."""
    x = runtime(x)
    return together((x, cast(n, x.ty)), _ldexp, _BOTH, "ldexp")


def _typed(x: Any, fn: Callable, ty: Any) -> Any:
    """fn of the elements, as elements of a canonical type."""
    d = fn(as_tensor(x, x.shape or (1, )).d)
    made = Tensor(d if d.dtype is torch_dtype(ty) else d.to(torch_dtype(ty)), ty)
    return made if isinstance(x, Tensor) else item(made)


def _checked(x: Any, name: str, kinds: tuple) -> Any:
    x = runtime(x)
    if x.ty.name not in kinds:
        raise invalid(f"{name} of {x.ty}: expected {' or '.join(kinds)}; cast it first")
    return x


def _to(name: str, kinds: tuple, fn: Callable, ty: Any) -> None:
    twin(f"libdevice.{name}")(lambda x: _typed(_checked(x, name, kinds), fn, canonical(ty)))


_to("finitef", _SINGLE, torch.isfinite, I1)
_to("isfinited", ("fp64", ), torch.isfinite, I1)
_to("signbit", _BOTH, torch.signbit, I32)


# -- conversions -------------------------------------------------------------------------------------------------------
def _conversion(name: str, source: Any, whole: Callable, target: Any, result: Any) -> None:
    """Rounds to a whole number and converts, as tl.cast does; unsigned numbers come back in a signed type of their width."""
    twin(f"libdevice.{name}")(lambda x: cast(cast(_typed(_checked(x, name, (source.name, )), whole, source), target), result,
                                             bitcast=True))


_WHOLE = {"rn": torch.round, "rz": torch.trunc, "rd": torch.floor, "ru": torch.ceil}
_INTEGERS = {"int": (I32, I32), "uint": (core.uint32, I32), "ll": (core.int64, core.int64), "ull": (core.uint64, core.int64)}
for _float, _ty in (("float", F32), ("double", F64)):
    for _integer, (_target, _result) in _INTEGERS.items():
        for _mode, _fn in _WHOLE.items():
            _conversion(f"{_float}2{_integer}_{_mode}", _ty, _fn, _target, _result)
        twin(f"libdevice.{_integer}2{_float}_rn")(lambda x, ty=_ty, kind=_target: cast(cast(x, kind), ty))
for _name, _fn in (("llrint", torch.round), ("llround", _round)):
    _to(_name, _BOTH, lambda x, fn=_fn: fn(x).nan_to_num(0.0), core.int64)
for _name, _ty in (("float_as_int", I32), ("float_as_uint", core.uint32), ("double_as_longlong", core.int64),
                   ("int_as_float", F32), ("uint_as_float", F32), ("longlong_as_double", F64)):
    twin(f"libdevice.{_name}")(lambda x, ty=_ty: cast(x, ty, bitcast=True))


# -- bits --------------------------------------------------------------------------------------------------------------
def _bits(x: torch.Tensor) -> np.ndarray:
    """[..., width] of 0 and 1, the highest bit first."""
    words = x.contiguous().numpy()
    return np.unpackbits(words.astype(words.dtype.newbyteorder(">"))[..., None].view(np.uint8), axis=-1)


def _leading(bits: np.ndarray) -> np.ndarray:
    return np.where(bits.any(-1), bits.argmax(-1), bits.shape[-1])


def _turned(x: torch.Tensor) -> torch.Tensor:
    kind = x.numpy().dtype.newbyteorder(">")
    return torch.from_numpy(np.packbits(_bits(x)[..., ::-1], axis=-1).view(kind)[..., 0].astype(kind.newbyteorder("=")))


_WORDS = ("int32", "int64")
_to("popc", _WORDS, lambda x: torch.from_numpy(_bits(x).sum(-1, dtype=np.int32)), I32)
_to("clz", _WORDS, lambda x: torch.from_numpy(_leading(_bits(x))), I32)
_to("ffs", _WORDS, lambda x: torch.from_numpy((_leading(_bits(x)[..., ::-1]) + 1) % (8 * x.itemsize + 1)), I32)


@twin("libdevice.brev")
def brev(x: Any) -> Any:
    x = _checked(x, "brev", _WORDS)
    return _typed(x, _turned, x.ty)


@twin("libdevice.mulhi")
def mulhi(x: Any, y: Any) -> Any:
    """The high half of the product, signed or not as the type is."""
    def high(parts: list, known: Any) -> torch.Tensor:
        pairs = zip(*(p.reshape(-1).tolist() for p in parts))
        keep = -1 if known.signed else known.mask
        words = [carried((a & keep) * (b & keep) >> known.bits, known) for a, b in pairs]
        return torch.tensor(words, dtype=known.torch).view_as(parts[0])
    return together((x, y), high, ("int32", "int64", "uint32", "uint64"), "mulhi")


@twin("libdevice.isnan", "libdevice.isnanf")
def isnan(x: Any) -> Any:
    return runtime(x) != runtime(x)


@twin("libdevice.isinf", "libdevice.isinff")
def isinf(x: Any) -> Any:
    return absolute(x) == float("inf")
