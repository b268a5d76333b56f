# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Global memory as kernels see it: real addresses, checked. Every access goes through here, one method per kind.

A segment is a range that may be touched: a symmetric slab, or the storage of a kernel argument. An access outside all
of them, or one that is not aligned, is a DeviceFault that names the segment and the kernel's line. `observe` is called
once per access, with the order and scope it has: a checker overrides it.
"""
import ctypes
from typing import Any, Callable, Optional, Sequence

import numpy as np
import torch

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, site
from triton_dist.backends.emulator.memory.segments import Segment, Segments, bits, of_bits, rounds, word_at
from triton_dist.backends.emulator.values.promotion import Info

__all__ = ["Memory", "Segment", "active", "activate", "site"]

_READS = {"acq_rel": "acquire", "release": "relaxed", "acquire": "acquire", "relaxed": "relaxed"}    # what is left of a store
_FLAGS = {32: ctypes.c_int32, 64: ctypes.c_int64}


class Memory(Segments):
    """All segments of a process, and every access to them."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict = {}              # address of a flag that is waited for -> how many wait
        self.pollers: dict = {}              # address of a word -> actors that sleep, and poll it among others
        self.expected: dict = {}             # address of a flag -> waits for one exact value that have passed; a checker's

    # -- accesses ------------------------------------------------------------------------------------------
    def observe(self, kind: str, segment: Segment, address: Any, shape: Any, steps: Any, size: int, sem: Optional[str],
                scope: Optional[str]) -> None:
        """Called before each access. kind: 'load', 'store', 'atomic'. A strided one has address, shape and byte steps;
        a scattered one has an int64 tensor of addresses, and no shape. sem is None for plain accesses, 'packet' for
        relaxed ones of words that carry data and a flag, and 'emptied' for the store by which such words are taken."""

    def fence(self, sem: str, scope: str) -> None:
        """A memory fence of the running actor; nothing to do where memory is sequentially consistent."""

    def rewritten(self, addresses: Sequence[int]) -> None:
        """Called after signal words have been written, where `expected` has some: by a checker."""

    # -- strided and scattered blocks ----------------------------------------------------------------------
    def tile(self, kind: str, address: int, shape: Any, steps: Any, known: Info) -> torch.Tensor:
        """Checked view of a strided block; steps in bytes, >= 0; the shape has no zero."""
        size, last = known.size, address
        unaligned = address
        for n, step in zip(shape, steps):
            last += (n - 1) * step
            unaligned |= step
        if unaligned & size - 1:
            raise fault(
                f"{kind} of {known.ty} at {address:#x} with steps {tuple(steps)}: not a multiple of {size} bytes")
        segment = self.find(address, last + size - address, kind)
        self.observe(kind, segment, address, shape, steps, size, None, None)
        flat, start = segment.view(known.torch)
        return flat.as_strided(shape, [step // size for step in steps], (address - start) // size)

    def load_tile(self, address: int, shape: Any, steps: Any, known: Info) -> torch.Tensor:
        """A copy of a strided block."""
        return self.tile("load", address, shape, steps, known).clone(memory_format=torch.contiguous_format)

    def store_tile(self, address: int, shape: Any, steps: Any, known: Info, values: torch.Tensor) -> None:
        """Writes a strided block in which no two elements overlap."""
        self.tile("store", address, shape, steps, known).copy_(values)
        if self.watched:
            self.wake_range(address, address + sum((n - 1) * step for n, step in zip(shape, steps)) + known.size)

    def _points(self, kind: str, addresses: torch.Tensor, known: Info, sem: Any, scope: Any) -> list:
        """[(segment, element indices, which of `addresses` or None for all)], one entry per segment. Arrays of numpy."""
        raw = addresses.numpy()
        lo, hi, size = int(raw.min()), int(raw.max()), known.size
        if size > 1 and int(np.bitwise_or.reduce(raw)) & size - 1:
            bad = int(raw[(raw & size - 1) != 0][0])
            raise fault(f"{kind} of {known.ty} at {bad:#x}: not a multiple of {size} bytes")
        segment = self.at(lo)
        if segment is not None and hi + size <= segment.end:
            self.observe(kind, segment, addresses, None, None, size, sem, scope)
            return [(segment, (raw - segment.words(size)[1]) >> size.bit_length() - 1, None)]
        found, (bases, segments) = [], self._map
        owner = np.searchsorted(np.array(bases, np.int64), raw, side="right") - 1
        for i in np.unique(owner):
            chosen = np.nonzero(owner == i)[0]
            some = raw[chosen]
            first, last = int(some.min()), int(some.max())
            if i < 0 or first >= segments[i].end:
                raise self._outside(first, size, kind)
            if last + size > segments[i].end:
                raise self._outside(last, size, kind)
            self.observe(kind, segments[i], torch.from_numpy(some), None, None, size, sem, scope)
            found.append((segments[i], (some - segments[i].words(size)[1]) >> size.bit_length() - 1, chosen))
        return found

    def load_points(self, addresses: torch.Tensor, known: Info, sem: Any = None, scope: Any = None) -> torch.Tensor:
        """The elements at the addresses (int64 [n], n > 0)."""
        parts = self._points("load", addresses, known, sem, scope)
        if parts[0][2] is None:
            segment, index, _ = parts[0]
            return of_bits(segment.words(known.size)[0][index], known.torch)
        out = torch.empty(addresses.shape, dtype=known.torch)
        for segment, index, chosen in parts:
            out[chosen] = of_bits(segment.words(known.size)[0][index], known.torch)
        return out

    def store_points(self, addresses: torch.Tensor, known: Info, values: torch.Tensor, sem: Any = None,
                     scope: Any = None) -> None:
        """Writes the elements at the addresses (int64 [n], n > 0)."""
        words = bits(values)
        for segment, index, chosen in self._points("store", addresses, known, sem, scope):
            segment.words(known.size)[0][index] = words if chosen is None else words[chosen]
        if self.watched:
            self.wake_range(int(addresses.min()), int(addresses.max()) + known.size)

    def update_points(self, addresses: torch.Tensor, known: Info, fn: Callable, values: tuple, sem: str,
                      scope: str) -> torch.Tensor:
        """Atomic read-modify-write of each element: fn(old, *values) on tensors. Returns the old elements.

        Equal addresses are updated one after another, in element order.
        """
        old = torch.empty(addresses.shape, dtype=known.torch)
        with scheduler.active().lock:
            for segment, index, chosen in self._points("atomic", addresses, known, sem, scope):
                flat, mine = segment.view(known.torch)[0], [v if chosen is None else v[chosen] for v in values]
                seen = rounds(index, lambda at, to: flat.__setitem__(at, fn(flat[at], *[v[to] for v in mine])), flat)
                if chosen is None:
                    old = seen
                else:
                    old[chosen] = seen
        if self.watched:
            self.wake_range(int(addresses.min()), int(addresses.max()) + known.size)
        if self.expected:
            self.rewritten(addresses.tolist())
        return old

    # -- single words --------------------------------------------------------------------------------------
    def _word(self, kind: str, address: int, known: Info, sem: Any, scope: Any) -> Any:
        size = known.size
        if address & size - 1:
            raise fault(f"{kind} of {known.ty} at {address:#x}: not a multiple of {size} bytes")
        segment = self.find(address, size, kind)
        self.observe(kind, segment, address, (), (), size, sem, scope)
        return word_at(segment, address, known)

    def load_word(self, address: int, known: Info, sem: Any = None, scope: Any = None) -> Any:
        """The number at an address."""
        return self._word("load", address, known, sem, scope).value

    def store_word(self, address: int, known: Info, value: Any, sem: Any = None, scope: Any = None) -> None:
        """Writes a number that fits the type."""
        self._word("store", address, known, sem, scope).value = value
        self._woken(address)

    def update_word(self, address: int, known: Info, fn: Callable, sem: str, scope: str) -> Any:
        """Atomic read-modify-write of one word: stores fn(old), returns old."""
        word = self._word("atomic", address, known, sem, scope)
        running = scheduler.active()
        with running.lock:
            old = word.value
            word.value = fn(old)
        self._woken(address)
        return old

    def swap_word(self, address: int, known: Info, expected: Any, value: Any, sem: str, scope: str) -> Any:
        """Atomic compare-and-swap of one word: stores `value` where it holds `expected`. Returns what it held.

        One that fails only reads: it stores nothing, so it releases nothing.
        """
        if address & known.size - 1:
            raise fault(f"atomic of {known.ty} at {address:#x}: not a multiple of {known.size} bytes")
        segment = self.find(address, known.size, "atomic")
        word = word_at(segment, address, known)
        with scheduler.active().lock:
            old = word.value
            if old == expected:
                self.observe("atomic", segment, address, (), (), known.size, sem, scope)
                word.value = value
            else:
                self.observe("load", segment, address, (), (), known.size, _READS[sem], scope)
        if old == expected:
            self._woken(address)
        return old

    def _woken(self, address: int) -> None:
        """A word has been written."""
        self._wake(address)
        if self.expected:
            self.rewritten((address,))

    # -- flags, packets and the copy engine ----------------------------------------------------------------
    def flag_load(self, address: int, bits: int, sem: str = "acquire", scope: str = "sys") -> int:
        """The value of a signal word, signed."""
        return self._flag("load", address, bits, sem, scope).value

    def flag_pass(self, address: int, bits: int, cmp: str, met: Callable[[int], bool], sem: str = "acquire",
                  scope: str = "sys") -> int:
        """The same, by a wait that has found a value with which it is over: one that is `met`.

        cmp: 'eq', 'ge', ... of a wait that a kernel's author has written, '' for one inside a barrier."""
        return self.flag_load(address, bits, sem, scope)

    def flag_store(self, address: int, value: int, bits: int, sem: str = "release", scope: str = "sys") -> None:
        """Sets a signal word and wakes who waits for it."""
        word, running = self._flag("store", address, bits, sem, scope), scheduler.active()
        with running.lock:
            word.value = value
        self._woken(address)

    def flag_add(self, address: int, value: int, bits: int, sem: str = "release", scope: str = "sys") -> int:
        """Adds to a signal word, wrapping, and wakes who waits for it. Returns the old value."""
        word, running = self._flag("atomic", address, bits, sem, scope), scheduler.active()
        with running.lock:
            old = word.value
            word.value = old + value
        self._woken(address)
        return old

    def peek(self, address: int, bits: int) -> int:
        """A flag's value for predicates and reports: no access of the kernel, so not observed."""
        return _FLAGS[bits].from_address(address).value

    def glance(self, addresses: torch.Tensor) -> np.ndarray:
        """The 32-bit words at `addresses` (int64 [n], n > 0), for predicates: no access of the kernel, so not observed."""
        raw = addresses.numpy()
        segment = self.at(int(raw.min()))
        if segment is None or int(raw.max()) + 4 > segment.end:
            return np.array([self.peek(address, 32) for address in addresses.tolist()], np.int32)
        words, start = segment.words(4)
        return words[(raw - start) >> 2]

    def watch(self, addresses: Any) -> None:
        """Block writes that cover these words will wake(address), until unwatch."""
        for address in addresses:
            self.watched[address] = self.watched.get(address, 0) + 1

    def unwatch(self, addresses: Any) -> None:
        for address in addresses:
            self.watched[address] -= 1
            if not self.watched[address]:
                del self.watched[address]

    def _flag(self, kind: str, address: int, bits: int, sem: str, scope: str) -> Any:
        size = bits // 8
        if address & size - 1:
            raise fault(f"{bits}-bit flag at {address:#x}: not a multiple of {size} bytes")
        segment = self.find(address, size, f"flag {kind}")
        self.observe(kind, segment, address, (), (), size, sem, scope)
        return _FLAGS[bits].from_address(address)

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        """The copy engine: contiguous bytes."""
        if not nbytes:
            return
        source, target = self.find(src, nbytes, "a copy's read"), self.find(dst, nbytes, "a copy's write")
        self.observe("load", source, src, (nbytes, ), (1, ), 1, None, None)
        self.observe("store", target, dst, (nbytes, ), (1, ), 1, None, None)
        ctypes.memmove(dst, src, nbytes)
        if self.watched:
            self.wake_range(dst, dst + nbytes)

    def wake_range(self, lo: int, hi: int) -> None:
        """Wakes who waits for a flag in [lo, hi)."""
        for address in [a for a in self.watched if lo <= a < hi]:
            self._wake(address)

    def _wake(self, address: int) -> None:
        running = scheduler.active()
        running.wake(address)
        for actor in self.pollers.get(address, ()):
            running.wake(actor)


_active: list = []


def active() -> Memory:
    """The memory of this process, or of the virtual world that runs now."""
    if not _active:
        _active.append(Memory())
    return _active[-1]


def activate(memory: Memory) -> None:
    """Makes another Memory the process's own (a checker's, for instance)."""
    _active[:] = [memory]
