# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What all_reduce_rmsnorm computes, with an all_reduce and torch's own steps: the unfused method, and the tests' reference."""
from typing import Callable

import torch


def all_reduce_and_add(x: torch.Tensor, reduce: Callable[[torch.Tensor, torch.Tensor], None], total: torch.Tensor,
                       residual_out: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None) -> None:
    """residual_out = the sum over ranks of x [..., N], + bias [N] + residual [..., N]. `total` is room of x's shape.

    `reduce(x, total)` makes `total` the sum over ranks of x. Rounds to the dtype after each step. `residual_out` may be the
    residual.
    """
    reduce(x, total)
    if bias is not None:
        total += bias
    if residual is None:
        residual_out.copy_(total)
    else:
        torch.add(total, residual, out=residual_out)


def all_reduce_rmsnorm_unfused(x: torch.Tensor, weight: torch.Tensor, reduce: Callable[[torch.Tensor, torch.Tensor], None],
                               out: torch.Tensor, residual_out: torch.Tensor, eps: float, bias: torch.Tensor | None = None,
                               residual: torch.Tensor | None = None, weight_bias: float = 0.0) -> None:
    """residual_out as all_reduce_and_add gives it; out = rms_norm(residual_out) * (weight [N] + weight_bias)."""
    all_reduce_and_add(x, reduce, out, residual_out, bias, residual)
    rmsnorm(residual_out, weight, eps, weight_bias, out)


def rmsnorm(total: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float, out: torch.Tensor) -> None:
    """out = rms_norm(total [..., N]) * (weight [N] + weight_bias)."""
    if weight_bias:                     # which the weight's dtype may not have room for
        wide = torch.promote_types(weight.dtype, torch.float32)
        total, weight = total.to(wide), weight.to(wide) + weight_bias
    out.copy_(torch.nn.functional.rms_norm(total, weight.shape, weight, eps))
