# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The symmetric heap: one arena a rank, offsets agreed by the ranks that share an allocation (protocol rule 21).

An object lies at the same offset in the arena of every member of its group, so an address is translated to a peer's by
adding the difference of two bases. A sub-group takes the lowest offset free on all its members.
"""
import math
import operator
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from triton_dist.runtime import ambient, groups
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import Arena
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument, NotInitialized, NotSymmetric, OutOfHeap
from triton_dist.runtime.state import state

_REFUSES, _FREES = "refuses: ", "free_symm_tensor"       # what a member tells that cannot take part, or frees a tensor
ALIGNMENT = 256
RESERVED = 4096          # bytes at the start of the arena: the world-barrier pad, then pads of emulated SHMEM teams
_PAD_FLAGS = 64          # byte of the pad at which its flags begin, one 4-byte word for each world rank
SHMEM_PAD, SHMEM_PADS = 1024, 6      # byte at which the first of them begins; how many
SHMEM_PAD_BYTES, SHMEM_PAD_FLAGS = 512, 64


@dataclass(eq=False)
class Allocation:
    """One live object of the heap on this rank."""
    offset: int
    nbytes: int
    group: groups.Group
    name: str
    live: bool = True
    writer: Callable[[int], int | None] | None = None      # byte offset of a flag -> world rank that writes it, if known


class SymmetricHeap:
    """Allocator over this rank's arena. Methods marked collective are called by all members of the group, in order."""

    def __init__(self, arena: Arena):
        self.arena = arena
        self.base = arena.local.data_ptr()
        arena.allocated(0, RESERVED, "world barrier pad", range(len(arena.bases)))
        self._free = [(RESERVED, arena.nbytes - RESERVED)]       # (offset, nbytes), by offset
        self._live: dict[int, Allocation] = {}
        self._reachable: dict[tuple, bool] = {}                  # by the ranks of a group
        self._dropped: list[weakref.ref[Allocation]] = []        # nothing refers to their tensors here any more

    def allocate(self, nbytes: int, group: groups.Group, name: str, what: str = "") -> Allocation:
        """Collective: the lowest range of `nbytes` free on every member. Raises OutOfHeap on all of them.

        `what` describes the object (shape and dtype); it must be the same on every member, as `nbytes` must.
        """
        need = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        asked_for, free_lists = self.collect(group, what or f"{nbytes} bytes")
        for rank, asked in zip(group.world_ranks, asked_for):
            if asked.startswith(_REFUSES):
                raise CollectiveMismatch(f"{name}: rank {rank} cannot allocate its part: {asked.removeprefix(_REFUSES)}; "
                                         "pass the same shape and dtype on all")
        _expect_same(group, name, asked_for)
        gap = self.arena.gap
        offset = _lowest_common([_apart(free, gap) for free in free_lists], need) if gap else None
        if offset is None:
            offset = _lowest_common(free_lists, need)
        if offset is None:
            left = min(max((size for _, size in free), default=0) for free in free_lists)
            more = self.arena.nbytes + need - left
            raise OutOfHeap(f"{name}: {need} bytes needed, the largest free range is {left} of {self.arena.nbytes} bytes; "
                            f"raise TRITON_DIST_HEAP_SIZE (to {-(-more // (1 << 20))}M) or free symmetric tensors")
        self._take(offset, need)
        self._live[offset] = Allocation(offset, need, group, name)
        self.arena.allocated(offset, nbytes, name, group.world_ranks)
        return self._live[offset]

    def collect(self, group: groups.Group, what: str = "") -> tuple[list, list]:
        """Collective: frees what all members have dropped. `what` and the free ranges of every member, by index.

        A member tells what it has dropped once its device has finished, so when all have told, nobody uses it.
        """
        dropped = [a for found in self._dropped if (a := found()) is not None and a.live]
        if dropped:
            backend().synchronize()
        told = [(a.offset, a.nbytes, a.group.world_ranks) for a in dropped]
        answers = group.all_gather_object((what, self._free, told))
        gone_of = dict(zip(group.world_ranks, (set(told) for _, _, told in answers)))
        free_lists = []
        for rank, (_, free, told) in zip(group.world_ranks, answers):
            common = [found for found in told if all(found in gone_of.get(peer, ()) for peer in found[2])]
            free_lists.append(_merge(free + [found[:2] for found in common]))
            if rank == group.world_ranks[group.rank]:
                for offset, _, _ in common:
                    self._give_back(self._live[offset])
        return [what for what, _, _ in answers], free_lists

    def own(self, allocation: Allocation, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """This rank's tensor over an allocation, contiguous. When nothing refers to its memory any more, it is dropped."""
        dropped, found = self._dropped, weakref.ref(allocation)         # not itself: it knows the world, and that the tensor
        memory = self.arena.own(state().world.rank, allocation.offset, allocation.nbytes, lambda: dropped.append(found))
        return memory[:math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))

    def release(self, allocation: Allocation, group: groups.Group | None = None) -> None:
        """Collective: returns the range once all members have stopped using it. `group`: another group of the same ranks."""
        self.expect_live(allocation)
        backend().synchronize()
        (group or allocation.group).barrier()
        self._give_back(allocation)

    def expect_live(self, allocation: Allocation) -> None:
        """Raises InvalidArgument for what is not allocated here any more."""
        if self._live.get(allocation.offset) is not allocation:
            raise InvalidArgument(f"{allocation.name}: freed twice, or of a heap that has gone; free what "
                                  "create_symm_tensor returned once")

    def _give_back(self, allocation: Allocation) -> None:
        del self._live[allocation.offset]
        self._dropped[:] = [found for found in self._dropped if found() not in (None, allocation)]
        allocation.live = False
        self.arena.freed(allocation.offset, allocation.group.world_ranks)
        self._free = _merge(self._free + [(allocation.offset, allocation.nbytes)])

    def find(self, tensor: torch.Tensor) -> Allocation:
        """The allocation that holds `tensor`. Raises NotSymmetric where there is none."""
        found = self._at(tensor.data_ptr() - self.base)
        if found is None:
            raise NotSymmetric(f"expected a tensor made by create_symm_tensor, found one at {tensor.data_ptr():#x}, outside "
                               "the symmetric heap")
        return found

    def view(self, rank: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Tensor over the arena of world rank `rank`, contiguous."""
        if not self.arena.bases[rank]:
            raise InvalidArgument(f"rank: {elsewhere(state().nodes, state().world.rank, rank)}")
        nbytes = math.prod(shape) * dtype.itemsize
        return self.arena.view(rank)[offset:offset + nbytes].view(dtype).view(tuple(shape))

    def allocations(self) -> list[Allocation]:
        """What is allocated, by offset."""
        return sorted(self._live.values(), key=lambda a: a.offset)

    def largest_free(self) -> int:
        """Bytes of the largest free range."""
        return max((size for _, size in self._free), default=0)

    def name_of(self, address: int) -> str | None:
        """'name + byte offset' of a local heap address, for reports."""
        offset = address - self.base
        if 0 <= offset < RESERVED:
            team, at = divmod(offset - SHMEM_PAD, SHMEM_PAD_BYTES)
            return f"world barrier pad + {offset}" if team < 0 else f"SHMEM pad of team {team} + {at}"
        found = self._at(offset)
        return f"{found.name} + {offset - found.offset}" if found else None

    def describe(self, address: int) -> tuple[str, int | None]:
        """Words for a flag address in any rank's heap as mapped here, and the world rank that should write it, if known."""
        for rank, base in enumerate(self.arena.bases):
            offset = address - base
            if base and 0 <= offset < self.arena.nbytes:
                name = self.name_of(self.base + offset) or f"heap + {offset}"
                return f"{name}, of rank {rank}", self._writer(offset)
        return "of no symmetric tensor", None

    def _writer(self, offset: int) -> int | None:
        if _PAD_FLAGS <= offset < SHMEM_PAD:
            return (offset - _PAD_FLAGS) // 4
        found = self._at(offset)
        return found.writer(offset - found.offset) if found and found.writer else None

    def at(self, address: int) -> Allocation | None:
        """The allocation at an address in any rank's heap as mapped here; None where there is none."""
        offsets = [address - base for base in self.arena.bases if base and 0 <= address - base < self.arena.nbytes]
        return self._at(offsets[0]) if offsets else None

    def _at(self, offset: int) -> Allocation | None:
        return next((a for a in self._live.values() if a.offset <= offset < a.offset + a.nbytes), None)

    def reachable(self, group: groups.Group) -> bool:
        """True when loads and stores reach every member from here."""
        found = self._reachable.get(group.world_ranks)
        if found is None:
            found = self._reachable[group.world_ranks] = all(self.arena.bases[r] for r in group.world_ranks)
        return found

    def _take(self, offset: int, nbytes: int) -> None:
        rest = []
        for start, size in self._free:
            if start <= offset < start + size:
                rest += [(start, offset - start), (offset + nbytes, start + size - offset - nbytes)]
            else:
                rest.append((start, size))
        self._free = [(s, n) for s, n in rest if n]


def _expect_same(group: groups.Group, name: str, told: list) -> None:
    """Raises CollectiveMismatch where members have told different things, such as shapes and dtypes."""
    if any(other != told[0] for other in told):
        raise CollectiveMismatch(f"{name}: ranks ask for different tensors: {dict(zip(group.world_ranks, told))} by rank; pass "
                                 "the same shape and dtype on all")


def _apart(free: Sequence[tuple], gap: int) -> list:
    """The free ranges without `gap` bytes at each end: what is placed in them does not touch another object."""
    return [(start + gap, nbytes - 2 * gap) for start, nbytes in free]


def _lowest_common(free_lists: Sequence[Sequence[tuple]], need: int) -> int | None:
    starts = sorted({start for free in free_lists for start, _ in free})
    for offset in starts:
        if all(any(s <= offset and offset + need <= s + n for s, n in free) for free in free_lists):
            return offset
    return None


def _merge(ranges: list) -> list:
    merged = []
    for start, size in sorted(ranges):
        if merged and merged[-1][0] + merged[-1][1] == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((start, size))
    return merged


def heap() -> SymmetricHeap:
    """This rank's heap. Raises NotInitialized before initialize_distributed()."""
    if state().heap is None:
        raise NotInitialized(state().forked or "no symmetric heap yet: call triton_dist.initialize_distributed() first")
    return state().heap


def elsewhere(nodes: Sequence[int], rank: int, peer: int) -> str:
    """Words for why `rank` cannot load and store memory of `peer`, and what to do; `nodes` of all world ranks."""
    return (f"rank {peer} is on node {nodes[peer]}, rank {rank} on node {nodes[rank]}, and loads and stores do not reach other "
            "nodes; send by libshmem_device (putmem_signal_nbi_block, signal_op, getmem), or let an op or a collective do it")


def _checked(shape: Any, dtype: Any, name: Any) -> tuple:
    """The shape as a tuple. Raises InvalidArgument."""
    try:
        shape = (shape,) if isinstance(shape, int) else tuple(operator.index(s) for s in shape)
    except TypeError as error:
        raise InvalidArgument(f"shape: expected whole numbers, found {shape!r}") from error
    if any(s < 0 for s in shape):
        raise InvalidArgument(f"shape: expected sizes of at least 0, found {shape}")
    if not isinstance(dtype, torch.dtype) or str(dtype).startswith(("torch.q", "torch.bits")):
        raise InvalidArgument(f"dtype: expected a torch.dtype of numbers, not quantised, found {dtype!r}")
    if not isinstance(name, str):
        raise InvalidArgument(f"name: expected a string, found {name!r}")
    return shape


def create_symm_tensor(shape: Sequence[int], dtype: torch.dtype, group: Any = None, *, name: str = "") -> torch.Tensor:
    """Allocates a zeroed tensor at the same heap offset on every member of `group`. Collective over `group`.

    Args:
        shape: equal on all members.
        dtype: equal on all members.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        name: shown in reports of hangs and faults.

    Returns:
        A contiguous tensor on this rank's device. Free it with `free_symm_tensor`, or drop it and all its views on every member.
        Its members can then allocate the memory again.

    Raises:
        InvalidArgument: bad arguments, or inside graph capture.
        CollectiveMismatch: members ask for different tensors, or one of them has bad arguments; on every member.
        OutOfHeap: no common range is free; on every member.

    Example:
        flag = triton_dist.create_symm_tensor((1,), torch.int32, name="flag")
    """
    members = groups.resolve(group)
    ambient.refuse("create_symm_tensor")
    if backend().is_capturing():            # which would end by the host's wait below, when the heap has already changed
        raise InvalidArgument("create_symm_tensor was called inside graph capture; call it before")
    home = heap()
    try:
        shape = _checked(shape, dtype, name)
    except InvalidArgument as error:
        home.collect(members, f"{_REFUSES}{error}")         # the others wait for this rank's words
        raise
    what = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    allocation = home.allocate(math.prod(shape) * dtype.itemsize, members, name or f"symmetric {what}", what)
    with ambient.clean():
        tensor = home.own(allocation, shape, dtype)
        tensor.zero_()
    tensor.tdist_allocation = allocation            # what tells it from later tensors at its place, and from views
    backend().synchronize()
    members.barrier()                  # nobody signals into a pad that its owner has yet to clear
    return tensor


def free_symm_tensor(tensor: torch.Tensor) -> None:
    """Collective over the tensor's group: frees it. No kernel may touch it afterwards, on any rank.

    Raises NotSymmetric for another tensor and InvalidArgument for one that has been freed. If one member passes a view into the
    tensor, or frees it twice, every member raises an error, and nothing is freed.
    """
    home, allocation, error = heap(), getattr(tensor, "tdist_allocation", None), None
    try:
        if allocation is None:
            allocation = home.at(tensor.data_ptr()) if isinstance(tensor, torch.Tensor) else None
            raise NotSymmetric("tensor: expected the tensor that create_symm_tensor returned, found another one or a view into "
                               "it")
        home.expect_live(allocation)
    except InvalidArgument as wrong:
        if allocation is None or not allocation.group.usable_in(groups.resolve()):
            raise                       # nothing tells which ranks might wait
        error = wrong
    told, _ = home.collect(allocation.group, f"{_REFUSES}{error}" if error else _FREES)    # as create_symm_tensor begins
    if error is not None:
        raise error
    for rank, words in zip(allocation.group.world_ranks, told):
        if words.startswith(_REFUSES):
            raise CollectiveMismatch(f"{allocation.name}: rank {rank} cannot free it: {words.removeprefix(_REFUSES)}; nothing "
                                     "was freed")
    _expect_same(allocation.group, allocation.name, told)
    home.release(allocation)


def peer_tensor(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """The same symmetric tensor in the memory of world rank `rank`: a view for loads, stores and copies.

    `tensor` is contiguous. Raises NotSymmetric for other memory and InvalidArgument where `rank` cannot be
    reached, as on another node.
    """
    home = heap()
    if not isinstance(tensor, torch.Tensor):
        raise NotSymmetric(f"tensor: expected one made by create_symm_tensor, found {type(tensor).__name__}")
    if not isinstance(rank, int) or not 0 <= rank < len(home.arena.bases):
        raise InvalidArgument(f"rank: expected a world rank, 0 to {len(home.arena.bases) - 1}, found {rank!r}")
    members = home.find(tensor).group.world_ranks if tensor.numel() else (rank,)      # an empty tensor has no address
    if rank not in members:
        raise InvalidArgument(f"rank: expected a member of its group, of ranks {list(members)}, found {rank}; "
                              "another rank has no such tensor")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"tensor: expected a contiguous tensor, found strides {list(tensor.stride())}; take a view of the "
                              "peer tensor instead")
    offset = tensor.data_ptr() - home.base if tensor.numel() else 0
    return home.view(rank, offset, tensor.shape, tensor.dtype)
