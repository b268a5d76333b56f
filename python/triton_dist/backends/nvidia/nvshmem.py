# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The NVSHMEM heap: one allocation of NVSHMEM's is the arena, and kernels may call libshmem_device.

nvshmem4py is imported on use only. NVSHMEM's host library joins the ranks by a unique id that travels over the process group;
its device code, linked into kernels (`nvshmem_library.py`), learns of the world when a module is loaded.
"""
import os
import uuid
from typing import Any

import torch

from triton_dist.backends.gpu.shmem_modules import ShmemModules
from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap, UnsupportedFeature
from triton_dist.runtime.groups import Group

STATE = "nvshmemi_device_state_d"       # the global by which NVSHMEM's device code knows its world
_TEAM_WORLD, _NO_TEAM = 0, -1
_SLACK = 256 << 20                      # bytes of NVSHMEM's own heap beyond the arena, where it must be sized beforehand

_own_size: str | None = None            # what this process has set NVSHMEM_SYMMETRIC_SIZE to


class NvshmemModules(ShmemModules):
    """Tells NVSHMEM of every loaded module that calls it."""

    library, heap, state = "NVSHMEM", "nvshmem", STATE


class NvshmemArena(Arena):
    """One slab a rank, allocated by NVSHMEM; base 0 for a rank that loads and stores do not reach."""

    def __init__(self, core: Any, bindings: Any, nbytes: int, world: Group, modules: NvshmemModules):
        self._core, self._modules, self._rank = core, modules, world.rank
        self.nbytes = nbytes
        try:
            self.local = core.tensor((nbytes,), dtype=torch.uint8, except_on_del=False)
        except Exception as error:
            raise OutOfHeap(f"NVSHMEM cannot allocate {nbytes} bytes of symmetric heap ({error}); set a smaller "
                            "TRITON_DIST_HEAP_SIZE") from error
        mine = self.local.data_ptr()
        self.bases = [mine if rank == world.rank else bindings.ptr(mine, rank) for rank in range(world.size)]
        self._views = {world.rank: self.local}

    def view(self, rank: int) -> Any:
        if not 0 <= rank < len(self.bases) or not self.bases[rank]:
            raise InvalidArgument(f"rank: expected a rank below {len(self.bases)} that loads and stores reach, found {rank}; "
                                  "others are reached by libshmem_device only")
        if rank not in self._views:
            self._views[rank] = self._core.get_peer_tensor(self.local, rank)
        return self._views[rank]

    def team(self, ranks: Any, pad: int) -> int:
        step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
        made = self._core.team_split_strided(_TEAM_WORLD, ranks[0], step, len(ranks), self._core.TeamConfig(), 0,
                                             new_team_name=uuid.uuid4().hex)      # its list of names outlives a world
        return _NO_TEAM if made is None else int(made)

    def part(self) -> None:
        local, self.local, self._views = self.local, None, {}
        self._modules.stop()
        self._core.free_tensor(local)
        self._core.finalize()

    def close(self) -> None:
        self.local, self._views = None, {}


def reserve(nbytes: int, device: int, world: Group, modules: NvshmemModules) -> tuple[NvshmemArena, str]:
    """Collective over `world`: joins NVSHMEM; the arena, and the path of the library that kernels link.

    Raises UnsupportedFeature on every rank where one of them lacks nvshmem4py, or host and device libraries differ, and OutOfHeap
    on every rank where one of them finds no room."""
    found, problem = None, ""
    try:
        found = _prepare(device)
    except UnsupportedFeature as error:
        problem = str(error)
    for rank, other in enumerate(world.all_gather_object(problem)):
        if other:
            raise UnsupportedFeature(f"TRITON_DIST_HEAP=nvshmem: rank {rank}: {other}")
    core, bindings, make_device, library = found
    _size_its_heap(nbytes)
    own = make_device(device)
    own.set_current()
    unique = world.broadcast_object(core.get_unique_id(empty=world.rank != 0))
    core.init(device=own, uid=unique, rank=world.rank, nranks=world.size, initializer_method="uid")
    arena, problem = None, ""
    try:
        arena = NvshmemArena(core, bindings, nbytes, world, modules)
    except OutOfHeap as error:
        problem = str(error)
    problems = world.all_gather_object(problem)
    if arena is None or any(problems):
        if all(problems):                   # none has memory, which only all together could free
            core.finalize()
        raise OutOfHeap(next((f"rank {rank}: {other}" for rank, other in enumerate(problems) if other)))
    modules.start(bindings.cumodule_init, bindings.cumodule_finalize)
    return arena, library


def _size_its_heap(nbytes: int) -> None:
    """Where NVSHMEM's heap cannot grow it must have room for `nbytes` at once. A user's word counts, an earlier world's not."""
    global _own_size
    if os.environ.get("NVSHMEM_SYMMETRIC_SIZE") in (None, _own_size):
        os.environ["NVSHMEM_SYMMETRIC_SIZE"] = _own_size = str(nbytes + _SLACK)


def _prepare(device: int) -> tuple:
    """(nvshmem.core, nvshmem.bindings, cuda.core's Device, path of the device library) of this rank."""
    try:
        import nvshmem.core as core
        from cuda.core import Device
        from nvshmem import bindings
    except Exception as error:       # a missing package, or one that finds no driver or library
        raise UnsupportedFeature(f"nvshmem4py cannot be imported ({type(error).__name__}: {error}); install the extra "
                                 f"nvshmem-cu{(torch.version.cuda or '13').split('.')[0]}") from error
    major, minor = torch.cuda.get_device_capability(device)
    library, version = nvshmem_library.library(10 * major + minor)
    host = core.get_version().libnvshmem_version
    if host != version:
        raise UnsupportedFeature(f"NVSHMEM's host library is {host}, its device library {version}: kernels would not know their "
                                 "world; install one release, or point NVSHMEM_HOME at the one that is loaded")
    return core, bindings, Device, library
