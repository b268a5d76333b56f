# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an op is: one object that says all about it. See docs/extending.md for one outside of this package."""
from operator import itemgetter
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops import registry
from triton_dist.ops.calls import log
from triton_dist.ops.calls.agree import Agreed
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.ops.calls.plans import Plan, Unfused
from triton_dist.ops.calls.possible import UNFUSED, no_kernel
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import Group

# What the ranks hold of a tensor together.
ROLES = {
    "sharded": "each rank has a part of it",
    "partial": "each rank has a term of a sum",
    "gathered": "all ranks have all parts",
    "summed": "all ranks have the sum",
    "equal": "all ranks have the same, which the caller sees to",
    "local": "each rank has one of its own",
}


class Op(Calls):
    """An op: its inputs and outputs, the ways to run it, and the data that each of them moves between ranks.

    A subclass describes one op. This class does what all ops have in common: repeated calls, agreement over ranks, the choice by
    measured times, fallbacks, logging, graph capture, autocast, `torch.compile` and gradients, `explain`, `tune`, `bench`, and
    the checker's traffic. The decorator `public` registers the op in `OPS` and gives it a function.

    Attributes:
        name: of the op, and of its operator in torch.ops.triton_dist.
        tensors: name -> role (ROLES) of each input, in the order in which `check`, `plan` and `unfused` get them.
        outputs: name -> role of each output. They follow the inputs in those calls, as None if the call allocates them.
        methods: values of `method` besides "auto" (calls/possible.py METHODS). The last one is "unfused".
        schema: of its operator, with the names of the function's arguments: "(Tensor x, str group, str method) -> Tensor". "":
            it has no operator.
        gradient: of its operator, or None.
        local: True if nothing is sent, so that ranks may make different calls. The function then has no argument `group`.
        autocasts: True if it follows autocast, as a linear layer does. Otherwise it keeps dtypes, as torch.distributed does.
        timed: True if its ways may be timed with TRITON_DIST_AUTOTUNE.
        local_axis: "n" or "k" if this one of M, N and K may differ over the ranks. `local_size` gives a rank's part of it.
        unfused_in_graphs: True if the unfused way can be captured.
        core: name of another op whose device core it runs, or "". Measured times hold for the core's sources.
        function: what users call.
        recorder: the Operator of torch that a graph holds.

    Example:
        docs/extending.md has a whole op of another package: its class, its kernel, and the function that users call.
    """

    name = ""
    tensors: dict = {"x": "sharded"}
    outputs: dict = {"out": "gathered"}
    methods: tuple = (UNFUSED,)
    schema = ""
    gradient: Gradient | None = None
    autocasts = False
    timed = False
    local_axis = ""
    unfused_in_graphs = True
    core = ""
    function: Callable
    recorder: Operator

    def __init__(self) -> None:
        self._of_places = itemgetter(*self.places())

    # -- what an op says of itself -----------------------------------------------------------------------------
    def check(self, group: Group, *call: Any) -> Agreed:
        """Refuses bad arguments; of good ones, what all ranks must have alike.

        Args:
            group: the ranks that call.
            call: the op's tensors in its order, then what else `known` was given as `asked`.

        Returns:
            A frozen dataclass. Raises InvalidArgument for what cannot be called; nothing has been sent then.
        """
        raise NotImplementedError

    # A function (agreed, group, x, what else `known` was given): what `check` gives for a call like one that it accepted with
    # `agreed`, where only the number of rows is new: of x, the first tensor, and with `residual_has_rows` of the residual. It
    # refuses what `check` would. Where it gives None, and in an op without it, `check` sees the call.
    resized: Callable | None = None

    def candidates(self, agreed: Agreed, group: Group) -> Sequence[Choice]:
        """Ways to run a call that its method allows, the default of each method first. Equal on all ranks.

        By default a way for each method that is possible here.
        """
        if agreed.method != "auto":
            return [Choice(agreed.method)]
        return [Choice(method) for method in self.methods]

    def rule(self, agreed: Agreed, group: Group, ways: Sequence[Choice]) -> tuple[Choice, str]:
        """(the way to take where none has been measured, why). By default the first."""
        if len(ways) == 1:
            return ways[0], agreed.why or ("it was asked for" if agreed.method != "auto" else "it is the only way")
        return ways[0], agreed.why or "it is the way to run this op without figures"

    def plan(self, choice: Choice, agreed: Agreed, group: Group, *tensors: torch.Tensor | None) -> Plan:
        """How calls run by a fused way: room in workspaces, and kernels. Collective, where it grows a workspace.

        Args:
            choice: one of `candidates`.
            agreed: what `check` gave.
            group: the ranks that call.
            tensors: those of the call, in the op's order; None for what there is not.
        """
        raise NotImplementedError

    def unfused(self, agreed: Agreed, group: Group, *tensors: torch.Tensor | None) -> Any:
        """One call by torch and the group's own collectives, which runs anywhere. Outputs are there."""
        raise NotImplementedError

    def plan_of_unfused(self, agreed: Agreed, group: Group, *tensors: torch.Tensor | None) -> Plan:
        """How calls run by the unfused way, as `plan`: by default by `unfused`."""
        return Unfused(self, agreed, group, *tensors)

    def collective_of_unfused(self, agreed: Agreed, group: Group, *tensors: torch.Tensor | None) -> Plan | None:
        """The plan of the collective in `unfused`, by `part` of its op, for tensors like these. None: it is not known.

        Where there is one, `unfused` is given as `collective` what runs it: a function (x, out=None) that gives out.
        """
        return None

    def out_shape(self, world: int, *inputs: torch.Tensor | None) -> tuple:
        """Shape of the first output for these inputs and a group of this size: by default x's. Sizes may be symbolic."""
        return tuple(inputs[0].shape)

    def traffic(self, agreed: Agreed, group: Group) -> dict[int, int]:
        """{world rank: bytes of data} that this rank sends in a call by a fused method; flags come on top. {}: it is not known.

        What the group's own collectives send is not counted, and what an op leaves to another op is counted there.
        """
        return {}

    def shape(self, agreed: Agreed, group: Group, local: int) -> Shape:
        """Global sizes of a call, which explain shows and times are kept by. `local`: the sum over ranks of `local_size`."""
        raise NotImplementedError

    def local_size(self, *tensors: torch.Tensor | None) -> int:
        """This rank's part of the size that may differ over the ranks (`local_axis`)."""
        return 0

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Agreed:
        """What ranks agree on in a call of these global sizes by "auto", for `explain`."""
        raise UnsupportedFeature(f"{self.name} does not say what it does at M, N and K: it has no method `at`")

    def estimates(self, agreed: Agreed, group: Group, shape: Shape, ways: Sequence[Choice]) -> dict:
        """{way: its predicted time, a tuning.model.Estimate}, of ways that a prediction is made for."""
        return {}

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        """{name: shape of this rank's input, or another argument} for a call of these global sizes, for `tune` and `bench`."""
        raise UnsupportedFeature(f"{self.name} does not say what it takes at M, N and K: it has no method `inputs`")

    def fake(self, **call: Any) -> Any:
        """Outputs of the right shapes and dtypes, from the operator's arguments by name; tensors have no memory."""
        inputs = [call.get(name) for name in self.tensors]
        shape = self.out_shape(registry.world_of(call["group"]), *inputs)
        found = tuple([inputs[0].new_empty(shape) for _ in self.outputs])
        return found[0] if len(found) == 1 else found

    def bare(self, result: Any, given: dict) -> Any:
        """What the operator gives, tensors alone, of what the function gave for these arguments by name."""
        return result

    def recorded(self, given: dict) -> Any:
        """What a graph holds of a call with these arguments, by the function's names. torch.compile traces this."""
        if self.autocasts:
            names = tuple(self.tensors)
            given.update(zip(names, registry.cast(*[given[name] for name in names])))
        return registry.call_recorded(self, given)

    def choice_in_graphs(self, agreed: Agreed, group: Group, choice: Choice) -> Choice | None:
        """The way that serves a call inside graph capture, where that of its eager plan does not; None: there is none."""
        return None

    # -- what is made of it ------------------------------------------------------------------------------------
    def public(self, function: Callable) -> Callable:
        """Decorator of the function that users call: enters the op. Its arguments must have the schema's names."""
        return registry.enter(self, function)

    def record(self, **given: Any) -> Any:
        """The call of `function` that `known` gave None for: its operator, with these arguments by name."""
        return self.recorded(given)

    @property
    def operator(self) -> Any:
        """What torch.ops has."""
        return self.recorder.operator

    def possible(self, method: Any, reason: str | None) -> tuple[str, str]:
        """(the method, why it is another one than was asked for).

        Args:
            method: what the user asked for.
            reason: why no fused kernel can run here, if none can: then "auto" is "unfused".
        """
        if not isinstance(method, str) or method not in ("auto", *self.methods):
            raise InvalidArgument(f"method: expected one of auto, {', '.join(self.methods)}, found {method!r}; leave it out for "
                                  "'auto'")
        if reason is None or method == UNFUSED:
            return method, ""
        if method != "auto":
            raise InvalidArgument(f"method: {method!r} is not possible here: {reason}; use 'auto' or {UNFUSED!r}")
        return UNFUSED, reason

    def possible_here(self, method: Any, group: Group) -> tuple[str, str]:
        """`possible` for an op whose kernels load and store peers' memory, and run inside a node."""
        return self.possible(method, no_kernel(group))

    def warn_unfused(self, reason: str) -> None:
        """Says once that "auto" runs unfused, which users may not expect."""
        log.fallback((self.name, reason), f"triton_dist.{self.name} runs unfused: {reason}")

    def shape_of_out(self, agreed: Agreed, group: Group, *tensors: torch.Tensor | None) -> tuple:
        """Shape of the first output of a call."""
        return self.out_shape(group.size, *tensors[:len(self.tensors)])

    def filled(self, group: Group, agreed: Agreed, tensors: Sequence) -> list:
        """The tensors of a call with all outputs, allocated where they are None."""
        inputs, outputs = list(tensors[:len(self.tensors)]), tensors[len(self.tensors):]
        shape = self.shape_of_out(agreed, group, *tensors)
        return inputs + [self.empty_output(index, shape, group, *inputs) if out is None else out
                         for index, out in enumerate(outputs)]

    def empty_output(self, index: int, shape: tuple, group: Group, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Memory for an output: by default of the first one's shape, and of x's dtype."""
        return torch.empty(shape, dtype=inputs[0].dtype, device=inputs[0].device)


def op_of(name: Any) -> Op:
    """The op of this name. Raises InvalidArgument where there is none."""
    found = registry.OPS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgument(f"op: expected one of {', '.join(map(repr, registry.OPS))}, found {name!r}")
    return found


def sent(call: Any, group: Group) -> dict[int, int]:
    """Op.traffic of a call of which ranks agreed on `call`; {} for what is no op's, or is not run by kernels."""
    op = registry.OPS.get(getattr(call, "op", None))
    return op.traffic(call, group) if op is not None and call.method != UNFUSED and group.size > 1 else {}
