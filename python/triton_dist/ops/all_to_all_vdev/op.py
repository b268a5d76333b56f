# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev: plan and dispatch."""
from typing import Any, Callable

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.exchange import sizes
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.all_to_all_vdev.kernels import all_to_all_vdev_kernel
from triton_dist.ops.all_to_all_vdev.reference import all_to_all_vdev_reference
from triton_dist.ops.registry import record
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace, team, workspace

METHODS = ("push", "nccl")
_PAIR = 2 * sizes.WORD            # bytes of two packets
_GRAIN = 1024                           # bytes of which the head of a half is a multiple


def all_to_all_vdev(x: torch.Tensor, in_splits: torch.Tensor, *, capacity: int | None = None, group: Any = None,
                    out: torch.Tensor | None = None, out_splits_offsets: torch.Tensor | None = None,
                    method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """All-to-all of as many rows as a tensor on the device says: no host waits for it. Collective over `group`.

    Args:
        x: of any dtype, [rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        in_splits: int32 or int64 [W] on the device, contiguous: how many rows of x each rank gets, one rank's behind another's.
            Values below 0 count as 0, and what goes beyond x is cut off.
        capacity: rows of out where it is allocated; None: W * rows, for which everything fits. Equal on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [capacity, ...] of x's dtype, or None to allocate. Must not overlap x.
        out_splits_offsets: contiguous [2, W] of the dtype of in_splits, or None to allocate.
        method: "push" (one kernel), "nccl" (the group's own collective, for which the host waits for the splits) or "auto" (push
            where it can run). The same on all ranks.

    Returns (out, out_splits_offsets). Row 0 of out_splits_offsets has the rows that each rank has sent, row 1 where they begin in
    out. What does not fit is not written: rank r's rows were cut off where offset + split > capacity; under TRITON_DIST_DEBUG=1
    the call then raises. Rows of out behind the last one that came are left as they were.
    The gradient (without `out`) of a row goes back to the rank that it came from; that of a row that was cut off, or that no rank
    got, is zero.
    In graphs: run the same call once before capture. Raises InvalidArgument before anything is sent.
    """
    known = _CALLS.known((capacity, method), group, x, in_splits, out, second=out_splits_offsets)
    if known is None:
        return record(all_to_all_vdev, x, in_splits, capacity=capacity, group=group, out=out,
                      out_splits_offsets=out_splits_offsets, method=method)
    if out is None:
        out = known.new_out()
    if out_splits_offsets is None:
        out_splits_offsets = torch.empty((2, known.group.size), dtype=in_splits.dtype, device=x.device)
    known.plan.run(known.group, x, in_splits, out, out_splits_offsets)
    if state().debug and not backend().is_capturing():
        _must_fit(x, in_splits, out, out_splits_offsets)
    return out, out_splits_offsets


def _must_fit(x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor, out_splits_offsets: torch.Tensor) -> None:
    """Raises where rows were cut off. Waits for the device."""
    backend().synchronize()
    splits, came = in_splits.tolist(), sum(out_splits_offsets[0].tolist())
    if min(splits) < 0 or sum(splits) > x.shape[0]:
        raise InvalidArgument(f"in_splits: expected rows of x, of which there are {x.shape[0]}, found {splits}")
    if came > out.shape[0]:
        raise InvalidArgument(f"capacity: expected room for all rows, found {out.shape[0]} for {came} rows; pass more")


def _checked(group: Group, x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor | None,
             out_splits_offsets: torch.Tensor | None, capacity: Any, method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.tensor("x", x, any_dtype=True)
    if x.ndim == 0:
        raise InvalidArgument("x: expected at least 1 dimension, the first of which is split, found a scalar; pass x.view(1)")
    m, row = x.shape[0], x[:1].numel() if x.shape[0] else 0
    checks.counts("in_splits", in_splits, (group.size,))
    if capacity is not None:
        checks.size("capacity", capacity)
    if out is not None and not isinstance(out, torch.Tensor):
        raise InvalidArgument(f"out: expected None or a torch.Tensor, found {type(out).__name__}")
    given = capacity if capacity is not None else out.shape[0] if out is not None and out.ndim else group.size * m
    checks.output("out", out, (given, *x.shape[1:]), like=x, any_dtype=True)
    if out_splits_offsets is not None:
        checks.counts("out_splits_offsets", out_splits_offsets, (2, group.size), like=in_splits)
    checks.no_overlap("out", out, x=x, in_splits=in_splits, out_splits_offsets=out_splits_offsets)
    checks.no_overlap("out_splits_offsets", out_splits_offsets, x=x, in_splits=in_splits)
    checks.no_grad(x=x)
    if max(m, given, group.size * m) >= 2**31:
        raise InvalidArgument(f"x: expected fewer than 2^31 rows over all ranks, found {m} on this one; split the call")
    chosen = sizes.choose("all_to_all_vdev", method, METHODS, group, given * row * x.element_size())
    if chosen == "nccl" and backend().is_capturing():
        raise InvalidArgument("method: graph capture needs 'push', and that this call has run before, since the host waits for "
                              "the splits otherwise")
    return dict(op="all_to_all_vdev", m=m, row=row, capacity=given, dtype=x.dtype, method=chosen)


def _make_plan(group: Group, agreed: dict, x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor | None,
               out_splits_offsets: torch.Tensor | None) -> Any:
    """Decides how calls like this one run. Collective at the first use of a shape."""
    meet, shape = _plan.agree_once(group, agreed), (agreed["capacity"], *x.shape[1:])
    if not agreed["m"]:
        plan: Any = _Empty()
    elif agreed["method"] == "nccl":
        plan = _Library()
    else:
        out = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else out
        told = torch.empty((2, group.size), dtype=in_splits.dtype, device=x.device)
        told = told if out_splits_offsets is None else out_splits_offsets
        plan = _Push(x.contiguous(), in_splits, out, told, group, agreed, meet)
    plan.out_shape = shape
    return plan


class _Empty(_plan.Plan):
    """No rows on any rank."""

    def run(self, group, x, in_splits, out, out_splits_offsets):
        backend().before_torch()
        out_splits_offsets.zero_()


class _Library(_plan.Plan):
    """The group's own collective."""

    captured = False

    def run(self, group, x, in_splits, out, out_splits_offsets):
        backend().before_torch()
        all_to_all_vdev_reference(x, in_splits, group, out, out_splits_offsets)


class _Push(_plan.OnWorkspace):
    """One kernel. Holds all that does not change from call to call."""

    def __init__(self, x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor, out_splits_offsets: torch.Tensor,
                 group: Group, agreed: dict, meet: Callable[[], None]):
        carrier, each = carrier_of(x.dtype)
        self.carrier = None if carrier == x.dtype else carrier
        m, row, capacity = agreed["m"], each * agreed["row"], agreed["capacity"]
        x, out = flat(x, carrier), flat(out, carrier)
        _, programs, rounds, options = sizes.grid_of_blocks(max(1, min(m, capacity) * row), x.dtype, group.size)
        head = -(-_PAIR * options["RANKS"] ** 2 // _GRAIN) * _GRAIN           # bytes of packets, which begin a half
        space = workspace(group, "rows by splits", CountedWorkspace)
        space.reserve(head + capacity * row * x.element_size(), rounds * programs * group.size,
                      writer=lambda flag: flag % group.size)
        super().__init__(space)
        slots, data = space.data.view(torch.int64), space.data.view(x.dtype)
        rest = (slots, slots.numel() // 2, data[head // x.element_size():], data.numel() // 2, space.flags,
                space.control, team(group), m, row, capacity)
        self.launch = backend().prepare(all_to_all_vdev_kernel, (programs,), (x, in_splits, out, out_splits_offsets, *rest),
                                        dict(options, num_stages=1), varying=4)
        meet()

    def args(self, x, in_splits, out, out_splits_offsets) -> tuple:
        if self.carrier is not None:
            x, out = flat(x, self.carrier), flat(out, self.carrier)
        return x.contiguous(), in_splits, out, out_splits_offsets


_CALLS = _recent.Calls("all_to_all_vdev", "x weight out second", _checked, _make_plan, "nccl")
