# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of all_reduce_layernorm."""
from typing import Any

import torch

from triton_dist.ops.norm_rows.eps import eps_of


def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of all_reduce_layernorm(x, weight, bias, residual, norm_bias, eps, group, method) -> (y, total)."""
    ctx.set_materialize_grads(False)
    weight, eps = inputs[1], inputs[5]
    ctx.save_for_backward(output[1], weight)
    ctx.eps = eps_of(eps, weight.dtype)


def backward(ctx: Any, grad: torch.Tensor | None, grad_total: torch.Tensor | None) -> tuple:
    """grad, grad_total: [..., N] of the two outputs, equal on all ranks. Computed in fp32 or wider."""
    total, weight = ctx.saved_tensors
    wants_x, wants_weight, wants_bias, wants_residual, wants_norm_bias = ctx.needs_input_grad[:5]
    wide, found, grad_weight, grad_norm_bias = torch.promote_types(total.dtype, torch.float32), None, None, None
    rows = tuple(range(total.ndim - 1))

    def over_rows(t: torch.Tensor) -> torch.Tensor:
        return t.sum(rows) if rows else t
    if grad is not None:
        y, g = total.to(wide), grad.to(wide)
        y = y - y.mean(-1, keepdim=True)
        scale = (y.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        y = y * scale
        if wants_weight:
            grad_weight = over_rows(g * y).to(weight.dtype)
        if wants_norm_bias:
            grad_norm_bias = over_rows(g).to(weight.dtype)
        g = g * weight.to(wide)
        found = scale * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))
    if grad_total is not None:
        found = grad_total.to(wide) if found is None else found + grad_total.to(wide)
    found = None if found is None else found.to(total.dtype)
    grad_bias = over_rows(found) if wants_bias and found is not None else None
    return (found if wants_x else None, grad_weight, grad_bias, found if wants_residual else None, grad_norm_bias, None, None,
            None)
