# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The ops as operators of torch: `torch.ops.triton_dist.ag_gemm` and so on.

An op is a function that users call. An operator is what torch records of it in a graph: it has a schema, a rule for the shapes
and dtypes of its outputs (a fake), and a gradient. Both are in one record here, and everything else is made from the records:
torch.library's entries, the autograd.Function of eager calls, and the function that torch.compile sees in place of the op.

    OPS["ag_gemm"].operator             # torch.ops.triton_dist.ag_gemm.default
    OPS["ag_gemm"].schema               # its schema
    OPS["ag_gemm"].function             # triton_dist.ops.ag_gemm
"""
from dataclasses import dataclass
from typing import Any, Callable

import torch

from triton_dist.ops.autograd.kernel import autograd_kernel
from triton_dist.runtime import ambient
from triton_dist.runtime.entry import seen_by_compile_as
from triton_dist.runtime.errors import InvalidArgument

NAMESPACE = "triton_dist"
OPS: dict[str, "Op"] = {}                       # by name of the operator
_BY_FUNCTION: dict[Callable, Callable] = {}     # function that users call -> the one that is recorded in its place
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Gradient:
    """The gradient of an operator.

    keep(ctx, inputs, output): stores on ctx what backward needs, as torch.library.register_autograd's setup_context does.
    backward(ctx, *grads): the gradients of all inputs, None for those that have none.
    Both only call operators and plain torch, so that they can be recorded in a graph as well.
    """
    keep: Callable[[Any, tuple, Any], None]
    backward: Callable[..., tuple]


@dataclass(frozen=True)
class Op:
    """An operator.

    Attributes:
        name: of the operator, in the namespace triton_dist.
        schema: its arguments and results. The group travels by name and size, "@2" for a world of two.
        function: what users call.
        call: runs it on tensors that have memory.
        fake: makes outputs of the right shapes and dtypes from inputs without memory.
        gradient: None where it has none.
        operator: what torch.ops has.
        differentiable: the autograd.Function of eager calls; None without a gradient.
    """
    name: str
    schema: str
    function: Callable
    call: Callable
    fake: Callable
    gradient: Gradient | None
    operator: Any
    differentiable: Any

    def __call__(self, *args: Any) -> Any:
        """A call that torch is to know of: because it records a graph, or because a gradient is wanted."""
        if self.differentiable is None or torch.compiler.is_compiling() or ambient.dispatch_modes():
            return self.operator(*args)
        return self.differentiable.apply(*args)


def register(name: str, schema: str, function: Callable, call: Callable, fake: Callable,
             gradient: Gradient | None = None) -> Op:
    """Enters an operator. See Op."""
    def run(*args: Any) -> Any:
        with ambient.below_autograd():
            return call(*args)

    _LIBRARY.define(name + schema, tags=())
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    qualified = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    if gradient is not None:
        gradient = Gradient(gradient.keep, _once(name, gradient.backward))
    _LIBRARY.impl(name, autograd_kernel(name, operator, run, gradient), "Autograd", with_keyset=True)
    differentiable = None
    if gradient is not None:
        differentiable = type(name, (torch.autograd.Function,), {
            "forward": staticmethod(run), "backward": staticmethod(gradient.backward),
            "setup_context": staticmethod(lambda ctx, inputs, output: gradient.keep(ctx, inputs, output))})
    op = Op(name, schema, function, call, fake, gradient, operator, differentiable)
    OPS[name] = op
    return op


def records(function: Callable) -> Callable[[Callable], Callable]:
    """Decorator of what is recorded in place of `function`: it takes the same arguments, and calls operators."""
    def enter(recorded: Callable) -> Callable:
        _BY_FUNCTION[function.__code__] = recorded
        seen_by_compile_as(function, recorded)
        return recorded
    return enter


def record(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """A call of `function`, an op, as operators."""
    return _BY_FUNCTION[function.__code__](*args, **kwargs)


def _once(name: str, backward: Callable) -> Callable:
    """`backward`, which refuses to be differentiated itself and does not see autocast."""
    def once(ctx: Any, *grads: Any) -> tuple:
        if torch.is_grad_enabled():
            raise InvalidArgument(f"{name}: has no second derivative, and its gradient was asked for with create_graph=True; "
                                  "leave that out")
        with torch.autocast(next(g for g in grads if g is not None).device.type, enabled=False):
            return backward(ctx, *grads)
    return once
