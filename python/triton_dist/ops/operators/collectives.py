# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Operators of the collectives."""
from typing import Any

import torch

from triton_dist.ops.exchange import sizes
from triton_dist.ops.all_gather.op import all_gather
from triton_dist.ops.all_reduce.op import all_reduce
from triton_dist.ops.all_to_all_single.op import all_to_all_single
from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.internode.op import all_gather_2d, reduce_scatter_2d
from triton_dist.ops.operators._shapes import require, world_of, written
from triton_dist.ops.reduce_scatter.op import reduce_scatter
from triton_dist.ops.registry import Gradient, records, register
from triton_dist.runtime.groups import name_of


def _gathered(x, group, method=""):
    return x.new_empty((x.shape[0] * world_of(group), *x.shape[1:]))


def _scattered(x, group, method="", op=""):
    world = world_of(group)
    require(x.shape[0] % world == 0, "x: expected a number of rows that divides by the group size; pad the rows")
    return x.new_empty((x.shape[0] // world, *x.shape[1:]))


def _fake_all_to_all_single(x, output_split_sizes, input_split_sizes, group, method):
    if output_split_sizes is None:
        return x.new_empty(x.shape)
    return x.new_empty((sum(output_split_sizes), *x.shape[1:]))


ALL_GATHER = register(
    "all_gather", "(Tensor x, str group, str method) -> Tensor", all_gather,
    lambda x, group, method: all_gather(x, group=group, method=method),
    _gathered, Gradient(gradients.keep, gradients.all_gather_backward))

REDUCE_SCATTER = register(
    "reduce_scatter", "(Tensor x, str group, str method, str op) -> Tensor", reduce_scatter,
    lambda x, group, method, op: reduce_scatter(x, group=group, method=method, op=op),
    _scattered, Gradient(gradients.keep, gradients.reduce_scatter_backward))

ALL_REDUCE = register(
    "all_reduce", "(Tensor x, str group, str method, str op) -> Tensor", all_reduce,
    lambda x, group, method, op: all_reduce(x, group=group, method=method, op=op),
    lambda x, group, method, op: x.new_empty(x.shape), Gradient(gradients.keep, gradients.all_reduce_backward))

ALL_TO_ALL_SINGLE = register(
    "all_to_all_single",
    "(Tensor x, SymInt[]? output_split_sizes, SymInt[]? input_split_sizes, str group, str method) -> Tensor", all_to_all_single,
    lambda x, output_split_sizes, input_split_sizes, group, method: all_to_all_single(
        x, output_split_sizes=output_split_sizes, input_split_sizes=input_split_sizes, group=group, method=method),
    _fake_all_to_all_single, Gradient(gradients.keep, gradients.all_to_all_single_backward))

ALL_GATHER_2D = register(
    "all_gather_2d", "(Tensor x, str group) -> Tensor", all_gather_2d, lambda x, group: all_gather_2d(x, group=group), _gathered,
    Gradient(gradients.keep, gradients.all_gather_2d_backward))

REDUCE_SCATTER_2D = register(
    "reduce_scatter_2d", "(Tensor x, str group) -> Tensor", reduce_scatter_2d,
    lambda x, group: reduce_scatter_2d(x, group=group), _scattered,
    Gradient(gradients.keep, gradients.reduce_scatter_2d_backward))


@records(all_gather)
def _(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    return written(ALL_GATHER(x, name_of(group), method), out)


@records(reduce_scatter)
def _(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto",
      op: Any = "sum") -> torch.Tensor:
    reduction = _reduction("reduce_scatter", x, op)
    return written(REDUCE_SCATTER(x, name_of(group), method, reduction), out)


@records(all_reduce)
def _(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto",
      op: Any = "sum") -> torch.Tensor:
    reduction = _reduction("all_reduce", x, op)
    return written(ALL_REDUCE(x, name_of(group), method, reduction), out)


@records(all_to_all_single)
def _(x: torch.Tensor, *, output_split_sizes: list | None = None, input_split_sizes: list | None = None, group: Any = None,
      out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    return written(ALL_TO_ALL_SINGLE(x, output_split_sizes, input_split_sizes, name_of(group), method), out)


@records(all_gather_2d)
def _(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    return written(ALL_GATHER_2D(x, name_of(group)), out)


@records(reduce_scatter_2d)
def _(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    return written(REDUCE_SCATTER_2D(x, name_of(group)), out)


def _reduction(name: str, x: torch.Tensor, op: Any) -> str:
    """The name of a reduction that x can have."""
    reduction = sizes.reduction(op)
    if x.requires_grad and torch.is_grad_enabled():
        gradients.must_be_linear(name, reduction)
    return reduction
