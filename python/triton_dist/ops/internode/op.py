# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather_2d and reduce_scatter_2d: what ranks agree on, their plan of one kernel, and the calls."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops import products, registry
from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.calls import checks, possible
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.internode.kernels import all_gather_kernel, reduce_scatter_kernel
from triton_dist.ops.internode.pieces import OPTIONS, Pieces
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team, workspace


@dataclass(frozen=True, kw_only=True)
class Matrix(Agreed):
    """x is [m, k] on each rank. sms: of the device."""
    m: int
    k: int
    sms: int


class TwoLevel(Op):
    """A collective over nodes in two levels."""

    methods = ("two_level", "unfused")
    schema = "(Tensor x, str group) -> Tensor"
    kernel: Any

    def chunks(self, ranks: int, nodes: int) -> int:
        """How many parts of a rank a half of the workspace holds."""
        raise NotImplementedError

    def part(self, agreed: Matrix, group: Group) -> int:
        """Elements of a part of a rank."""
        raise NotImplementedError

    def check(self, group: Group, x: torch.Tensor, out: torch.Tensor | None) -> Matrix:
        checks.matrix("x", x)
        self.check_rows(x.shape[0], group)
        shape = self.out_shape(group.size, x)
        checks.rows("x", shape[0])
        checks.output("out", out, shape, like=x)
        checks.no_overlap("out", out, x=x)
        checks.no_grad(x=x)
        return self._agreed(*x.shape, x.dtype, group)

    def check_rows(self, rows: int, group: Group) -> None:
        """Refuses a number of rows of x."""

    def _agreed(self, m: int, k: int, dtype: torch.dtype, group: Group) -> Matrix:
        apart = possible.across_nodes(group)
        reason = possible.no_kernel_over_nodes(group, False) if apart else "all ranks are on one node"
        method, why = self.possible("auto", reason)
        if apart and why:
            self.warn_unfused(why)
        return Matrix(op=self.name, dtype=dtype, method=method, why=why, m=m, k=k, sms=backend().num_sms())

    def candidates(self, agreed: Matrix, group: Group) -> Sequence[Choice]:
        return [Choice("two_level" if agreed.method == "auto" and self.part(agreed, group) else "unfused")]

    def plan(self, choice: Choice, agreed: Matrix, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return _Plan(self, agreed, group)

    def unfused(self, agreed: Matrix, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        """torch's collective."""
        if out.numel():
            self.library(group, out, x.contiguous())

    def library(self, group: Group, out: torch.Tensor, x: torch.Tensor) -> None:
        """The group's own collective."""
        raise NotImplementedError

    def traffic(self, agreed: Matrix, group: Group) -> dict[int, int]:
        """To the equal place of each other node, and what comes so, or is to leave so, to each rank of the own."""
        return products.gathered_over_nodes(group, self.part(agreed, group) * agreed.dtype.itemsize)

    def shape(self, agreed: Matrix, group: Group, local: int) -> Shape:
        return Shape(self.name, str(agreed.dtype).removeprefix("torch."), agreed.m, agreed.k, 1)


class AllGather2d(TwoLevel):
    """Shards by SHMEM between nodes, by loads and stores inside each."""

    name = "all_gather_2d"
    gradient = Gradient(gradients.keep, gradients.all_gather_2d_backward)
    kernel = all_gather_kernel

    def chunks(self, ranks: int, nodes: int) -> int:
        return ranks

    def part(self, agreed: Matrix, group: Group) -> int:
        return agreed.m * agreed.k

    def library(self, group: Group, out: torch.Tensor, x: torch.Tensor) -> None:
        group.all_gather_tensor(out, x)

    def out_shape(self, world: int, x: torch.Tensor) -> tuple:
        return x.shape[0] * world, x.shape[1]

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Matrix:
        return self._agreed(-(-m // group.size), n, dtype, group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m // group.size, n)}


class ReduceScatter2d(TwoLevel):
    """Sums by loads and stores inside each node, by SHMEM between nodes."""

    name, tensors, outputs = "reduce_scatter_2d", {"x": "partial"}, {"out": "summed"}
    gradient = Gradient(gradients.keep, gradients.reduce_scatter_2d_backward)
    kernel = reduce_scatter_kernel

    def chunks(self, ranks: int, nodes: int) -> int:
        return ranks + 2 * nodes

    def part(self, agreed: Matrix, group: Group) -> int:
        return agreed.m // group.size * agreed.k

    def library(self, group: Group, out: torch.Tensor, x: torch.Tensor) -> None:
        group.reduce_scatter_tensor(out, x)

    def check_rows(self, rows: int, group: Group) -> None:
        if rows % group.size:
            raise InvalidArgument(f"x: expected a number of rows divisible by the group size {group.size}, found {rows}; pad "
                                  "the rows")

    def out_shape(self, world: int, x: torch.Tensor) -> tuple:
        registry.require(x.shape[0] % world == 0, "x: expected a number of rows divisible by the group size; pad the rows")
        return x.shape[0] // world, x.shape[1]

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Matrix:
        return self._agreed(m, n, dtype, group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, n)}


class _Plan(OnWorkspace):
    """One kernel. Holds all that does not change from call to call."""

    captured = False

    def __init__(self, op: TwoLevel, agreed: Matrix, group: Group):
        self.op, self.group, self.team, self.count = op, group, team(group), op.part(agreed, group)
        self.pieces, space = Pieces(group, self.count), workspace(group, op.name)
        self.pieces.reserve(space, op.chunks(group.size, len(group.nodes)) * self.count * agreed.dtype.itemsize)
        super().__init__(space)
        self.halves = space.halves(agreed.dtype)

    def compile(self, x: torch.Tensor, out: torch.Tensor) -> None:
        self.launch = backend().prepare(self.op.kernel, (self.pieces.programs,), self._args(x.contiguous(), out, 0), OPTIONS)

    def run(self, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        try:
            x = x.contiguous()                  # may copy, so it may fail
            begun = self.space.call()
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        with begun as epoch:
            self.launch(*self._args(x, out, epoch))

    def _args(self, x: torch.Tensor, out: torch.Tensor, epoch: int) -> tuple:
        flags, signals = self.pieces.words(self.space)
        return (x, out, self.halves[epoch & 1], flags, signals, epoch, self.team, self.group.rank, self.group.size,
                self.group.ranks_per_node, self.count, self.pieces.size)


ALL_GATHER_2D, REDUCE_SCATTER_2D = AllGather2d(), ReduceScatter2d()


@ALL_GATHER_2D.public
def all_gather_2d(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """The rows of all members, in group order. Collective over `group`, which may span nodes.

    Each rank sends its rows by SHMEM to the rank at the same position of each other node. It passes the rows that it receives on
    to the ranks of its own node. Inside one node, and if kernels cannot call SHMEM, it is torch's collective.

    Args:
        x: [M / W, K] fp16, bf16 or fp32 on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M, K] contiguous, or None to allocate.

    The gradient (without `out`) is a reduce_scatter_2d.

    Returns out [M, K]. Raises InvalidArgument before anything is sent.

    Example:
        everyone = all_gather_2d(x)                         # x [M / W, K] -> [M, K]
    """
    done = ALL_GATHER_2D.call((), group, x, out)
    return ALL_GATHER_2D.record(x=x, group=group, out=out) if done is None else done


@REDUCE_SCATTER_2D.public
def reduce_scatter_2d(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """This rank's rows of the sum over all members. Collective over `group`, which may span nodes.

    Rows are first summed inside each node, by loads and stores. Then SHMEM sends a node's sum to the rank at the same position of
    the node that keeps it. Inside one node, and if kernels cannot call SHMEM, it is torch's collective.

    Args:
        x: [M, K] fp16, bf16 or fp32 on `triton_dist.device()`. M is a multiple of the group size W. Equal shape and
            dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M / W, K] contiguous, or None to allocate.

    Returns out [M / W, K]: the rows of this rank's group index. Sums accumulate in fp32, over the members of a node and then over
    nodes, both in order, with a rounding to x's dtype where a node's sum leaves it: the same inputs give the same bits.
    The gradient (without `out`) is an all_gather_2d. Raises InvalidArgument before anything is sent.

    Example:
        mine = reduce_scatter_2d(terms)                     # terms [M, K] -> [M / W, K]
    """
    done = REDUCE_SCATTER_2D.call((), group, x, out)
    return REDUCE_SCATTER_2D.record(x=x, group=group, out=out) if done is None else done
