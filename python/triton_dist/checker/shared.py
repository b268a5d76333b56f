# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Shared memory, mbarriers, TMA and wgmma under check.

An mbarrier carries all that its arrivals know, proxies included, from a phase to who has seen it completed. What the async
proxy does is checked against what its issuer could rely on when it issued.
"""
from typing import Any

from triton_dist.backends.emulator.memory.gluon_smem import SharedMemory
from triton_dist.checker import edges, sites, words
from triton_dist.checker.clocks import KNOWS, SHARED, Thread, covers, joined
from triton_dist.checker.detector import PROXIES, Detector
from triton_dist.checker.shadow import UNWRITTEN, Event, Shadow, touch


class _Barrier:
    """What a checker knows of an mbarrier: clocks by phase, who made it, and the last phase each thread has seen."""

    def __init__(self, maker: tuple, stack: tuple):
        self.maker, self.stack = maker, stack
        self.phases: dict = {}
        self.seen: dict = {}


class CheckedSharedMemory(SharedMemory):
    """The shared memory of all CTAs of a checked world."""

    def __init__(self, detector: Detector):
        self.detector = detector
        self._barriers: dict = {}            # Barrier -> _Barrier

    # -- accesses ----------------------------------------------------------------------------------------------
    def observe(self, kind: str, proxy: str, view: Any, product: Any = None) -> None:
        detector = self.detector
        thread = product.hb if product is not None else detector.thread()
        detector.accesses += 1
        shadow = view.allocation.__dict__.get("shadow")
        if shadow is None:
            shadow = view.allocation.shadow = Shadow(view.allocation.nbytes, UNWRITTEN)
        size, write = view.d.element_size(), kind != "load"
        block = shadow.block(view.offset, tuple(view.shape), tuple(s * size for s in view.d.stride()), size)
        event = self._event(thread, write)

        def after(state: int) -> int:
            if state == UNWRITTEN and not write:
                detector.report("uninitialized-read", sites.sites(event.stack), (
                    f"{words.verb(event)} of shared memory {view}, which has not been written\n"
                    f"  by {words.who(event)}\n  at {words.at(event.stack)}"))
            return detector.states.after(state, event, lambda e, new: self._conflict(thread, e, new, view),
                                         lambda e: detector.covered(thread, e, KNOWS))
        touch(block, None, event, after)

    def _event(self, thread: Thread, write: bool) -> Event:
        stack = thread.stack if thread.kind == "async" else sites.kernel_stack()
        key = write, 0, False, id(stack)
        event = thread.events.get(key)
        if event is None:
            moment = thread.clk + (write and thread.kind == "async")
            event = thread.events[key] = Event(thread, thread.tid, moment, write, 0, stack)
        return event

    def _conflict(self, thread: Thread, earlier: Event, event: Event, view: Any) -> bool:
        row = SHARED if thread.kind == "async" and earlier.write and not thread.by_threads else KNOWS
        if row == SHARED:                    # its issuer's own stores need the fence as well
            if earlier.tid == thread.tid or covers(thread.C[row], earlier.tid, earlier.clk):
                return False
        elif self.detector.covered(thread, earlier, row):
            return False
        where, text = edges.race(thread, earlier, event, row, f"shared memory {view}")
        self.detector.report("race", where, text)
        return True

    # -- order -------------------------------------------------------------------------------------------------
    def issued(self, product: Any) -> None:
        product.hb = self.detector.asynchronous("wgmma", self.detector.thread())

    def fence(self, kind: str) -> None:
        self.detector.thread().proxy_fence(PROXIES[kind])

    def initialised(self, barrier: Any) -> None:
        thread = self.detector.thread()
        self._barriers[barrier] = _Barrier((thread.tid, thread.clk), sites.kernel_stack())

    def arrived(self, barrier: Any) -> None:
        thread, known = self.detector.thread(), self._barriers[barrier]
        if self.detector.inquest is not None:
            self.detector.inquest.wrote(barrier)
        if thread.kind == "async":
            if not covers(thread.C[KNOWS if thread.by_threads else SHARED], *known.maker):
                self.detector.report("barrier-misuse", sites.sites(known.stack) + sites.sites(thread.stack), (
                    f"TMA uses mbarrier {barrier.name} with no proxy fence after its mbarrier.init\n"
                    f"  init at {words.at(known.stack)}\n  TMA at {words.at(thread.stack)}\n"
                    "  fix: put fence_async_shared() after the inits"))
            clocks = thread.C
        else:
            clocks = thread.published()
        known.phases[barrier.phase] = joined(known.phases.get(barrier.phase), clocks)
        known.phases.pop(barrier.phase - 2, None)

    def passed(self, barrier: Any, parity: int) -> None:
        thread, known, over = self.detector.thread(), self._barriers[barrier], barrier.phase - 1
        before = known.seen.get(thread, -1)
        if over - before > 1:
            stack = sites.kernel_stack()
            self.detector.report("barrier-misuse", sites.sites(stack), (
                f"lapped parity of mbarrier {barrier.name}: {words.who(thread)} passes its wait for parity {parity} by phase "
                f"{over}, and has not waited for phase {before + 1}; another time a phase long over may let it pass\n"
                f"  at {words.at(stack)}\n  fix: wait in every lap, or give this hand-over a barrier of its own"))
        known.seen[thread] = max(before, over)
        clocks = known.phases.get(over)
        if clocks is not None:
            thread.join(clocks)

    def joined(self, operation: Any, written: bool) -> None:
        thread, done = self.detector.thread(), operation.hb
        thread.fit(done.tid + 1)
        moment = done.clk + written
        for row in thread.C:
            row[done.tid] = max(row[done.tid], moment)
