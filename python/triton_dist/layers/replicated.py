# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What every rank holds alike, where autograd passes from it to what ranks hold in parts, and back."""
from typing import Any

import torch

from triton_dist.ops import all_reduce
from triton_dist.ops.registry import no_second_derivative
from triton_dist.runtime.groups import name_of


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        refuse_second("replicated")
        return all_reduce(grad.contiguous(), group=ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: str) -> torch.Tensor:
        return all_reduce(x, group=group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        refuse_second("summed")
        return grad, None


def refuse_second(name: str) -> None:
    """Raises InvalidArgument where the gradient of `name` is to be differentiated, as ops do: it would lack terms."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise no_second_derivative(name)


def replicated(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """x, which all ranks hold alike and each uses for its own part of the work: its gradient is summed over ranks.

    Before a column-parallel layer, and for parameters that work on a part of a sequence.

    Args:
        x: the same on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x
    return _Replicated.apply(x, name_of(group))


def summed(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """The sum over ranks of x, which all ranks hold alike and use alike: its gradient, equal on all ranks, is that of each x.

    Args:
        x: as triton_dist.ops.all_reduce takes it.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
    """
    return _Summed.apply(x, name_of(group))
