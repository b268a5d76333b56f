# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of ag_gemm's x by gemm_rs, with x itself gathered again beside it, for the gradient of the weight.

The copy engine gathers, so gemm_rs has all SMs. Both are one operator, so that a graph keeps them together.
"""
from dataclasses import dataclass

import torch

from triton_dist.ops import registry
from triton_dist.ops.ag_gemm import gather, in_graphs
from triton_dist.ops.ag_gemm.arrived_kernel import arrived_kernel
from triton_dist.ops.all_gather.op import all_gather
from triton_dist.ops.calls import checks, possible
from triton_dist.ops.calls.agree import withdraw
from triton_dist.ops.gemm_rs.op import gemm_rs
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Operator
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import side_streams

LEAST_BYTES = 4 << 20               # of a shard: a kernel gathers less than that in the time in which copies start
_ROWS = GemmConfig(1, 1, 1, 1, 1, 1)            # a gather cuts shards into whole tiles: of one row here


@dataclass(frozen=True, kw_only=True)
class Shard(Agreed):
    """x is [m, k] on each rank."""
    m: int
    k: int


class GatherBeside(Op):
    """An all-gather that begins before another op and ends after it, where copies serve it. No op of users."""

    name = "gather beside gemm_rs"
    methods = ("copies", "unfused")

    def check(self, group: Group, x: torch.Tensor, out: torch.Tensor | None, method: str) -> Shard:
        """method: that of gemm_rs."""
        checks.matrix("x", x)
        (m, k), why = x.shape, ""
        if method == "unfused":
            why = "it was asked for"
        elif group.size == 1 or m * k * x.dtype.itemsize < LEAST_BYTES:
            why = "a gather of few bytes takes less time than copies need to start"
        elif possible.across_nodes(group):
            why = "copies do not reach other nodes"
        else:
            why = possible.no_kernel_over_nodes(group, needs_stream_memory_ops=True) or ""
        return Shard(op=self.name, dtype=x.dtype, method="unfused" if why else "auto", why=why, m=m, k=k)

    def plan(self, choice: Choice, agreed: Shard, group: Group, x: torch.Tensor, out: torch.Tensor | None) -> "Copies":
        return Copies(choice, group, x)

    def choice_in_graphs(self, agreed: Shard, group: Group, choice: Choice) -> Choice | None:
        return Choice(choice.method, in_graphs=True) if backend().captures_pushes() else None

    def unfused(self, agreed: Shard, group: Group, x: torch.Tensor, out: torch.Tensor) -> None:
        all_gather(x, group=group, out=out)

    def out_shape(self, world: int, x: torch.Tensor) -> tuple:
        return x.shape[0] * world, x.shape[1]


class Copies(gather.OnGather):
    """The copies of ag_gemm's gather, in its workspace, without a GEMM: a kernel waits for them instead."""

    def __init__(self, choice: Choice, group: Group, x: torch.Tensor):
        self.group, self.dtype, self.config = group, x.dtype, _ROWS
        self.m, self.k = x.shape
        self.tiles = self.pitch = self.m
        kind: type[gather.PushesByCopies] = in_graphs.PushesInGraphs if choice.in_graphs else gather.PushesByCopies
        self.space = space = kind.workspace(group)
        self.gather, self.captured = kind(self, Choice(choice.method, pieces=1)), kind.captured
        super().__init__(space)
        self.halves = space.halves(x.dtype)

    def compile(self, x, out):
        self.gather.prepare(x.contiguous())
        self.launch = backend().prepare(arrived_kernel, (1,), (self.space.flags, 0, self.group.rank, self.group.size),
                                        dict(num_warps=1), varying=(1,))

    def run(self, group, x, out):
        self.end(self.begin(group, x), out)

    def begin(self, group: Group, x: torch.Tensor) -> tuple:
        """Starts the gather of a call: what `end` takes."""
        try:                                    # may copy, so it may fail
            x = x.contiguous()
            sides, begun = side_streams(self.gather.streams), self.space.call()
        except BaseException as error:
            withdraw(group, self.space.kind, error)
            raise
        with begun as epoch:
            for side in sides:
                side.wait_stream(backend().current_stream())
            self.gather.start(x, epoch, *sides)
        return x, epoch, sides

    def end(self, under_way: tuple, out: torch.Tensor) -> None:
        """Waits for what peers send, and writes out [world * m, k]."""
        (x, epoch, sides), current = under_way, backend().current_stream()
        with self.space:                        # an error inside poisons it
            self.launch(None, epoch, None, None)
            for side in sides:
                current.wait_stream(side)
        backend().before_torch()
        rank, chunks = self.group.rank, out.view(self.group.size, self.m, self.k)
        came = self.halves[epoch & 1][:chunks.numel()].view(chunks.shape)
        for peers in (slice(rank), slice(rank + 1, None)):
            chunks[peers].copy_(came[peers])
        chunks[rank].copy_(x)                           # the own shard never goes through the workspace


GATHER_BESIDE = GatherBeside()


def _call(grad: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, group: str, method: str) -> tuple:
    known = GATHER_BESIDE.known((method,), group, x)
    if known is None:                           # a mode of torch follows each op
        return gemm_rs(grad, weight, group=group, method=method), all_gather(x, group=group)
    plan, gathered = known.plan, known.new_out()
    if not isinstance(plan, Copies):
        plan.run(known.group, x, gathered)
        return gemm_rs(grad, weight, group=group, method=method), gathered
    under_way = plan.begin(known.group, x)
    try:
        grad_x = gemm_rs(grad, weight, group=group, method=method)
    except BaseException as error:
        plan.space.failed(error)                # peers may wait for this rank
        raise
    plan.end(under_way, gathered)
    return grad_x, gathered


def _fake(grad: torch.Tensor, weight: torch.Tensor, x: torch.Tensor, group: str, method: str) -> tuple:
    world = registry.world_of(group)
    return grad.new_empty((grad.shape[0] // world, weight.shape[0])), x.new_empty((x.shape[0] * world, x.shape[1]))


# (gemm_rs(grad [M, N_local], weight [K, N_local]), all_gather(x [M / W, K])), with the group by its name.
gemm_rs_beside_gather = Operator(
    "gemm_rs_beside_gather", "(Tensor grad, Tensor weight, Tensor x, str group, str method) -> (Tensor, Tensor)", _call, _fake)
