# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The quick way back to the plan of a call like one that was made before.

`_plan.planned` looks at everything that could be wrong with a call, which takes microseconds. Most calls repeat an earlier
one: the same weight, and tensors of the same metadata. torch's own compiled guards know them again in a fraction of that
time. What they do not know goes the long way, as does everything where torch lacks them: a miss costs time, never truth.
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


class Known:
    """A call that was made: its plan and group, and by what a call like it is known."""

    __slots__ = ("plan", "group", "asked", "method", "option", "same", "grad", "tf32", "bytes")

    def __init__(self, plan: Any, group: Group, tensors: tuple, asked: Any, method: Any, option: Any):
        self.plan, self.group, self.asked, self.method, self.option = plan, group, asked, method, option
        given = [t for t in tensors if t is not None]
        self.same = _guards_of(given)
        self.grad = torch.is_grad_enabled()
        self.tf32 = backend().allow_tf32() if given[0].dtype == torch.float32 else None
        self.bytes = [0 if t is None else _check.span(t)[1] - t.data_ptr() for t in tensors]


def find(op: str, x: Any, weight: Any, bias: Any, out: Any, group: Any, method: Any, option: Any = None) -> Known | None:
    """The call that this one repeats, which is then noted as made; None where it must be looked at in full.

    `option`: what else the op takes. It, `group` and `method` count as the same only if they are the same objects.
    """
    me = state()
    try:
        w, b = weight.data_ptr(), 0
        known = me.recent.get((op, w, x.shape, bias is None, out is None))
        if known is None or known.asked is not group or known.method is not method or known.option is not option:
            return None
        a, given = x.data_ptr(), (x, weight)
        if bias is not None:
            b, given = bias.data_ptr(), (x, weight, bias)
        if out is not None:
            start, given = out.data_ptr(), (*given, out)
            of_x, of_weight, of_bias, size = known.bytes
            end = start + size
            if start & _ALIGNED or a < end and start < a + of_x or w < end and start < w + of_weight or (
                    b < end and start < b + of_bias):
                return None                                 # maybe it overlaps an input
        if (a | w | b) & _ALIGNED or not known.same(*given):
            return None
    except (AttributeError, TypeError, RuntimeError):       # no tensors of memory
        return None
    if known.grad is not torch.is_grad_enabled() or known.tf32 is not None and known.tf32 != backend().allow_tf32():
        return None
    if known.group is not me.world and not known.group.usable_in(me.world) or not known.plan.valid():
        return None
    _plan.same_call(known.group, known.plan.agreed)
    return known


def keep(op: str, plan: Any, members: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
         out: torch.Tensor | None, group: Any, method: Any, option: Any = None) -> None:
    """Remembers a call that has been looked at in full."""
    tensors, recent = (x, weight, bias, out), state().recent
    if not _TRUSTED or any(t is not None and t.data_ptr() & _ALIGNED for t in tensors):
        return
    if len(recent) >= _MOST:
        recent.clear()
    recent[op, weight.data_ptr(), x.shape, bias is None, out is None] = Known(plan, members, tensors, group, method, option)
