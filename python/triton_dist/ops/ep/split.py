# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine in two launches: one sends, and a later one takes what came. Plans, and the workspaces that they use."""
import weakref
from typing import Any, Callable

from triton_dist.ops.calls.agree import refuse, withdraw
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.calls.record import Known
from triton_dist.ops.ep_combine import op as combine
from triton_dist.ops.ep_dispatch import op as dispatch
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.streams import used_on
from triton_dist.runtime.workspace import CountedWorkspace, workspace

KINDS = ("tokens to experts, even sends", "tokens to experts, odd sends")  # of the two workspaces


class Lane(CountedWorkspace):
    """A workspace of split calls. Calls on a group use two of them in turn, so each has at most one call under way.

    A workspace has two halves, which is enough if the launch that takes call n comes before the launch that sends call n + 1.
    So two calls under way need two workspaces. Which one a call uses depends only on the number of calls before it, and is the
    same on all ranks.

    Attributes:
        sends: how many calls have been sent on it.
        under_way: the call that has been sent and not been taken yet.
    """

    def __init__(self, group: Group, kind: str):
        super().__init__(group, kind)
        self.sends = 0
        self.under_way: UnderWay | None = None

    def settle(self) -> None:
        """Takes the call that is under way, if any, so that the next one can be sent."""
        call = self.under_way
        if call is None:
            return
        if call.in_this_capture():
            call.take()
        elif call.captured:         # its capture has ended without it, and replays are not calls of ours
            self.under_way = None
        else:
            raise InvalidArgument("ep: a call that was sent before this graph capture has not been received yet; call its "
                                  "recv() before the capture begins")

    def _renew(self, *args: Any) -> Any:
        if not backend().is_capturing():
            self.settle()           # its rows lie in the memory that is about to be freed
        return super()._renew(*args)


class UnderWay:
    """A call that has been sent. `take` launches what completes it, on the tensors `args`, which it keeps until then."""

    def __init__(self, lane: Lane, launch: Callable, args: tuple):
        self._lane, self._launch, self._args = lane, launch, args
        self._on = backend().current_stream()       # the stream of its last launch
        self.captured = backend().is_capturing()
        graph = backend().capturing_graph() if self.captured else None
        self._graph = None if graph is None else weakref.ref(graph)
        self.done = False

    def in_this_capture(self) -> bool:
        """Whether it was sent in the graph capture that is going on, or eagerly where there is none."""
        if self.captured != backend().is_capturing():
            return False
        return self._graph is None or self._graph() is backend().capturing_graph()

    def take(self) -> None:
        """Has the current stream complete it, or wait for the stream that has completed it."""
        if not self.in_this_capture():
            raise InvalidArgument("recv: expected to be called where the rows were sent, which was "
                                  f"{'in another graph capture' if self.captured else 'before this graph capture'}; a graph must "
                                  "hold both halves of a call or none")
        stream, lane = backend().current_stream(), self._lane
        if not self.done and state().workspaces.get((lane.group.key, lane.kind)) is not lane:
            raise InvalidArgument("recv: the group was reset, or its world ended, after the rows had been sent; send them again")
        if stream != self._on:
            stream.wait_stream(self._on)
            used_on(stream, self._args)
        if self.done:
            return
        lane.call()
        try:
            self._launch(*self._args)
        except BaseException as error:
            lane.failed(error)
            raise
        self.done, self._on, self._args = True, stream, ()
        lane.under_way = None


class Split(Plan):
    """Both halves of a call, for each of the two workspaces. `run` sends, and gives the UnderWay.

    make: makes the plan of one half on a workspace, from (workspace, whether it sends, whether it takes).
    """

    compiles = True

    def __init__(self, group: Group, make: Callable[[Lane, bool, bool], OnWorkspace]):
        self.lanes = [workspace(group, kind, Lane) for kind in KINDS]
        self.halves = [(make(lane, True, False), make(lane, False, True)) for lane in self.lanes]

    def compile(self, *tensors: Any) -> None:
        for halves in self.halves:
            for half in halves:
                half.compile(*tensors)

    def moved(self) -> bool:
        return any(half.moved() for halves in self.halves for half in halves)

    def run(self, group: Group, *tensors: Any) -> UnderWay:
        try:
            index = 0 if self.lanes[0].sends <= self.lanes[1].sends else 1
            lane, (send, take) = self.lanes[index], self.halves[index]
            args: Any = take.args(*tensors)         # may copy, so it may fail
            lane.settle()
            lane.call()
        except BaseException as error:
            withdraw(group, KINDS[0], error)
            raise
        lane.sends += 1             # also where the launch fails, since it may do so on one rank of a graph capture
        try:
            send.launch(*args)
        except BaseException as error:
            lane.failed(error)
            raise
        lane.under_way = UnderWay(lane, take.launch, args)
        return lane.under_way


class SplitOp(Calls):
    """What the two ops of sends have in common. They are no operators: their second half has no place in a graph of torch."""

    schema, gradient = "", None
    methods = ("push", "unfused")   # a kernel that polls slots of rows cannot be split at a fence
    whole: str                      # the function that does both halves

    def asked(self, stream: Any, asked: tuple, group: Any, *places: Any) -> Known:
        """`known` of a call that cannot be recorded."""
        error = None
        if stream is not None and not hasattr(stream, "wait_stream"):
            error = InvalidArgument("stream: expected None or a stream of triton_dist.new_stream(), found "
                                    f"{type(stream).__name__}")
        found = self.known(asked, group, *places) if error is None else None
        if found is None:
            error = error or InvalidArgument(f"{self.name}: expected tensors that need no gradient, outside of torch's tracing, "
                                             f"since a call in two halves is not recorded; use {self.whole}, or torch.no_grad()")
            refuse(self.members(group), self.name, error)
            raise error
        return found


class DispatchSend(SplitOp, dispatch.EPDispatch):
    """A dispatch in two halves."""

    name, whole = "ep_dispatch_send", "ep_dispatch"

    def plan(self, choice: Choice, agreed: Any, group: Group, *tensors: Any) -> Plan:
        return Split(group, lambda *half: dispatch.Push(agreed, group, tensors, *half))


class CombineSend(SplitOp, combine.EPCombine):
    """A combine in two halves."""

    name, whole = "ep_combine_send", "ep_combine"

    def plan(self, choice: Choice, agreed: Any, group: Group, *tensors: Any) -> Plan:
        return Split(group, lambda *half: combine.Push(agreed, group, tensors, *half))


DISPATCH_SEND, COMBINE_SEND = DispatchSend(), CombineSend()
