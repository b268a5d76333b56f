# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gather of ag_gemm by SMs: a kernel beside the GEMM stores x to every peer. Its calls can be captured in graphs.

Both kernels count the calls in device memory, each in copies of its own: the GEMM may end before the other has begun.
"""
from typing import Any

import torch

from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.ops.tuning import model
from triton_dist.ops.tuning.table import Choice
from triton_dist.ops.ag_gemm import gather
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel, push_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import absent
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, team, workspace

MOST = 32                       # programs that may push: a wait has a flag a lane
PIECE_BYTES = 2 << 20           # a release waits until the stores before it have arrived, so smaller pieces take longer
# SMs that push without being asked for a number, as measured on 2 x H200: the most for so few bytes that nothing hides them. For
# more, a few, which the GEMM hardly misses, if they are done when HIDDEN of its time has passed; each pushes SM_GBS. Else more.
# Copies in graphs are as fast as SMs or faster for shards above LARGE_SHARD.
FEW_SMS, MORE_SMS, MOST_SMS = 4, 8, 16
SM_GBS, HIDDEN, _SMALL_SHARD, LARGE_SHARD = 20, 0.8, 512 << 10, 8 << 20
_WARPS, _LEAST_BLOCK, _MOST_BLOCK = 16, 4096, 16384        # elements that a program moves at a time


def usual_sms(shard: int) -> int:
    """SMs that push a shard of `shard` bytes in graphs, unless comm_sms says how many. A rank may use fewer (programs_of)."""
    return MOST_SMS if shard <= _SMALL_SHARD else MORE_SMS


def programs_of(plan: Any, choice: Choice) -> int:
    """How many programs of this rank push. Its own columns decide: ranks may have different numbers of them."""
    machine = backend().machine_model()
    if not choice.in_graphs or choice.comm_sms != MORE_SMS or machine is None:
        return choice.comm_sms
    world, itemsize = plan.group.size, plan.dtype.itemsize
    gemm_us = model.library_gemm_us(machine, plan.m * world, plan.n * (1 + plan.gated), plan.k, itemsize)
    pushed = (world - 1) * plan.m * plan.k * itemsize
    return FEW_SMS if pushed / (FEW_SMS * SM_GBS * 1e3) <= HIDDEN * gemm_us else MORE_SMS


class _TwoKernels(CountedWorkspace):
    """`control` has copies of the epoch for the GEMM's programs, then for those that push."""

    control_words = 2 * MAX_PROGRAMS


class PushesBySms(gather.Gather):
    """push_kernel, beside a GEMM that counts the calls as well.

    pushers: flags that stand for a piece, as many on all ranks. programs: of this rank, which set them.
    half: elements from one half of the gather buffer to the other, whole rows of x.
    """

    most, captured = MOST, None

    @staticmethod
    def workspace(group: Group) -> _TwoKernels:
        return workspace(group, "ag_gemm by SMs", _TwoKernels)

    @staticmethod
    def arguments(core: Any) -> type:
        return Portable if core is None else core.bind_by_sms

    def __init__(self, plan: Any, choice: Choice):
        super().__init__(plan, choice)
        self.team, self.pushers, self.programs = team(plan.group), choice.comm_sms, programs_of(plan, choice)
        space, world, row = plan.space, plan.group.size, plan.k * plan.dtype.itemsize
        self.pieces, self.piece_tiles = gather.cut(plan.tiles, plan.m * row, PIECE_BYTES, choice.pieces)
        # The second half begins with a whole row, up to a row behind where its bytes do.
        space.reserve((world * plan.pitch + 1) * row, 2 * gather.MAX_PIECES * world * MOST, lambda flag: flag // MOST % world)
        self.half_rows = -(-space.half_bytes // row)
        self.half, self.data = self.half_rows * plan.k, space.data.view(plan.dtype)
        self.control, self.own_control = space.control[:MAX_PROGRAMS], space.control[MAX_PROGRAMS:]

    def prepare(self, x: torch.Tensor) -> None:
        p, piece = self.plan, self.piece_tiles * self.plan.config.block_m * self.plan.k
        block = min(_MOST_BLOCK, max(_LEAST_BLOCK, power_of_two(-(-min(piece, p.m * p.k) // self.programs))))
        rest = (self.data, p.space.flags, self.own_control, self.team, self.half, p.m * p.k, p.pitch * p.k, piece, self.pieces,
                self.pushers)
        self.launch = backend().prepare(push_kernel, (self.programs,), (x, *rest),
                                        dict(BLOCK=block, MOST=MOST, num_warps=_WARPS), varying=1)

    def start(self, x: torch.Tensor, epoch: None, stream: Any) -> None:
        with backend().use_stream(stream):
            self.launch(x)
        if backend().num_sms() <= self.programs:           # no SM for a GEMM beside it
            backend().current_stream().wait_stream(stream)

    def chunks(self, epoch: None) -> torch.Tensor:
        """Of the last call, by the device's count, in graphs as well."""
        p = self.plan
        halves = self.data.as_strided((2, p.group.size, p.m, p.k), (self.half, p.pitch * p.k, p.k, 1))
        return halves.index_select(0, self.control[:1] & 1)[0]


class Portable(gather.Portable):
    kernel = ag_gemm_by_sms_kernel

    def __init__(self, plan: Any, has_bias: bool):
        super().__init__(plan, has_bias)
        self.options.update(MOST=MOST)
        self.varying = (0, 2, *[3] * has_bias, 4)

    def args(self, x, weight, bias, out, epoch) -> tuple:
        """Of one call: x [m, k], weight, bias or None, out [world * m, n]; the epoch is counted on the device."""
        return x, None, weight, bias, out

    def described(self, x, weight, bias, out, epoch) -> tuple:
        bias = absent(weight) if bias is None else bias
        p, g = self.plan, self.plan.gather
        return (x, g.data, weight, bias, out, p.space.flags, g.control, g.half, g.pushers,
                p.group.rank, p.group.size, p.m, p.n, p.k, p.pitch, weight.stride(0), g.pieces, g.piece_tiles)
