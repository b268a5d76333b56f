# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of all_to_all_vdev: rows go back to where they came from."""
from typing import Any

import torch

from triton_dist import ops                  # as a module: its functions are there once gradients are asked for


def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Of all_to_all_vdev(x, in_splits, capacity, group, method) -> (out, out_splits_offsets)."""
    x, _, _, group, method = inputs
    ctx.save_for_backward(output[1])
    ctx.rows, ctx.group, ctx.method = x.shape[0], group, method
    ctx.mark_non_differentiable(output[1])


def backward(ctx: Any, grad: torch.Tensor | None, _: torch.Tensor | None) -> tuple:
    """grad: [capacity, ...] of out."""
    if grad is None or not ctx.needs_input_grad[0]:
        return (None,) * 5
    told, = ctx.saved_tensors
    returned = torch.ops.triton_dist.all_to_all_vdev_backward(grad.contiguous(), told, ctx.rows, ctx.group, ctx.method)
    return returned, None, None, None, None


def returned(grad: torch.Tensor, out_splits_offsets: torch.Tensor, rows: int, group: Any, method: str) -> torch.Tensor:
    """The gradient of x [rows, ...]: of rows that were cut off, and of those that no rank got, it is zero.

    Every rank gives back as many rows as it was to get, so that they lie as in x; those that it did not get are zeros.
    """
    most = rows * out_splits_offsets.shape[1]
    if grad.shape[0] < most:
        grad = torch.cat([grad, grad.new_zeros((most - grad.shape[0], *grad.shape[1:]))])
    out = grad.new_zeros((rows, *grad.shape[1:]))
    ops.all_to_all_vdev(grad[:most], out_splits_offsets[0].contiguous(), group=group, out=out, method=method)
    return out
