# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""reduce_scatter: the call."""
from typing import Any

import torch

from triton_dist.ops.exchange.collective import Collective, call
from triton_dist.ops.reduce_scatter.reference import reduce_scatter_reference
from triton_dist.ops.registry import record


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
            large tensors), "nccl" (the group's own collective) or "auto" (by size, from measurements). The same on all
            ranks.
        op: "sum", "avg", "max" or "min", or torch's ReduceOp of that name. The same on all ranks.

    Returns out, reduced as all_reduce does: the same inputs give the same bits, but with "nccl".
    The gradient (without `out`, of a sum or an average) is that of the sum of all ranks' losses: an all_gather.
    In graphs: as all_reduce. Raises InvalidArgument before anything is sent.
    """
    done = call(_REDUCE_SCATTER, x, group, out, method, op)
    return record(reduce_scatter, x, group=group, out=out, method=method, op=op) if done is None else done


_REDUCE_SCATTER = Collective("reduce_scatter", scatter=True, reduction="sum", library=reduce_scatter_reference)
