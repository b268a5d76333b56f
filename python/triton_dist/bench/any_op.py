# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed of an op that has no baselines of its own here: its methods, by inputs that the op itself describes."""
import importlib
import inspect
import sys
from typing import Any

import torch

from triton_dist.bench.collective.problem import Candidate
from triton_dist.bench.shapes import Shape
from triton_dist.ops import OPS, Op, explain
from triton_dist.runtime.groups import Group
from triton_dist.testing import random_tensor


def loaded(word: str) -> Op:
    """The op that MODULE:NAME stands for: a function that users call, an Op, or an op's name. Imports the module.

    Raises ValueError where there is none.
    """
    module, _, name = word.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")                              # a module of the folder that the command is started in
    try:
        known = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{word}: found no module {module!r} ({error})") from None
    found = getattr(known, name, None)
    for op in OPS.values():
        if found in (op, op.function) or name == op.name:
            return op
    raise ValueError(f"{word}: expected an op, which `Op.public` has entered, or its function, found {found!r}")


def arguments(op: Op, shape: Shape, dtype: torch.dtype, group: Group) -> dict:
    """Random inputs of this rank for a call of these global sizes, by the names of the op's function.

    Raises ValueError for an op that does not say what it takes.
    """
    try:
        sizes = op.inputs(shape.m, shape.n, shape.k, group)
    except NotImplementedError as error:
        raise ValueError(str(error)) from None
    return {name: random_tensor(*size, dtype=dtype, seed=group.rank + 100 * i) if isinstance(size, tuple) else size
            for i, (name, size) in enumerate(sizes.items())}


class AnyOp:
    """An op at one shape, with one set of inputs."""

    sets, beside = 1, {}

    def __init__(self, op: Op, shape: Shape, dtype: torch.dtype, group: Group):
        self.op, self.shape, self.dtype, self.group = op, shape, dtype, group
        self._given = arguments(op, shape, dtype, group)
        self._inputs = [self._given.get(name) for name in op.tensors]
        outputs = self._filled(self._inputs)
        # Of several outputs the first of x's dtype is compared: one that is quantised is not near float64.
        self._compared = next((i for i, t in enumerate(outputs) if t is not None and t.dtype == dtype), 0)
        self.out = [outputs[self._compared]]
        self._takes = set(inspect.signature(op.function).parameters)

    def about(self) -> dict:
        """What a row says of the problem."""
        return {"shape": self.shape.name, "m": self.shape.m, "n": self.shape.n, "k": self.shape.k}

    def rates(self, us: float) -> dict:
        """Figures that follow from the time of a call: none."""
        return {}

    def chosen(self) -> str:
        """The method behind auto."""
        return explain(self.op.name, self.shape.m, self.shape.n, self.shape.k, group=self.group, dtype=self.dtype).chosen

    def repeats(self, method: str) -> bool:
        """Whether a method gives the same bits for the same inputs: libraries may not."""
        return "unfused" not in (method, self.chosen() if method == "auto" else "")

    def ours(self, method: str) -> Candidate:
        """The op by one of its methods."""
        compared = list(self.op.outputs)[self._compared]

        def call(s: int) -> torch.Tensor:
            given = {**self._given, "group": self.group, "method": method, compared: self.out[s]}
            result = self.op.bare(self.op.function(**{name: t for name, t in given.items() if name in self._takes}), given)
            return result[self._compared] if isinstance(result, tuple) else result
        return Candidate(call)

    def peer(self, name: str, group_name: str) -> Any:
        """Other means: none are known."""
        raise NotImplementedError(f"{self.op.name} has no peer {name}")

    def reference(self) -> torch.Tensor:
        """float64 result of the unfused way."""
        wide = [t.double() if t is not None and t.is_floating_point() else t for t in self._inputs]
        outputs = self._filled(wide)
        self.op.unfused(self._agreed(), self.op.members(self.group), *wide, *outputs)
        return outputs[self._compared]

    def _agreed(self) -> Any:
        return self.op.at(self.shape.m, self.shape.n, self.shape.k, self.dtype, self.op.members(self.group))

    def _filled(self, inputs: list) -> list:
        """Outputs for these inputs."""
        tensors = [*inputs, *[None] * len(self.op.outputs)]
        return self.op.filled(self.op.members(self.group), self._agreed(), tensors)[len(inputs):]

    def roundings(self) -> int:
        """Of a partial sum on its way, and of the result."""
        return self.group.size + 1
