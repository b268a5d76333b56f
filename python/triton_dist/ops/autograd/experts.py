# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients of dispatch and combine: each is the other's."""
import math
from typing import Any

import torch

from triton_dist import ops  # as a module: its functions are there once gradients are asked for
from triton_dist.ops.ep.self_flagged import METHOD
from triton_dist.runtime.errors import InvalidArgument


def keep_dispatch(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of ep_dispatch_rows(x, topk_ids, topk_weights, scales, num_experts, layout, ..., quant, group, method)."""
    x, topk_ids, _, scales, experts, layout, _, _, max_tokens, quant, group, method = inputs
    out, scales_out, ids_out, _, told, positions, sources = output
    if ctx.needs_input_grad[0] and (quant is not None or scales is not None):
        raise InvalidArgument("x: requires grad, and a dispatch of fp8 has no gradient; pass a detached tensor")
    ctx.save_for_backward(topk_ids, ids_out, told, positions if layout in ("expert", "masked") else None)
    ctx.args = dict(num_experts=experts,
                    max_tokens=x.shape[0] if max_tokens is None else max_tokens,
                    group=group,
                    method=method)
    ctx.mark_non_differentiable(scales_out, ids_out, told, positions, sources)


def backward_dispatch(ctx: Any, grad: torch.Tensor | None, _: Any, __: Any, grad_weights: torch.Tensor | None, *___:
                      Any) -> tuple:
    """grad: of out. grad_weights: [rows, K] of weights_out."""
    topk_ids, ids_out, told, positions = ctx.saved_tensors
    to_x = to_weights = None
    if grad is not None and ctx.needs_input_grad[0]:
        to_x = ops.ep_combine_rows(grad.contiguous(), topk_ids, told, positions, rows=math.prod(grad.shape[:-1]), **ctx.args)
    if grad_weights is not None and ctx.needs_input_grad[
            2]:  # each choice is on one rank, and counts for nothing elsewhere
        rows = torch.where(ids_out >= 0, grad_weights, 0.0)
        args = ctx.args if ctx.args["method"] != METHOD else dict(ctx.args, method="auto")  # these rows may be no whole vectors
        to_weights = ops.ep_combine_rows(rows, topk_ids, told, None, rows=rows.shape[0], **args)
    return to_x, None, to_weights, *[None] * 9


def keep_combine(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    """Of ep_combine_rows(y, topk_ids, told, positions, topk_weights, bias, residual, num_experts, rows, ..., group, method)."""
    y, topk_ids, told, positions, topk_weights, _, _, experts, _, max_tokens, group, method = inputs
    weighs = topk_weights is not None and ctx.needs_input_grad[4]
    ctx.save_for_backward(topk_ids, told, positions, topk_weights, y if weighs else None)
    ctx.args = dict(num_experts=experts, max_tokens=max_tokens, group=group, method=method)
    ctx.shape = y.shape


def backward_combine(ctx: Any, grad: torch.Tensor | None) -> tuple:
    """grad: [T, H]."""
    topk_ids, told, positions, topk_weights, y = ctx.saved_tensors
    needs, found = ctx.needs_input_grad, [None] * 12
    if grad is None:
        return tuple(found)
    if needs[0] or needs[4]:
        limit = ctx.shape[0] if positions is None else positions.shape[0]
        rows = ops.ep_dispatch_rows(grad.contiguous(), topk_ids, capacity=limit, **ctx.args)[0]
        came = torch.arange(limit, device=rows.device) < told[0]
        rows = torch.where(came[:, None], rows, 0.0)
        if positions is None:
            found[0] = rows
        else:
            found[0], found[4] = _by_choices(rows, positions, topk_weights, y, ctx.shape)
    if needs[5]:
        found[5] = grad.sum(0)
    if needs[6]:
        found[6] = grad
    return tuple(found)


def _by_choices(rows: torch.Tensor, positions: torch.Tensor, weights: torch.Tensor | None, y: torch.Tensor | None,
                shape: torch.Size) -> tuple:
    """The gradients of y and of the weights, from `rows` [rows, H], the gradients of the sums that went back."""
    flat = rows.new_zeros((shape.numel() // shape[-1] + 1, shape[-1]))  # the last row takes what is of nobody
    of_weights = []
    for j in range(positions.shape[1]):
        spot = positions[:, j].long()
        term = rows if weights is None else (rows.float() * weights[:, j, None]).to(rows.dtype)
        flat[torch.where(spot >= 0, spot, -1)] = term
        if y is not None:
            part = (rows.float() * y.reshape(-1, shape[-1])[spot.clamp(min=0)].float()).sum(-1)
            of_weights.append(torch.where(spot >= 0, part, 0.0))
    return flat[:-1].view(shape), torch.stack(of_weights, 1) if of_weights else None
