# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradients of the all-to-alls of chunks: each sends rows back by the other, and they go to where they came from."""
from typing import Any

import torch

from triton_dist import ops                  # as a module: its functions are there once gradients are asked for


def keep_2d(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of all_to_all_vdev_2d(x, in_splits, major_align, capacity, group, method) -> (out, out_splits_offsets)."""
    _keep(ctx, inputs, output, True)


def keep_offset(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of all_to_all_vdev_2d_offset(x, in_splits_offsets, capacity, group, method) -> (out, out_splits_offsets)."""
    _keep(ctx, inputs, output, False)


def _keep(ctx: Any, inputs: tuple, output: tuple, by_rank: bool) -> None:
    ctx.save_for_backward(inputs[1], output[1])
    ctx.rows, ctx.by_rank, ctx.group, ctx.method, ctx.inputs = len(inputs[0]), by_rank, inputs[-2], inputs[-1], len(inputs)
    ctx.mark_non_differentiable(output[1])


def backward(ctx: Any, grad: torch.Tensor | None, _: torch.Tensor | None) -> tuple:
    """grad: [capacity, ...] of out."""
    nothing = [None] * (ctx.inputs - 1)
    if grad is None or not ctx.needs_input_grad[0]:
        return None, *nothing
    splits, told = ctx.saved_tensors
    return torch.ops.triton_dist.all_to_all_vdev_2d_backward(grad.contiguous(), splits, told, ctx.rows, ctx.by_rank, ctx.group,
                                                             ctx.method), *nothing


def returned(grad: torch.Tensor, splits: torch.Tensor, told: torch.Tensor, rows: int, by_rank: bool, group: Any,
             method: str) -> torch.Tensor:
    """The gradient of x [rows, ...]: zero for rows that were cut off, and for those that no rank got."""
    counts, offsets = told
    counts = (len(grad) - offsets).clamp(min=0).minimum(counts)                 # those that were not cut off
    if by_rank:
        sent = torch.stack([counts, offsets]).contiguous()
        back, told = ops.all_to_all_vdev_2d_offset(grad, sent, capacity=rows, group=group, method=method)
        ends = splits.clamp(0, rows).cumsum(0)
        begins = ends - splits.clamp(0, rows)
    else:
        experts = splits.shape[1]
        back, told = ops.all_to_all_vdev_2d(grad, counts.contiguous(), capacity=rows + experts, group=group, method=method)
        begins = splits[1].clamp(0, rows)
    chunk, there = chunk_of_rows(told, len(back))
    land = begins[chunk] + torch.arange(len(back), device=back.device) - told[1][chunk]
    land = torch.where(there & (land < rows), land, rows).long()
    out = back.new_zeros((rows + 1, *back.shape[1:]))
    return out.index_copy_(0, land, back)[:rows]


def chunk_of_rows(told: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(int64 [rows] the last chunk that begins at or before each row, bool [rows] whether the row is in it)."""
    counts, offsets = told
    index = torch.arange(rows, device=told.device, dtype=told.dtype)
    chunk = torch.searchsorted(offsets.contiguous(), index, right=True) - 1
    chunk = chunk.clamp(min=0)
    return chunk, index - offsets[chunk] < counts[chunk]
