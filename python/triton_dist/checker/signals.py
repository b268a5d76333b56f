# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Signals: words of global memory that are accessed with an order and a scope, and the edges that they give.

A signal remembers what its last release published; an acquire of sufficient scope learns that. Scopes below 'sys' reach no
other rank. A relaxed store publishes what a fence before it published, and the edge of a relaxed load counts after an
acquire fence (protocol rule 5).
"""
import copy
import ctypes
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from triton_dist.backends.emulator.memory.memory import Segment
from triton_dist.checker import sites, words
from triton_dist.checker.clocks import SEEN, Thread, joined
from triton_dist.checker.shadow import Event

LEVELS = {None: 0, "cta": 1, "gpu": 2, "sys": 3}
_WORDS = {4: ctypes.c_int32, 8: ctypes.c_int64}
_HISTORY = 16            # states of a flag that are remembered
_MOST_FLAGS = 64         # flags of one access; a block of more is data
_CHAIN = 8               # updates after a store that are kept apart, at least


class Release:
    """What one store to a signal published to other ranks and on its own, as [KNOWS, SEEN], and how far it reaches."""
    __slots__ = ("far", "near", "level", "rank", "cta", "sem", "stack", "event", "segment", "at")

    def __init__(self, far: np.ndarray, near: np.ndarray, level: int, thread: Thread, sem: str, event: Event, segment: Segment):
        self.far, self.near, self.level, self.rank, self.cta = far, near, level, thread.rank, thread.cta
        self.sem, self.stack, self.event, self.segment = sem, event.stack, event, segment

    def includes(self, other: "Release") -> bool:
        """Whether an earlier release, of the same thread, has published nothing that this one does not."""
        thread = self.event.thread
        return (other.event.thread is thread and other.sem == self.sem and other.level == self.level
                and other.far[0, thread.tid] <= self.far[0, thread.tid])

    def joined(self, later: "Release") -> "Release":
        """One release that publishes what both do, for what is said of it the later one."""
        made = copy.copy(later)
        made.far, made.near = joined(self.far.copy(), later.far), joined(self.near.copy(), later.near)
        made.cta = later.cta if self.cta is later.cta else None
        return made


def _updated(chain: list, made: Release) -> list:
    """The releases of a signal after an update, which goes on with those before it.

    One that publishes all that an earlier one does stands for both. Where many threads update, old releases of one rank, order
    and scope become one that publishes what all of them did.
    """
    left = [release for release in chain if not made.includes(release)]
    if len(left) < _CHAIN or len(left) % _CHAIN:
        return [*left, made]
    kept: dict = {}
    for release in left:
        key = release.rank, release.sem, release.level
        kept[key] = kept[key].joined(release) if key in kept else release
    return [*kept.values(), made]


class Signals:
    """All signals of a run."""

    def __init__(self, detector: Any):
        self.detector = detector
        self._last: dict = {}                # address -> [Release] of the last store and of later updates
        self._before: dict = {}              # address -> (value, such a list) of the states before, latest last
        self._met: Optional[tuple] = None    # (address, predicate) of a wait that passes now
        self.failed: dict = {}               # address -> (thread, stack) of a compare-and-swap that has failed last
        self.host_set: dict = {}             # address -> (the last release there, stack of the host code that has set it)
        self._heard: set = set()             # addresses that have been read since their last release
        self._taken: set = set()             # addresses that atomics take or count: locks, tickets
        self._left: list = []                # releases that had not been read when their memory was freed

    def fence(self, thread: Thread, sem: str, scope: str) -> None:
        """A memory fence of a thread."""
        if sem != "release":
            for level in [level for level in thread.relaxed if level <= LEVELS[scope]]:
                thread.learn(thread.relaxed.pop(level))
        if sem != "acquire":
            known = thread.released()
            thread.fences.update({level: known for level in (2, 3) if level <= LEVELS[scope]})

    def read(self, start: int, end: int) -> None:
        """Plain loads of [start, end)."""
        self._heard.update(address for address in self._last if start <= address < end)

    def overwritten(self, address: int) -> None:
        """A plain store: it carries nothing."""
        if self._last:
            self._last.pop(address, None)
            self._before.pop(address, None)

    @contextmanager
    def passing(self, address: int, met: Callable[[int], bool]) -> Iterator[None]:
        """Inside, a load of the flag is that of a wait which a value that is `met` ends.

        Such a wait may rely on the first release with such a value only, whatever has been stored since: another time it may
        come before the later ones.
        """
        self._met = address, met
        try:
            yield
        finally:
            self._met = None

    def seen(self, address: int) -> Sequence[Release]:
        """The releases that a load of a flag sees."""
        return self.state(address)[1]

    def state(self, address: int) -> tuple:
        """(value, releases) of the state of a flag that a load sees; value None: the present one."""
        found = None, self._last.get(address, ())
        if self._met is not None and self._met[0] == address:
            for earlier in reversed(self._before.get(address, ())):
                if not self._met[1](earlier[0]):
                    break
                found = earlier
        return found

    def _note_before(self, addresses: Sequence[int], size: int) -> None:
        """What the flags hold, just before they are stored to."""
        if len(addresses) > _MOST_FLAGS or size not in _WORDS:
            return
        word = _WORDS[size]
        for at in addresses:
            history = self._before.get(at)
            if history is None:
                history = self._before[at] = deque(maxlen=_HISTORY)
            history.append((word.from_address(at).value, self._last.get(at, ())))

    def drop(self, start: int, end: int) -> None:
        """What lay in [start, end) is gone, or has been set by the host."""
        for address in [a for a in self._last if start <= a < end]:
            self._note_left(address)
            del self._last[address]
            self._before.pop(address, None)
            self._heard.discard(address)
            self._taken.discard(address)

    def set_by_host(self, start: int, end: int, stack: tuple) -> None:
        """The host has set what lies in [start, end)."""
        self.host_set.update({a: (self._last[a][-1], stack) for a in self._last if start <= a < end})
        self.drop(start, end)

    def swapped(self, thread: Thread, address: int, hit: bool) -> None:
        """A thread has tried to compare and swap a word. Remembers those that fail: they store nothing."""
        if hit:
            thread.failed.pop(address, None)
            self.failed.pop(address, None)
        else:
            thread.failed[address] = sites.kernel_stack()
            self.failed[address] = thread, sites.kernel_stack()

    def _note_left(self, address: int) -> None:
        release = self._last[address][-1]
        if release.sem == "release" and release.segment.rank >= 0 and address not in self._heard | self._taken:
            self._left.append((address, release))

    def report_left(self) -> None:
        """At the end of a run: signals that were never waited for or read, unless a later one of the same writer was."""
        heard: dict = {}                     # (thread, segment) -> latest moment of a signal that was read
        for address, chain in self._last.items():
            if address in self._heard:
                key = chain[-1].event.thread, chain[-1].segment
                heard[key] = max(heard.get(key, 0), chain[-1].event.clk)
            else:
                self._note_left(address)
        for address, release in self._left:
            at = address - release.segment.base
            if release.event.clk >= heard.get((release.event.thread, release.segment), 0):
                self.detector.report("left-signal", sites.sites(release.stack), (
                    f"a signal that nobody has waited for or read: {words.place(release.segment)}, byte {at}\n"
                    f"  stored by {words.who(release.event)}\n          at {words.at(release.stack)}\n"
                    "  fix: wait for it, or do not send it; the wait may look at another flag"))

    def access(self, thread: Thread, kind: str, segment: Segment, addresses: Sequence[int], sem: str, level: int,
               event: Event) -> None:
        """A thread accesses signals of a segment: a 'load', 'store' or 'atomic' of order `sem` and a scope of that level."""
        if kind == "load":
            self._heard.update(addresses)
        elif kind == "atomic" and sem != "release":
            self._taken.update(addresses)
        if kind != "store":
            seen: dict = {}                      # releases found, each once
            for at in addresses:
                for release in self.seen(at):
                    seen[id(release)] = release, at
            for release, at in seen.values():
                self._acquire(thread, release, segment, at, sem, level, event)
        if kind != "load":
            if self.detector.inquest is not None:
                for at in addresses:
                    self.detector.inquest.wrote(at)
            if sem in ("release", "acq_rel"):
                far = near = thread.released()
            else:
                far, near = self._fenced(thread, 3), self._fenced(thread, 2)
            segment.signalled = True
            self._note_before(addresses, event.size)
            made = Release(far, near, level, thread, sem, event, segment)
            self.detector.stored(made)
            self._heard.difference_update(addresses)
            for at in addresses:
                before = self._last.get(at) if kind == "atomic" else None
                self._last[at] = _updated(before, made) if before else [made]

    @staticmethod
    def _fenced(thread: Thread, level: int) -> np.ndarray:
        """What a relaxed store publishes: what the last release fence of that scope did; SEEN is all."""
        out = np.zeros((2, thread.C.shape[1]), np.int32)
        fence = thread.fences.get(level)
        if fence is not None:
            out[0, :fence.shape[1]] = fence[0]
        out[1] = thread.C[SEEN]
        return out

    def _acquire(self, thread: Thread, release: Release, segment: Segment, address: int, sem: str, level: int,
                 event: Event) -> None:
        detector, known = self.detector, release.near if release.rank == thread.rank else release.far
        narrow = self._too_narrow(thread, release, level)
        if narrow:
            thread.hear(known[1])
            detector.remember(thread, known[1], narrow, event.stack, release.stack)
            if release.rank != thread.rank and not detector.scopes:
                detector.scopes.append((sites.sites(release.stack) + sites.sites(event.stack), (
                    f"signal {words.place(segment)}, byte {address - segment.base}: {narrow}\n"
                    f"  stored by {words.who(release.event)}\n          at {words.at(release.stack)}\n"
                    f"  read by {words.who(thread)}\n          at {words.at(event.stack)}\n"
                    "  missing: a signal between ranks needs scope 'sys' on both sides\n"
                    "  fix: use scope 'sys' in the wait and in the release")))
        elif sem in ("acquire", "acq_rel"):
            detector.acquired(thread, release)
            if thread.loops and event.kind == "program" and not event.write:
                thread.acquire_in_loop(known)
            else:
                thread.learn(known)
            if release.sem not in ("release", "acq_rel"):
                detector.remember(thread, known[1], "its store is relaxed, with no release fence of sufficient scope before it",
                                  release.stack)
        else:
            thread.hear(known[1])
            near = 2 if release.rank == thread.rank else 3
            thread.relaxed[near] = joined(thread.relaxed.get(near), known)
            detector.remember(thread, known[1], "it is read relaxed, with no acquire fence of sufficient scope after it",
                              event.stack)

    @staticmethod
    def _too_narrow(thread: Thread, release: Release, level: int) -> str:
        """Why the two scopes do not reach from one to the other; '' where they do."""
        if release.cta is not None and release.cta is thread.cta:
            return ""
        need = 3 if release.rank != thread.rank else 2
        if min(level, release.level) >= need:
            return ""
        how, found, other = ("read", level, release.rank) if level < need else ("stored", release.level, thread.rank)
        return (f"it is {how} with scope '{words.SCOPES[found]}', which does not reach "
                + (f"rank {other}" if need == 3 else "another program"))
