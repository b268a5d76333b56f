# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce: the op, its plans in two hops, and its call."""
from typing import Any

import torch

from triton_dist.ops.all_reduce.kernels import push_kernel, two_hops_self_flagged, two_shot_kernel
from triton_dist.ops.all_reduce.unfused import all_reduce_unfused
from triton_dist.ops.autograd import collectives as gradients
from triton_dist.ops.exchange import sizes
from triton_dist.ops.exchange.collective import Collective, Kernel, Packets, Row, SelfFlagged
from triton_dist.ops.exchange.sizes import KIB, MIB
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace

_ONE_HOP_BYTES = 4 << 20                # above, two hops are faster: each rank sums half of the tensor only


class AllReduce(Collective):
    """A reduction over ranks, on every rank."""

    name, tensors, outputs = "all_reduce", {"x": "partial"}, {"out": "summed"}
    methods = ("one_shot", "two_shot", "push", "unfused")
    schema = "(Tensor x, str group, str method, str op) -> Tensor"
    gradient = Gradient(gradients.keep, gradients.all_reduce_backward)
    reduces = True
    steps = {
        2: ((2 * MIB, "one_shot"), (64 * MIB, "two_shot"), (256 * MIB, "push")),
        4: ((64 * KIB, "one_shot"), (1 * MIB, "two_shot"), (256 * MIB, "push")),
        64: ((32 * KIB, "one_shot"), (1 * MIB, "two_shot"), (8 * MIB, "push")),
    }
    packet_steps = {**steps, 2: ((256 * KIB, "one_shot"), (512 * KIB, "two_shot"), (256 * MIB, "push"))}

    def library(self, x: torch.Tensor, group: Group, out: torch.Tensor, *reduction: str) -> torch.Tensor:
        return all_reduce_unfused(x, group, out, *reduction)

    def kind(self, method: str, agreed: Row, group: Group) -> type[Kernel]:
        """Between two ranks one hop carries no more bytes than two, and waits once."""
        if method == "two_shot":
            return _TwoHopsSelfFlagged if agreed.dtype in sizes.SELF_FLAGGED else _TwoHopsPackets
        if method == "push" and not (group.size == 2 and agreed.n * agreed.dtype.itemsize <= _ONE_HOP_BYTES):
            return _TwoHopPush
        return super().kind(method, agreed, group)

    def traffic(self, agreed: Row, group: Group) -> dict[int, int]:
        """The whole tensor to every peer, or in two hops a part of it twice."""
        return sizes.to_peers(agreed.n * agreed.dtype.itemsize, agreed.method != "one_shot", group)


class _TwoHopsSelfFlagged(SelfFlagged):
    """Two hops of self-flagged stores, of what is reduced in fp32."""

    @property
    def kernel(self) -> Any:
        return two_hops_self_flagged

    def room(self) -> CountedWorkspace:
        world = self.group.size
        part = -(-sizes.vectors(self.n, self.dtype) // world)
        self.programs, rounds, options = sizes.grid_of_vectors(part, world)
        space, slots, half = sizes.self_flagged(self.group, 2 * world * part)
        self.buffers, self.counts = (slots, half), (self.n, part, rounds)
        self.options = dict(options, OP=self.reduction, WORLD=world)
        return space


class _TwoHopsPackets(Packets):
    """Two hops of packets."""

    @property
    def kernel(self) -> Any:
        return two_shot_kernel

    def room(self) -> CountedWorkspace:
        part = -(-sizes.words(self.n, self.dtype) // self.group.size)
        self.programs, options = sizes.grid_of_packets(part, self.group.size)
        space, slots, half = sizes.packets(self.group, 2 * self.group.size * part)
        self.buffers, self.counts = (slots, half), (self.n, part)
        self.options = dict(options, OP=self.reduction)
        return space


class _TwoHopPush(Kernel):
    """Two hops of plain stores."""

    @property
    def kernel(self) -> Any:
        return push_kernel

    def room(self) -> CountedWorkspace:
        part = -(-self.n // self.group.size)
        space, self.programs, self.buffers, blocks, options = sizes.pushes(self.group, "two hops", self.dtype, part)
        self.counts = self.n, *blocks
        self.options = dict(options, OP=self.reduction)
        return space


ALL_REDUCE = AllReduce()


@ALL_REDUCE.public
def all_reduce(x: torch.Tensor, *, group: Any = None, out: torch.Tensor | None = None, method: str = "auto",
               op: Any = "sum") -> torch.Tensor:
    """Sum, or another reduction, over ranks of x, on every rank. Collective over `group`.

    Args:
        x: fp16, bf16, fp32, fp64, int32 or int64 of any shape on `triton_dist.device()`. Equal shape and dtype on all
            ranks. Other dtypes go to the group's own collective, which may not know them.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. `out=x` reduces in place; else they must not overlap.
        method: "one_shot" (data that is its own flag, or packets that carry one, everything to everyone: the lowest
            latency), "two_shot" (the same, but each rank reduces a part and sends the result), "push" (as two_shot, with
            plain stores and separate flags, for large tensors), "unfused" (the group's own collective) or "auto" (by size,
            from measurements). The same on all ranks.
        op: "sum", "avg", "max" or "min", or torch's ReduceOp of that name. The same on all ranks.

    Returns out. fp16, bf16 and fp32 are reduced in fp32 and rounded once, other dtypes in their own (integers wrap). The
    order depends only on the number of ranks and the method: the same inputs give the same bits, on every rank. This does not
    hold for "unfused". An average of integers is rounded towards zero. A maximum or minimum over a NaN is NaN; with
    "unfused" it depends on the library.
    The gradient (without `out`, of a sum or an average) is that of the sum of all ranks' losses, as torch.distributed has it: an
    all_reduce. Where what follows is the same on all ranks, as behind a row-parallel layer, that counts each loss W times: there
    use gemm_ar, all_reduce_rmsnorm, or layers.
    In graphs: run the same call once before capture, else auto captures "unfused" and the other methods refuse. Replays and
    eager calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Raises InvalidArgument before anything is sent.

    Example:
        mean = all_reduce(grad, op="avg")
    """
    done = ALL_REDUCE.call((method, op), group, x, out)
    return ALL_REDUCE.record(x=x, group=group, out=out, method=method, op=op) if done is None else done
