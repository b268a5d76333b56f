# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients of the collectives: those of the sum of all ranks' losses, as torch.distributed has them."""
from typing import Any

import torch

from triton_dist import ops                  # as a module: its functions are there once gradients are asked for
from triton_dist.runtime.errors import InvalidArgument


def must_be_linear(op: str, reduction: str) -> None:
    """Raises InvalidArgument for a reduction without a gradient."""
    if reduction not in ("sum", "avg"):
        raise InvalidArgument(f"op: {reduction!r} has no gradient in {op}; call it under torch.no_grad(), or pass a detached "
                              "tensor")


def keep(ctx: Any, inputs: tuple, output: Any) -> None:
    """Of (x, group, ...): all that follows x."""
    ctx.asked = inputs[1:]


def all_gather_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of all_gather(x, group, method)."""
    group, _ = ctx.asked
    return ops.reduce_scatter(grad.contiguous(), group=group), None, None


def reduce_scatter_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of reduce_scatter(x, group, method, op)."""
    group, _, reduction = ctx.asked
    must_be_linear("reduce_scatter", reduction)
    gathered = ops.all_gather(grad.contiguous(), group=group)
    return gathered if reduction == "sum" else gathered / (gathered.shape[0] // grad.shape[0]), None, None, None


def all_reduce_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of all_reduce(x, group, method, op)."""
    group, _, reduction = ctx.asked
    must_be_linear("all_reduce", reduction)
    return ops.all_reduce(grad.contiguous(), group=group, op=reduction), None, None, None


def all_to_all_single_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of all_to_all_single(x, output_split_sizes, input_split_sizes, group, method)."""
    received, sent, group, _ = ctx.asked
    back = ops.all_to_all_single(grad.contiguous(), output_split_sizes=sent, input_split_sizes=received, group=group)
    return back, *[None] * 4


def all_gather_2d_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of all_gather_2d(x, group)."""
    return ops.reduce_scatter_2d(grad.contiguous(), group=ctx.asked[0]), None


def reduce_scatter_2d_backward(ctx: Any, grad: torch.Tensor) -> tuple:
    """Of reduce_scatter_2d(x, group)."""
    return ops.all_gather_2d(grad.contiguous(), group=ctx.asked[0]), None
