# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The emulator's symmetric arena: one slab a rank, sparse and zeroed, gone when the last rank that maps it ends.

Between processes a slab is a memfd that peers open through /proc; where /proc does not allow that, a file in TMPDIR
that is unlinked once all have mapped it. Nothing lies in /dev/shm. Slabs of other hosts are reached by wire.py.
"""
import contextlib
import ctypes
import itertools
import mmap
import os
import tempfile
import weakref
from typing import Callable, Iterator, Optional, Sequence

import torch

from triton_dist.backends.emulator.memory import wire
from triton_dist.backends.emulator.worlds.machine import Machine
from triton_dist.backends.emulator.worlds.meeting import VirtualGroup
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap, UnsupportedFeature
from triton_dist.runtime.groups import Group
from triton_dist.runtime.heap import ALIGNMENT, SHMEM_PADS
from triton_dist.runtime.hosts import host

# A gap between two objects takes this part of a slab, and at most this many bytes: an overrun does not reach a neighbour.
_GAPS, _MOST_GAP = 4096, 4096
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class EmulatorArena(Arena):
    """Slabs of all ranks, mapped here; None for those of other hosts. Tensors over a slab keep its memory alive after close().

    homes: addresses of all slabs, where SHMEM calls go; `bases` has only those that loads and stores reach.
    """

    def __init__(self, machine: Machine, slabs: Sequence[Optional[mmap.mmap]], owned: Sequence[int], rank: int):
        self.nbytes = len(slabs[rank])
        self.gap = min(_MOST_GAP, self.nbytes // _GAPS // ALIGNMENT * ALIGNMENT)
        self._machine = machine
        self._views: Optional[list] = [None if slab is None else torch.frombuffer(slab, dtype=torch.uint8) for slab in slabs]
        self.bases = [0 if view is None else view.data_ptr() for view in self._views]
        self.homes = [address or wire.base(peer) for peer, address in enumerate(self.bases)]
        self.local, self._slab = self._views[rank], slabs[rank]
        self._owned, self._segments = owned, {}      # (rank, offset) -> segment, of the objects this rank answers for
        for owner in owned:
            machine.memory.reserve(self.homes[owner], self.nbytes, f"heap of rank {owner}")
        machine.arenas.append(self)

    def view(self, rank: int) -> torch.Tensor:
        if self._views is None:
            raise InvalidArgument("the symmetric heap has been closed; call initialize_distributed() again")
        if self._views[rank] is None:
            raise InvalidArgument(f"rank: {rank} is on another host, which only libshmem_device reaches")
        return self._views[rank]

    def own(self, rank: int, offset: int, nbytes: int, gone: Callable[[], None]) -> torch.Tensor:
        self.view(rank)                              # refused once the heap is closed
        memory = (ctypes.c_char * nbytes).from_buffer(self._slab, offset)
        weakref.finalize(memory, gone).atexit = False        # the tensor's storage refers to it, and it to the slab
        return torch.frombuffer(memory, dtype=torch.uint8)

    def team(self, ranks: Sequence[int], pad: int) -> int:
        number = next((known for known, team in self._machine.teams.items() if team[1] == pad),
                      SHMEM_PADS + len(self._machine.teams))         # made before by another rank of a virtual world
        self._machine.teams[number] = tuple(ranks), pad
        return number

    def allocated(self, offset: int, nbytes: int, name: str, ranks: Sequence[int]) -> None:
        for rank in set(ranks).intersection(self._owned) if nbytes else ():
            self._segments[rank, offset] = self._machine.memory.add_segment(self.homes[rank] + offset, nbytes, name, rank)

    def freed(self, offset: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            segment = self._segments.pop((rank, offset), None)
            if segment is not None:
                self._machine.memory.drop_segment(segment)

    def close(self) -> None:
        if self._views is None:
            return
        self._machine.arenas.remove(self)
        self._machine.teams.clear()
        for segment in self._segments.values():
            self._machine.memory.drop_segment(segment)
        for owner in self._owned:
            self._machine.memory.release(self.homes[owner])
        self._views = self.local = self._slab = None


def reserve(machine: Machine, nbytes: int, world: Group) -> EmulatorArena:
    """Collective over `world`: every rank's slab of `nbytes`, mapped by all. Each launcher of several stands for a node."""
    if nbytes < 1:
        raise InvalidArgument(f"heap size: expected at least 1 byte, found {nbytes}")
    nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if isinstance(world, VirtualGroup):
        return EmulatorArena(machine, world.share("reserve_arena", _private(nbytes)), [world.rank], world.rank)
    if world.size == 1:
        return EmulatorArena(machine, [_private(nbytes)], [0], 0)
    slabs, fds = shared(world, nbytes)
    for fd in fds:
        os.close(fd)
    arena = EmulatorArena(machine, slabs, [rank for rank, slab in enumerate(slabs) if slab is not None], world.rank)
    if machine.wire is not None:
        machine.wire.attach(arena.homes[world.rank], nbytes)
    launchers = world.all_gather_object(os.environ.get("GROUP_RANK", "0"))         # torchrun's number of a launcher
    arena.cut([rank for rank, launcher in enumerate(launchers) if launcher == launchers[world.rank]])
    return arena


def shared(world: Group, nbytes: int) -> tuple:
    """Collective: a mapping of a fresh block of `nbytes` of each rank, None for those of other hosts; their file descriptors."""
    hosts = world.all_gather_object(host())
    near = [host == hosts[world.rank] for host in hosts]
    with _reserving(nbytes):
        fds = by_memfd(world, nbytes, near) or by_file(world, nbytes, near)
        rest = iter(fds)
        return [mmap.mmap(next(rest), nbytes, mmap.MAP_SHARED) if here else None for here in near], fds


def _private(nbytes: int) -> mmap.mmap:
    with _reserving(nbytes):
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)


@contextlib.contextmanager
def _reserving(nbytes: int) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError) as error:
        raise OutOfHeap(f"cannot reserve {nbytes} bytes of symmetric heap for each rank ({error}); set a smaller "
                        "TRITON_DIST_HEAP_SIZE") from error


def by_memfd(world: Group, nbytes: int, near: Sequence[bool]) -> Optional[list]:
    """Descriptors of the memfds of ranks that are `near`; None where some rank cannot open such a one, and then on all."""
    own = os.memfd_create("triton_dist", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else -1
    if own >= 0:
        os.ftruncate(own, nbytes)
    inode = os.fstat(own).st_ino if own >= 0 else 0
    fds: list = []
    everyone = world.all_gather_object((os.getpid(), own, inode))
    for pid, fd, expected in itertools.compress(everyone, near):
        found = _open(f"/proc/{pid}/fd/{fd}") if fd >= 0 else -1
        if found >= 0 and os.fstat(found).st_ino != expected:       # another pid namespace
            os.close(found)
            found = -1
        fds.append(found)
    usable = all(world.all_gather_object(min(fds) >= 0))            # also: everybody has opened `own`
    if own >= 0:
        os.close(own)
    if usable:
        return fds
    for fd in fds:
        if fd >= 0:
            os.close(fd)
    return None


def by_file(world: Group, nbytes: int, near: Sequence[bool]) -> list:
    own, path = tempfile.mkstemp(prefix="triton_dist_")             # mode 0600
    try:
        os.ftruncate(own, nbytes)
        fds = [_open(other) for other in itertools.compress(world.all_gather_object(path), near)]
        answers = world.all_gather_object(min(fds) >= 0)
    finally:
        os.unlink(path)
        os.close(own)
    if not all(answers):
        raise UnsupportedFeature(f"ranks {[r for r, ok in enumerate(answers) if not ok]} cannot open the heap files of "
                                 f"others in {tempfile.gettempdir()}: all ranks need the same user and TMPDIR")
    return fds


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
