# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of grouped_gemm."""
from typing import Any

import torch

from triton_dist import ops  # as a module: its functions are there once gradients are asked for
from triton_dist.ops.calls import acts


def keep(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    """Of grouped_gemm(x, weight, offsets, counts, sources, act, row_weights, method)."""
    x, weight, offsets, counts, sources, act, row_weights, _ = inputs
    ctx.save_for_backward(x, weight, offsets, counts, sources, row_weights)
    ctx.act = act


def backward(ctx: Any, grad: torch.Tensor | None) -> tuple:
    """grad: as the result. Rows of no expert get zeros."""
    x, weight, offsets, counts, sources, row_weights = ctx.saved_tensors
    needs, found = ctx.needs_input_grad, [None] * 8
    if grad is None:
        return tuple(found)
    grad = grad.contiguous()
    there = _there(grad, offsets, counts) if needs[0] or needs[6] else None
    product = None
    if ctx.act is not None or needs[6]:
        product = ops.grouped_gemm(x.detach(), weight.detach(), offsets=offsets, counts=counts, sources=sources)
        if needs[6]:
            plain = product if ctx.act is None else acts.silu_mul(product)
            found[6] = torch.where(there, (grad.float() * plain.float()).sum(-1), 0.0).view(row_weights.shape)
    if row_weights is not None:
        grad = (grad.float() * row_weights.view(grad.shape[:-1])[..., None]).to(grad.dtype)
    if ctx.act is not None:
        grad = acts.silu_mul_gradient(product, grad)
    if needs[1]:
        found[1] = torch.ops.triton_dist.grouped_gemm_weight(grad, x.detach(), offsets, counts, sources,
                                                             weight.shape[0])
    if needs[0]:
        to_rows = ops.grouped_gemm(grad, weight.detach().transpose(1, 2), offsets=offsets, counts=counts)
        to_rows = torch.where(there[..., None], to_rows, 0.0)  # pyright: ignore[reportOptionalSubscript]
        if sources is not None:  # a row of x may be that of several experts; others have no source
            to_rows = x.new_zeros(x.shape[0] + 1, x.shape[1],
                                  dtype=torch.float32).index_add_(0, torch.where(there, sources, x.shape[0]),
                                                                  to_rows.float())[:-1].to(x.dtype)
        found[0] = to_rows
    return tuple(found)


def _there(grad: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None) -> torch.Tensor:
    """bool, for each row by expert whether it is one."""
    rows = torch.arange(grad.shape[-2], device=grad.device)
    if grad.ndim == 3:
        return rows < counts[:, None]  # pyright: ignore[reportOptionalSubscript]
    begins = offsets[:-1]  # pyright: ignore[reportOptionalSubscript]
    expert = torch.searchsorted(offsets, rows.to(offsets.dtype), right=True) - 1  # pyright: ignore
    inside = (expert >= 0) & (expert < len(begins))
    expert = expert.clamp(0, len(begins) - 1)
    rows_of = torch.diff(offsets) if counts is None else counts  # pyright: ignore
    return inside & (rows - begins[expert] < rows_of[expert])
