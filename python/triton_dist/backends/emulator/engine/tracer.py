# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An observer that records: what kernels note of themselves, and copies. Its clock counts turns of the scheduler."""
from typing import Any

from triton_dist.backends.emulator.engine.observer import Observer
from triton_dist.runtime.spans import Span


class Tracer(Observer):
    """Spans of all ranks of an emulated world, by one clock.

    A turn is as long as any other, whatever it computes: spans show order and overlap, not how long things take on a GPU.
    """
    traces = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.recording = True
        self._now = 0
        self._open: dict = {}
        self._operations: dict = {}
        self._scheduler: Any = None

    def watch(self, scheduler: Any) -> None:
        super().watch(scheduler)
        self._scheduler = scheduler

    def clear(self) -> None:
        """Forgets what has been recorded."""
        self.spans.clear()

    def clock(self) -> int:
        """Turns so far; two notes never have one time."""
        self._now = max(self._now + 1, self._scheduler.turns)
        return self._now

    # -- kernels -----------------------------------------------------------------------------------------------
    def noted(self, event: str, stop: bool, lap: int, number: int) -> None:
        """The acting program notes the start or the stop of something."""
        actor = self._scheduler.current
        key = actor.rank, actor.cta.kernel, actor.cta.pid[0], event, lap
        if not stop:
            self._open[key] = self.clock(), number
        elif key in self._open:
            start, number = self._open.pop(key)
            self.spans.append(Span(*key, number, start, self.clock()))

    # -- copies ------------------------------------------------------------------------------------------------
    def enqueued(self, stream: Any, ticket: int, what: str) -> None:
        self._operations[stream, ticket] = [what, 0]

    def began(self, stream: Any, ticket: int) -> None:
        operation = self._operations.get((stream, ticket))
        if operation is not None:
            operation[1] = self.clock()

    def completed(self, stream: Any, ticket: int) -> None:
        what, start = self._operations.pop((stream, ticket), ("", 0))
        self._copied(stream.device.rank, what, start, ticket)

    def issued(self, actor: Any) -> None:
        if actor.kind == "copy" and actor.cta is None:
            self._open[actor] = self.clock()

    def finished(self, actor: Any) -> None:
        if actor in self._open:
            self._copied(actor.rank, actor.name, self._open.pop(actor), 0)

    def _copied(self, rank: int, what: str, start: int, number: int) -> None:
        if what.startswith("copy"):
            laps = sum(span.rank == rank and span.program < 0 for span in self.spans)
            self.spans.append(Span(rank, "copy engine", -1, "push", laps, number, start, self.clock()))
