# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Symmetric arena over torch's symmetric memory: every rank's slab is mapped into every other rank's address space.

torch.distributed._symmetric_memory is private to torch; this module is the only one that touches it.
"""
import os
import weakref
from typing import Any, Callable

import torch

from triton_dist.backends.gpu.heap_provider import on_every_rank
from triton_dist.runtime.device import Arena
from triton_dist.runtime.environment import share_gpus
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import Group
from triton_dist.runtime.hosts import host


class _Memory:
    """Device memory that torch takes for the storage of a tensor; it keeps `slab` alive, and dies with the storage."""

    def __init__(self, address: int, nbytes: int, slab: Any):
        self._slab = slab
        self.__cuda_array_interface__ = dict(shape=(nbytes,), typestr="|u1", data=(address, False), version=2)


def device_tensor(address: int, nbytes: int, device: torch.device) -> torch.Tensor:
    """torch.uint8 tensor over `nbytes` of device memory at `address`, which its maker keeps alive."""
    return torch.as_tensor(_Memory(address, nbytes, None), device=device)


class _OwnStorages(Arena):
    """An arena whose own slab is device memory at `bases[rank]`."""

    def own(self, rank: int, offset: int, nbytes: int, gone: Callable[[], None]) -> Any:
        usual = super().own(rank, offset, nbytes, gone)
        memory = _Memory(usual.data_ptr(), nbytes, self.local)
        try:
            made = torch.as_tensor(memory, device=self.local.device)
        except (RuntimeError, TypeError, ValueError):       # a torch that cannot take such memory
            return usual
        if (made.data_ptr(), made.shape, made.device) != (usual.data_ptr(), usual.shape, usual.device):
            return usual
        weakref.finalize(memory, gone).atexit = False
        return made


class LocalArena(_OwnStorages):
    """The slab of a world of one: plain device memory."""

    def __init__(self, nbytes: int, device: torch.device):
        self.nbytes = nbytes
        self.local = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self.bases = [self.local.data_ptr()]

    def view(self, rank: int) -> Any:
        if rank != 0:
            raise InvalidArgument(f"rank: expected 0 in a world of one, found {rank}")
        return self.local

    def close(self) -> None:
        self.local = None


class P2PArena(_OwnStorages):
    """One slab a rank, allocated and exchanged by torch. Made by all ranks of the default process group together."""

    def __init__(self, nbytes: int, device: torch.device, world: Group):
        import torch.distributed as dist

        from triton_dist.compat import distributed as private
        self.nbytes, self._rank = nbytes, (rank := world.rank)
        if _each_sees_its_own(device, world) or share_gpus():       # torch would take equal numbers for one device
            os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        # Agreed on first: where one rank has no memory, the others would wait for it in torch.
        self.local = on_every_rank(world, "p2p", lambda: _tried(nbytes, lambda: private.symmetric_memory().empty(
            nbytes, dtype=torch.uint8, device=device)))
        self._handle = _tried(nbytes, lambda: private.symmetric_memory().rendezvous(self.local, dist.group.WORLD.group_name))
        self.bases = [int(pointer) for pointer in self._handle.buffer_ptrs]
        if self.bases[rank] != self.local.data_ptr():
            raise UnsupportedFeature("torch's symmetric memory is mapped at another address than its own tensor; "
                                     f"expected {self.local.data_ptr():#x}, found {self.bases[rank]:#x}")
        self._views = {rank: self.local}

    def view(self, rank: int) -> Any:
        if not 0 <= rank < len(self.bases) or not self.bases[rank]:
            raise InvalidArgument(f"rank: expected a reachable rank below {len(self.bases)}, found {rank}")
        if rank not in self._views:
            self._views[rank] = self._handle.get_buffer(rank, (self.nbytes,), torch.uint8)
        return self._views[rank]

    def close(self) -> None:
        self._views, self._handle, self.local = {}, None, None


def _tried(nbytes: int, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except (ImportError, AttributeError, RuntimeError) as error:
        raise UnsupportedFeature(
            f"cannot map {nbytes} bytes of symmetric memory over the ranks of this world with torch {torch.__version__}: {error}"
            ". It takes GPUs of one host with peer access to each other; a smaller TRITON_DIST_HEAP_SIZE helps if memory ran out"
        ) from error


def _each_sees_its_own(device: torch.device, world: Group) -> bool:
    """Collective: whether different GPUs of a host have equal numbers, as where CUDA_VISIBLE_DEVICES gives each rank its own."""
    gpu = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    answers = world.all_gather_object((host(), device.index, gpu))
    return len({(where, gpu) for where, _, gpu in answers}) == len(answers) > len({(where, index) for where, index, _ in answers})
