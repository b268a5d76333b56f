# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Activations that products have in their epilogue: what `act=` may be, and the same by torch.

"silu_mul" joins gate and up: of a product whose columns are those of gate, then those of up, it gives silu(gate) * up.
"""
from typing import Any

import torch

from triton_dist.runtime.errors import InvalidArgument

ACTS = ("silu_mul",)


def check(act: Any, n: int) -> None:
    """Refuses an activation that there is not, and one of a weight with n rows, of which half are gate's, half up's."""
    if act is None:
        return
    if act not in ACTS:
        raise InvalidArgument(f"act: expected None or one of {', '.join(ACTS)}, found {act!r}")
    if n % 2:
        raise InvalidArgument(f"weight: expected an even number of rows for {act!r}, found {n}; half are gate's, half are up's")


def columns(act: str | None, n: Any) -> Any:
    """Of the result of a product with a weight of n rows. n may be symbolic."""
    return n if act is None else n // 2


def silu_mul(product: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of a product [..., gate and up], in fp32 or wider."""
    gate, up = product.to(torch.promote_types(product.dtype, torch.float32)).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def silu_mul_gradient(product: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `product`, in its dtype, where `grad` is that of silu_mul(product)."""
    gate, up = product.float().chunk(2, -1)
    sigmoid, grad = gate.sigmoid(), grad.float()
    return torch.cat([grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid], -1).to(product.dtype)
