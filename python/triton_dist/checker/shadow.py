# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Shadow memory: for every few bytes the number of a state, which says who wrote last and who has read since.

States are interned, so that a uniform block costs one comparison and one fill. A granule is four bytes, and becomes finer
where an access covers part of one.
"""
import functools
from typing import Any, Callable, Optional

import numpy as np

FRESH, UNWRITTEN = 0, 1          # states of memory that was there before, and of memory that has not been written
_GRAIN = 4


class Event:
    """Accesses of one thread at one moment by one statement. `strong`: 0 for plain ones, else the scope's level, 1 to 3."""
    __slots__ = ("tid", "clk", "write", "strong", "thread", "stack", "head_clk", "rank", "name", "cta", "kind", "following",
                 "what", "size", "packet", "emptied")

    def __init__(self, thread: Any, tid: int, clk: int, write: bool, strong: int, stack: tuple):
        self.tid, self.clk, self.write, self.strong, self.stack = tid, clk, write, strong, stack
        self.thread, self.head_clk = thread, thread.head_clk
        self.rank, self.name, self.cta, self.kind, self.what = thread.rank, thread.name, thread.cta, thread.kind, thread.what
        self.size = 0                            # bytes of a word
        self.packet = self.emptied = False       # whether the word carries data and flag; whether it is taken by this store
        self.following: dict = {}        # state -> the state after this event


class States:
    """The interned states. A state is (last plain write, strong writes since, plain reads since, strong reads since)."""

    def __init__(self) -> None:
        self._states: list = [(None, (), (), ()), (None, (), (), ())]
        self._numbers: dict = {}

    def after(self, state: int, event: Event, conflict: Callable[[Event, Event], bool], known: Callable[[Event], bool]) -> int:
        """The state after an event. `conflict(earlier, event)` reports what is not ordered; `known(earlier)`: it is."""
        write, atoms, reads, polls = self._states[state]
        if event.write and not event.strong:
            others = (write, *atoms, *reads, *polls)
        elif event.strong:
            others = (write, *atoms, *(reads if event.write else ()), *(polls if event.write else ()))
        else:
            others = (write, *atoms)
        for other in others:
            if other is not None and conflict(other, event):
                break                        # one report a place is enough
        if event.write and not event.strong:
            made = (event, (), (), ())
        elif event.write:
            made = (write, (*[e for e in atoms if not known(e)], event), reads, polls)
        elif event.strong:
            made = (write, atoms, reads, (*[e for e in polls if not known(e)], event))
        else:
            made = (write, atoms, (*[e for e in reads if not known(e)], event), polls)
        number = self._numbers.get(made)
        if number is None:
            number = self._numbers[made] = len(self._states)
            self._states.append(made)
        event.following[state] = number
        return number


class Shadow:
    """The states of one range of bytes."""

    def __init__(self, nbytes: int, fill: int = FRESH):
        self.nbytes, self.grain = nbytes, _GRAIN
        self.ids = np.full(nbytes // _GRAIN + 1, fill, np.int32) if fill else np.zeros(nbytes // _GRAIN + 1, np.int32)
        self._blocks: dict = {}

    def _refine(self, grain: int) -> None:
        self.ids = np.repeat(self.ids, self.grain // grain)
        self.grain = grain
        self._blocks.clear()

    def block(self, offset: int, shape: tuple, steps: tuple, size: int) -> np.ndarray:
        """The states of a strided block of elements of `size` bytes; steps in bytes."""
        key = (offset, shape, steps, size)
        found = self._blocks.get(key)
        if found is None:
            found = self._blocks[key] = self._make_block(offset, shape, steps, size)
        return found

    def _make_block(self, offset: int, shape: tuple, steps: tuple, size: int) -> np.ndarray:
        need, *_ = _geometry(offset, shape, steps, size, self.grain)
        if need < self.grain:
            self._refine(need)
        _, shape, start, steps = _geometry(offset, shape, steps, size, self.grain)
        return np.ndarray(shape, np.int32, self.ids, start, steps)

    def points(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """Indices of the states of scattered elements."""
        if size < self.grain:
            self._refine(size)
        g = self.grain
        at = offsets // g
        return at if size == g else (at[:, None] + np.arange(size // g)).reshape(-1)

    def unwritten(self, offset: int, shape: tuple, steps: tuple, size: int) -> np.ndarray:
        """Which elements of a strided block nobody has written: bool [*shape]."""
        at = np.full(shape, offset, np.int64)
        for axis, step in zip(np.ogrid[tuple(map(slice, shape))] if shape else (), steps):
            at = at + axis * step
        at = at.reshape(-1, 1) + np.arange(0, size, self.grain)
        return (self.ids[at // self.grain] == UNWRITTEN).any(1).reshape(shape)


@functools.lru_cache(1 << 14)
def _geometry(offset: int, shape: tuple, steps: tuple, size: int, grain: int) -> tuple:
    """Of a strided block: the granule that it needs, and shape, offset and steps of its states."""
    axes = [(step, n) for n, step in zip(shape, steps) if n > 1 and step]
    run = size                               # bytes that lie in one piece
    for step, n in sorted(axes):
        if step != run:
            break
        run *= n
        axes.remove((step, n))
    bits = offset | run | _GRAIN
    for step, _ in axes:
        bits |= step
    return (bits & -bits, (*(n for _, n in axes), max(1, run // grain)), offset // grain * 4,
            (*(step // grain * 4 for step, _ in axes), 4))


def touch(ids: np.ndarray, index: Optional[np.ndarray], event: Event, after: Callable[[int], int]) -> None:
    """Moves the states of a block (or of ids[index]) to what follows `event`; after(state) gives states not known yet."""
    now = ids if index is None else ids[index]
    first = now.item(0)
    if np.logical_and.reduce(now == first, axis=None):          # ndarray.all() takes longer, and most blocks are small
        new = event.following.get(first)
        if new is None:
            new = after(first)
        if new != first:
            ids[... if index is None else index] = new
        return
    old = np.unique(now)
    follow = [event.following.get(state) for state in old.tolist()]
    follow = [after(state) if new is None else new for state, new in zip(old.tolist(), follow)]
    if any(a != b for a, b in zip(follow, old.tolist())):
        ids[... if index is None else index] = np.array(follow, np.int32)[np.searchsorted(old, now)]
