# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Plans: how calls of one kind run. A plan is made once, and knows all that does not change from call to call."""
import functools
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops.calls.agree import same_call, withdraw
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import absent
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import Workspace


class Plan:
    """How calls with one signature run. Making a plan may be collective.

    Attributes:
        captured: True if it works only inside graph capture, False if only outside, None if in both.
        compiles: True if `compile` does something.
        prepared: True if a plan for captured calls has been requested, and this plan does not work for them.
        used: True once a call has used it.
        fills: True if `compile` needs outputs of their shape. Otherwise outputs that the call allocates are None.
        agreed, choice, out_shape: set when it is first used: what ranks have agreed on, the way that was chosen, the output's
            shape.
        variants: (kernel, constexprs and launch options) of each launch that `compile` has prepared.
        parts: plans of the other ops that its calls consist of.
    """

    captured: bool | None = None
    compiles = False
    prepared = used = False
    fills = True
    variants: Sequence = ()
    parts: Sequence["Plan"] = ()
    agreed: Any
    choice: Choice
    out_shape: tuple

    def compile(self, *tensors: torch.Tensor | None) -> None:
        """Makes ready what a first call would have to wait for. Sends nothing; raises what a compiler or a driver raises.

        tensors: those of the op, in its order. Outputs are there even if the call allocates them.
        """

    def resized(self, agreed: Any, group: Group, templates: dict, *tensors: torch.Tensor | None) -> "Plan | None":
        """A plan, compiled, for calls that differ from its own in the number of rows alone. None: it has to be made as this was.

        agreed: what ranks agree on in them. templates: for the parts, see Calls.part. tensors: those of the op, in its order;
            None for an output that the call allocates.
        """
        return None

    def run(self, group: Group, *tensors: Any) -> Any:
        """One call on the op's tensors, in its order."""
        raise NotImplementedError

    def with_parts(self) -> list["Plan"]:
        """Itself and all its parts, in the order of their calls."""
        return [self, *[found for part in self.parts for found in part.with_parts()]]

    def by_way(self) -> dict:
        """{(family, way): itself or a part}, for calls that differ in the number of rows alone."""
        return {(plan.agreed.family, plan.choice): plan for plan in self.with_parts()}

    def valid(self) -> bool:
        """Whether calls can be run by it now."""
        return self.serves() and not self.moved()

    def serves(self) -> bool:
        """Whether it is for calls inside graph capture if the caller is, and for eager ones if not."""
        return self.captured is None or self.captured == backend().is_capturing()

    def moved(self) -> bool:
        """Whether buffers have moved: then it is made again as it was, inside graph capture as well."""
        return False

    def retired(self) -> "Plan":
        """What is kept of a plan whose buffers have moved: nothing that refers to them."""
        return Retired(self)


class Retired(Plan):
    """In place of a plan whose buffers have moved, until it is made again."""

    def __init__(self, plan: Plan):
        self.agreed, self.choice, self.out_shape = plan.agreed, plan.choice, plan.out_shape
        self.captured, self.prepared, self.used = plan.captured, plan.prepared, plan.used

    def moved(self) -> bool:
        return True

    def retired(self) -> Plan:
        return self


class OfParts(Plan):
    """Its calls are calls of other ops, one after the other. Those are planned with it, and looked at no more when it runs."""

    def __init__(self, group: Group, *parts: Plan):
        me, self.parts = state(), parts
        for part in parts:
            if part.captured is not None:
                self.captured = part.captured
                break
        self._count, self._compared = me.calls.setdefault(group.key, [0]), backend().compares_calls or me.debug

    def serves(self) -> bool:
        for part in self.parts:
            if not part.serves():
                return False
        return super().serves()

    def moved(self) -> bool:
        for part in self.parts:
            if part.moved():
                return True
        return False

    def run_part(self, part: Plan, group: Group, *tensors: Any) -> Any:
        """One call by `part`, which counts as a call of its op."""
        if self._compared:
            same_call(group, part.agreed)
        else:
            self._count[0] += 1
        return part.run(group, *tensors)


class Unfused(OfParts):
    """The op's unfused way, which runs anywhere. Its part is the collective in it, where the op names one.

    Made inside graph capture, which may be why it was chosen, it holds there only.
    """

    def __init__(self, op: Any, agreed: Any, group: Group, *tensors: torch.Tensor | None):
        collective = op.collective_of_unfused(agreed, group, *tensors)
        super().__init__(group, *() if collective is None else (collective,))
        self.op, self.agreed = op, agreed
        if backend().is_capturing() or not op.unfused_in_graphs:
            self.captured = backend().is_capturing()

    def run(self, group: Group, *tensors: Any) -> Any:
        backend().before_torch()
        if self.parts:
            return self.op.unfused(self.agreed, group, *tensors, collective=functools.partial(self._collective, group))
        return self.op.unfused(self.agreed, group, *tensors)

    def _collective(self, group: Group, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        part, = self.parts
        try:
            out = x.new_empty(part.out_shape) if out is None else out
        except BaseException as error:
            withdraw(group, self.agreed.op, error)
            raise
        self.run_part(part, group, x, out)
        return out


class Wrapped(Plan):
    """A plan for calls in a state of torch that its own code should not see, or under autocast in `dtype`."""

    def __init__(self, plan: Plan, dtype: torch.dtype | None):
        self._plan, self._dtype = plan, dtype
        self.out_shape, self.agreed, self.captured = plan.out_shape, plan.agreed, plan.captured

    def by_way(self) -> dict:
        """None: a plan for another number of rows is made anew in such a state."""
        return {}

    def serves(self) -> bool:
        return self._plan.serves()

    def moved(self) -> bool:
        return self._plan.moved()

    def run(self, group: Group, *tensors: Any) -> Any:
        with ambient.plain():
            if self._dtype is not None:
                tensors = tuple(ambient.cast(t, self._dtype) for t in tensors)
            return self._plan.run(group, *tensors)


class OnWorkspace(Plan):
    """A plan whose kernels use buffers of a workspace. A call is one launch, unless `run` is overridden.

    Attributes:
        launch: the prepared kernel. Its arguments are what `args` makes of a call's tensors.
        plain: True if the kernel takes the tensors themselves.
    """

    compiles = True
    plain = False
    launch: Any

    def __init__(self, space: Workspace):
        self.space, self.generation = space, space.generation

    def resize(self, agreed: Any, *tensors: torch.Tensor | None) -> tuple[tuple, dict] | None:
        """(the grid, {position: argument of the kernel that depends on the number of rows}), after room has been made for them.

        It is called for a copy of a plan that is compiled. None: another kernel, or other options, may be needed.
        """
        return None

    def resized(self, agreed: Any, group: Group, templates: dict, *tensors: torch.Tensor | None) -> "Plan | None":
        found = object.__new__(type(self))
        vars(found).update(vars(self), compiles=False, prepared=False, used=False)
        changed = found.resize(agreed, *tensors)
        if changed is None or found.moved():                # where room was made, what the launch has is elsewhere now
            return None
        found.launch = self.launch.on(*changed)
        return None if found.launch is None else found

    def args(self, *tensors: torch.Tensor | None) -> tuple:
        """Arguments of the kernel that vary from call to call."""
        raise NotImplementedError

    def run(self, group: Group, *tensors: torch.Tensor | None) -> Any:
        try:                                # less time than `with`
            args = tensors if self.plain else self.args(*tensors)       # may copy, so it may fail
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


def present(*tensors: torch.Tensor | None) -> tuple[tuple, list]:
    """(places of the tensors that are there, all of them for a kernel, which does not look at what stands for the others).

    One is there.
    """
    where = tuple([place for place, t in enumerate(tensors) if t is not None])
    missing = absent(tensors[where[0]])
    return where, [missing if t is None else t for t in tensors]


class Trial:
    """A plan that is being timed: each call makes one on the given tensors, to `out` or a tensor like it.

    Other plans may move the buffers that it points into: then it is made again, on all ranks alike.
    """

    def __init__(self, op: Any, make: Callable[[], Plan], group: Group, tensors: Sequence):
        self._op, self._make, self._group, self._tensors = op, make, group, tensors
        self._plan = make()

    def compile(self) -> None:
        """What may fail on one rank alone."""
        if not self._plan.valid():
            self._plan = self._make()
        if self._plan.compiles:
            self._plan.compile(*self._op.filled(self._group, self._plan.agreed, self._tensors))

    def __call__(self) -> None:
        if not self._plan.valid():
            self.compile()
        self._plan.run(self._group, *self._op.filled(self._group, self._plan.agreed, self._tensors))
