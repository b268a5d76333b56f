# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather: the call."""
from typing import Any

import torch

from triton_dist.ops.exchange.collective import Collective, call
from triton_dist.ops.all_gather.reference import all_gather_reference
from triton_dist.ops.registry import record


def all_gather(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto") -> torch.Tensor:
    """x of every rank, one after the other along the first dimension. Collective over `group`.

    Args:
        x: of any dtype, [rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [W * rows, ...] of x's dtype, or None to allocate. x may be this rank's rows of it; else they must not
            overlap.
        method: "one_shot" (packets that carry their own flag: the lowest latency), "push" (plain stores and flags, for large
            tensors), "nccl" (the group's own collective) or "auto" (by size, from measurements). The same on all ranks.

    Returns out, rows in the order of the group's ranks.
    The gradient (without `out`) is that of the sum of all ranks' losses, as torch.distributed has it: a reduce_scatter.
    In graphs: as all_reduce. Raises InvalidArgument before anything is sent.
    """
    done = call(_ALL_GATHER, x, group, out, method)
    return record(all_gather, x, group=group, out=out, method=method) if done is None else done


_ALL_GATHER = Collective("all_gather", scatter=False, reduction=None, library=all_gather_reference)
