# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""SHMEM teams: sets of ranks whose barriers and collectives kernels call by a number (libshmem_device)."""
from typing import Sequence

import torch

from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import require_agreement, resolve
from triton_dist.runtime.heap import SHMEM_PAD_BYTES, create_symm_tensor, heap
from triton_dist.runtime.state import state


def shmem_team(ranks: Sequence[int]) -> int | None:
    """Collective over the world, as torch.distributed.new_group: the SHMEM team of these world ranks.

    Args: ranks, from low to high with equal steps between them, the same on all ranks of the world.
    Returns the number that libshmem_device takes as `team` on this rank, None on ranks that are no members. Members are
    counted in the order of `ranks`. The team lives as long as the world.
    Raises InvalidArgument for other ranks, and UnsupportedFeature where kernels cannot call SHMEM.
    """
    world = resolve()
    members: tuple = tuple(ranks) if isinstance(ranks, (list, tuple, range)) else ()
    require_agreement(world, "ranks of a SHMEM team", repr(members) if members else f"a {type(ranks).__name__}")
    if not _even(members) or not 0 <= members[0] <= members[-1] < world.size:
        raise InvalidArgument(f"ranks: expected some of 0 to {world.size - 1}, rising by equal steps, found {ranks!r}")
    pad = create_symm_tensor((SHMEM_PAD_BYTES,), torch.uint8, name=f"SHMEM pad of ranks {list(members)}")
    number = heap().arena.team(members, pad.tdist_allocation.offset)
    state().shmem_pads.append(pad)
    world.barrier()                     # nobody uses it before all know it
    return number if world.rank in members else None


def _even(ranks: tuple) -> bool:
    """Whether these are whole numbers, at least one, that rise by equal steps."""
    if not ranks or not all(isinstance(rank, int) for rank in ranks):
        return False
    steps = {after - before for before, after in zip(ranks, ranks[1:])}
    return not steps or len(steps) == 1 and min(steps) > 0
