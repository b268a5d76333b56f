# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of all_reduce_rmsnorm."""
from typing import Any

import torch

from triton_dist.ops.norm_rows.eps import eps_of


def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of all_reduce_rmsnorm(x, weight, bias, residual, eps, group, method, weight_bias=0.0) -> (y, total)."""
    ctx.set_materialize_grads(False)
    weight, eps = inputs[1], inputs[4]
    ctx.weight_bias = inputs[7] if len(inputs) > 7 else 0.0         # torch leaves out what is as by default
    ctx.save_for_backward(output[1], weight)
    ctx.eps = eps_of(eps, weight.dtype)


def backward(ctx: Any, grad: torch.Tensor | None, grad_total: torch.Tensor | None) -> tuple:
    """grad, grad_total: [..., N] of the two outputs, equal on all ranks. Computed in fp32 or wider."""
    wants_x, wants_weight, wants_bias, wants_residual = ctx.needs_input_grad[:4]
    found, grad_weight = of_total(*ctx.saved_tensors, ctx.eps, ctx.weight_bias, grad, grad_total, wants_weight)
    grad_bias = None
    if wants_bias and found is not None:
        rows = tuple(range(found.ndim - 1))
        grad_bias = found.sum(rows) if rows else found
    return (found if wants_x else None, grad_weight, grad_bias, found if wants_residual else None, None, None, None, None)


def of_total(total: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float, grad: torch.Tensor | None,
             grad_total: torch.Tensor | None, wants_weight: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of total [..., N] and of weight [N], of rms_norm(total) * (weight + weight_bias), whose gradient is `grad`.

    grad_total: that of total by another way. None stands for a gradient that there is not.
    """
    wide, found, grad_weight = torch.promote_types(total.dtype, torch.float32), None, None
    rows = tuple(range(total.ndim - 1))
    if grad is not None:
        y, g = total.to(wide), grad.to(wide)
        scale = (y.square().mean(-1, keepdim=True) + eps).rsqrt()
        y = y * scale
        if wants_weight:
            grad_weight = ((g * y).sum(rows) if rows else g * y).to(weight.dtype)
        g = g * (weight.to(wide) + weight_bias)
        found = scale * (g - y * (g * y).mean(-1, keepdim=True))
    if grad_total is not None:
        found = grad_total.to(wide) if found is None else found + grad_total.to(wide)
    return None if found is None else found.to(total.dtype), grad_weight
