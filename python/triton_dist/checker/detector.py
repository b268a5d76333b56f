# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of everything: threads of execution, and the edges between them that the machine grants.

Edges come from stream order, events, host synchronisation and collectives (here), from signals (signals.py) and from
mbarriers and fences (shared.py). Accesses are checked against the order in global_memory.py and shared.py.
"""
import collections
import copy
from typing import Any, Optional

import numpy as np

from triton_dist.backends.emulator.engine.observer import Observer
from triton_dist.backends.emulator.engine.order import PREEMPT
from triton_dist.checker import sites, ties, words
from triton_dist.checker.clocks import GLOBAL, KNOWS, SEEN, SHARED, Clocks, Thread, joined
from triton_dist.checker.exhaustive import guide
from triton_dist.checker.faults import Faults, Found
from triton_dist.checker.hangs import Inquest, Over
from triton_dist.checker.schedules import EXHAUSTIVE
from triton_dist.checker.shadow import States
from triton_dist.checker.signals import Signals
from triton_dist.ops.op import sent

_ROWS = slice(KNOWS, SEEN + 1, SEEN)      # KNOWS and SEEN
_MOST_POINTS = 100_000                    # accesses, about, while no actor ends: more is a livelock
_WEAK = 16                                # signals without an edge that a thread remembers


class Detector(Observer):
    """One run of a world. `faults` takes what is found."""

    def __init__(self, faults: Faults):
        self.faults, self.clocks, self.states = faults, Clocks(), States()
        self.signals = Signals(self)
        self.scheduler: Any = None
        self.schedule: Any = None
        self.accesses = self.programs = self.progress = 0
        self.scopes: list = []               # (where, text) of signals of too narrow scope, told if no race on data shows
        self.calls: dict = collections.defaultdict(list)              # group key -> [((ordinal, op), rank, stack)] in order
        self.counts: collections.Counter = collections.Counter()      # (group key, rank) -> calls of ops
        self.quiets: dict = collections.defaultdict(list)             # rank -> (what, thread, stack) of fences and quiets
        self.inquest: Optional[Inquest] = None       # into a stuck world
        self.links: collections.Counter = collections.Counter()       # (from rank, to rank) -> bytes
        self.formula: collections.Counter = collections.Counter()     # the same, of data, by the formulas of the ops called

    def watch(self, scheduler: Any) -> None:
        super().watch(scheduler)
        self.scheduler, self._progress_seen = scheduler, 0
        if self.schedule is not None and self.schedule.mode == EXHAUSTIVE:
            guide(scheduler, self.schedule)
        scheduler.most_pauses = 2 * _MOST_POINTS // PREEMPT[scheduler.mode]

    def ended(self) -> None:
        """The world has come to its end."""
        for where, text in self.scopes:
            self.report("race", where, text)
        self.signals.report_left()

    def called(self, group: Any, call: Any) -> None:
        for rank, nbytes in sent(call, group).items():
            self.formula[group.world_ranks[group.rank], rank] += nbytes
        self._compare_groups(group, call)

    def _compare_groups(self, group: Any, call: Any) -> None:
        """Groups of the same ranks share flags and buffers, so their calls must come in one order on all ranks."""
        me, made = group.world_ranks[group.rank], (getattr(group, "ordinal", 0), getattr(call, "op", None))
        calls, number = self.calls[group.key], self.counts[group.key, me]
        self.counts[group.key, me] += 1
        if number == len(calls):
            calls.append((made, me, sites.script_stack()))
        (ordinal, op), other, stack = calls[number]
        if ordinal != made[0]:
            here = sites.script_stack()
            self.report("collective-mismatch", sites.sites(stack) + sites.sites(here), (
                f"two groups of ranks {list(group.world_ranks)} are used in different orders: call {number + 1} is {op} on group "
                f"{ordinal + 1} of them on rank {other}, and {made[1]} on group {made[0] + 1} on rank {me}\n"
                f"  rank {other} at {words.at(stack)}\n  rank {me} at {words.at(here)}\n"
                "  fix: call the ops of all groups in the same order on all ranks"))

    # -- threads -----------------------------------------------------------------------------------------------
    def thread(self, actor: Any = None) -> Thread:
        """The thread of an actor, or of the acting one."""
        actor = actor or self.scheduler.current
        found = actor.__dict__.get("hb")
        if found is None:
            stream = actor.__dict__.get("stream") if actor.kind in ("stream", "copy") else None
            found = actor.hb = self._of_stream(stream) if stream is not None else self._new(actor.name, actor.rank, actor.kind)
        return found

    def _new(self, name: str, rank: int, kind: str, base: Optional[np.ndarray] = None, split: bool = False) -> Thread:
        clocks = self.clocks.room(base)
        tid, clk = self.clocks.identity(rank, clocks)
        head, head_clk = self.clocks.identity(rank, clocks) if split else (tid, clk)
        return Thread(name, rank, kind, tid, head, clk, head_clk, self.clocks.fitted(clocks))

    def _of_stream(self, stream: Any) -> Thread:
        found = stream.__dict__.get("hb")
        if found is None:
            found = stream.hb = self._new(f"stream {stream.name}", stream.device.rank, "stream")
            stream.issues, stream.snapshots, stream.follows = {}, {}, []
        return found

    def spawned(self, actor: Any) -> None:
        parent = self.thread()
        if actor.kind == "stream":
            return
        self.programs += actor.kind == "program"
        known, ahead = parent.C, parent.ahead
        if actor.kind == "program":
            known, ahead = self._start(actor, parent)
        made = actor.hb = self._new(actor.name, actor.rank, actor.kind, known, split=True)
        parent.advance()
        made.cta, made.home, made.ahead = actor.cta, parent.home or parent, ahead
        if actor.kind == "program":
            made.begin()
            made.stack, made.stale = parent.stack, self._stale(actor)

    def _start(self, program: Any, hand: Thread) -> tuple:
        """(what a program knows when it starts, what it knows after its gdc_wait). The second is None if both are the same."""
        if hand.beside is None:
            hand.beside = hand.C.copy()              # a kernel that is let in after gdc_wait knows what came before this one
        if hand.early is None or not program.launch.overlaps:
            return hand.C, None
        return hand.early, hand.C.copy()

    def caught_up(self) -> None:
        thread = self.thread()
        if thread.ahead is not None:
            thread.join(thread.ahead)
            thread.begin()
            thread.ahead = None

    def let_in(self) -> None:
        thread = self.thread()
        if thread.ahead is not None:
            thread.home.beside = thread.home.early

    def _stale(self, program: Any) -> list:
        """Heap ranges of tensors that a launch was given after they were freed."""
        found = []
        for tensor in getattr(program.__dict__.get("launch"), "keep", ()):
            allocation = getattr(tensor, "tdist_allocation", None)
            if allocation is not None and not allocation.live:
                found.append((allocation.offset, allocation.offset + allocation.nbytes, allocation.name))
        return found

    def issued(self, actor: Any) -> None:
        issuer = self.thread()
        if actor.__dict__.get("stream") is None:
            made = actor.hb = self.asynchronous(actor.name, issuer)
            if actor.generic:
                made.trust()
                made.phase, made.pe, made.quiets = actor.phase, actor.pe, self.quiets[issuer.rank]
            made.by_threads = actor.by_threads
            if made.by_threads:                      # the proxies may not rely on what it writes
                made.C[GLOBAL:SHARED + 1, made.tid] = made.clk - 1

    def asynchronous(self, name: str, issuer: Thread) -> Thread:
        """A new thread for an asynchronous operation of `issuer`, which reads at one moment and writes at the next."""
        clocks = self.clocks.room(issuer.C)
        tid, clk = self.clocks.identity(issuer.rank, clocks, issuer.ids)
        made = Thread(name, issuer.rank, "async", tid, tid, clk, clk, self.clocks.fitted(clocks))
        made.C[:, tid] = clk + 1
        made.cta, made.home, made.stack = issuer.cta, issuer.home, sites.kernel_stack()
        issuer.ids.append((tid, clk + 1))
        issuer.advance()
        made.issuer, made.after_issue = issuer, (issuer.head, issuer.head_clk if issuer.split else issuer.clk)
        return made

    def finished(self, actor: Any) -> None:
        self.progress += 1
        ended = actor.__dict__.get("hb")
        if ended is None or actor.kind in ("host", "stream"):
            return
        if actor.__dict__.get("stream") is not None and actor.kind == "copy":      # the copy engine, at once
            actor.stream.snapshots[actor.stream.issued] = ended.released()
            return
        for known in ended.relaxed.values():         # a kernel boundary is a fence
            ended.learn(known)
        home = ended.home
        if home is not None:
            home.learn(ended.C[_ROWS])
            home.trust()
        if actor.kind != "copy":
            self.clocks.free(ended)

    def joined(self, actor: Any) -> None:
        waiter = self.thread()
        waiter.join(actor.hb.C)
        waiter.barrier()

    def after(self, actor: Any) -> None:
        self.thread().join(actor.hb.C)

    # -- inside a program --------------------------------------------------------------------------------------
    def barrier(self) -> None:
        thread = self.thread()
        thread.barrier()
        thread.in_order()

    def warp_barrier(self, last: bool) -> None:
        thread = self.thread()
        if thread.cta is not None and thread.cta.num_warps == 1:
            thread.barrier()
        thread.together = last

    def loop(self, actor: Any, entered: bool) -> None:
        if actor.kind == "program" and not actor.__dict__.get("gluon"):
            self.thread(actor).enter_loop(entered)

    def waited(self, token: Any) -> None:
        self.thread().waited(token)

    def consumed(self, token: Any) -> None:
        self.thread().consume(token, lambda: not isinstance(token, (int, float))
                              and ties.derived(sites.kernel_stack()) is not False)

    def ordered(self, what: str) -> None:
        thread = self.thread()
        moment = thread.head_clk if thread.split else thread.clk
        thread.orders.append((what, moment, sites.kernel_stack()))
        self.quiets[thread.rank].append((what, thread, sites.kernel_stack()))
        del thread.orders[:-_WEAK], self.quiets[thread.rank][:-_WEAK]

    # -- streams and hosts -------------------------------------------------------------------------------------
    def enqueued(self, stream: Any, ticket: int, what: str) -> None:
        host, hand = self.thread(), self._of_stream(stream)
        issue = host.released(), stream.follows, sites.host_stack(), what
        stream.follows = []
        if ticket:
            stream.issues[ticket] = issue
        else:
            hand.beside = None
            self._begin(hand, issue)
            for other, point in issue[1]:
                self._follow(hand, other, point)

    def _begin(self, hand: Thread, issue: tuple) -> None:
        hand.learn(issue[0])
        hand.stack, hand.what = issue[2:]
        hand.trust()
        hand.step()

    def _follow(self, hand: Thread, other: Any, ticket: int) -> None:
        self._of_stream(other)
        known = other.snapshots.get(ticket)
        if known is not None:
            hand.learn(known)
            hand.trust()

    def began(self, stream: Any, ticket: int) -> None:
        hand = self._of_stream(stream)
        issue = stream.issues[ticket]
        early = copy.copy(hand)
        early.C, hand.beside = hand.beside, None
        self._begin(hand, issue)
        for thread in [hand] + [early] * (early.C is not None):
            for other, point in issue[1]:
                if other.passed(point):
                    self._follow(thread, other, point)
        if early.C is not None:
            early.learn(issue[0])
            early.trust()
        hand.early = early.C

    def completed(self, stream: Any, ticket: int) -> None:
        hand = self._of_stream(stream)
        for other, point in stream.issues.pop(ticket)[1]:
            self._follow(hand, other, point)
        stream.snapshots[ticket] = hand.released()

    def followed(self, stream: Any, other: Any, ticket: int) -> None:
        self._of_stream(stream)
        stream.follows.append((other, ticket))

    def follow_current_stream(self) -> None:
        """The acting host may rely on all that has ended on its current stream, and on streams that this one waits for."""
        stream = self.scheduler.machine.device().current
        self.synchronized(stream, stream.finished)
        for other, ticket in stream.follows:                        # nothing has been put on it since
            if other.passed(ticket):
                self._follow(self.thread(), other, ticket)

    def synchronized(self, stream: Any, ticket: int) -> None:
        self._follow(self.thread(), stream, ticket)

    def arrived(self, meeting: Any, source: bool) -> None:
        host = self.thread()
        self.follow_current_stream()                 # as a collective on the current stream, which the host waits for
        if source:
            meeting.hb = joined(meeting.__dict__.get("hb"), host.released())

    def left(self, meeting: Any) -> None:
        if "hb" in meeting.__dict__:
            self.thread().learn(meeting.hb)

    # -- trouble -----------------------------------------------------------------------------------------------
    def stuck(self, scheduler: Any) -> None:
        if self.inquest is not None:
            raise Over
        self.inquest = Inquest(scheduler)
        self.report(*self.inquest.verdict(), last=True)

    def busy(self, scheduler: Any) -> None:
        if self.inquest is not None:
            raise Over
        if self.progress > self._progress_seen:
            self._progress_seen, scheduler.pauses = self.progress, 0
            return
        stack = sites.kernel_stack()
        self.report("livelock", sites.sites(stack), (
            f"programs run and none of them has ended for {scheduler.most_pauses} turns; this one is at {words.at(stack)}\n"
            "  fix: poll with dl.wait or an atomic, and check who stores what the loop waits for"), last=True)

    def report(self, kind: str, where: list, text: str, last: bool = False) -> None:
        """Adds a fault, unless a stuck world only runs on so that its cause can be found. `last`: the run cannot go on."""
        if self.inquest is None or last:
            self.faults.add(kind, where, text)
        if last:
            raise Found(text)

    # -- for timelines ------------------------------------------------------------------------------
    def stored(self, release: Any) -> None:
        """A signal has been stored."""

    def acquired(self, thread: Thread, release: Any) -> None:
        """A thread has acquired what a release published."""

    # -- verdicts ----------------------------------------------------------------------------------------------
    def covered(self, thread: Thread, event: Any, row: int) -> bool:
        """Whether an earlier event is known to a thread by a row of its clocks, or is its own."""
        if event.tid == thread.tid or event.tid == thread.head:
            return True
        clock = thread.C[row]
        return event.tid < clock.shape[0] and clock[event.tid] >= event.clk

    def remember(self, thread: Thread, seen: np.ndarray, why: str, *stacks: tuple) -> None:
        """A thread saw a signal that gives no edge, because of the statement at the first of `stacks`. It may explain a race."""
        thread.weak.append((seen, why, stacks))
        del thread.weak[:-_WEAK]


PROXIES = {"global": GLOBAL, "shared": SHARED}
