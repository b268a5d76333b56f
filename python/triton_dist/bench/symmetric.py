# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torch's symmetric memory, which is measured beside our ops.

torch clears the signals of new memory on the device's default stream, and shows it to peers without waiting for that. Where
other work of this rank comes before the clearing, a peer's first signal is lost, and a kernel that waits for it never ends. So
memory is made here while the device is idle.
"""
from typing import Callable

import torch

from triton_dist.compat import distributed as private
from triton_dist.runtime.streams import device, synchronize

_ALL_REDUCES = {"one_shot": "one_shot_all_reduce", "two_shot": "two_shot_all_reduce_"}


def group_name() -> tuple[str, str | None]:
    """(the name by which torch's ops know the world, why there is none)."""
    import torch.distributed as dist
    if device().type != "cuda":
        return "", "torch's symmetric memory needs GPUs"
    if not dist.is_initialized():
        return "", "no torch process group"
    name = dist.group.WORLD.group_name
    try:                                                # some versions want it said beforehand
        symmetric = private.symmetric_memory()
        if not symmetric.is_symm_mem_enabled_for_group(name):
            symmetric.enable_symm_mem_for_group(name)
    except (ImportError, AttributeError, RuntimeError, TypeError):
        pass                                            # the op itself will say what is wrong
    return name, None


def symmetric_tensor(count: int, dtype: torch.dtype, group: str) -> torch.Tensor:
    """A tensor of `count` elements, which ops find on all ranks of the group of this name. Collective."""
    symmetric = private.symmetric_memory()
    made = symmetric.empty(count, dtype=dtype, device=device())
    synchronize()
    symmetric.rendezvous(made, group)                   # no rank comes back before all are here
    return made


def reserve_workspace(nbytes: int, group: str) -> None:
    """Has torch make the memory that its fused ops share, which they would do amid a forward pass. A barrier must follow."""
    synchronize()
    private.symmetric_memory().get_symm_mem_workspace(group, min_size=nbytes)
    synchronize()


def all_reduce(kind: str, group: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """torch's all-reduce of a symmetric tensor, "one_shot" or "two_shot"."""
    op = getattr(torch.ops.symm_mem, _ALL_REDUCES[kind.removeprefix("symm_")])
    return lambda t: op(t, "sum", group)
