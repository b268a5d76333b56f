# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Waits that have passed: what they saw, and whether a wait for one exact value could have missed it.

A wait with cmp "eq" is lost if the flag moves on before it looks. So a store of another value must be ordered after every
such wait for the value before; it is a fault where it is not, whether or not this schedule loses the signal.
"""
from typing import Any, Callable, Optional, Sequence

from triton_dist.backends.emulator.memory.memory import Segment
from triton_dist.checker import sites, words
from triton_dist.checker.clocks import SEEN, Thread, covers

_REMEMBERED = 16         # waits of a thread


class Passed:
    """One wait of a thread that is over: for which flag, with which value, and which release that value came from."""

    def __init__(self, thread: Thread, stack: tuple, segment: Segment, address: int, bits: int, value: int,
                 release: Any):
        self.thread, self.stack, self.segment, self.address = thread, stack, segment, address
        self.bits, self.value = bits, value
        self.release = release               # None: of no release, but what the flag held at first or the host has set
        self.tid, self.clk = thread.head, thread.head_clk if thread.split else thread.clk

    def known_to(self, thread: Thread) -> bool:
        """Whether a thread acts after this wait. It may know so by a signal of any kind: no data need be visible for it."""
        return self.tid in (thread.tid, thread.head) or covers(thread.C[SEEN], self.tid, self.clk)


class Waits:
    """All waits of a run. `expected`: address -> [Passed] of those for an exact value, shared with the memory."""

    def __init__(self, detector: Any, expected: dict, peek: Callable[[int, int], int]):
        self.detector, self.expected, self._peek = detector, expected, peek

    def passed(self, thread: Thread, segment: Segment, address: int, bits: int, cmp: str, value: int,
               releases: Sequence[Any]) -> None:
        """The wait of a thread has passed by a value, which came from the last of `releases`."""
        stack = sites.kernel_stack() or thread.stack
        if cmp == "eq":
            thread.tick()                    # what has been sent before does not tell of this wait
        made = Passed(thread, stack, segment, address, bits, value, releases[-1] if releases else None)
        thread.passed.append(made)
        del thread.passed[:-_REMEMBERED]
        if cmp == "eq":
            others = [p for p in self.expected.get(address, ()) if p.thread is not thread]
            self.expected[address] = [*others, made]

    def rewritten(self, addresses: Sequence[int]) -> None:
        """The acting one has written these flags."""
        for address in self.expected.keys() & set(addresses):
            entries, thread = self.expected[address], self.detector.thread()
            changed = [p for p in entries if self._peek(address, p.bits) != p.value]
            left = [p for p in entries if p not in changed]
            self.expected[address] = left
            if not left:
                del self.expected[address]
            lost: Optional[Passed] = next((p for p in changed if not p.known_to(thread)), None)
            if lost is not None:
                self._report(thread, lost)

    def drop(self, start: int, end: int) -> None:
        """What lay in [start, end) is gone, or has been set by the host."""
        for address in [a for a in self.expected if start <= a < end]:
            del self.expected[address]

    def _report(self, thread: Thread, lost: Passed) -> None:
        stack = sites.kernel_stack() or thread.stack
        now = self._peek(lost.address, lost.bits)
        self.detector.report("race", sites.sites(lost.stack) + sites.sites(stack), (
            f"a wait for exactly {lost.value} may never see it: nothing orders the store of {now} to this flag after "
            f"that wait, "
            f"{words.place(lost.segment)}, byte {lost.address - lost.segment.base}\n"
            f"  wait    by {words.who(lost.thread)}\n          at {words.at(lost.stack)}\n"
            f"  store   by {words.who(thread)}\n          at {words.at(stack)}\n"
            "  missing: the writer does not know that the waiter has seen the value before\n"
            "  fix: wait with cmp \"ge\" for values that only grow, or let the waiter tell the writer before it "
            "stores the next"))
