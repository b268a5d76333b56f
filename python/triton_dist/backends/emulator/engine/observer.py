# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a checker hears from the emulator: who starts whom, and every edge of order that the machine grants.

A scheduler has one observer. This one does nothing; a checker overrides what it needs. The actor that acts is the
scheduler's `current`, unless a method says otherwise. Accesses are told by memory.Memory.observe and gluon_smem.
"""
from typing import Any


class Observer:
    """Deaf."""

    def watch(self, scheduler: Any) -> None:
        """Becomes the observer of a scheduler."""
        scheduler.observer = self

    def spawned(self, actor: Any) -> None:
        """The acting one starts an actor: a program, a partition, or a stream's hand."""

    def issued(self, actor: Any) -> None:
        """The acting one starts an asynchronous copy, none of whose steps has run."""

    def finished(self, actor: Any) -> None:
        """An actor has ended."""

    def joined(self, actor: Any) -> None:
        """The acting one has waited for a partition, or an asynchronous copy, to end."""

    def after(self, actor: Any) -> None:
        """The acting asynchronous copy acts after another one, which has ended."""

    def blocks(self, waiting: Any) -> None:
        """The acting one begins to wait."""

    def resumes(self, waiting: Any) -> None:
        """What the acting one waited for is there."""

    # -- a recorder --------------------------------------------------------------------------------------------
    traces = False                       # whether kernels note what they do

    def noted(self, event: str, stop: bool, lap: int, number: int) -> None:
        """The acting program notes the start or the stop of something (language/trace.py)."""

    def clock(self) -> int:
        """The time that kernels note."""
        return 0

    # -- inside a program --------------------------------------------------------------------------------------
    barriers_leave_stores = False        # whether a barrier of a program orders stores of other threads only after a drain

    def drained(self) -> None:
        """All stores of the threads of the acting program are done."""

    def barrier(self) -> None:
        """All threads of the acting program or partition have met."""

    def warp_barrier(self, last: bool) -> None:
        """The threads of each warp of the acting one have met, to release; `last`: all its other warps have released."""

    def loop(self, actor: Any, entered: bool) -> None:
        """An actor enters a loop that the compiler may pipeline, or has left its innermost one."""

    def waited(self, token: Any) -> None:
        """dl.wait gives its token."""

    def consumed(self, token: Any) -> None:
        """A value is tied to a token."""

    def ordered(self, what: str) -> None:
        """The acting program has called SHMEM's "fence" or "quiet"."""

    def caught_up(self) -> None:
        """The acting program has waited for all kernels ahead on its stream."""

    def let_in(self) -> None:
        """The acting program lets the next kernel on its stream start."""

    # -- streams and hosts -------------------------------------------------------------------------------------
    def enqueued(self, stream: Any, ticket: int, what: str) -> None:
        """The acting one has put an operation on a stream; ticket 0: it runs at once."""

    def began(self, stream: Any, ticket: int) -> None:
        """A stream begins an operation."""

    def completed(self, stream: Any, ticket: int) -> None:
        """A stream has completed an operation."""

    def followed(self, stream: Any, other: Any, ticket: int) -> None:
        """What is put on `stream` from now on follows operation `ticket` of `other`."""

    def synchronized(self, stream: Any, ticket: int) -> None:
        """The acting host knows that operation `ticket` of a stream, and all before it, are over."""

    def arrived(self, meeting: Any, source: bool) -> None:
        """The acting host enters a collective; `source`: what it did before, others will know when they leave."""

    def left(self, meeting: Any) -> None:
        """The acting host leaves a collective."""

    def called(self, group: Any, call: Any) -> None:
        """The acting host begins a call of an op on a group; `call` is what its ranks must agree on."""

    # -- trouble -----------------------------------------------------------------------------------------------
    def busy(self, scheduler: Any) -> None:
        """The scheduler has been given up `most_pauses` turns. Raises, in the acting actor, or sets `pauses` back."""

    def stuck(self, scheduler: Any) -> None:
        """Nothing can run, and some actor waits. The scheduler raises a HangError next."""
