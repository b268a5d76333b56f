# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Choosing a method, and the first use of a kernel, the same on every rank (protocol rules 13 and 17)."""
import warnings
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import CollectiveMismatch, HangError, InvalidArgument, OutOfHeap, describe
from triton_dist.runtime.groups import Group, require_agreement
from triton_dist.runtime.heap import heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import Workspace, restart

_MAX_PLANS = 4096

METHODS = ("auto", "portable", "ws", "unfused")
BEFORE_CAPTURE = "it has not run with these arguments before this graph capture"


def signature(tensors: Sequence, outputs: Sequence) -> tuple:
    """What decides whether a call with `tensors` is valid and which code serves it, whatever they are.

    outputs: those that are written to. How they lie in memory that they share with others is part of it.
    """
    parts = [backend().allow_tf32(), torch.is_grad_enabled()]
    for t in tensors:
        if t is None:
            parts.append(None)
        elif isinstance(t, torch.Tensor) and checks.has_memory(t):
            parts.append((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16, t.is_neg(), t.requires_grad))
        else:
            return ("no tensors of memory",)            # refused, hence never found again
    parts += [None if checks.overlapping(out, t) is None else t.data_ptr() - out.data_ptr() for out in outputs for t in tensors]
    return tuple(parts)


def planned(op: str, group: Group, key: tuple, check: Callable[[], dict], make: Callable[[dict], Any]) -> Any:
    """The plan of a call: made once for `key`, and again when it is not valid any more.

    `check()` refuses bad arguments, and otherwise says what all ranks must agree on; `make` of that may be collective.
    """
    plans, where = state().plans, (op, group.key, key)
    plan = plans.get(where)
    if plan is None or not plan.valid():
        moved = plan is not None and plan.serves() and plan.moved()
        agreed, plan = plan.agreed if moved else checked(op, group, check), None
    same_call(group, plan.agreed if plan else agreed)
    if plan is None:
        try:
            with ambient.clean():
                plan = make(agreed)
        except (HangError, CollectiveMismatch, OutOfHeap):      # of all ranks
            raise
        except BaseException as error:
            withdraw(group, op, error)
            raise
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        plan.agreed, plans[where] = agreed, plan
    return plan


def made(op: str, group: Group, agreed: dict, anywhere: str | bool, make: Callable[[dict], Any]) -> Any:
    """The plan that `make(agreed)` gives.

    Where the symmetric heap has no room for it, which is so on all ranks then, it is the plan of the method `anywhere`, and
    a warning says so once. Without such a method the error stands.
    """
    try:
        return make(agreed)
    except OutOfHeap as error:
        if not anywhere:
            raise
        warn_once((op, "heap"), f"triton_dist.{op} runs by {anywhere!r}, which is slower: {error}")
        return make(dict(agreed, method=anywhere))


def warn_once(what: Any, text: str) -> None:
    """Warns of `what` on the first occasion in a world."""
    if what not in state().warned:
        state().warned.add(what)
        warnings.warn(text, RuntimeWarning, stacklevel=5)


def checked(op: str, group: Group, check: Callable[[], dict]) -> dict:
    """What `check()` gives; if it refuses a call, peers can know."""
    try:
        return check()
    except InvalidArgument as error:
        same_call(group, f"{op}, refused: {error}", refused=True)
        raise


class Plan:
    """How calls of one kind run. Has `out_shape`; `agreed` is set once it is in use. Making one may be collective."""

    captured: bool | None = None        # whether it serves inside graph capture only, outside only (False) or both (None)

    def compile(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None) -> None:
        """Makes ready what a first call would have to wait for. Sends nothing; raises what a compiler or a driver raises."""

    def valid(self) -> bool:
        """Whether calls can be run by it now."""
        return self.serves() and not self.moved()

    def serves(self) -> bool:
        """Whether it is for calls inside graph capture if the caller is, and for eager ones if not."""
        return self.captured in (None, backend().is_capturing())

    def moved(self) -> bool:
        """Whether buffers have moved: then it is made again as it was, inside graph capture as well."""
        return False


    def retired(self) -> "Plan":
        """What is kept of a plan whose buffers have moved: nothing that refers to them."""
        return Retired(self)


class Retired(Plan):
    """In place of a plan whose buffers have moved, until it is made again."""

    def __init__(self, plan: Plan):
        self.agreed, self.captured, self.out_shape = plan.agreed, plan.captured, plan.out_shape

    def moved(self) -> bool:
        return True

    def retired(self) -> Plan:
        return self


class Unfused(Plan):
    """Runs anywhere. Made inside graph capture, which may be why it was chosen, it holds there only."""

    def __init__(self):
        self.captured = True if backend().is_capturing() else None


class Wrapped(Plan):
    """A plan for calls in a state of torch that its own code should not see, or under autocast in `dtype`."""

    def __init__(self, plan: Plan, dtype: torch.dtype | None):
        self._plan, self._dtype = plan, dtype
        self.out_shape, self.agreed, self.captured = plan.out_shape, plan.agreed, plan.captured

    def moved(self) -> bool:
        return self._plan.moved()

    def run(self, group: Group, *tensors: Any) -> Any:
        with ambient.plain():
            if self._dtype is not None:
                tensors = tuple(ambient.cast(t, self._dtype) for t in tensors)
            return self._plan.run(group, *tensors)


class OnWorkspace(Plan):
    """Points into buffers of a workspace, as they were when it was made. A call is one launch, unless `run` is another.

    launch: the prepared kernel, which takes what `args` makes of a call's tensors.
    """

    launch: Callable[..., None]

    def __init__(self, space: Workspace):
        self.space, self.generation = space, space.generation

    def args(self, *tensors: torch.Tensor | None) -> tuple:
        """Arguments of the kernel that vary from call to call."""
        raise NotImplementedError

    def run(self, group: Group, *tensors: torch.Tensor | None) -> None:
        try:                                # less time than `with`
            args = self.args(*tensors)      # may copy, so it may fail
            self.space.call()
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        try:
            self.launch(*args)
        except BaseException as error:
            self.space.failed(error)
            raise

    def moved(self) -> bool:
        return self.generation != self.space.generation


class Trial:
    """A plan for who times plans: each call makes one on the given tensors, to `out` or a tensor like it.

    Other plans may move the buffers that it points into: then it is made again, on all ranks alike.
    """

    def __init__(self, make: Callable[[], Plan], group: Group, tensors: tuple, *rest: Any):
        self._make, self._group, self._tensors, self._rest = make, group, tensors, rest
        self._plan = make()

    def compile(self) -> None:
        """What may fail on one rank alone."""
        if not self._plan.valid():
            self._plan = self._make()
        self._plan.compile(*self._tensors)

    def __call__(self) -> None:
        if not self._plan.valid():
            self.compile()
        x, weight, bias, out = self._tensors
        out = torch.empty(self._plan.out_shape, dtype=x.dtype, device=x.device) if out is None else out
        self._plan.run(self._group, x, weight, bias, out, *self._rest)


def same_call(group: Group, what: Any, refused: bool = False) -> None:
    """Says which call this rank makes. Where ranks are found to make different ones, each of them raises (protocol rule 12).

    The emulator compares without waiting; a GPU only under TRITON_DIST_DEBUG, by a collective a call.
    """
    me, key = state(), group.key
    if me.apart or me.disagreed:
        _come_together(group)
    count = me.calls.setdefault(key, [0])
    number = count[0] = count[0] + 1
    if me.refused:
        _ask_who_refused(group, number)
    if me.debug and group.size > 1:
        require_agreement(group, f"call {number}", what if refused else str(what))
    try:
        backend().note_call(group, number, what, refused)
    except InvalidArgument:
        _note_refused(key)
        raise
    if refused:
        _note_refused(key)


def withdraw(group: Group, what: str, error: BaseException) -> None:
    """The last call on `group`, of `what`, ends by `error` before this rank has sent anything: like one that it refuses.

    So nothing is poisoned. Where all ranks have failed alike they go on. Where not, the next call says so, or a peer does
    that waits.
    """
    try:
        backend().note_withdrawn(group, state().calls[group.key][0],
                                 f"{what}, ended before it began by {describe(error)}")
    finally:
        _note_refused(group.key)


def _note_refused(key: tuple) -> None:
    """The next call on the group is not one to be taken as known."""
    state().refused.add(key)
    state().recent.clear()


def _come_together(group: Group) -> None:
    """After ranks have differed: raises where they cannot go on, else restarts the group if it is the one that did."""
    me = state()
    if me.apart:
        raise _apart(me.apart)
    if group.key in me.disagreed:
        restart(group)
        count = me.calls.setdefault(group.key, [0])
        count[0] = max(group.all_gather_object(count[0]))           # ops that call ops count more
        me.disagreed.discard(group.key)
        me.refused.discard(group.key)


def _ask_who_refused(group: Group, number: int) -> None:
    """Before call `number`: if this rank refused the last one, peers that did not would take this call for that one."""
    me = state()
    if group.key not in me.refused:
        return
    me.refused.discard(group.key)
    refused_by_all = backend().all_refused(group, number - 1)
    if refused_by_all is None:
        require_agreement(group, "the call after one that was refused", f"call {number}")
    elif not refused_by_all:
        me.apart = f"call {number - 1}: refused by this rank, made by another"
        me.recent.clear()
        raise _apart(me.apart)


def _apart(how: str) -> CollectiveMismatch:
    return CollectiveMismatch(f"ranks have differed before, so calls do not pair any more ({how}); start the world anew")


def possible(op: str, method: str, group: Group, core_serves: bool, needs_stream_memory_ops: bool = False,
             uncaptured: str = BEFORE_CAPTURE) -> str:
    """`method`, or "unfused" for an "auto" that can be nothing else, of which it warns once. Equal on all ranks.

    `uncaptured`: why a call without a plan cannot be captured. Raises InvalidArgument for a method that is unknown or cannot run
    here.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InvalidArgument(f"method: expected one of {', '.join(METHODS)}, found {method!r}; leave it out for 'auto'")
    if method == "unfused":
        return method
    reason = obstacle(group, needs_stream_memory_ops, uncaptured)
    if reason is not None and method != "auto":
        raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or 'unfused'")
    if reason is not None:
        warn_once((op, reason), f"triton_dist.{op} runs unfused: {reason}")
        return "unfused"
    if method == "ws" and not core_serves:
        raise InvalidArgument(f"method: 'ws' needs a device with a warp-specialised core for {op}, 2-byte operands and rows of "
                              "a multiple of 16 bytes; use 'auto' or 'portable'")
    return method


def rule(op: str, candidates: Sequence[Choice], group: Group, bytes_in: int) -> tuple[Choice, str]:
    """(the candidate to take where none has been measured, why). `bytes_in`: what the collective brings to each rank."""
    usual = {choice.method: choice for choice in reversed(candidates)}          # the first of each method
    if len(usual) == 1:
        return candidates[0], "it is what this method does without figures"
    if "unfused" in usual and not pays(group.size, bytes_in):
        return usual["unfused"], f"the collective brings only {bytes_in / 1e6:.1f} MB to a rank"
    reason = (f"the collective's {bytes_in / 1e6:.1f} MB a rank hide behind the GEMM" if backend().machine_model() else
              "the device has not been measured, and fusing is what it usually gains by")
    return usual["ws" if "ws" in usual and backend().core(op).preferred else "portable"], reason


def pays(world: int, bytes_in: int) -> bool:
    """Whether hiding a collective of `bytes_in` bytes a rank has been measured to pay for the fused op's longer host path.

    Only what all ranks agree on enters: the size of the other operand may differ between them.
    """
    machine = backend().machine_model()
    return machine is None or world == 1 or bytes_in >= machine.fuse_bytes


def obstacle(group: Group, needs_stream_memory_ops: bool, uncaptured: str = BEFORE_CAPTURE) -> str | None:
    """Why no fused kernel can run here; None where one can."""
    if backend().is_capturing():
        return "it cannot be captured over nodes" if across_nodes(group) else uncaptured
    if across_nodes(group):
        if group.ranks_per_node is None:
            return f"ranks {list(group.world_ranks)} are not equally many of each node, side by side"
        if (reason := backend().no_shmem()) is not None:
            return f"ranks {list(group.world_ranks)} are on {len(group.nodes)} nodes, and {reason}"
    if needs_stream_memory_ops and group.size > 1 and not backend().has_stream_memory_ops():
        return "this device has no stream memory operations"
    return None


def across_nodes(group: Group) -> bool:
    """Whether loads and stores do not reach all members."""
    return group.size > 1 and not heap().reachable(group)


def no_kernel(group: Group) -> str | None:
    """Why no kernel that loads and stores peers' memory can serve a call that has no plan yet; None where one can."""
    if across_nodes(group):
        return f"not all of ranks {list(group.world_ranks)} can load and store each other's memory"
    return BEFORE_CAPTURE if backend().is_capturing() else None


def agree_once(group: Group, agreed: dict) -> Callable[[], None]:
    """Collective at the first use of a shape: all ranks must have the same in `agreed`, or all raise.

    Called before anything else that is collective. Returns what to call once compiled, before the launch: at a first use the
    ranks meet there, so that one rank's compilation does not look like a hang to the others.
    """
    key = (group.key, tuple(agreed.items()))
    if key in state().first_uses or backend().is_capturing():
        return lambda: None
    require_agreement(group, agreed["op"], {k: str(v) for k, v in agreed.items()})
    state().first_uses.add(key)
    return group.barrier


def first_use(make: Callable[..., Plan]) -> Callable[..., Plan]:
    """`make`, collective at the first use of a shape, with the plan that it gives compiled for its tensors."""
    def made(group: Group, agreed: dict, *tensors: torch.Tensor | None) -> Plan:
        meet = agree_once(group, agreed)
        plan = make(group, agreed, *tensors)
        plan.compile(*tensors)
        meet()
        return plan
    return made


def precision(dtype: torch.dtype) -> str:
    """tl.dot's input_precision: fp32 follows torch's allow_tf32."""
    return "tf32" if dtype == torch.float32 and backend().allow_tf32() else "ieee"
