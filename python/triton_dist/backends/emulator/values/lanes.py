# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A scalar that differs from thread to thread, such as what `tid` gives: one value for each thread of a program.

Arithmetic on it is done for all threads at once, by the block of their values. It cannot decide a branch: `rebuild/threads.py`
lets each thread go its own way there.
"""
from typing import Any, Callable

import torch

from triton_dist.backends.emulator.engine import registry
from triton_dist.backends.emulator.engine.registry import Tup, invalid
from triton_dist.backends.emulator.values.promotion import info
from triton_dist.backends.emulator.values.scalars import COMPARE, NAMES, Scalar, scalar
from triton_dist.backends.emulator.values.tensors import Tensor, binary, carried

_NO_SHAPE = Tup()


class Lanes:
    """`block`: a Tensor of shape (threads,). To Triton's rules it is a scalar of that element type."""
    __slots__ = ("block", "_values")
    shape = _NO_SHAPE
    numel = 1

    def __init__(self, block: Tensor):
        self.block, self._values = block, None

    ty = property(lambda self: self.block.ty)
    dtype = property(lambda self: self.block.ty)
    type = property(lambda self: self.block.ty)

    def of(self, thread: int) -> Scalar:
        """The value of one thread."""
        if self._values is None:
            self._values = self.block.d.tolist()
        return scalar(self._values[thread], self.ty)

    def to(self, dtype: Any, fp_downcast_rounding: Any = None, bitcast: bool = False) -> "Lanes":
        return Lanes(registry.TWINS["core.cast"](self.block, dtype, fp_downcast_rounding, bitcast))

    def __bool__(self) -> bool:
        raise invalid("a value that differs from thread to thread decides a return or a compile-time choice; branch with `if`, "
                      "`while` or `for` without a return in it")

    def __index__(self) -> int:
        raise invalid("a value that differs from thread to thread is used as one integer")

    def __neg__(self) -> "Lanes":
        return Lanes(-self.block)

    def __pos__(self) -> "Lanes":
        return self

    def __invert__(self) -> "Lanes":
        return Lanes(~self.block)

    def __repr__(self) -> str:
        return f"{self.block.d.tolist()}:{self.ty}, by thread"


def _methods(name: str) -> tuple:
    def operand(x: Any) -> Any:
        if isinstance(x, Tensor):
            raise invalid(f"{name} of a block and a value that differs from thread to thread")
        return x.block if type(x) is Lanes else x

    def forward(a: Lanes, b: Any) -> Any:
        return Lanes(binary(name, a.block, operand(b))) if isinstance(b, _OPERANDS) else NotImplemented

    def backward(a: Lanes, b: Any) -> Any:
        return Lanes(binary(name, operand(b), a.block)) if isinstance(b, _OPERANDS) else NotImplemented

    return forward, backward


_OPERANDS = (Lanes, Tensor, Scalar, int, float)
for _name in NAMES:
    _forward, _backward = _methods(_name)
    setattr(Lanes, f"__{_name}__", _forward)
    if _name not in COMPARE:
        setattr(Lanes, f"__r{_name}__", _backward)
Lanes.__hash__ = None       # type: ignore[assignment]


def of_threads(values: list, place: Callable[[Any], Any]) -> Any:
    """One value out of those of all threads: a scalar where they agree, Lanes where they differ, a tuple of either.

    place: what a Python number is at run time."""
    first = values[0]
    if all(x is first for x in values):
        return first
    if all(isinstance(x, tuple) and len(x) == len(first) for x in values):
        return Tup(of_threads(list(column), place) for column in zip(*values))
    typed = [place(x) for x in values]
    if not all(isinstance(x, Scalar) for x in typed):
        raise invalid("threads set a variable to what is no scalar; blocks belong outside of code that threads run apart")
    ty = typed[0].ty
    if any(x.ty is not ty for x in typed):
        raise invalid(f"a variable is {ty} in some threads and {next(x.ty for x in typed if x.ty is not ty)} in others")
    if all(x.v == typed[0].v for x in typed):
        return typed[0]
    known = info(ty)
    return Lanes(Tensor(torch.tensor([carried(x.v, known) for x in typed], dtype=known.torch), ty))
