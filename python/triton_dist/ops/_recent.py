# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The way from a call of an op to its plan, a quick one for calls like those that were made before.

`_plan.planned` looks at everything that could be wrong with a call, which takes microseconds. Most calls repeat an earlier
one: tensors of the same metadata. torch's own compiled guards know them again in a fraction of that time. What they do not
know goes the long way, as does everything where torch lacks them: a miss costs time, never truth.
"""
from threading import get_ident
from typing import Any, Callable, Sequence

import torch

from triton_dist.compat.torch import TensorGuards, dispatch_modes as _modes, dual_level, neg_view
from triton_dist.ops import _plan
from triton_dist.ops.calls import checks
from triton_dist.runtime import ambient, threads
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state


def _guards_of(tensors: Sequence) -> Any:
    """A function that tells whether tensors are like these."""
    return TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                        dynamic_dims_strides=[list(t.stride()) for t in tensors]).check


def _trusted() -> bool:
    """Whether this torch's guards, which are its own affair, do what is wanted of them."""
    try:
        like, *other = (torch.empty(*size, dtype=dtype, device="cpu") for size, dtype in (
            ((2, 3), torch.float), ((3, 3), torch.float), ((3, 2), torch.float), ((2, 3), torch.half)))
        same = _guards_of([like])
        different = [*other, other[1].t(), neg_view(like), like.detach().requires_grad_()]
        return same(torch.empty_like(like)) and not any(same(t) for t in different)
    except Exception:                                       # of an interface that has changed anything may come
        return False


_TRUSTED = _trusted()
_MOST = 4096
_ALIGNED = 15                                               # plans may rest on the last four bits of an address


class Known:
    """A call that was made: its plan and group, and by what a call like it is known.

    careful: whether more must be asked than what tensors and their addresses tell.
    autocast: the dtype that autocast asked for, where the op follows it.
    """

    __slots__ = ("plan", "group", "_new_out", "same", "count", "careful", "tf32", "wants_grad", "relations", "compared",
                 "autocast", "device")

    def __init__(self, plan: _plan.Plan, group: Group, dtype: torch.dtype, autocast: torch.dtype | None):
        self.plan, self.group, self.autocast = plan, group, autocast
        self._new_out = backend().maker(plan.out_shape, autocast or dtype)

    def new_out(self) -> torch.Tensor:
        """A tensor for the output of a call that has been noted."""
        try:
            return self._new_out()
        except BaseException as error:
            _plan.withdraw(self.group, self.plan.agreed["op"], error)
            raise

    def learn(self, given: tuple, outputs: list) -> None:
        """Makes it known by the tensors `given`, of which those at the indices `outputs` are written to."""
        me = state()
        self.count, self.compared = me.calls.setdefault(self.group.key, [0]), backend().compares_calls or me.debug
        self.same = _guards_of(given)
        self.tf32 = backend().allow_tf32() if given[0].dtype == torch.float32 else None
        self.wants_grad = any(t.requires_grad for t in given)           # so it was called without gradients
        self.device = given[0].device
        self.careful = (self.compared or self.wants_grad or self.tf32 is not None or self.group is not me.world
                        or self.plan.captured is not None or self.autocast is not None)
        self.relations = [_relation(o, i, checks.span(given[o]), checks.span(given[i]))
                          for o in outputs for i in range(len(given)) if i != o]

    def allowed(self) -> bool:
        """Whether gradients, tf32, autocast's dtype, graph capture and the group are as they were."""
        world = state().world
        return (not (self.wants_grad and torch.is_grad_enabled()) and self.tf32 in (None, backend().allow_tf32())
                and (self.autocast is None or self.autocast is ambient.autocast_dtype(self.device))
                and (self.group is world or self.group.usable_in(world)) and self.plan.serves())

    def fits(self, at: list) -> bool:
        """Whether tensors at these addresses are aligned, and lie in each other's memory, as those of the call were."""
        if any(address & _ALIGNED for address in at):
            return False
        for o, i, least, most, distance in self.relations:
            found = at[o] - at[i]
            if found != distance and (distance is not None or least < found < most):
                return False
        return True


def _relation(o: int, i: int, output: tuple, other: tuple) -> tuple:
    """(index of an output, of another tensor, (between which distances of their addresses they overlap), distance).

    The distance is given where they do overlap, as the op allows in the very same way only.
    """
    least, most, distance = output[0] - output[1], other[1] - other[0], output[0] - other[0]
    return o, i, least, most, distance if least < distance < most else None


class Calls:
    """The calls of an op.

    tensors: names of those that it takes, of x, weight, out, bias, residual and second (another output), in the order in which
    check(group, *tensors, *asked) and make(group, agreed, *tensors) have them; these are as in `_plan.planned`.
    anywhere: the method that needs no symmetric memory, which "auto" falls back on.
    Every op with calls has an operator (`registry.py`), which takes calls that autograd or a graph is to follow.
    autocasts: whether the op follows autocast, as a linear layer does. Others leave dtypes alone, as torch.distributed does.
    """

    def __init__(self, op: str, tensors: str, check: Callable[..., dict], make: Callable[..., _plan.Plan],
                 anywhere: str = "unfused", autocasts: bool = False):
        self.op, self._tensors, self._check, self._make = op, tensors.split(), check, make
        self._anywhere, self._autocasts = anywhere, autocasts

    def known(self, asked: tuple, group: Any, x: Any, weight: Any = None, out: Any = None, bias: Any = None, residual: Any = None,
              second: Any = None) -> Known | None:
        """The plan and group of a call, which is noted as made. Raises InvalidArgument for one that is refused.

        None for a call that is to be made as an operator: a gradient is wanted, or a graph is being recorded.
        asked: what else it was given, hashable. An output may be the residual, or x where there is none; no other two tensors may
        be one.
        """
        if state().thread != get_ident():
            threads.take_turn()
        key, given = None, ()
        if _modes() or dual_level() >= 0:          # which guards do not see
            return self._looked_at(key, given, asked, group, dict(
                x=x, weight=weight, out=out, bias=bias, residual=residual, second=second))
        try:
            key = (self.op, asked, group, x.data_ptr(), None if weight is None else weight.data_ptr(),
                   None if out is None else out.data_ptr())
            if out is None or out is residual or residual is None and out is x:
                given = (x,) if weight is None else (x, weight)
            else:
                given = (x, out) if weight is None else (x, weight, out)
            if bias is not None:
                key, given = (*key, "bias", bias.data_ptr()), (*given, bias)
            if residual is not None:
                key, given = (*key, "residual", residual.data_ptr()), (*given, residual)
            if second is not None:
                key, given = (*key, "second", second.data_ptr()), given if second is residual else (*given, second)
            found = state().recent.get(key)
            if found is None or not found.same(*given):
                found = _elsewhere(key, given)
        except (AttributeError, TypeError, RuntimeError):       # no tensors of memory
            found = None
        if found is None or found.careful and not found.allowed():
            return self._looked_at(key, given, asked, group, dict(
                x=x, weight=weight, out=out, bias=bias, residual=residual, second=second))
        if found.compared:
            _plan.same_call(found.group, found.plan.agreed)
        else:
            found.count[0] += 1
        return found

    def _looked_at(self, key: tuple | None, given: tuple, asked: tuple, group: Any, named: dict) -> Known | None:
        """A call that repeats none, checked, planned and remembered."""
        if _modes() and ambient.is_recorded(named.values()):
            return None
        members, tensors, outputs = resolve(group), [named[name] for name in self._tensors], (named["out"], named["second"])
        _plan.checked(self.op, members, lambda: ambient.refuse(self.op, tensors))
        if wants_grad(tensors) and named["out"] is named["second"] is None:
            return None
        dtype = ambient.autocast_dtype(backend().device()) if self._autocasts else None
        if dtype is not None:
            tensors = [t if any(t is out for out in outputs) else ambient.cast(t, dtype) for t in tensors]

        def make(agreed: dict) -> _plan.Plan:
            return _plan.made(self.op, members, agreed, "auto" in asked and self._anywhere,
                              lambda found: self._make(members, found, *tensors))
        plan = _plan.planned(self.op, members, (_plan.signature(tensors, outputs), *map(repr, asked)),
                             lambda: self._check(members, *tensors, *asked), make)
        if ambient.is_marked():
            plan = _plan.Wrapped(plan, dtype)
        known = Known(plan, members, named["x"].dtype, dtype)
        # Not what is captured: a plan made there is one for want of a better one, which may be made before the next capture.
        if (key is not None and _TRUSTED and not backend().is_capturing() and plan.valid()
                and not any(t.data_ptr() & _ALIGNED for t in given)):
            known.learn(given, [i for i, t in enumerate(given) if any(t is out for out in outputs)])
            _remember(key, known)
            _remember(_by_shapes(key, given), known)
        return known


def wants_grad(tensors: Sequence) -> bool:
    """Whether autograd is to follow a call with `tensors`."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _elsewhere(key: tuple, given: tuple) -> Known | None:
    """The call that was made with tensors like `given`, at other addresses."""
    known = state().recent.get(_by_shapes(key, given))
    if known is None or not known.same(*given) or not known.fits([t.data_ptr() for t in given]):
        return None
    _remember(key, known)
    return known


def _by_shapes(key: tuple, given: tuple) -> tuple:
    """`key` with shapes in place of addresses."""
    return *key[:3], *(0 if isinstance(part, int) else part for part in key[3:]), *(t.shape for t in given)


def _remember(key: tuple, known: Known) -> None:
    recent = state().recent
    if len(recent) >= _MOST:
        recent.clear()
    recent[key] = known
