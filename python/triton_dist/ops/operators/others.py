# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Operators of all_reduce_rmsnorm and all_to_all_vdev, which have two results each."""
from typing import Any

import torch

from triton_dist.ops.all_reduce_rmsnorm.op import all_reduce_rmsnorm
from triton_dist.ops.all_to_all_vdev.op import all_to_all_vdev
from triton_dist.ops.autograd import norm, vdev
from triton_dist.ops.operators._shapes import world_of, written
from triton_dist.ops.registry import Gradient, records, register
from triton_dist.runtime.groups import name_of


def _fake_vdev(x, in_splits, capacity, group, method):
    world = world_of(group)
    rows = world * x.shape[0] if capacity is None else capacity
    return x.new_empty((rows, *x.shape[1:])), in_splits.new_empty((2, world))


ALL_REDUCE_RMSNORM = register(
    "all_reduce_rmsnorm",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, float? eps, str group, str method) -> (Tensor, Tensor)",
    all_reduce_rmsnorm, lambda x, weight, bias, residual, eps, group, method: all_reduce_rmsnorm(
        x, weight, bias=bias, residual=residual, eps=eps, group=group, method=method),
    lambda x, weight, bias, residual, eps, group, method: (x.new_empty(x.shape), x.new_empty(x.shape)),
    Gradient(norm.keep, norm.backward))

ALL_TO_ALL_VDEV = register(
    "all_to_all_vdev", "(Tensor x, Tensor in_splits, SymInt? capacity, str group, str method) -> (Tensor, Tensor)",
    all_to_all_vdev, lambda x, in_splits, capacity, group, method: all_to_all_vdev(
        x, in_splits, capacity=capacity, group=group, method=method),
    _fake_vdev, Gradient(vdev.keep, vdev.backward))

ALL_TO_ALL_VDEV_BACKWARD = register(
    "all_to_all_vdev_backward", "(Tensor grad, Tensor out_splits_offsets, SymInt rows, str group, str method) -> Tensor",
    all_to_all_vdev, vdev.returned,
    lambda grad, out_splits_offsets, rows, group, method: grad.new_empty((rows, *grad.shape[1:])))


@records(all_reduce_rmsnorm)
def _(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None,
      eps: float | None = 1e-6, group: Any = None, out: torch.Tensor | None = None, residual_out: torch.Tensor | None = None,
      method: str = "auto") -> tuple:
    result, total = ALL_REDUCE_RMSNORM(x, weight, bias, residual, eps, name_of(group), method)
    return written(result, out), written(total, residual_out)


@records(all_to_all_vdev)
def _(x: torch.Tensor, in_splits: torch.Tensor, *, capacity: int | None = None, group: Any = None,
      out: torch.Tensor | None = None, out_splits_offsets: torch.Tensor | None = None, method: str = "auto") -> tuple:
    if out is not None:
        capacity = out.shape[0]
    result, told = ALL_TO_ALL_VDEV(x, in_splits, capacity, name_of(group), method)
    if out is not None:                                 # rows that nothing came for are left as they were
        came = torch.arange(result.shape[0], device=x.device) < told[0].sum()
        result = torch.where(came.view(-1, *[1] * (result.ndim - 1)), result, out)
    return written(result, out), written(told, out_splits_offsets)
