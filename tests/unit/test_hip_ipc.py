# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Symmetric memory by HIP IPC over a stand-in for HIP: ranks are threads, memory is the host's, any call may fail."""
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from triton_dist.backends.amd.driver import HipDriver
from triton_dist.backends.amd.ipc import HANDLE_BYTES, IpcArena
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature


class Hip:
    """The calls of HIP that the arena makes, for one rank. `fail`: the function that returns an error."""

    def __init__(self, fail: str = ""):
        self.fail, self.live, self.open, self.peers = fail, {}, set(), []
        for name in ("hipExtMallocWithFlags", "hipIpcGetMemHandle", "hipIpcOpenMemHandle", "hipIpcCloseMemHandle", "hipFree"):
            setattr(self, name, self._checked(name))

    def _checked(self, name):
        return lambda *args: 719 if name == self.fail else getattr(self, f"_{name}")(*args) or 0

    def _hipExtMallocWithFlags(self, out, nbytes, flags):
        assert isinstance(nbytes, ctypes.c_size_t) and flags.value == 1
        memory = (ctypes.c_uint8 * nbytes.value)()
        out._obj.value = ctypes.addressof(memory)
        self.live[out._obj.value] = memory

    def _hipIpcGetMemHandle(self, out, address):
        assert ctypes.sizeof(out._obj) == HANDLE_BYTES and address.value in self.live
        ctypes.memmove(ctypes.byref(out._obj), ctypes.byref(ctypes.c_uint64(address.value)), 8)

    def _hipIpcOpenMemHandle(self, out, handle, flags):
        assert ctypes.sizeof(handle) == HANDLE_BYTES and flags.value == 1
        address = int.from_bytes(bytes(handle)[:8], "little")
        assert address not in self.live, "a process cannot open its own handle"
        out._obj.value = address
        self.open.add(address)

    def _hipIpcCloseMemHandle(self, address):
        self.open.remove(address.value)

    def _hipFree(self, address):
        assert not any(address.value in peer.open for peer in self.peers), "memory is freed that a peer has mapped"
        del self.live[address.value]

    def hipGetErrorName(self, code):
        return b"hipErrorLaunchFailure"

    hipGetErrorString = hipGetErrorName


class Driver(HipDriver):
    def __init__(self, hip):
        self.__dict__["library"] = hip

    def error_text(self, code):
        return self.library.hipGetErrorName(code).decode()


class Threads:
    """A group whose ranks are threads."""

    def __init__(self, size):
        self.size, self._barrier, self._slots = size, threading.Barrier(size, timeout=30), [None] * size

    def of(self, rank):
        made = type("Rank", (), {})()
        made.rank, made.size = rank, self.size
        made.all_gather_object = lambda value: self._gather(rank, value)
        made.barrier = self._barrier.wait
        return made

    def _gather(self, rank, value):
        self._slots[rank] = value
        self._barrier.wait()
        found = list(self._slots)
        self._barrier.wait()
        return found


def tensor(address, nbytes):
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


def arenas(hips):
    """The arena of every rank, or the error that it raised."""
    world = Threads(len(hips))
    for hip in hips:
        hip.peers = [peer for peer in hips if peer is not hip]

    def one(rank):
        try:
            return IpcArena(Driver(hips[rank]), 512, world.of(rank), tensor)
        except UnsupportedFeature as error:
            return error
    with ThreadPoolExecutor(len(hips)) as pool:
        return list(pool.map(one, range(len(hips))))


def leave(made):
    """What finalize_distributed does with the arena of each rank."""
    def one(arena):
        arena.part()
        arena.close()
        arena.close()
    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(one, made))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_rank_sees_every_slab_and_leaves_nothing(size):
    hips = [Hip() for _ in range(size)]
    made = arenas(hips)
    for rank, arena in enumerate(made):
        for peer in range(size):
            arena.view(peer)[rank] = 1 + rank
    for arena in made:
        assert arena.local[:size].tolist() == list(range(1, size + 1))
        for wrong in (-1, size):
            with pytest.raises(InvalidArgument):
                arena.view(wrong)
    leave(made)
    assert not any(hip.live or hip.open for hip in hips)


def test_slabs_that_nodes_put_out_of_reach_are_given_up_as_well():
    hips = [Hip() for _ in range(4)]
    made = arenas(hips)
    for rank, arena in enumerate(made):
        arena.cut(range(rank // 2 * 2, rank // 2 * 2 + 2))
        with pytest.raises(InvalidArgument):
            arena.view((rank + 2) % 4)
    leave(made)
    assert not any(hip.live or hip.open for hip in hips)


@pytest.mark.parametrize("call", ["hipExtMallocWithFlags", "hipIpcGetMemHandle", "hipIpcOpenMemHandle"])
@pytest.mark.parametrize("bad", [0, 2])
def test_a_call_that_fails_on_one_rank_is_named_on_all_and_nothing_stays(call, bad):
    hips = [Hip(call if rank == bad else "") for rank in range(3)]
    for error in arenas(hips):
        assert isinstance(error, UnsupportedFeature), error
        assert f"TRITON_DIST_HEAP=ipc: rank {bad}: {call} failed with 719: hipErrorLaunchFailure" in str(error)
    assert not any(hip.live or hip.open for hip in hips)


def test_closing_a_lost_device_is_silent():
    hips = [Hip(), Hip()]
    made = arenas(hips)
    hips[0].fail = "hipFree"
    leave(made)
    assert made[0].bases == [0, 0] and not hips[0].open and not hips[1].live
