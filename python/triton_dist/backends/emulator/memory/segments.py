# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ranges of memory that may be touched, and single words in them."""
import bisect
import collections
import ctypes
import weakref
from typing import Any, Callable, Optional

import numpy as np
import torch

from triton_dist.backends.emulator.engine.registry import fault
from triton_dist.backends.emulator.memory import unreachable
from triton_dist.backends.emulator.values.promotion import Info

_NEAR = 1 << 16          # bytes past a tensor's end within which an address is an overrun of it, not of what was freed there
_WORDS = {"int1": ctypes.c_uint8, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
          "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32,
          "uint64": ctypes.c_uint64, "fp32": ctypes.c_float, "fp64": ctypes.c_double}
_CARRIERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# A few elements here and there: numpy takes half as long as torch for them. It lacks some dtypes, so it moves integers.
def bits(x: torch.Tensor) -> np.ndarray:
    """The elements of a tensor as integers of their size."""
    x, carrier = x.contiguous(), _CARRIERS[x.itemsize]
    return (x if x.dtype is carrier else x.view(carrier)).numpy()


def of_bits(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The tensor whose elements have these bits."""
    made = torch.from_numpy(x)
    return made if made.dtype is dtype else made.view(dtype)


def picked(x: torch.Tensor, index: np.ndarray) -> torch.Tensor:
    """x[index], of a tensor of one dimension."""
    return of_bits(bits(x)[index], x.dtype)


class Segment:
    """`nbytes` of memory at `base`. Views of it are made on first use and copy nothing."""

    def __init__(self, base: int, nbytes: int, name: str, rank: int):
        self.base, self.nbytes, self.end, self.name, self.rank = base, nbytes, base + nbytes, name, rank
        self.owners: list = []               # weak references to the storages of registered tensors; none in the heap
        self._views: dict = {}               # by dtype, and by size of words

    def view(self, dtype: torch.dtype) -> tuple:
        """(1-d tensor of all aligned elements, address of the first)."""
        found = self._views.get(dtype)
        if found is None:
            start = self.base + -self.base % dtype.itemsize
            count = max(0, self.end - start) // dtype.itemsize
            raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(start)
            flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if count else torch.empty(0, dtype=dtype)
            found = self._views[dtype] = flat, start
        return found

    def words(self, size: int) -> tuple:
        """(array of all aligned integers of `size` bytes, address of the first)."""
        found = self._views.get(size)
        if found is None:
            flat, start = self.view(_CARRIERS[size])
            found = self._views[size] = flat.numpy(), start
        return found

    def storages(self) -> list:
        """Storages of registered tensors that live in this memory now: not those that have been resized and are elsewhere."""
        living = [storage for storage in (owner() for owner in self.owners) if storage is not None]
        return [storage for storage in living if storage.nbytes() and self.base <= storage.data_ptr()
                and storage.data_ptr() + storage.nbytes() <= self.end]

    def __str__(self) -> str:
        return f"{self.name} ({'rank %d, ' % self.rank if self.rank >= 0 else ''}{self.nbytes} bytes)"


class Segments:
    """The segments of a process, which do not overlap, by address."""

    def __init__(self) -> None:
        self._map: tuple = [], []            # sorted bases, segments; replaced, never changed: storages die at any time
        self._last: Optional[Segment] = None
        self._reserved: dict = {}            # base -> (end, name) of slabs in which objects become segments one by one
        self._graves: collections.deque = collections.deque(maxlen=64)       # segments that are gone, latest first

    def add_segment(self, base: int, nbytes: int, name: str, rank: int = -1) -> Segment:
        """Makes a range accessible. The caller keeps it mapped until drop_segment."""
        segment = Segment(base, nbytes, name, rank)
        self._insert(segment)
        return segment

    def reserve(self, base: int, nbytes: int, name: str) -> None:
        """Storages in this range are no segments: the objects that live there are added one by one."""
        self._reserved[base] = base + nbytes, name

    def release(self, base: int) -> None:
        """The reserved range at `base` is unmapped."""
        del self._reserved[base]

    def drop_segment(self, segment: Segment) -> None:
        """Makes a range inaccessible: later accesses fault. Idempotent."""
        def without(bases: list, segments: list) -> Optional[tuple]:
            at = bisect.bisect_left(bases, segment.base)
            while at < len(segments) and bases[at] == segment.base:
                if segments[at] is segment:
                    return [*bases[:at], *bases[at + 1:]], [*segments[:at], *segments[at + 1:]]
                at += 1
            return None                          # dropped before
        self._replace(without)
        self._graves.appendleft(segment)
        if self._last is segment:
            self._last = None

    def register(self, tensor: torch.Tensor, name: str, rank: int = -1) -> None:
        """Makes a tensor's storage accessible for as long as it lives."""
        self._register(tensor.untyped_storage(), name, rank)

    def _register(self, storage: Any, name: str, rank: int) -> None:
        base, nbytes = storage.data_ptr(), storage.nbytes()
        end = base + nbytes
        if not nbytes or not base or any(start <= base < stop for start, (stop, _) in self._reserved.items()):
            return
        found = self.at(base)
        if found is not None and end <= found.end:
            if not found.owners or (found.base, found.end) == (base, end) and found.owners[0]() is storage:
                return
        # Storages that have died or been resized left their segments behind; living ones may share this memory. Segments must
        # not overlap, so all storages that hold a part of this memory now get one segment.
        old = [segment for segment in self._overlapping(base, end) if segment.owners]
        living = [storage]
        for segment in old:
            living += [one for one in segment.storages() if one is not storage]
        for segment in old:
            self.drop_segment(segment)
        base = min(one.data_ptr() for one in living)
        end = max(one.data_ptr() + one.nbytes() for one in living)
        segment = Segment(base, end - base, name, rank)
        memory = weakref.ref(self)

        def forget(gone: Any) -> None:
            here = memory()
            if here is not None:
                here.drop_segment(segment)
                for owner in segment.owners:
                    if owner is not gone and owner() is not None:
                        here._register(owner(), name, rank)

        segment.owners = [weakref.ref(one, forget) for one in living]
        self._insert(segment)

    def _overlapping(self, base: int, end: int) -> list:
        """The segments that hold a byte of [base, end)."""
        bases, segments = self._map
        first = bisect.bisect_right(bases, base) - 1
        last = bisect.bisect_left(bases, end)
        return [segment for segment in segments[max(first, 0):last] if segment.end > base]

    def _insert(self, segment: Segment) -> None:
        def with_it(bases: list, segments: list) -> tuple:
            at = bisect.bisect_right(bases, segment.base)
            return [*bases[:at], segment.base, *bases[at:]], [*segments[:at], segment, *segments[at:]]
        self._replace(with_it)

    def _replace(self, change: Callable) -> None:
        """Sets the map to change(bases, segments), unless that is None; again where the collector has dropped one meanwhile."""
        while True:
            before = self._map
            after = change(*before)
            if after is None:
                return
            if self._map is before:              # nothing is allocated, hence collected, up to the assignment
                self._map = after
                return

    def at(self, address: int) -> Optional[Segment]:
        """The segment that holds an address."""
        bases, segments = self._map
        i = bisect.bisect_right(bases, address) - 1
        return segments[i] if i >= 0 and address < segments[i].end else None

    def find(self, address: int, nbytes: int, what: str = "access") -> Segment:
        """The segment that holds `nbytes` at an address; DeviceFault where there is none."""
        segment = self._last
        if segment is not None and segment.base <= address and address + nbytes <= segment.end:
            return segment
        segment = self.at(address)
        if segment is None or address + nbytes > segment.end:
            raise self._outside(address, nbytes, what)
        self._last = segment
        return segment

    def _outside(self, address: int, nbytes: int, what: str) -> Exception:
        far = unreachable.words(address)
        if far:
            return fault(f"{what} of {nbytes} bytes: {far}", "out-of-bounds")
        bases, segments = self._map
        i = bisect.bisect_right(bases, address) - 1
        near = []
        if i >= 0:
            before = segments[i]
            over = address + nbytes - before.end
            near.append(f"{over} bytes past the end of {before}")
        if i + 1 < len(segments):
            near.append(f"{segments[i + 1].base - address} bytes before {segments[i + 1]}")
        where = " and ".join(near) if near else "no memory is known"
        if -(1 << 40) < address < 1 << 32:
            where = "it is no address, but a null pointer or a number"
        near_a_live_one = i >= 0 and address - segments[i].end < _NEAR
        for grave in list(self._graves):         # storages die at any time
            symmetric = any(base <= grave.base < end for base, (end, _) in self._reserved.items())
            if grave.base <= address < grave.end and (symmetric or not near_a_live_one):
                return fault(f"{what} of {nbytes} bytes at {address:#x}, {address - grave.base} bytes into {grave}, which has "
                             "been freed: keep the tensor until the work that uses it is over", "use-after-free")
        return fault(f"{what} of {nbytes} bytes at {address:#x} is outside every tensor: {where}; check the mask, the "
                     "offsets, and that the tensor still lives", "out-of-bounds")


class _Element:
    """A word that ctypes has no type for (fp16, bf16, fp8)."""
    __slots__ = ("flat", "index")

    def __init__(self, flat: torch.Tensor, index: int):
        self.flat, self.index = flat, index

    @property
    def value(self) -> float:
        return self.flat[self.index].item()

    @value.setter
    def value(self, value: float) -> None:
        self.flat[self.index] = value


def word_at(segment: Segment, address: int, known: Info) -> Any:
    """What reads and writes the word at an address of a segment, as `value`."""
    word = _WORDS.get(known.ty.name) if not known.pointer else ctypes.c_int64
    if word is not None:
        return word.from_address(address)
    flat, start = segment.view(known.torch)
    return _Element(flat, (address - start) // known.size)


def rounds(index: np.ndarray, update: Callable, flat: torch.Tensor) -> torch.Tensor:
    """Applies `update(elements, operands)` so that equal indices come in separate rounds; the values seen."""
    old, left = torch.empty(index.shape, dtype=flat.dtype), np.arange(len(index))
    while left.size:
        _, first = np.unique(index[left], return_index=True)
        now = torch.from_numpy(np.sort(left[first]))
        at = torch.from_numpy(index)[now]
        old[now] = flat[at]
        update(at, now)
        left = np.delete(left, first)
    return old
