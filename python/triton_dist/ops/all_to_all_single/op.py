# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_single: the call."""
from typing import Any

import torch

from triton_dist.ops._exchange import Collective, call
from triton_dist.ops.all_to_all_single.reference import all_to_all_single_reference


def all_to_all_single(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None,
                      method: str = "auto") -> torch.Tensor:
    """Rows of x for every rank: out has those that each rank had for this one. Collective over `group`.

    Args:
        x: fp16, bf16 or fp32 [W * rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. `out=x` exchanges in place; else they must not overlap.
        method: "one_shot" (packets that carry their own flag: the lowest latency), "push" (plain stores and flags, for large
            tensors), "nccl" (the group's own collective) or "auto" (by size, from measurements). The same on all ranks.

    Returns out, rows in the order of the ranks that sent them.
    In CUDA graphs: as all_reduce. Raises InvalidArgument before anything is sent.
    """
    return call(_ALL_TO_ALL_SINGLE, x, group, out, method)


_ALL_TO_ALL_SINGLE = Collective("all_to_all_single", scatter=True, summed=False, library=all_to_all_single_reference)
