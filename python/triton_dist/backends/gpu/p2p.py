# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Symmetric arena over torch's symmetric memory: every rank's slab is mapped into every other rank's address space.

torch.distributed._symmetric_memory is private to torch; this module is the only one that touches it.
"""
from typing import Any

import torch

from triton_dist.runtime.backend import Arena
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature


class LocalArena(Arena):
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


class P2PArena(Arena):
    """One slab a rank, allocated and exchanged by torch. Made by all ranks of the default process group together."""

    def __init__(self, nbytes: int, device: torch.device, rank: int):
        import torch.distributed as dist
        self.nbytes = nbytes
        try:
            import torch.distributed._symmetric_memory as symmetric_memory
            self.local = symmetric_memory.empty(nbytes, dtype=torch.uint8, device=device)
            self._handle = symmetric_memory.rendezvous(self.local, dist.group.WORLD.group_name)
        except (ImportError, AttributeError, RuntimeError) as error:
            raise UnsupportedFeature(
                f"cannot map {nbytes} bytes of symmetric memory over the ranks of this world with torch "
                f"{torch.__version__}: {error}. It takes GPUs of one host with peer access to each other; a smaller "
                "TRITON_DIST_HEAP_SIZE helps if memory ran out") from error
        self.bases = [int(pointer) for pointer in self._handle.buffer_ptrs]
        self._rank = rank
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
