# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The twin of tl.dot_scaled: products of fp4 and fp8 matrices whose groups of numbers along K share a scale."""
from typing import Any

import torch

from triton_dist.backends.emulator.engine.registry import Tup, invalid, twin
from triton_dist.backends.emulator.values.promotion import F32, info
from triton_dist.backends.emulator.values.tensors import Tensor

_KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}
_E2M1 = torch.tensor([sign * x for sign in (1, -1) for x in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])


def _values(x: Tensor, kind: str, packed: int) -> torch.Tensor:
    """The numbers of an operand as fp32. packed: the axis along which a byte holds two fp4, the first in its low bits."""
    if kind == "e2m1":
        word, axis = x.d.to(torch.int64), packed % len(x.shape)
        return _E2M1[torch.stack((word & 15, word >> 4 & 15), axis + 1).flatten(axis, axis + 1)]
    if kind not in _KINDS:
        raise invalid(f"dot_scaled of {kind!r}: expected e2m1, {', '.join(_KINDS)}")
    return x.d.contiguous().view(_KINDS[kind]).float()


def _scaled(values: torch.Tensor, scale: Any) -> torch.Tensor:
    """values [..., rows, K] times their scales [..., rows, K / group]: powers of two for 32 numbers, or e4m3 for 16."""
    if scale is None:
        return values
    group = 32 if info(scale.ty).integer else 16
    if tuple(scale.shape) != (*values.shape[:-1], values.shape[-1] // group):
        raise invalid(f"dot_scaled with scales of shape {tuple(scale.shape)} for {tuple(values.shape)} numbers, {group} a scale")
    if group == 16:
        factors = scale.d.float()
    else:
        exponents = scale.d.to(torch.int64) & 255
        factors = torch.where(exponents == 255, torch.nan, torch.exp2(exponents.double() - 127)).float()
    return values * factors.repeat_interleave(group, -1)


@twin("core.dot_scaled")
def dot_scaled(lhs: Tensor, lhs_scale: Any, lhs_format: str, rhs: Tensor, rhs_scale: Any, rhs_format: str, acc: Any = None,
               fast_math: bool = False, lhs_k_pack: bool = True, rhs_k_pack: bool = True, out_dtype: Any = F32) -> Tensor:
    if not isinstance(lhs, Tensor) or not isinstance(rhs, Tensor) or len(lhs.shape) != len(rhs.shape) or len(lhs.shape) < 2:
        raise invalid(f"dot_scaled of {lhs!r} and {rhs!r}: both must be 2-d, or both 3-d")
    a = _scaled(_values(lhs, lhs_format, -1 if lhs_k_pack else -2), lhs_scale)
    b = _scaled(_values(rhs, rhs_format, -2 if rhs_k_pack else -1).transpose(-1, -2), rhs_scale)
    if a.shape[-1] != b.shape[-1]:
        raise invalid(f"dot_scaled of shapes {tuple(lhs.shape)} and {tuple(rhs.shape)}: K is {a.shape[-1]} and {b.shape[-1]}")
    r = a @ b.transpose(-1, -2)
    return Tensor(r if acc is None else acc.d + r, F32, Tup(r.shape))
