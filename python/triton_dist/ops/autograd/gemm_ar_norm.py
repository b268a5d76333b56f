# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of gemm_ar_rmsnorm: that of the norm, then that of gemm_ar."""
from typing import Any

import torch

from triton_dist.ops.autograd import norm, weights
from triton_dist.ops.norm_rows.eps import eps_of


def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of gemm_ar_rmsnorm(x, weight, norm_weight, bias, residual, eps, group, method, norm_weight_bias=0.0) -> (y, total)."""
    ctx.set_materialize_grads(False)
    x, weight, norm_weight, _, _, eps = inputs[:6]
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None, output[1], norm_weight)
    ctx.weight_bias = inputs[8] if len(inputs) > 8 else 0.0         # torch leaves out what is as by default
    ctx.eps = eps_of(eps, norm_weight.dtype)
    weights.keep(ctx, weight)


def backward(ctx: Any, grad: torch.Tensor | None, grad_total: torch.Tensor | None) -> tuple:
    """grad, grad_total: [M, N] of the two outputs, equal on all ranks."""
    x, weight, total, norm_weight = ctx.saved_tensors
    wants_x, wants_weight, wants_norm_weight, wants_bias, wants_residual = ctx.needs_input_grad[:5]
    found, grad_norm_weight = norm.of_total(total, norm_weight, ctx.eps, ctx.weight_bias, grad, grad_total, wants_norm_weight)
    if found is None:
        return (None,) * 9
    return (found @ weight if wants_x else None, weights.gradient(ctx, found, x) if wants_weight else None, grad_norm_weight,
            found.sum(0) if wants_bias else None, found if wants_residual else None, None, None, None, None)
