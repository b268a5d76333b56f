# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Vector clocks. A thread of execution (a program, a partition, a stream, a host script, an asynchronous copy) has four:

    KNOWS    what has happened before, by edges that the memory model grants
    GLOBAL   what its async-proxy accesses to global memory may rely on: the proxy fences are counted
    SHARED   the same for shared memory
    SEEN     what it has heard of by signals of any kind: the difference to KNOWS explains a report

A program has two identities: one for accesses of the whole block, one for scalar accesses, which a single thread makes. A
release by that single thread publishes its own accesses, and those of the block up to the last CTA barrier (protocol rule 1).
"""
from typing import Any, Callable, Optional, Sequence

import numpy as np

KNOWS, GLOBAL, SHARED, SEEN = range(4)
_LOOKED = 32             # identities of ended threads that a new one looks at
_FIRST = 64              # identities for which a clock has room at first


def widened(clock: np.ndarray, width: int) -> np.ndarray:
    """A copy of a clock (its last axis is the identity) with room for `width` identities."""
    out = np.zeros((*clock.shape[:-1], width), np.int32)
    out[..., :clock.shape[-1]] = clock
    return out


def joined(clock: Optional[np.ndarray], other: np.ndarray) -> np.ndarray:
    """The maximum of two clocks of the same rank; may change and return the first."""
    if clock is None:
        return other.copy()
    if clock.shape[-1] < other.shape[-1]:
        clock = widened(clock, other.shape[-1])
    part = clock[..., :other.shape[-1]]
    np.maximum(part, other, out=part)
    return clock


def covers(row: np.ndarray, tid: int, clk: int) -> bool:
    """Whether a clock's row has seen moment `clk` of identity `tid`."""
    return tid < row.shape[0] and row[tid] >= clk


class Token:
    """What a wait in a loop has acquired, and whether some value has been tied to its token."""

    def __init__(self, depth: int, known: np.ndarray):
        self.depth, self.known, self.value, self.consumed = depth, known, None, False


class Thread:
    """One thread of execution.

    Block-wide accesses have the identity `tid` and happen at moment `clk`; scalar accesses have `head` and `head_clk`. A copy
    reads at `clk` and writes at `clk + 1`. `fenced` is the moment up to which a release by a single thread publishes the
    accesses of the block.
    """

    cta: Any = None
    home: Optional["Thread"] = None          # the stream that launched it
    fenced = loops = 0
    loads: Optional[np.ndarray] = None       # KNOWS of loads, while `tokens` has entries
    # Of an asynchronous operation: the thread that issued it, and the (identity, moment) of that thread afterwards. Of a
    # SHMEM transfer also the number of fences before it (None for a get), its PE, and the quiet() calls of its rank.
    issuer: Optional["Thread"] = None
    after_issue: tuple = ()
    phase: Any = False
    pe = -1
    quiets: Sequence = ()
    by_threads = False                       # of an asynchronous operation: it is of the generic proxy
    stack: tuple = ()                        # of what it does, where no kernel frame runs
    what = ""
    together = False                         # the last of its warps makes the next release: the others have made theirs
    stale: Sequence = ()                     # (start, end, name) of freed heap ranges that its arguments point to
    ahead: Optional[np.ndarray] = None       # what it will know after gdc_wait, until it calls that
    # Of a stream: what a kernel knows that overlaps the stream's last operation, and one that overlaps the present one.
    beside: Optional[np.ndarray] = None
    early: Optional[np.ndarray] = None

    def __init__(self, name: str, rank: int, kind: str, tid: int, head: int, clk: int, head_clk: int,
                 clocks: np.ndarray):
        self.name, self.rank, self.kind = name, rank, kind
        self.tid, self.head, self.clk, self.head_clk = tid, head, clk, head_clk
        self.split = head != tid
        self.C = clocks
        self.ids: list = []                          # (tid, clk) of its finished copies, which it may use again
        self.events: dict = {}                       # of the present moment, by kind and statement
        self.fences: dict = {}                       # scope level -> [KNOWS, SEEN] at the last release fence
        self.relaxed: dict = {}                      # scope level -> what an acquire fence of this scope would add to KNOWS
        self.tokens: list = []                       # [Token] of waits in the loops it is in
        self.given: dict = {}                        # id -> token, of all its waits
        self.weak: list = []                         # (clock, why, stack) of signals that it saw and that gave no edge, in order
        self.passed: list = []                       # waits that are over, in order
        self.failed: dict = {}                       # address -> stack of the last compare-and-swap there, if that failed
        self.orders: list = []                       # ("fence" or "quiet", its moment, its stack) of SHMEM calls
        self._set_own()

    def _set_own(self) -> None:
        clocks, tid, head = self.C, self.tid, self.head
        clocks[KNOWS, tid] = clocks[SEEN, tid] = self.clk
        if head != tid:
            clocks[KNOWS, head] = clocks[SEEN, head] = self.head_clk
        if self.loads is not None:
            self.loads[tid], self.loads[head] = clocks[KNOWS, tid], clocks[KNOWS, head]

    def fit(self, width: int) -> None:
        """Makes room for `width` identities."""
        if self.C.shape[1] < width:
            self.C = widened(self.C, width)

    # -- what it learns ----------------------------------------------------------------------------------------
    def join(self, other: np.ndarray) -> None:
        """All four rows."""
        self.C = joined(self.C, other)
        if self.loads is not None:
            self.loads = joined(self.loads, other[KNOWS])

    def learn(self, known: np.ndarray, loads: bool = True) -> None:
        """KNOWS and SEEN from [KNOWS, SEEN]; not the proxies, which need a fence."""
        self.fit(known.shape[1])
        own = self.C[KNOWS:SEEN + 1:SEEN, :known.shape[1]]
        np.maximum(own, known, out=own)
        if self.loads is not None and loads:
            self.loads = joined(self.loads, known[0])

    def hear(self, seen: np.ndarray) -> None:
        """SEEN only."""
        self.fit(seen.shape[0])
        n = seen.shape[0]
        np.maximum(self.C[SEEN, :n], seen, out=self.C[SEEN, :n])

    def trust(self) -> None:
        """A kernel boundary: the proxies may rely on all that is known."""
        self.C[GLOBAL] = self.C[SHARED] = self.C[KNOWS]

    def proxy_fence(self, row: int) -> None:
        """Async accesses issued from now on may rely on all that is known now."""
        self.C[row] = self.C[KNOWS]
        self.step()

    # -- loops that the compiler may pipeline ------------------------------------------------------------------
    def enter_loop(self, entered: bool) -> None:
        self.loops += 1 if entered else -1
        if not entered:                      # after the loop program order holds again
            self._keep([t for t in self.tokens if t.depth <= self.loops])

    def acquire_in_loop(self, known: np.ndarray) -> None:
        """An edge that loads of the loop may use only after a consume_token; `waited` gives the token."""
        if self.loads is None:
            self.loads = self.C[KNOWS].copy()
        self.learn(known, loads=False)
        self.tokens.append(Token(self.loops, known[0]))

    def waited(self, token: Any) -> None:
        """The wait that has just acquired gives its token."""
        self.given[id(token)] = token
        for entry in self.tokens:
            if entry.value is None:
                entry.value = token

    def consume(self, token: Any, derived: Callable[[], bool]) -> None:
        """A value is tied to a token. If it is of no wait, `derived()` says whether it was computed from such."""
        if id(token) in self.given:
            found = [t for t in self.tokens if t.value is token]     # none: a wait before this loop, or in an earlier turn
        else:
            found = self.tokens if self.tokens and derived() else []
        for entry in found:
            entry.consumed = True

    def in_order(self) -> None:
        """A CTA barrier: a loop that holds one is not pipelined."""
        self._keep([])

    def _keep(self, tokens: list) -> None:
        if len(tokens) < len(self.tokens):
            for entry in self.tokens:
                if entry not in tokens:
                    self.loads = joined(self.loads, entry.known)
            self.tokens = tokens
            if not tokens:
                self.loads = None

    # -- moments -----------------------------------------------------------------------------------------------
    def step(self) -> None:
        """A new moment of the block."""
        self.clk += 1
        self.events.clear()
        self._set_own()

    def tick(self) -> None:
        """A new moment of its one thread, or of the block where there is no other."""
        if not self.split:
            return self.step()
        self.head_clk += 1
        self.events.clear()
        self._set_own()

    def advance(self) -> None:
        """A new moment of the block and of its single thread: later accesses come after what another thread has been told."""
        self.head_clk += self.split
        self.step()

    def begin(self) -> None:
        """A program starts after a kernel boundary, which is a fence of all scopes, and the proxies may rely on all."""
        self.trust()
        known = self.C[KNOWS:SEEN + 1:SEEN].copy()
        self.fences = {2: known, 3: known}
        self.advance()

    def barrier(self) -> None:
        """All its threads meet."""
        self.fenced = self.clk
        self.step()

    def released(self) -> np.ndarray:
        """[KNOWS, SEEN] as a release by one thread publishes them; moves on to a new moment."""
        out = self.C[KNOWS:SEEN + 1:SEEN].copy()
        if self.split and not self.together:
            out[0, self.tid] = self.fenced
            self.tick()
        else:
            self.together = False
            self.advance()
        return out

    def published(self) -> np.ndarray:
        """All four rows, as a hand-over of the whole block publishes them; moves on to a new moment."""
        out = self.C.copy()
        self.advance()
        return out


class Clocks:
    """Identities, and the clocks of new threads."""

    def __init__(self) -> None:
        self._next = 0
        self._width = _FIRST
        self._free: dict = {}                # rank -> [(tid, clk)] of threads that are over

    def room(self, base: Optional[np.ndarray]) -> np.ndarray:
        """A copy of four rows with room for all identities; empty ones where `base` is None."""
        if base is None:
            return np.zeros((4, self._width), np.int32)
        return widened(base, self._width) if base.shape[1] < self._width else base.copy()

    def fitted(self, clocks: np.ndarray) -> np.ndarray:
        """The same four rows, copied only if identities have been added for which they have no room."""
        return widened(clocks, self._width) if clocks.shape[1] < self._width else clocks

    def identity(self, rank: int, knows: np.ndarray, own: Any = None) -> tuple:
        """(tid, first moment) for a new thread: an identity whose last user `knows` [rows, width] to have ended, or a new one."""
        for pool in (own or [], self._free.get(rank, [])):
            for i, (tid, clk) in enumerate(pool[:_LOOKED]):
                if tid < knows.shape[1] and min(knows[:, tid].tolist()) >= clk:
                    pool.pop(i)
                    return tid, clk + 1
        tid = self._next
        self._next += 1
        while self._next > self._width:
            self._width *= 2
        return tid, 1

    def free(self, thread: Thread) -> None:
        """The identities of a thread that has ended may be used again by threads that know of its end."""
        pool = self._free.setdefault(thread.rank, [])
        pool.append((thread.tid, thread.clk))
        if thread.split:
            pool.append((thread.head, thread.head_clk))
        pool.extend(thread.ids)
