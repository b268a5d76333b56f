# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce: the call, and its plans in two hops."""
from typing import Any, Callable

import torch

from triton_dist.ops.exchange import sizes
from triton_dist.ops.exchange.collective import Collective, Kernel, OneHopPush, call
from triton_dist.ops.all_reduce.kernels import push_kernel, two_hops_self_flagged, two_shot_kernel
from triton_dist.ops.all_reduce.reference import all_reduce_reference
from triton_dist.ops.registry import record
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import team


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
            plain stores and separate flags, for large tensors), "nccl" (the group's own collective) or "auto" (by size,
            from measurements). The same on all ranks.
        op: "sum", "avg", "max" or "min", or torch's ReduceOp of that name. The same on all ranks.

    Returns out. fp16, bf16 and fp32 are reduced in fp32 and rounded once, other dtypes in their own (integers wrap). The
    order depends on the number of ranks and the method only: the same inputs give the same bits, the same on every rank.
    That does not hold for "nccl". An average of integers is rounded towards zero. A maximum or minimum of what contains
    a NaN is NaN; with "nccl" it is what the library makes of it.
    The gradient (without `out`, of a sum or an average) is that of the sum of all ranks' losses, as torch.distributed has it: an
    all_reduce. Where what follows is the same on all ranks, as behind a row-parallel layer, that counts each loss W times: there
    use gemm_ar, all_reduce_rmsnorm, or layers.
    In graphs: run the same call once before capture, else auto captures "nccl" and the other methods refuse. Replays and
    eager calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Raises InvalidArgument before anything is sent.

    Example:
        mean = all_reduce(grad, op="avg")
    """
    done = call(_ALL_REDUCE, x, group, out, method, op)
    return record(all_reduce, x, group=group, out=out, method=method, op=op) if done is None else done


class _TwoHopsSelfFlagged(Kernel):
    """Two hops of self-flagged stores, of what is reduced in fp32."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        part = -(-sizes.vectors(n, x.dtype) // group.size)
        programs, rounds, options = sizes.grid_of_vectors(part, group.size)
        space, slots, half = sizes.self_flagged(group, 2 * group.size * part)
        super().__init__(space, two_hops_self_flagged, programs, x, out,
                         (slots, half, space.control, team(group), n, part, rounds),
                         dict(options, OP=op.reduction, WORLD=group.size, WHOLE=sizes.whole_vectors(n, x, out)), meet)


class _TwoHopsPackets(Kernel):
    """Two hops of packets."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        part = -(-sizes.words(n, x.dtype) // group.size)
        programs, options = sizes.grid_of_packets(part, group.size)
        space, slots, half = sizes.packets(group, 2 * group.size * part)
        super().__init__(space, two_shot_kernel, programs, x, out, (slots, half, space.control, team(group), n, part),
                         dict(options, WHOLE=sizes.whole_words(n, x, out), OP=op.reduction), meet)


class _TwoHopPush(Kernel):
    """Two hops of plain stores."""

    def __init__(self, op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]):
        blocks, programs, rounds, options = sizes.grid_of_blocks(-(-n // group.size), x.dtype, group.size)
        space, data, flags = sizes.pushes(group, "two hops", x.dtype, group.size * blocks * options["BLOCK"],
                                                rounds * programs * group.size)
        super().__init__(space, push_kernel, programs, x, out,
                         (data, data.numel() // 2, flags, flags.numel() // 2, space.control, team(group), n, blocks, rounds),
                         dict(options, OP=op.reduction), meet)


def _two_shot(op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]) -> Kernel:
    """Two hops of the smallest latency that the dtype allows."""
    return (_TwoHopsSelfFlagged if x.dtype in sizes.SELF_FLAGGED else _TwoHopsPackets)(op, x, out, n, group, meet)


def _push(op: Collective, x: torch.Tensor, out: torch.Tensor, n: int, group: Group, meet: Callable[[], None]) -> Kernel:
    """Plain stores. Between two ranks one hop carries no more bytes than two, and waits once."""
    one_hop = group.size == 2 and n * x.element_size() <= _ONE_HOP_BYTES
    return (OneHopPush if one_hop else _TwoHopPush)(op, x, out, n, group, meet)


_ONE_HOP_BYTES = 4 << 20                # above, two hops are faster: each rank sums half of the tensor only
_ALL_REDUCE = Collective("all_reduce", scatter=False, reduction="sum", library=all_reduce_reference,
                         plans={"two_shot": _two_shot, "push": _push})
