# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the adapters for serving engines share: the world, the ranks of a group, and how far a fused way goes."""
from typing import Any, Callable

import torch

from triton_dist.ops import OPS
from triton_dist.ops.calls.possible import across_nodes
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.streams import device
from triton_dist.runtime.world import initialize_distributed

_MOST_ROOM = 16 << 20


def members(group: Any) -> Group:
    """The ranks of `group`, a ProcessGroup or None for the world. Makes the world if there is none: collective over all ranks."""
    if state().world is None:
        initialize_distributed()
    return resolve(group)


def why_not(group: Group) -> str | None:
    """Why no kernel can serve calls on these ranks; None where one can."""
    if group.size == 1:
        return "there is one rank"
    if across_nodes(group):
        return f"not all of ranks {list(group.world_ranks)} can load and store each other's memory"
    return None


def most_bytes(op: str, group: Group) -> int:
    """The largest tensor, in bytes, that `op` takes by one of its kernels where it may choose its method."""
    steps = OPS[op].steps
    return next(found for world, found in steps.items() if group.size <= world)[-1][0]


def make_room(op: str, row: int, limit: int, dtype: torch.dtype, group: Group, call: Callable[[torch.Tensor], Any]) -> None:
    """Calls `op` once at the largest size of each of its methods, so that buffers do not move later. Collective.

    Args:
        row: elements of a row.
        limit: bytes of the largest call. Room for more than 16 MiB is made when it is needed.
        call: makes one, of zeros [rows, row].
    """
    if why_not(group) is not None:
        return
    steps = next(found for world, found in OPS[op].steps.items() if group.size <= world)
    for rows in sorted({min(most, limit, _MOST_ROOM) // (row * dtype.itemsize) for most, _ in steps} - {0}):
        call(torch.zeros(rows, row, dtype=dtype, device=device()))


def is_fused(op: str, x: torch.Tensor, group: Group) -> bool:
    """Whether `op` runs by a kernel for this x where it may choose. Depends only on what is equal on all ranks."""
    return x.dtype in (torch.float16, torch.bfloat16, torch.float32) and (
        0 < x.numel() * x.element_size() <= most_bytes(op, group))
