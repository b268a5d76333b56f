# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients of ag_gemm, gemm_rs and gemm_ar: the gradient of one is the other, so both directions overlap.

Weights are [N, K], and the backward pass multiplies by their transpose. It is passed as a view, which a core reads as it is; the
portable kernels copy it at each call.
"""
from functools import partial
from typing import Any

import torch

from triton_dist import ops                  # as a module: its functions are there once gradients are asked for
from triton_dist.ops.autograd import weights
from triton_dist.ops.calls import acts


def _method(method: str) -> str:
    """That of the backward pass, whose shapes another method may have to serve than "ws"."""
    return method if method in ("portable", "unfused") else "auto"


def keep_ag_gemm(ctx: Any, inputs: tuple, output: Any, gathered: torch.Tensor | None = None) -> None:
    """Of ag_gemm(x, weight, bias, group, method, comm_sms, act). gathered: x, where it is kept like that."""
    x, weight, bias, group, method, _, act = inputs
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    again = act is not None             # to be multiplied
    ctx.save_for_backward((x if gathered is None else gathered) if wants_weight or again else None,
                          weight if wants_x or again else None, bias if again else None)
    ctx.method, ctx.group, ctx.gathered, ctx.act = _method(method), group, gathered is not None, act
    weights.keep(ctx, weight)


def keep_ag_gemm_gathered(ctx: Any, inputs: tuple, output: Any) -> None:
    """Of ag_gemm_gathered, whose second output is the gathered x. hidden, the last input: whether its caller has not got that.

    One that callers have, some ranks may use and others not. All sum its gradient over ranks, or they would wait for each other.
    """
    hidden = len(inputs) > 7 and inputs[7]                          # torch leaves out what is as by default
    ctx.set_materialize_grads(not hidden)
    if hidden:
        ctx.zeros = partial(torch.zeros, output[0].shape, dtype=output[0].dtype, device=output[0].device)
    keep_ag_gemm(ctx, inputs[:7], output, output[1])


def ag_gemm_backward(ctx: Any, grad: torch.Tensor | None, grad_gathered: torch.Tensor | None = None) -> tuple:
    """grad: as the output. grad_gathered: [M, K] of the gathered x, where that is an output."""
    (x, weight, bias), (wants_x, wants_weight, wants_bias) = ctx.saved_tensors, ctx.needs_input_grad[:3]
    grad_x = grad_weight = grad_bias = None
    if grad is not None:
        grad, gathered = grad.contiguous(), ctx.gathered
        if ctx.act is not None:
            product, x = _again(ctx, x, weight, bias, wants_weight)
            grad, gathered = acts.silu_mul_gradient(product, grad), True
        if wants_x and wants_weight and not gathered:
            grad_x, x = ops.gemm_rs_beside_gather(grad, weight.t(), x, ctx.group, ctx.method)
        elif wants_x:
            grad_x = ops.gemm_rs(grad, weight.t(), group=ctx.group, method=ctx.method)
        elif not gathered and wants_weight:
            x = ops.all_gather(x, group=ctx.group)
        if wants_weight:
            grad_weight = weights.gradient(ctx, grad, x)
        if wants_bias:
            grad_bias = grad.sum(0)
    if grad_gathered is not None and wants_x:
        direct = ops.reduce_scatter(grad_gathered.contiguous(), group=ctx.group)
        grad_x = direct if grad_x is None else grad_x + direct
    return grad_x, grad_weight, grad_bias, None, None, None, None


def ag_gemm_gathered_backward(ctx: Any, grad: torch.Tensor | None, grad_gathered: torch.Tensor | None) -> tuple:
    """As ag_gemm_backward."""
    return *ag_gemm_backward(ctx, grad, grad_gathered), None


def _again(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, wants_gathered: bool) -> tuple:
    """(x @ weight^T + bias, of which the output has an activation, and the gathered x where that is wanted)."""
    if ctx.gathered:
        return torch.nn.functional.linear(x, weight, bias), x
    found = ops.ag_gemm(x, weight, bias=bias, group=ctx.group, method=ctx.method, return_gathered=wants_gathered)
    return found if wants_gathered else (found, None)


def keep_gemm_rs(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    """Of gemm_rs(x, weight, bias, group, hop_dtype, method)."""
    x, weight, _, group, _, method = inputs
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
    ctx.method, ctx.group = _method(method), group
    weights.keep(ctx, weight)


def gemm_rs_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """grad: [M / W, N] of the output. One gather of it serves all gradients."""
    (x, weight), (wants_x, wants_weight, wants_bias) = ctx.saved_tensors, ctx.needs_input_grad[:3]
    grad = grad.contiguous()
    grad_x = grad_weight = gathered = None
    if wants_x:
        grad_x = ops.ag_gemm(grad, weight.t(), group=ctx.group, method=ctx.method, return_gathered=wants_weight or wants_bias)
        if wants_weight or wants_bias:
            grad_x, gathered = grad_x
    elif wants_weight or wants_bias:
        gathered = ops.all_gather(grad, group=ctx.group)
    if wants_weight:
        grad_weight = weights.gradient(ctx, gathered, x)
    return grad_x, grad_weight, gathered.sum(0) if wants_bias else None, None, None, None


def keep_gemm_ar(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    """Of gemm_ar(x, weight, bias, residual, group, method)."""
    x, weight = inputs[:2]
    wants_x, wants_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if wants_weight else None, weight if wants_x else None)
    weights.keep(ctx, weight)


def gemm_ar_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """grad: [M, N] of the output, equal on all ranks."""
    (x, weight), (wants_x, wants_weight, wants_bias, wants_residual) = ctx.saved_tensors, ctx.needs_input_grad[:4]
    return (grad @ weight if wants_x else None, weights.gradient(ctx, grad, x) if wants_weight else None,
            grad.sum(0) if wants_bias else None, grad if wants_residual else None, None, None)
