# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of rmsnorm_gemm: those of the activation, of the product and of the norm, one after the other."""
from typing import Any

import torch

from triton_dist.ops.autograd import norm, weights
from triton_dist.ops.calls import acts
from triton_dist.ops.norm_rows.eps import eps_of


def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of rmsnorm_gemm(x, weight, norm_weight, bias, residual, eps, norm_weight_bias, act, method) -> (out, residual_out)."""
    ctx.set_materialize_grads(False)
    x, weight, norm_weight, bias, residual, eps, ctx.weight_bias, ctx.act, _ = inputs
    ctx.save_for_backward(x if residual is None else output[1], weight, norm_weight, bias if ctx.act is not None else None)
    ctx.eps = eps_of(eps, x.dtype)
    if residual is None:
        ctx.mark_non_differentiable(output[1])
    weights.keep(ctx, weight)


def backward(ctx: Any, grad: torch.Tensor | None, grad_total: torch.Tensor | None) -> tuple:
    """grad: as out. grad_total: [M, K] of residual_out, or of no elements where there is no residual."""
    total, weight, norm_weight, bias = ctx.saved_tensors
    wants_x, wants_weight, wants_norm_weight, wants_bias, wants_residual = ctx.needs_input_grad[:5]
    if grad_total is not None and not grad_total.numel():
        grad_total = None
    grad_weight = grad_norm_weight = grad_bias = to_normed = None
    if grad is not None:
        normed = total if norm_weight is None else _normed(total, norm_weight, ctx.eps, ctx.weight_bias)
        if ctx.act is not None:
            grad = acts.silu_mul_gradient(torch.nn.functional.linear(normed, weight, bias), grad)
        if wants_weight:
            grad_weight = weights.gradient(ctx, grad, normed)
        if wants_bias:
            grad_bias = grad.sum(0)
        if wants_x or wants_residual or wants_norm_weight:
            to_normed = grad @ weight
    if norm_weight is None:
        found = to_normed if grad_total is None or to_normed is None else to_normed + grad_total
        found = grad_total if found is None else found
    else:
        found, grad_norm_weight = norm.of_total(total, norm_weight, ctx.eps, ctx.weight_bias, to_normed, grad_total,
                                                wants_norm_weight)
    return (found if wants_x else None, grad_weight, grad_norm_weight, grad_bias, found if wants_residual else None, None, None,
            None, None)


def _normed(total: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float) -> torch.Tensor:
    """rms_norm(total) * (weight + weight_bias), rounded to the dtype of total."""
    wide = torch.promote_types(total.dtype, torch.float32)
    y = torch.nn.functional.rms_norm(total.to(wide), weight.shape, None, eps)
    return (y * (weight.to(wide) + weight_bias)).to(total.dtype)
