# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The ops that there are, and what torch knows of them: operators such as `torch.ops.triton_dist.ag_gemm`.

    OPS["ag_gemm"]                      # the Op: what explain, tune, the checker and bench go through
    OPS["ag_gemm"].operator             # torch.ops.triton_dist.ag_gemm.default
    OPS["ag_gemm"].function             # triton_dist.ops.ag_gemm

A function is what users call. An operator is what torch records of it in a graph: it has a schema, a rule for the shapes and
dtypes of its outputs (a fake), and a gradient. From these come torch.library's entries, the autograd.Function of eager calls, and
the function that torch.compile sees in place of the one that users call.
"""
import inspect
from dataclasses import dataclass
from typing import Any, Callable

import torch

from triton_dist.compat.torch import schema_of
from triton_dist.ops.autograd.kernel import autograd_kernel
from triton_dist.runtime import ambient
from triton_dist.runtime.entry import entry, seen_by_compile_as
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import name_of, resolve

NAMESPACE = "triton_dist"
OPS: dict[str, Any] = {}                        # name -> Op
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Gradient:
    """The gradient of an operator.

    Both functions only call ops and plain torch, so that they can be recorded in a graph as well.

    Attributes:
        keep: takes (ctx, inputs, output) and stores on ctx what backward needs, as setup_context of torch.library does.
        backward: takes ctx and a gradient of each output; gives the gradients of all inputs, None for those that have none.
    """
    keep: Callable[[Any, tuple, Any], None]
    backward: Callable[..., tuple]


class Operator:
    """An operator of torch.

    Args:
        name: its name in the namespace triton_dist.
        schema: its arguments and results. The group travels by name and size, "@2" for a world of two.
        call: runs it on tensors that have memory.
        fake: makes outputs of the right shapes and dtypes from inputs without memory.
        gradient: None where it has none.

    Attributes:
        operator: what torch.ops has.
        arguments: names of its arguments.
    """

    def __init__(self, name: str, schema: str, call: Callable, fake: Callable, gradient: Gradient | None = None):
        def run(*args: Any) -> Any:
            with ambient.below_autograd():
                return call(*args)

        _LIBRARY.define(name + schema, tags=())
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        qualified = f"{NAMESPACE}::{name}"
        torch.library.register_fake(qualified, fake, lib=_LIBRARY)
        self.name, self.schema, self.operator = name, schema, getattr(getattr(torch.ops, NAMESPACE), name).default
        if gradient is not None:
            gradient = Gradient(gradient.keep, _once(name, gradient.backward))
        _LIBRARY.impl(name, autograd_kernel(name, self.operator, run, gradient), "Autograd", with_keyset=True)
        self._differentiable: Any = None
        if gradient is not None:
            self._differentiable = type(name, (torch.autograd.Function,), {
                "forward": staticmethod(run), "backward": staticmethod(gradient.backward),
                "setup_context": staticmethod(lambda ctx, inputs, output: gradient.keep(ctx, inputs, output))})
        self.arguments = tuple(argument.name for argument in schema_of(self.operator).arguments)

    def __call__(self, *args: Any) -> Any:
        """A call that torch is to know of: because it records a graph, or because a gradient is wanted."""
        if self._differentiable is None or torch.compiler.is_compiling() or ambient.dispatch_modes():
            return self.operator(*args)
        return self._differentiable.apply(*args)


def enter(op: Any, function: Callable) -> Callable:
    """Enters an op, which users call by `function`: a plain function whose arguments have the names of the op's own.

    Makes its operator, which calls the function, and has torch.compile trace `op.recorded` in place of it. Returns the function.
    """
    names = tuple(inspect.signature(function).parameters)
    known = OPS.get(op.name)
    if known is not None and known.function.__module__ != function.__module__:
        raise InvalidArgument(f"op: expected a name that no op has, found {op.name!r}, which is of "
                              f"{known.function.__module__}; choose another")
    op.function = entry(function)
    OPS[op.name] = op
    if op.schema:
        # Where the op's module has been loaded anew, torch keeps the operator that it has.
        op.recorder = known.recorder if known is not None else _operator_of(op.name)
        wrong = {*op.recorder.arguments} - {*names}
        if wrong:
            raise InvalidArgument(f"schema: expected names of the function's arguments {list(names)}, found {sorted(wrong)}")
        seen_by_compile_as(function, _recorded(op, function))
    return function


def _operator_of(name: str) -> Operator:
    """The operator that calls the op's function, and its `fake`, with arguments by name."""
    def call(*args: Any) -> Any:
        op = OPS[name]
        given = dict(zip(op.recorder.arguments, args))
        return op.bare(op.function(**given), given)

    def fake(*args: Any) -> Any:
        op = OPS[name]
        return op.fake(**dict(zip(op.recorder.arguments, args)))
    return Operator(name, OPS[name].schema, call, fake, OPS[name].gradient)


def _recorded(op: Any, function: Callable) -> Callable:
    """What torch.compile traces in place of a call of `function`: it takes the same arguments, and calls the operator."""
    parameters = inspect.signature(function).parameters
    order = tuple(parameters)
    defaults = {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}

    def recorded(*args: Any, **kwargs: Any) -> Any:
        given = dict(defaults)
        for name, value in zip(order, args):
            given[name] = value
        given.update(kwargs)
        return op.recorded(given)
    return recorded


def call_recorded(op: Any, given: dict) -> Any:
    """A call of an op's operator with arguments by name; outputs that were given are written."""
    results = op.recorder(*[name_of(given[name]) if name == "group" else given[name] for name in op.recorder.arguments])
    if isinstance(results, torch.Tensor):
        return written(results, given.get(next(iter(op.outputs))))
    return tuple([written(result, given.get(name)) for result, name in zip(results, op.outputs)])


def written(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """`result`, or `out` with it."""
    if out is None:
        return result
    if out.shape != result.shape or out.dtype != result.dtype:
        raise InvalidArgument("out: expected the shape and the dtype of the result; pass None to have it allocated")
    return out.copy_(result)


def cast(*tensors: torch.Tensor | None) -> tuple:
    """`tensors`, of which the first is x, as autocast hands them to a linear layer."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(ambient.cast(t, dtype) for t in tensors)


def require(condition: Any, what: str) -> None:
    """Raises InvalidArgument unless `condition` on sizes holds; of sizes that are dynamic it becomes a guard."""
    if not condition:
        raise InvalidArgument(what)


def world_of(group: str) -> int:
    """Number of ranks of the group of this name."""
    return resolve(group).size


def no_second_derivative(name: str) -> InvalidArgument:
    """The error of a backward pass that is to be differentiated itself."""
    return InvalidArgument(f"{name}: has no second derivative, and its gradient was asked for with create_graph=True; "
                           "leave that out")


def _once(name: str, backward: Callable) -> Callable:
    """`backward`, which refuses to be differentiated itself and does not see autocast."""
    def once(ctx: Any, *grads: Any) -> tuple:
        if torch.is_grad_enabled():
            raise no_second_derivative(name)
        found = next((g for g in grads if g is not None), None)
        if found is None and hasattr(ctx, "zeros"):     # peers may be asked for more, and then wait for this rank
            found, *_ = grads = ctx.zeros(), *grads[1:]
        if found is None:                       # nothing is asked for; else gradients of unused outputs are None or zeros
            return (None,) * len(ctx.needs_input_grad)
        with torch.autocast(found.device.type, enabled=False):
            return backward(ctx, *grads)
    return once
