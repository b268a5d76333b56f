# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev_2d and all_to_all_vdev_2d_offset: what ranks agree on, their plan of one kernel, and the calls."""
from dataclasses import dataclass
from typing import Any

import torch

from triton_dist.ops import registry
from triton_dist.ops.all_to_all_vdev_2d.kernels import all_to_all_vdev_2d_kernel
from triton_dist.ops.all_to_all_vdev_2d.unfused import all_to_all_vdev_2d_unfused
from triton_dist.ops.autograd import vdev_2d as gradients
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.carriers import carrier_of, flat
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.calls.possible import no_kernel
from triton_dist.ops.exchange.sizes import KIB, power_of_two
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, team, workspace

KIND = "chunks by rank and expert"      # of the workspace
MOST_CHUNKS = 2048                      # that a program holds a table of
TILE_BYTES, ROW_BYTES = 32 * KIB, 16 * KIB      # of rows that a program moves at a time
_WARPS = 8
_PACKET = 8                             # bytes
_ALIGNED = 16


@dataclass(frozen=True, kw_only=True)
class Chunks(Agreed):
    """x has m rows of `row` elements, out has room for `capacity` of them; each rank has `experts`."""
    m: int
    row: int
    capacity: int
    experts: int
    align: int


class AllToAllVdev2d(Op):
    """An all-to-all of chunks for each rank and expert. by_rank: from the order of ranks to that of experts, or back."""

    outputs = {"out": "sharded", "out_splits_offsets": "local"}
    methods = ("push", "unfused")
    unfused_in_graphs = False           # the host waits for the sizes

    def __init__(self, name: str, by_rank: bool):
        self.name, self.by_rank = name, by_rank
        self.given = "in_splits" if by_rank else "in_splits_offsets"
        self.tensors = {"x": "sharded", self.given: "local"}
        align = "SymInt? major_align, " if by_rank else ""
        self.schema = f"(Tensor x, Tensor {self.given}, {align}SymInt? capacity, str group, str method) -> (Tensor, Tensor)"
        self.gradient = Gradient(gradients.keep_2d if by_rank else gradients.keep_offset, gradients.backward)
        super().__init__()

    def check(self, group: Group, x: torch.Tensor, splits: torch.Tensor, out: torch.Tensor | None,
              out_splits_offsets: torch.Tensor | None, align: Any, capacity: Any, method: str) -> Chunks:
        checks.tensor("x", x, any_dtype=True)
        if x.ndim == 0:
            raise InvalidArgument("x: expected at least 1 dimension, the first of which is split, found a scalar; pass x.view(1)")
        m, row, width = x.shape[0], x[:1].numel() if x.shape[0] else 0, self._width(splits, group)
        checks.counts(self.given, splits, (width,) if self.by_rank else (2, width))
        align = 1 if align is None else align
        checks.size("major_align", align)
        if align < 1:
            raise InvalidArgument(f"major_align: expected None or at least 1, found {align}")
        if capacity is not None:
            checks.size("capacity", capacity)
        if out is not None and not isinstance(out, torch.Tensor):
            raise InvalidArgument(f"out: expected None or a torch.Tensor, found {type(out).__name__}")
        if capacity is None and out is not None and out.ndim:
            capacity = out.shape[0]
        agreed = self.agreed(m, row, width // group.size, align, capacity, x.dtype, method, group)
        checks.output("out", out, (agreed.capacity, *x.shape[1:]), like=x, any_dtype=True)
        if out_splits_offsets is not None:
            checks.counts("out_splits_offsets", out_splits_offsets, (2, width), like=splits)
        checks.no_overlap("out", out, x=x, out_splits_offsets=out_splits_offsets, **{self.given: splits})
        checks.no_overlap("out_splits_offsets", out_splits_offsets, x=x, **{self.given: splits})
        checks.no_grad(x=x)
        if agreed.method == "unfused" and backend().is_capturing():
            raise InvalidArgument("method: graph capture needs 'push', and that this call has run before, since the host waits "
                                  "for the sizes otherwise")
        return agreed

    def _width(self, splits: Any, group: Group) -> int:
        """Chunks of a rank, E * W."""
        width = splits.shape[-1] if isinstance(splits, torch.Tensor) and splits.ndim else 0
        if not width or width % group.size:
            found = list(splits.shape) if isinstance(splits, torch.Tensor) else type(splits).__name__
            raise InvalidArgument(f"{self.given}: expected {'' if self.by_rank else '2 rows of '}a number for each rank and "
                                  f"expert, a multiple of the {group.size} ranks, found shape {found}")
        return width

    def agreed(self, m: int, row: int, experts: int, align: int, capacity: int | None, dtype: torch.dtype, method: str,
               group: Group) -> Chunks:
        """What ranks agree on. capacity None: all rows fit."""
        if capacity is None:
            capacity = group.size * m + (experts * align if self.by_rank else 0)
        if max(m, capacity, group.size * m + experts * align) >= 2**31:
            raise InvalidArgument(f"x: expected fewer than 2^31 rows over all ranks, found {m} on this one; split the call")
        cells = power_of_two(group.size) * power_of_two(experts)
        many = f"kernels take at most {MOST_CHUNKS} chunks of a rank" if cells > MOST_CHUNKS else None
        chosen, why = self.possible(method, many or no_kernel(group))
        return Chunks(op=self.name, dtype=dtype, method=chosen, why=why, m=m, row=row, capacity=capacity, experts=experts,
                      align=align)

    def candidates(self, agreed: Chunks, group: Group) -> list:
        if not agreed.m * agreed.row:           # on all ranks, so no epoch is taken
            return [Choice("unfused")]
        return [Choice("push" if agreed.method == "auto" else agreed.method)]

    def plan(self, choice: Choice, agreed: Chunks, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Push(agreed, group, self.by_rank)

    def unfused(self, agreed: Chunks, group: Group, x: torch.Tensor, splits: torch.Tensor, out: torch.Tensor,
                out_splits_offsets: torch.Tensor) -> None:
        """The group's own collective."""
        all_to_all_vdev_2d_unfused(x, splits, agreed.align, self.by_rank, group, out, out_splits_offsets)

    def shape_of_out(self, agreed: Chunks, group: Group, x: torch.Tensor, *_: torch.Tensor | None) -> tuple:
        return (agreed.capacity, *x.shape[1:])

    def empty_output(self, index: int, shape: tuple, group: Group, *inputs: torch.Tensor | None) -> torch.Tensor:
        if index == 0:
            return super().empty_output(index, shape, group, *inputs)
        return inputs[1].new_empty((2, inputs[1].shape[-1]))

    def fake(self, **call: Any) -> tuple:
        x, splits, world = call["x"], call[self.given], registry.world_of(call["group"])
        rows, align = call["capacity"], call.get("major_align")
        if rows is None:
            rows = world * x.shape[0] + (splits.shape[-1] // world * (1 if align is None else align) if self.by_rank else 0)
        return x.new_empty((rows, *x.shape[1:])), splits.new_empty((2, splits.shape[-1]))

    def shape(self, agreed: Chunks, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m * group.size, agreed.row, agreed.experts)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Chunks:
        """m rows of all ranks, n elements each; k does not matter: 8 experts a rank."""
        return self.agreed(-(-m // group.size), n, 8, 1, None, dtype, "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        """Chunks that are equal, but for the last one, which gets the rest."""
        rows, chunks = -(-m // group.size), 8 * group.size
        splits = [rows // chunks] * (chunks - 1)
        splits = torch.tensor([*splits, rows - sum(splits)], dtype=torch.int32)
        if not self.by_rank:
            splits = torch.stack([splits, splits.cumsum(0).to(torch.int32) - splits])
        return {"x": (rows, n), self.given: splits.to(backend().device())}

    def recorded(self, given: dict) -> tuple:
        out = given["out"]
        if out is None:
            return registry.call_recorded(self, given)
        given["capacity"] = out.shape[0]
        result, told = registry.call_recorded(self, {**given, "out": None, "out_splits_offsets": None})
        came = gradients.chunk_of_rows(told, out.shape[0])[1]                   # other rows are left as they were
        result = torch.where(came.view(-1, *[1] * (result.ndim - 1)), result, out)
        return registry.written(result, out), registry.written(told, given["out_splits_offsets"])

    def made(self, asked: tuple, group: Any, x: torch.Tensor, splits: torch.Tensor, out: torch.Tensor | None,
             told: torch.Tensor | None) -> tuple | None:
        """A call; None for one that is to be made as an operator."""
        known = self.known(asked, group, x, splits, out, None, None, told)
        if known is None:
            return None
        out = known.new_out() if out is None else out
        told = splits.new_empty((2, splits.shape[-1])) if told is None else told
        known.plan.run(known.group, x, splits, out, told)
        if state().debug and not backend().is_capturing():
            _must_fit(out, told)
        return out, told


class _Push(OnWorkspace):
    """One kernel. Holds all that does not change from call to call."""

    def __init__(self, agreed: Chunks, group: Group, by_rank: bool):
        self.agreed, self.group = agreed, group
        self.dtype, each = carrier_of(agreed.dtype)
        self.carrier, self.row = None if self.dtype == agreed.dtype else self.dtype, each * agreed.row
        size, sms = self.dtype.itemsize, min(backend().num_sms(), MAX_PROGRAMS)
        cols = min(power_of_two(self.row), ROW_BYTES // size)
        rows = min(max(1, TILE_BYTES // (cols * size)), power_of_two(-(-agreed.m // sms)))
        blocks = -(-agreed.m // rows)
        self.programs = min(sms, blocks)
        self.rounds, self.most = -(-blocks // self.programs), min(agreed.m, agreed.capacity)
        ranks, padded = power_of_two(group.size), power_of_two(agreed.experts)
        self.options = dict(BY_RANK=by_rank, EXPERTS=agreed.experts, E_PAD=padded, WORLD=group.size, RANKS=ranks, ROWS=rows,
                            COLS=cols, num_warps=_WARPS, num_stages=1)
        self.head = -(-_PACKET * MOST_CHUNKS // _ALIGNED) * _ALIGNED            # bytes of packets, the same for all calls
        space, members = workspace(group, KIND, CountedWorkspace), group.size

        def writer(flag: int) -> int:
            return min(flag // (space.flags.numel() // members), members - 1)

        space.reserve(self.head + members * self.most * self.row * size, 2 * members * self.programs * self.rounds, writer)
        super().__init__(space)

    def compile(self, x: torch.Tensor, splits: torch.Tensor, out: torch.Tensor, out_splits_offsets: torch.Tensor) -> None:
        space, agreed = self.space, self.agreed
        packets, data = space.data.view(torch.int64), space.data.view(self.dtype)
        source = space.flags.numel() // self.group.size
        rest = (packets, packets.numel() // 2, data[self.head // self.dtype.itemsize:], data.numel() // 2, space.flags, source,
                source // 2, space.control, team(self.group), agreed.m, self.row, agreed.capacity, self.most, self.rounds,
                agreed.align)
        args = (flat(x, self.dtype), splits, flat(out, self.dtype), out_splits_offsets)
        self.launch = backend().prepare(all_to_all_vdev_2d_kernel, (self.programs,), (*args, *rest), self.options, varying=4)

    def args(self, x: torch.Tensor, splits: torch.Tensor, out: torch.Tensor, out_splits_offsets: torch.Tensor) -> tuple:
        if self.carrier is not None:
            x, out = flat(x, self.carrier), flat(out, self.carrier)
        return x.contiguous(), splits, out, out_splits_offsets


ALL_TO_ALL_VDEV_2D = AllToAllVdev2d("all_to_all_vdev_2d", True)
ALL_TO_ALL_VDEV_2D_OFFSET = AllToAllVdev2d("all_to_all_vdev_2d_offset", False)


@ALL_TO_ALL_VDEV_2D.public
def all_to_all_vdev_2d(x: torch.Tensor, in_splits: torch.Tensor, *, major_align: int | None = None, capacity: int | None = None,
                       group: Any = None, out: torch.Tensor | None = None, out_splits_offsets: torch.Tensor | None = None,
                       method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """Sends chunks in the order (rank, expert) to the ranks of their experts, and puts them in the order (expert, source rank).

    The same as torch.ops.symm_mem.all_to_all_vdev_2d, for any tensors. The host does not wait for sizes. Collective over `group`.

    Args:
        x: of any dtype, [rows, ...] on `triton_dist.device()`. Equal shape and dtype on all ranks.
        in_splits: int32 or int64 [W * E] on the device, contiguous: rows for each expert of rank 0, then of rank 1 and so on, one
            chunk after the other in x. E is the number of experts of a rank. Values below 0 count as 0, and what goes beyond x is
            cut off.
        major_align: each expert's rows begin at a multiple of this; None for 1. An expert without rows takes this many, as in
            torch.
        capacity: rows of out if it is allocated. None: W * rows + E * major_align, so that everything fits. Equal on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous [capacity, ...] of x's dtype, or None to allocate. Must not overlap x.
        out_splits_offsets: contiguous [2, W * E] of the dtype of in_splits, or None to allocate.
        method: "push" (one kernel), "unfused" (the group's own collective, for which the host waits) or "auto".

    Returns:
        (out, out_splits_offsets). Row 0 of the latter has the rows of each chunk in the order (expert, source rank), row 1 where
        they begin in out. Rows that do not fit, and rows between chunks, are not written. If rows do not fit, the call raises an
        error with TRITON_DIST_DEBUG=1. The gradient (without `out`) of a row goes back to the rank that sent it; that of a row
        that was cut off is zero. In graphs: run the same call once before capture. Raises InvalidArgument before anything is
        sent.

    Example:
        rows, told = all_to_all_vdev_2d(tokens_by_expert, splits, major_align=128)
        y = experts(rows, told)
        tokens, _ = all_to_all_vdev_2d_offset(y, told, capacity=len(tokens_by_expert))
    """
    done = ALL_TO_ALL_VDEV_2D.made((major_align, capacity, method), group, x, in_splits, out, out_splits_offsets)
    return done if done is not None else ALL_TO_ALL_VDEV_2D.record(
        x=x, in_splits=in_splits, major_align=major_align, capacity=capacity, group=group, out=out,
        out_splits_offsets=out_splits_offsets, method=method)


@ALL_TO_ALL_VDEV_2D_OFFSET.public
def all_to_all_vdev_2d_offset(x: torch.Tensor, in_splits_offsets: torch.Tensor, *, capacity: int | None = None, group: Any = None,
                              out: torch.Tensor | None = None, out_splits_offsets: torch.Tensor | None = None,
                              method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """Sends chunks in the order (expert, rank) to their ranks, and puts them in the order (source rank, expert) without gaps.

    The way back of all_to_all_vdev_2d, the same as torch.ops.symm_mem.all_to_all_vdev_2d_offset. Collective over `group`.

    Args:
        x: as in all_to_all_vdev_2d.
        in_splits_offsets: int32 or int64 [2, E * W] on the device, contiguous: rows for (expert, rank), and where they begin in
            x. There may be gaps between chunks. They must not overlap. What goes beyond x is cut off.
        capacity: rows of out if it is allocated. None: W * rows, so that everything fits. Equal on all ranks.
        group, out, method: as in all_to_all_vdev_2d.
        out_splits_offsets: contiguous [2, W * E] of the dtype of in_splits_offsets, or None to allocate.

    Returns:
        (out, out_splits_offsets), the latter in the order of (source rank, expert). For the rest see all_to_all_vdev_2d.
    """
    done = ALL_TO_ALL_VDEV_2D_OFFSET.made((1, capacity, method), group, x, in_splits_offsets, out, out_splits_offsets)
    return done if done is not None else ALL_TO_ALL_VDEV_2D_OFFSET.record(
        x=x, in_splits_offsets=in_splits_offsets, capacity=capacity, group=group, out=out, out_splits_offsets=out_splits_offsets,
        method=method)


def _must_fit(out: torch.Tensor, told: torch.Tensor) -> None:
    """Raises where rows were cut off. Waits for the device."""
    backend().synchronize()
    counts, offsets = told
    needed = int(torch.where(counts > 0, counts + offsets, 0).max())
    if needed > out.shape[0]:
        raise InvalidArgument(f"capacity: expected room for all rows, found {out.shape[0]} for {needed} rows; pass more")


# The gradients as operators of their own: they send rows back.
ALL_TO_ALL_VDEV_2D_BACKWARD = Operator(
    "all_to_all_vdev_2d_backward",
    "(Tensor grad, Tensor splits, Tensor told, SymInt rows, bool by_rank, str group, str method) -> Tensor",
    gradients.returned,
    lambda grad, splits, told, rows, by_rank, group, method: grad.new_empty((rows, *grad.shape[1:])))
