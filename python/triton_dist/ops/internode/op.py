# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather_2d and reduce_scatter_2d: plan and dispatch."""
from typing import Any, Callable

import torch

from triton_dist.ops import _plan, _recent
from triton_dist.ops.calls import checks
from triton_dist.ops.internode.kernels import all_gather_kernel, reduce_scatter_kernel
from triton_dist.ops.internode.pieces import OPTIONS, Pieces
from triton_dist.ops.registry import record
from triton_dist.runtime import ambient
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.workspace import team, workspace


def all_gather_2d(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """The rows of all members, in group order. Collective over `group`, which may span nodes.

    Each rank sends its rows by SHMEM to the equal place of each other node, and what has come so by loads and stores to the
    others of its node. Inside one node, and where kernels cannot call SHMEM, it is torch's collective.

    Args:
        x: [M / W, K] fp16, bf16 or fp32 on `triton_dist.device()`. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M, K] contiguous, or None to allocate.

    The gradient (without `out`) is a reduce_scatter_2d.

    Returns out [M, K]. Raises InvalidArgument before anything is sent.
    """
    done = _run("all_gather_2d", _AllGather, x, group, out)
    return record(all_gather_2d, x, group=group, out=out) if done is None else done


def reduce_scatter_2d(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """This rank's rows of the sum over all members. Collective over `group`, which may span nodes.

    Rows are first summed inside each node by loads and stores, and a node's sum goes by SHMEM to the equal place of the node that
    keeps it. Inside one node, and where kernels cannot call SHMEM, it is torch's collective.

    Args:
        x: [M, K] fp16, bf16 or fp32 on `triton_dist.device()`. M divides by the group size W. Equal shape and dtype on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: [M / W, K] contiguous, or None to allocate.

    Returns out [M / W, K]: the rows of this rank's group index. Sums accumulate in fp32, over the members of a node and then over
    nodes, both in order, with a rounding to x's dtype where a node's sum leaves it: the same inputs give the same bits.
    The gradient (without `out`) is an all_gather_2d. Raises InvalidArgument before anything is sent.
    """
    done = _run("reduce_scatter_2d", _ReduceScatter, x, group, out)
    return record(reduce_scatter_2d, x, group=group, out=out) if done is None else done


def _run(op: str, form: type, x: torch.Tensor, group: Any, out: torch.Tensor | None) -> torch.Tensor | None:
    """One call; None where it is to be made as an operator."""
    if ambient.is_recorded((x, out)):
        return None
    members = resolve(group)
    _plan.checked(op, members, lambda: ambient.refuse(op, (x, out)))
    if out is None and _recent.wants_grad((x,)):
        return None

    def make(agreed: dict) -> Any:
        return _plan.made(op, members, agreed, "unfused", lambda found: _make_plan(form, x, members, out, found))
    plan = _plan.planned(op, members, _plan.signature((x, out), (out,)), lambda: _checked(op, form, x, members, out),
                         make)
    if out is None:
        out = torch.empty(plan.out_shape, dtype=x.dtype, device=x.device)
    with ambient.plain():
        plan.run(members, x, out)
    return out


def _checked(op: str, form: type, x: torch.Tensor, group: Group, out: torch.Tensor | None) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.matrix("x", x)
    shape = form.shape(x, group.size)
    checks.rows("x", shape[0])
    checks.output("out", out, shape, like=x)
    checks.no_overlap("out", out, x=x)
    checks.no_grad(x=x)
    method = _plan.possible(op, "auto" if _plan.across_nodes(group) else "unfused", group, False)
    return dict(op=op, m=x.shape[0], k=x.shape[1], dtype=x.dtype, method=method, sms=backend().num_sms())


def _make_plan(form: type, x: torch.Tensor, group: Group, out: torch.Tensor | None, agreed: dict) -> Any:
    meet = _plan.agree_once(group, agreed)
    shape = form.shape(x, group.size)
    if 0 in shape or agreed["method"] == "unfused":
        return _Unfused(form, shape)
    return form(x, group, out, shape, meet)


class _Unfused(_plan.Plan):
    """torch's collective."""

    def __init__(self, form: type, out_shape: tuple):
        self.collective, self.out_shape = form.collective, out_shape
        self.captured = backend().is_capturing()                # a reason to be unfused

    def run(self, group, x, out):
        if out.numel():
            backend().before_torch()
            self.collective(group, out, x.contiguous())


class _TwoLevel(_plan.OnWorkspace):
    """One kernel. Holds all that does not change from call to call."""

    captured = False
    kernel: Any
    kind: str
    chunks: Callable[[int, int], int]         # (ranks, nodes) -> how many parts of a rank a half holds

    def __init__(self, x: torch.Tensor, group: Group, out: torch.Tensor | None, out_shape: tuple, meet: Callable[[], None]):
        self.group, self.out_shape, self.team = group, out_shape, team(group)
        nodes = len(group.nodes)
        self.count = min(x.numel(), out_shape[0] * out_shape[1])
        self.pieces = Pieces(group, self.count)
        space = workspace(group, self.kind)
        self.pieces.reserve(space, self.chunks(group.size, nodes) * self.count * x.element_size())
        super().__init__(space)
        self.halves = [half.view(x.dtype) for half in self.space.halves()]
        x, out = x.contiguous(), x.new_empty(out_shape) if out is None else out
        self.launch = backend().prepare(self.kernel, (self.pieces.programs,), self._args(x, out, 0), OPTIONS)
        meet()

    def run(self, group, x, out):
        try:
            x = x.contiguous()                  # may copy, so it may fail
            begun = self.space.call()
        except BaseException as error:
            _plan.withdraw(group, self.space.kind, error)
            raise
        with begun as epoch:
            self.launch(*self._args(x, out, epoch))

    def _args(self, x: torch.Tensor, out: torch.Tensor, epoch: int) -> tuple:
        flags, signals = self.pieces.words(self.space)
        return (x, out, self.halves[epoch & 1], flags, signals, epoch, self.team, self.group.rank, self.group.size,
                self.group.ranks_per_node, self.count, self.pieces.size)


class _AllGather(_TwoLevel):
    kernel, kind = all_gather_kernel, "all_gather_2d"
    chunks = staticmethod(lambda ranks, nodes: ranks)
    collective = staticmethod(lambda group, out, x: group.all_gather_tensor(out, x))

    @staticmethod
    def shape(x: torch.Tensor, ranks: int) -> tuple:
        return x.shape[0] * ranks, x.shape[1]


class _ReduceScatter(_TwoLevel):
    kernel, kind = reduce_scatter_kernel, "reduce_scatter_2d"
    chunks = staticmethod(lambda ranks, nodes: ranks + 2 * nodes)
    collective = staticmethod(lambda group, out, x: group.reduce_scatter_tensor(out, x))

    @staticmethod
    def shape(x: torch.Tensor, ranks: int) -> tuple:
        if x.shape[0] % ranks:
            raise InvalidArgument(f"x: expected a number of rows that divides by the group size {ranks}, found {x.shape[0]}; pad "
                                  "the rows")
        return x.shape[0] // ranks, x.shape[1]
