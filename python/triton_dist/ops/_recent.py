# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The quick way back to the plan of a call like one that was made before.

`_plan.planned` looks at everything that could be wrong with a call, which takes microseconds. Most calls repeat an earlier
one: tensors of the same metadata. torch's own compiled guards know them again in a fraction of that time. What they do not
know goes the long way, as does everything where torch lacks them: a miss costs time, never truth.
"""
from typing import Any

import torch

from triton_dist.ops import _check, _plan
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state

try:                                                        # types, dispatch keys, dtypes, devices, sizes, strides, grad
    from torch._C._dynamo.guards import TensorGuards
except ImportError:
    TensorGuards = None


def _guards_of(tensors: list) -> Any:
    """A function that tells whether tensors are like these."""
    return TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                        dynamic_dims_strides=[list(t.stride()) for t in tensors]).check


def _trusted() -> bool:
    """Whether this torch's guards, which are its own affair, do what is wanted of them."""
    try:
        like, *other = (torch.empty(*size, dtype=dtype, device="cpu") for size, dtype in (
            ((2, 3), torch.float), ((3, 3), torch.float), ((3, 2), torch.float), ((2, 3), torch.half)))
        same = _guards_of([like])
        different = [*other, other[1].t(), torch._neg_view(like), like.detach().requires_grad_()]
        return same(torch.empty_like(like)) and not any(same(t) for t in different)
    except Exception:                                       # of an interface that has changed anything may come
        return False


_TRUSTED = _trusted()
_MOST = 4096
_ALIGNED = 15                                               # plans may rest on the last four bits of an address
_address = torch.Tensor.data_ptr


class Known:
    """A call that was made: its plan and group, and by what a call like it is known.

    at: addresses of its tensors, or of those of the last call that was as good. careful: what neither they nor guards tell.
    """

    __slots__ = ("plan", "group", "key", "asked", "same", "at", "careful", "tf32", "wants_grad", "relations", "compared")

    def __init__(self, plan: Any, group: Group):
        self.plan, self.group = plan, group

    def learn(self, asked: Any, given: list, outputs: list) -> None:
        """Makes it known by the tensors `given`, of which those at the indices `outputs` are written to."""
        self.key, self.asked, self.compared = self.group.key, asked, backend().compares_calls   # `asked` lives: its id is its own
        self.same, self.at = _guards_of(given), tuple(t.data_ptr() for t in given)
        self.tf32 = backend().allow_tf32() if given[0].dtype == torch.float32 else None
        self.wants_grad = any(t.requires_grad for t in given)           # so it was called without gradients
        self.careful = self.wants_grad or self.tf32 is not None
        self.relations = [_relation(o, i, _check.span(given[o]), _check.span(given[i]))
                          for o in outputs for i in range(len(given)) if i != o]

    def allowed(self) -> bool:
        """Whether gradients and tf32 are as they were."""
        return not (self.wants_grad and torch.is_grad_enabled()) and self.tf32 in (None, backend().allow_tf32())

    def fits(self, at: list) -> bool:
        """Whether tensors at these addresses are aligned, and lie in each other's memory, as those of the call were."""
        bits = 0
        for address in at:
            bits |= address
        if bits & _ALIGNED:
            return False
        for o, i, least, most, distance in self.relations:
            found = at[o] - at[i]
            if found != distance and (distance is not None or least < found < most):
                return False
        self.at = at
        return True


def _relation(o: int, i: int, output: tuple, other: tuple) -> tuple:
    """(index of an output, of another tensor, (between which distances of their addresses they overlap), distance).

    The distance is given where they do overlap, as the op allows in the very same way only.
    """
    least, most, distance = output[0] - output[1], other[1] - other[0], output[0] - other[0]
    return o, i, least, most, distance if least < distance < most else None


def find(how: tuple, group: Any, x: Any, weight: Any, *others: Any) -> Known | None:
    """The call that this one repeats, which is then noted as made; None where it must be looked at in full.

    `how`: the op, and what else it was given, hashable, with which of the optional tensors among `others` are there, not None.
    No tensor twice: where an output may be an input, `how` says so, and None stands for the output.
    """
    me = state()
    try:
        if weight is None:
            key, given, at = (how, id(group)), (x,), (x.data_ptr(),)
        else:
            w = weight.data_ptr()
            key, given, at = (how, id(group), w), (x, weight), (x.data_ptr(), w)
        for t in others:
            if t is not None:
                given += t,
                at += t.data_ptr(),
        known = me.recent.get(key)
        if known is None or not known.same(*given):
            known = me.recent.get((key, x.shape))
            if known is None or not known.same(*given):
                return None
            me.recent[key] = known
        if at != known.at and not known.fits(at):
            return None
    except (AttributeError, TypeError, RuntimeError):       # no tensors of memory
        return None
    members = known.group
    if known.careful and not known.allowed() or members is not me.world and not members.usable_in(me.world) or (
            not known.plan.valid()):
        return None
    if known.compared or me.debug or me.refused or me.apart:
        _plan.same_call(members, known.plan.agreed)
    else:
        me.calls[known.key] += 1
    return known


def keep(how: tuple, group: Any, plan: Any, members: Group, inputs: tuple, *outputs: Any) -> Known:
    """A call that has been looked at in full, remembered: what `find` was asked, with `outputs` the last of its tensors."""
    known, recent, (x, weight, *_) = Known(plan, members), state().recent, inputs
    given = list({id(t): t for t in (*inputs, *outputs) if t is not None}.values())
    # Not what is captured: a plan made there is one for want of a better one, which may be made before the next capture.
    if _TRUSTED and not backend().is_capturing() and not any(t.data_ptr() & _ALIGNED for t in given):
        if len(recent) >= _MOST:
            recent.clear()
        known.learn(group, given, [i for i, t in enumerate(given) if any(t is o for o in outputs)])
        key = (how, id(group)) if weight is None else (how, id(group), weight.data_ptr())
        recent[key] = recent[key, x.shape] = known
    return known
