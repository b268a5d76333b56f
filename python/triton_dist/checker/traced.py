# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A detector that also draws: streams, programs, waits, and signals from store to acquire."""
from typing import Any

from triton_dist.checker.detector import Detector
from triton_dist.checker.faults import Faults
from triton_dist.checker.timeline import Timeline


class TracedDetector(Detector):
    """Of one run; `timeline` holds what it saw."""

    def __init__(self, faults: Faults):
        super().__init__(faults)
        self.timeline = Timeline()

    def _place(self, thread: Any) -> str:
        self.timeline.now = self.accesses
        return thread.name if thread.cta is None else f"program {thread.cta.pid}"

    def spawned(self, actor: Any) -> None:
        super().spawned(actor)
        if actor.kind in ("program", "partition"):
            self.timeline.begin(actor, actor.rank, self._place(actor.hb), actor.name, "program")

    def finished(self, actor: Any) -> None:
        super().finished(actor)
        self.timeline.now = self.accesses
        self.timeline.end(actor)

    def began(self, stream: Any, ticket: int) -> None:
        super().began(stream, ticket)
        hand = stream.hb
        kind = "launch" if hand.what.startswith("launch") else "copy"
        self.timeline.begin((stream, ticket), hand.rank, self._place(hand), hand.what, kind)

    def completed(self, stream: Any, ticket: int) -> None:
        super().completed(stream, ticket)
        self.timeline.now = self.accesses
        self.timeline.end((stream, ticket))

    def blocks(self, waiting: Any) -> None:
        actor = self.scheduler.current
        if actor.kind in ("program", "partition", "stream") and waiting.kind not in ("kernel", "partition"):
            thread = self.thread()
            self.timeline.begin(id(waiting), thread.rank, self._place(thread),
                                f"waits for {waiting.words() or waiting.kind}", "wait")

    def resumes(self, waiting: Any) -> None:
        self.timeline.now = self.accesses
        self.timeline.end(id(waiting))

    def stored(self, release: Any) -> None:
        release.at = release.rank, self._place(release.event.thread), self.accesses

    def acquired(self, thread: Any, release: Any) -> None:
        if release.event.thread is not thread:
            here = thread.rank, self._place(thread), self.accesses
            self.timeline.flow(release.at, here, f"signal of rank {release.rank}")
