# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The state of torch around a call: inference mode, autocast, default device, tracing, transforms, modes.

Two rules hold for it, and this is the one place for both:

1. What outlives a call (workspaces, plans, symmetric tensors, views of the heap) is made inside `clean()`, so it is the
   same whatever the first call was wrapped in.
2. What a call cannot honour is refused by `refuse()` before anything is sent, on each rank that is in such a state.

It asks torch by private names, since the public ones tell less. All are thread-local, so a check is cheap.
"""
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Iterable, Iterator

import torch
from torch.autograd import forward_ad

from triton_dist.compat import torch as private
from triton_dist.compat.torch import dispatch_modes
from triton_dist.runtime.errors import InvalidArgument

_AUTOGRAD = private.DispatchKey.AutogradFunctionality
_INFRA = private.ModeKey
_TRACERS = (
    (_INFRA.FAKE, "under FakeTensorMode, where tensors have no memory"),
    (_INFRA.PROXY, "while make_fx or export records operators"),
    (_INFRA.FUNCTIONAL, "under functionalisation"),
)


def clean() -> Any:
    """A torch state in which things may be made that outlive the call: nothing of the caller's state is in them.

    Inference mode and gradients are off; there is no default device, no autocast and no mode. The default dtype is one for
    the whole process, so code inside names the dtypes of what it makes.
    """
    if torch.is_inference_mode_enabled() or not is_plain():
        return _cleaned()
    return _NoGrad()


@contextmanager
def _cleaned() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), plain():
        yield


class _NoGrad:
    """torch.no_grad() in less time: the emulator enters it at each turn of its host."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        private.set_grad_enabled(False)

    def __exit__(self, *_: Any) -> None:
        private.set_grad_enabled(self._before)


def plain() -> Any:
    """A state without autocast, default device and modes; inference mode and gradients are as the caller has them."""
    if is_plain():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(private.DisableTorchFunction())
    if private.any_autocast():
        stack.enter_context(private.DisableAutocast())
    if dispatch_modes():
        stack.enter_context(private.disable_modes())
    return stack


def is_plain() -> bool:
    """Whether `plain()` would change nothing."""
    return not (private.function_modes() or is_marked())


def is_marked() -> bool:
    """Whether there is autocast or a dispatch mode: then guards on tensors fail that were made without."""
    return private.any_autocast() or dispatch_modes() > 0


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast gives to a linear layer on `device`; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def cast(t: Any, dtype: torch.dtype) -> Any:
    """`t` as autocast would hand it to a linear layer: in `dtype`, if it is a floating tensor and not float64."""
    if isinstance(t, torch.Tensor) and t.is_floating_point() and t.dtype not in (dtype, torch.float64):
        return t.to(dtype)
    return t


def below_autograd() -> Any:
    """The state in which an operator's own code runs: without gradients and autocast, which have been seen to before it."""
    if private.any_autocast():
        return _below_autocast()
    return _NoGrad()


@contextmanager
def _below_autocast() -> Iterator[None]:
    with _NoGrad(), private.DisableAutocast():
        yield


def is_only_watched(args: Iterable[Any]) -> bool:
    """Whether all modes around a call of an operator do no more than watch memory, as the checker's, and `args` have memory.

    Such a mode is to see what the operator's own code does, not a call that reads and writes whole tensors.
    """
    return (all(getattr(mode, "only_watches", False) for mode in private.dispatch_mode_stack())
            and all(type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ for t in args if isinstance(t, torch.Tensor)))


def is_recorded(tensors: Iterable[Any]) -> bool:
    """Whether operators are being recorded, or their shapes worked out, and `tensors` are what that can be done with."""
    if any(private.dispatch_mode(key) is not None for key in (_INFRA.PROXY, _INFRA.FUNCTIONAL)):
        return True
    fake = private.dispatch_mode(_INFRA.FAKE)
    return fake is not None and (fake.allow_non_fake_inputs or all(
        isinstance(t, private.FakeTensor) or not isinstance(t, torch.Tensor) for t in tensors))


def refuse(what: str, tensors: Iterable[Any] = ()) -> None:
    """Raises InvalidArgument where `what`, called with `tensors`, cannot do what the state around it asks for."""
    found = _hindrance(tensors)
    if found is not None:
        raise _refused(what, *found)


def is_followed(tensors: Iterable[Any]) -> bool:
    """Whether something around a call records, transforms or differentiates what happens to `tensors`, and cannot see kernels."""
    return _hindrance(tensors) is not None


def _hindrance(tensors: Iterable[Any]) -> tuple[str, str] | None:
    """(how a call is made that cannot do what is asked of it, what to do instead); None where it can."""
    if private.tracing_state() is not None:
        return "inside torch.jit.trace, which cannot record it", "trace the parts before and after it"
    if private.transforms() is not None:
        return "inside a transform of torch.func (vmap, grad, jvp, ...)", "call it outside of that"
    for key, where in _TRACERS:
        if private.dispatch_mode(key) is not None:
            return where, "call it outside, with tensors that have memory"
    return _tangent(tensors)


def refuse_tangents(what: str, tensors: Iterable[Any]) -> None:
    """Raises InvalidArgument where one of `tensors` carries a tangent of forward-mode AD."""
    found = _tangent(tensors)
    if found is not None:
        raise _refused(what, *found)


def _tangent(tensors: Iterable[Any]) -> tuple[str, str] | None:
    # Below autograd, where an operator's own code runs, a tensor has no tangent, and torch may not be asked for it.
    if private.dual_level() >= 0 and not private.key_is_excluded(_AUTOGRAD):
        for t in tensors:
            if isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None:
                return ("with a tensor that carries a tangent of forward-mode AD, which it would drop",
                        "pass forward_ad.unpack_dual(t).primal")
    return None


def _refused(what: str, where: str, instead: str) -> InvalidArgument:
    return InvalidArgument(f"{what} was called {where}; {instead}")
