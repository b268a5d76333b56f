# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gather of ag_gemm by SMs: a kernel beside the GEMM stores x to every peer. Its calls can be captured in graphs.

Both kernels count the calls in device memory, each in copies of its own: the GEMM may end before the other has begun.
"""
from typing import Any

import torch

from triton_dist.ops import _plan
from triton_dist.ops._collective import power_of_two
from triton_dist.ops.ag_gemm.by_sms_kernels import ag_gemm_by_sms_kernel, push_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, team, workspace

MOST = 32                       # programs that may push: a wait has a flag a lane
PIECE_BYTES = 2 << 20           # a release waits until the stores before it have arrived, so smaller pieces take longer
MAX_PIECES = 4
# SMs that push a shard without being asked for a number: a few, since the GEMM loses a wave to many; more for one so small that
# what is left of the GEMM does not hide it. Measured on 2 H200.
FEW_SMS, MORE_SMS, _SMALL_SHARD = 4, 16, 512 << 10
_WARPS, _LEAST_BLOCK, _MOST_BLOCK = 16, 4096, 16384        # elements that a program moves at a time


def usual_sms(nbytes: int) -> int:
    """SMs that push a shard of so many bytes where nobody says how many."""
    return MORE_SMS if nbytes <= _SMALL_SHARD else FEW_SMS


class _TwoKernels(CountedWorkspace):
    """`control` has copies of the epoch for the GEMM's programs, then for those that push."""

    control_words = 2 * MAX_PROGRAMS


class PushesBySms:
    """Fills a plan's gather buffer and flags as push_kernel says. A piece is whole tiles of rows.

    `programs`: SMs that it takes. `half`: elements from one half of the buffer to the other, whole rows of x.
    """

    most = MOST

    @staticmethod
    def workspace(group: Group) -> _TwoKernels:
        """The workspace of such calls on `group`."""
        return workspace(group, "ag_gemm by SMs", _TwoKernels)

    def __init__(self, plan: Any, pieces: tuple[int, int], programs: int):
        self.plan, self.team, self.programs = plan, team(plan.group), programs
        self.pieces, self.piece_tiles = pieces
        space, world, row = plan.space, plan.group.size, plan.k * plan.dtype.itemsize
        # The second half begins with a whole row, up to a row behind where its bytes do.
        space.reserve((world * plan.pitch + 1) * row, 2 * MAX_PIECES * world * MOST, lambda flag: flag // MOST % world)
        self.half_rows = -(-space.half_bytes // row)
        self.half, self.data = self.half_rows * plan.k, space.data.view(plan.dtype)
        self.control, self.own_control = space.control[:MAX_PROGRAMS], space.control[MAX_PROGRAMS:]

    def prepare(self, x: torch.Tensor) -> None:
        """Compiles the kernel for tensors like x [m, k]."""
        p, piece = self.plan, self.piece_tiles * self.plan.config.block_m * self.plan.k
        block = min(_MOST_BLOCK, max(_LEAST_BLOCK, power_of_two(-(-min(piece, p.m * p.k) // self.programs))))
        rest = (self.data, p.space.flags, self.own_control, self.team, self.half, p.m * p.k, p.pitch * p.k, piece, self.pieces)
        self.launch = backend().prepare(push_kernel, (self.programs,), (x, *rest),
                                        dict(BLOCK=block, MOST=MOST, num_warps=_WARPS), varying=1)

    def start(self, x: torch.Tensor, epoch: None, stream: Any) -> None:
        """Puts the gather of one call on `stream`."""
        with backend().use_stream(stream):
            self.launch(x)
        if backend().num_sms() <= self.programs:           # no SM for a GEMM beside it
            backend().current_stream().wait_stream(stream)

    def chunks(self) -> torch.Tensor:
        """[world, m, k]: what the last call gathered, but for the own chunk. By the device's count, in graphs as well."""
        p = self.plan
        halves = self.data.as_strided((2, p.group.size, p.m, p.k), (self.half, p.pitch * p.k, p.k, 1))
        return halves.index_select(0, self.control[:1] & 1)[0]


class Portable:
    """Arguments of the portable kernel for the calls of a plan."""

    kernel = ag_gemm_by_sms_kernel

    def __init__(self, plan: Any, has_bias: bool):
        self.plan, self.units = plan, plan.pitch // plan.config.block_m * -(-plan.n // plan.config.block_n) * plan.group.size
        self.options = dict(plan.config.options(), MOST=MOST, HAS_BIAS=has_bias, EVEN_K=plan.k % plan.config.block_k == 0,
                            PRECISION=_plan.precision(plan.dtype))

    def args(self, x, weight, bias, out, epoch) -> tuple:
        """Of one call: x [m, k], weight [n, k], bias [n] or None, out [world * m, n]."""
        p, g = self.plan, self.plan.gather
        return (x, g.data, weight, weight if bias is None else bias, out, p.space.flags, g.control, g.half, g.programs,
                p.group.rank, p.group.size, p.m, p.n, p.k, p.pitch, weight.stride(0), p.pieces, p.piece_tiles)
