# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev: what ranks agree on, its plan of one kernel, and the call."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops import registry
from triton_dist.ops.all_to_all_vdev.kernels import all_to_all_vdev_kernel
from triton_dist.ops.all_to_all_vdev.unfused import all_to_all_vdev_unfused
from triton_dist.ops.autograd import vdev as gradients
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.exchange import sizes
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace, team, workspace

_PAIR = 2 * sizes.WORD                  # bytes of two packets
_GRAIN = 1024                           # bytes of which the head of a half is a multiple


@dataclass(frozen=True, kw_only=True)
class Splits(Agreed):
    """x has m rows of `row` elements, and out has room for `capacity` of them."""
    m: int
    row: int
    capacity: int


class AllToAllVdev(Op):
    """An all-to-all of as many rows as a tensor on the device says."""

    name, tensors = "all_to_all_vdev", {"x": "sharded", "in_splits": "local"}
    outputs = {"out": "sharded", "out_splits_offsets": "local"}
    methods = ("push", "unfused")
    schema = "(Tensor x, Tensor in_splits, SymInt? capacity, str group, str method) -> (Tensor, Tensor)"
    gradient = Gradient(gradients.keep, gradients.backward)
    steps = {64: ((1 << 62, "push"),)}
    unfused_in_graphs = False               # the host waits for the splits

    def check(self, group: Group, x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor | None,
              out_splits_offsets: torch.Tensor | None, capacity: Any, method: str) -> Splits:
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
        agreed = self._agreed(m, row, given, x.dtype, method, group)
        if agreed.method == "unfused" and backend().is_capturing():
            raise InvalidArgument("method: graph capture needs 'push', and that this call has run before, since the host waits "
                                  "for the splits otherwise")
        return agreed

    def _agreed(self, m: int, row: int, capacity: int, dtype: torch.dtype, method: str, group: Group) -> Splits:
        chosen, why = sizes.choose(self, method, group, capacity * row * dtype.itemsize)
        return Splits(op=self.name, dtype=dtype, method=chosen, why=why, m=m, row=row, capacity=capacity)

    def candidates(self, agreed: Splits, group: Group) -> Sequence[Choice]:
        return [Choice(agreed.method if agreed.m else "unfused")]

    def plan(self, choice: Choice, agreed: Splits, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Push(agreed, group)

    def unfused(self, agreed: Splits, group: Group, x: torch.Tensor, in_splits: torch.Tensor, out: torch.Tensor,
                out_splits_offsets: torch.Tensor) -> None:
        """The group's own collective."""
        if agreed.m:
            all_to_all_vdev_unfused(x, in_splits, group, out, out_splits_offsets)
        else:                                       # no rows on any rank
            out_splits_offsets.zero_()

    def shape_of_out(self, agreed: Splits, group: Group, x: torch.Tensor, *_: torch.Tensor | None) -> tuple:
        return (agreed.capacity, *x.shape[1:])

    def empty_output(self, index: int, shape: tuple, group: Group, *inputs: torch.Tensor | None) -> torch.Tensor:
        if index == 0:
            return super().empty_output(index, shape, group, *inputs)
        return torch.empty((2, group.size), dtype=inputs[1].dtype, device=inputs[1].device)

    def fake(self, **call: Any) -> tuple:
        x, world, capacity = call["x"], registry.world_of(call["group"]), call["capacity"]
        rows = world * x.shape[0] if capacity is None else capacity
        return x.new_empty((rows, *x.shape[1:])), call["in_splits"].new_empty((2, world))

    def shape(self, agreed: Splits, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m * group.size, agreed.row, 1)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Splits:
        rows = -(-m // group.size)
        return self._agreed(rows, n, rows, dtype, "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        """Splits that are equal, but for the last rank's, which gets the rest."""
        rows = m // group.size
        splits = [rows // group.size] * (group.size - 1)
        splits = torch.tensor([*splits, rows - sum(splits)], dtype=torch.int32).to(backend().device())
        return {"x": (rows, n), "in_splits": splits, "capacity": rows}

    def recorded(self, given: dict) -> tuple:
        out = given["out"]
        if out is None:
            return registry.call_recorded(self, given)
        given["capacity"] = out.shape[0]
        result, told = registry.call_recorded(self, {**given, "out": None, "out_splits_offsets": None})
        came = torch.arange(result.shape[0], device=out.device) < told[0].sum()         # other rows are left as they were
        result = torch.where(came.view(-1, *[1] * (result.ndim - 1)), result, out)
        return registry.written(result, out), registry.written(told, given["out_splits_offsets"])


class _Push(OnWorkspace):
    """One kernel. Holds all that does not change from call to call."""

    def __init__(self, agreed: Splits, group: Group):
        self.agreed, self.group = agreed, group
        self.dtype, each = carrier_of(agreed.dtype)
        self.carrier, self.row = None if self.dtype == agreed.dtype else self.dtype, each * agreed.row
        elements = max(1, min(agreed.m, agreed.capacity) * self.row)
        _, self.programs, rounds, self.options = sizes.grid_of_blocks(elements, self.dtype, group.size)
        self.head = -(-_PAIR * self.options["RANKS"] ** 2 // _GRAIN) * _GRAIN           # bytes of packets, which begin a half
        space = workspace(group, "rows by splits", CountedWorkspace)
        space.reserve(self.head + agreed.capacity * self.row * self.dtype.itemsize, rounds * self.programs * group.size,
                      writer=lambda flag: flag % group.size)
        super().__init__(space)

    def compile(self, x, in_splits, out, out_splits_offsets):
        space, slots, data = self.space, self.space.data.view(torch.int64), self.space.data.view(self.dtype)
        rest = (slots, slots.numel() // 2, data[self.head // self.dtype.itemsize:], data.numel() // 2, space.flags,
                space.control, team(self.group), self.agreed.m, self.row, self.agreed.capacity)
        args = (flat(x, self.dtype), in_splits, flat(out, self.dtype), out_splits_offsets)
        self.launch = backend().prepare(all_to_all_vdev_kernel, (self.programs,), (*args, *rest),
                                        dict(self.options, num_stages=1), varying=4)

    def args(self, x, in_splits, out, out_splits_offsets) -> tuple:
        if self.carrier is not None:
            x, out = flat(x, self.carrier), flat(out, self.carrier)
        return x.contiguous(), in_splits, out, out_splits_offsets


ALL_TO_ALL_VDEV = AllToAllVdev()


@ALL_TO_ALL_VDEV.public
def all_to_all_vdev(x: torch.Tensor, in_splits: torch.Tensor, *, capacity: int | None = None, group: Any = None,
                    out: torch.Tensor | None = None, out_splits_offsets: torch.Tensor | None = None,
                    method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """All-to-all of as many rows as a tensor on the device says: no host waits for it. Collective over `group`.

    Args:
        x: of any dtype, [rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        in_splits: int32 or int64 [W] on the device, contiguous: how many rows of x each rank gets, in the order of ranks.
            Values below 0 count as 0, and rows beyond x are ignored.
        capacity: rows of out if it is allocated. None: W * rows, so that everything fits. Equal on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [capacity, ...] of x's dtype, or None to allocate. Must not overlap x.
        out_splits_offsets: contiguous [2, W] of the dtype of in_splits, or None to allocate.
        method: "push" (one kernel), "unfused" (the group's own collective, for which the host waits for the splits) or "auto"
            (push where it can run). The same on all ranks.

    Returns (out, out_splits_offsets). Row 0 of out_splits_offsets has the number of rows that each rank has sent, row 1 where
    they begin in out. Rows that do not fit are not written: rows of rank r were cut off if offset + split > capacity. With
    TRITON_DIST_DEBUG=1 the call then raises an error. Rows of out after the last one that came are not written.
    The gradient (without `out`) of a row goes back to the rank that sent it. The gradient of a row that no rank got is zero.
    In graphs: run the same call once before capture. Raises InvalidArgument before anything is sent.

    Example:
        received, told = all_to_all_vdev(tokens, splits)    # splits int32 [W] on the device
        rows = received[:told[0].sum()]
    """
    known = ALL_TO_ALL_VDEV.known((capacity, method), group, x, in_splits, out, None, None, out_splits_offsets)
    if known is None:
        return ALL_TO_ALL_VDEV.record(x=x, in_splits=in_splits, capacity=capacity, group=group, out=out,
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


# The gradient of all_to_all_vdev as an operator of its own: it sends rows back.
ALL_TO_ALL_VDEV_BACKWARD = Operator(
    "all_to_all_vdev_backward", "(Tensor grad, Tensor out_splits_offsets, SymInt rows, str group, str method) -> Tensor",
    gradients.returned,
    lambda grad, out_splits_offsets, rows, group, method: grad.new_empty((rows, *grad.shape[1:])))
