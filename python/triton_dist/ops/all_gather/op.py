# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather: the op and its call."""
from typing import Any

import torch

from triton_dist.ops.all_gather.unfused import all_gather_unfused
from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.exchange.collective import Collective
from triton_dist.ops.exchange.sizes import MIB
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group


class AllGather(Collective):
    """Every rank's rows, on every rank."""

    name = "all_gather"
    schema = "(Tensor x, str group, str method) -> Tensor"
    gradient = Gradient(gradients.keep, gradients.all_gather_backward)
    steps = {64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))}

    def library(self, x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
        return all_gather_unfused(x, group, out)


ALL_GATHER = AllGather()


@ALL_GATHER.public
def all_gather(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    """x of every rank, one after the other along the first dimension. Collective over `group`.

    Args:
        x: of any dtype, [rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [W * rows, ...] of x's dtype, or None to allocate. x may be this rank's rows of it; else they must not
            overlap.
        method: "one_shot" (packets that carry their own flag: the lowest latency), "push" (plain stores and flags, for large
            tensors), "unfused" (the group's own collective) or "auto" (by size, from measurements). The same on all ranks.

    Returns out, rows in the order of the group's ranks.
    The gradient (without `out`) is that of the sum of all ranks' losses, as torch.distributed has it: a reduce_scatter.
    In graphs: as all_reduce. Raises InvalidArgument before anything is sent.

    Example:
        everyone = all_gather(x)                            # x [rows, ...] -> [W * rows, ...]
    """
    done = ALL_GATHER.call((method, None), group, x, out)
    return ALL_GATHER.record(x=x, group=group, out=out, method=method) if done is None else done
