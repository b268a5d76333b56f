# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Signals: words of global memory that are accessed with an order and a scope, and the edges that they give.

A signal remembers what its last release published; an acquire of sufficient scope learns that. Scopes below 'sys' reach no
other rank. A relaxed store publishes what a fence before it published, and the edge of a relaxed load counts behind an
acquire fence (protocol rule 5).
"""
import copy
from typing import Any, Sequence

import numpy as np

from triton_dist.backends.emulator.memory import Segment
from triton_dist.checker import sites, words
from triton_dist.checker.clocks import SEEN, Thread, joined
from triton_dist.checker.shadow import Event

LEVELS = {None: 0, "cta": 1, "gpu": 2, "sys": 3}
_CHAIN = 8               # updates after a store that are kept apart, at least


class Release:
    """What one store to a signal published to other ranks and on its own, as [KNOWS, SEEN], and how far it reaches."""
    __slots__ = ("far", "near", "level", "rank", "cta", "sem", "stack", "event", "segment", "at")

    def __init__(self, far: np.ndarray, near: np.ndarray, level: int, thread: Thread, sem: str, event: Event, segment: Segment):
        self.far, self.near, self.level, self.rank, self.cta = far, near, level, thread.rank, thread.cta
        self.sem, self.stack, self.event, self.segment = sem, event.stack, event, segment

    def joined(self, later: "Release") -> "Release":
        """One release that publishes what both do, for what is said of it the later one."""
        made = copy.copy(later)
        made.far, made.near = joined(self.far.copy(), later.far), joined(self.near.copy(), later.near)
        made.cta = later.cta if self.cta is later.cta else None
        return made


def _folded(chain: list) -> list:
    """The releases of a signal. Now and then old ones of one rank, order and scope become one that publishes what all did."""
    if len(chain) % _CHAIN:
        return chain
    kept: dict = {}
    for release in chain[:-1]:
        key = release.rank, release.sem, release.level
        kept[key] = kept[key].joined(release) if key in kept else release
    return [*kept.values(), chain[-1]]


class Signals:
    """All signals of a run."""

    def __init__(self, detector: Any):
        self.detector = detector
        self._last: dict = {}                # address -> [Release] of the last store and of the updates behind it
        self._heard: set = set()             # addresses that somebody has read since their last release
        self._taken: set = set()             # addresses that somebody takes or counts by atomics: locks, tickets
        self._left: list = []                # releases that nobody had read when their memory went

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

    def drop(self, start: int, end: int) -> None:
        """What lay in [start, end) is gone, or has been set by the host."""
        for address in [a for a in self._last if start <= a < end]:
            self._note_left(address)
            del self._last[address]
            self._heard.discard(address)
            self._taken.discard(address)

    def _note_left(self, address: int) -> None:
        release = self._last[address][-1]
        if release.sem == "release" and release.segment.rank >= 0 and address not in self._heard | self._taken:
            self._left.append((address, release))

    def report_left(self) -> None:
        """At the end of a run: signals that nobody has ever waited for or read, and no later one of their writer tells of."""
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
                    "  mend: wait for it, or do not send it; the wait may look at another flag"))

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
                for release in self._last.get(at, ()):
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
            made = Release(far, near, level, thread, sem, event, segment)
            self.detector.stored(made)
            self._heard.difference_update(addresses)
            for at in addresses:
                before = self._last.get(at) if kind == "atomic" else None
                self._last[at] = [*_folded(before), made] if before else [made]

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
                    "  mend: use scope 'sys' in the wait and in the release")))
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
            detector.remember(thread, known[1], "it is read relaxed, with no acquire fence of sufficient scope behind it",
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
