# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What torch calls an operator by: the entry for its dispatch key Autograd.

torch.library.register_autograd would make one too. It drops the tangents of forward-mode AD without a word, and each call passes
through the dispatcher twice. A compiled graph makes this call for every op, so its host time counts.
"""
from typing import Any, Callable

import torch

from triton_dist.compat import torch as private
from triton_dist.compat.torch import DispatchKey
from triton_dist.runtime import ambient

_REST = private.after_autograd_keyset


def autograd_kernel(name: str, operator: Any, run: Callable, gradient: Any) -> Callable:
    """The entry of `operator`, to be registered with with_keyset=True.

    Args:
        name: of the operator.
        operator: the OpOverload.
        run: its own code, for tensors that have memory.
        gradient: a Gradient, or None for an operator that has none.
    """
    def onward(keys: Any, args: tuple) -> Any:
        with private.BelowAutograd():
            if (keys.has(DispatchKey.Functionalize) or keys.has(DispatchKey.Meta)
                    or keys.has(DispatchKey.Python) and not ambient.is_only_watched(args)):
                return operator.redispatch(keys & _REST, *args)         # somebody records it, or works out its shapes
            return run(*args)

    def forward(ctx: Any, *args: Any) -> Any:
        *args, keys = args
        output = onward(keys, args)
        gradient.keep(ctx, tuple(args), output)
        return output

    def backward(ctx: Any, *grads: Any) -> tuple:
        return (*gradient.backward(ctx, *grads), None)                  # None: for the keys

    if gradient is not None:
        differentiable = type(f"{name}_recorded", (torch.autograd.Function,), {
            "forward": staticmethod(forward), "backward": staticmethod(backward)})

    def entry(keys: Any, *args: Any) -> Any:
        ambient.refuse_tangents(name, args)
        if gradient is not None and torch.is_grad_enabled() and private.any_requires_grad(*args):
            return differentiable.apply(*args, keys)
        return onward(keys, args)
    return entry
