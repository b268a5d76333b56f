# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Symmetric memory by HIP IPC, for a torch whose own does not work: TRITON_DIST_HEAP=ipc. Ranks of one host.

Not yet run on an AMD machine; tests/unit/test_hip_ipc.py runs it over a stand-in for HIP.
"""
import ctypes
from typing import Any, Callable

from triton_dist.backends.gpu.driver import GpuDriver
from triton_dist.backends.gpu.heap_provider import on_every_rank
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import InvalidArgument, TritonDistError, UnsupportedFeature
from triton_dist.runtime.groups import Group

HANDLE_BYTES = 64                  # hipIpcMemHandle_t
_FINE_GRAINED = 1                  # hipDeviceMallocFinegrained: stores of peers are seen while a kernel runs
_LAZY_PEER_ACCESS = 1              # hipIpcMemLazyEnablePeerAccess


class _Handle(ctypes.Structure):
    """hipIpcMemHandle_t, passed by value."""
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class IpcArena(Arena):
    """One slab a rank, fine-grained, mapped into every peer by one IPC handle each.

    Collective over `world`, whose ranks are on one host. Where one rank fails, every rank raises UnsupportedFeature, and
    nothing stays allocated or mapped. `tensor`: (address, bytes) -> torch.uint8 tensor of that memory.
    """

    def __init__(self, driver: GpuDriver, nbytes: int, world: Group, tensor: Callable[[int, int], Any]):
        self.nbytes, self._driver, self._tensor, self._world, self._rank = nbytes, driver, tensor, world, world.rank
        self._held = [0] * world.size           # what is to be given up, also of ranks that `cut` puts out of reach
        self.local = None
        try:
            handles = world.all_gather_object(on_every_rank(world, "ipc", lambda: self._allocate(world.rank)))
            on_every_rank(world, "ipc", lambda: self._map(handles))
        except UnsupportedFeature:              # raised on every rank
            self.part()
            self.close()
            raise
        self.bases = list(self._held)
        self.local = tensor(self.bases[world.rank], nbytes)

    def _allocate(self, rank: int) -> bytes:
        """Allocates the own slab; its handle."""
        address, handle = ctypes.c_void_p(), _Handle()
        self._driver.call("hipExtMallocWithFlags", ctypes.byref(address), ctypes.c_size_t(self.nbytes),
                          ctypes.c_uint(_FINE_GRAINED))
        self._held[rank] = address.value or 0
        self._driver.call("hipIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def _map(self, handles: list) -> None:
        for rank, raw in enumerate(handles):
            if rank != self._rank:
                address = ctypes.c_void_p()
                self._driver.call("hipIpcOpenMemHandle", ctypes.byref(address), _Handle.from_buffer_copy(raw),
                                  ctypes.c_uint(_LAZY_PEER_ACCESS))
                self._held[rank] = address.value or 0

    def view(self, rank: int) -> Any:
        if not 0 <= rank < len(self.bases) or not self.bases[rank]:
            raise InvalidArgument(f"rank: expected a reachable rank below {len(self.bases)}, found {rank}")
        return self._tensor(self.bases[rank], self.nbytes)

    def part(self) -> None:
        self._unmap()
        self._world.barrier()               # HIP leaves undefined what happens to memory that is freed while a peer maps it

    def close(self) -> None:
        self._unmap()
        self._give_up("hipFree", self._rank)

    def _unmap(self) -> None:
        self.local, self.bases = None, [0] * len(self._held)
        for rank in range(len(self._held)):
            if rank != self._rank:
                self._give_up("hipIpcCloseMemHandle", rank)

    def _give_up(self, call: str, rank: int) -> None:
        address, self._held[rank] = self._held[rank], 0
        if address:
            try:
                self._driver.call(call, ctypes.c_void_p(address))
            except TritonDistError:            # the device may be lost already
                pass
