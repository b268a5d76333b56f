# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""reduce_scatter: the op and its call."""
from typing import Any

import torch

from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.exchange.collective import Collective
from triton_dist.ops.exchange.sizes import MIB
from triton_dist.ops.reduce_scatter.unfused import reduce_scatter_unfused
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group


class ReduceScatter(Collective):
    """This rank's rows of a reduction over ranks."""

    name, tensors, outputs = "reduce_scatter", {"x": "partial"}, {"out": "summed"}
    schema = "(Tensor x, str group, str method, str op) -> Tensor"
    gradient = Gradient(gradients.keep, gradients.reduce_scatter_backward)
    scatter = reduces = True
    steps = {2: ((32 * MIB, "one_shot"), (256 * MIB, "push")), 64: ((1 * MIB, "one_shot"), (256 * MIB, "push"))}
    packet_steps = {64: steps[64]}

    def library(self, x: torch.Tensor, group: Group, out: torch.Tensor, *reduction: str) -> torch.Tensor:
        return reduce_scatter_unfused(x, group, out, *reduction)


REDUCE_SCATTER = ReduceScatter()


@REDUCE_SCATTER.public
def reduce_scatter(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto",
                   op: Any = "sum") -> torch.Tensor:
    """This rank's rows of the sum, or another reduction, over ranks of x. Collective over `group`.

    Args:
        x: fp16, bf16, fp32, fp64, int32 or int64 [W * rows, ...] on `triton_dist.device()`. Equal shape and dtype on all
            ranks. Other dtypes go to the group's own collective, which may not know them.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [rows, ...] of x's dtype, or None to allocate. It may be this rank's rows of x; else they must not
            overlap.
        method: "one_shot" (packets that carry their own flag: the lowest latency), "push" (plain stores and flags, for
            large tensors), "unfused" (the group's own collective) or "auto" (by size, from measurements). The same on all
            ranks.
        op: "sum", "avg", "max" or "min", or torch's ReduceOp of that name. The same on all ranks.

    Returns out, reduced as all_reduce does: the same inputs give the same bits, but with "unfused".
    The gradient (without `out`, of a sum or an average) is that of the sum of all ranks' losses: an all_gather.
    In graphs: as all_reduce. Raises InvalidArgument before anything is sent.

    Example:
        mine = reduce_scatter(grads, op="avg")              # grads [W * rows, ...] -> [rows, ...]
    """
    done = REDUCE_SCATTER.call((method, op), group, x, out)
    return REDUCE_SCATTER.record(x=x, group=group, out=out, method=method, op=op) if done is None else done
