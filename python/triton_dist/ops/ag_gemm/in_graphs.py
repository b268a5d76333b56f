# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gather of ag_gemm by the copy engine, in calls that graphs replay.

A replay repeats the addresses of a captured copy, and the value of the flag after it. So all calls use one buffer and one value,
and before the copies there is a kernel in which the ranks meet: after it, each rank's buffer is free and its flags are cleared.
"""
from typing import Any

import torch

from triton_dist.ops.ag_gemm import gather
from triton_dist.ops.ag_gemm.enter_kernel import enter_kernel
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team, workspace

ARRIVED = 2             # in the flag of a piece that is there. It stands for the epoch of eager calls, and is even: half 0


class _OneBuffer(CountedWorkspace):
    """Its kernel counts the calls in one program."""

    control_words, num_halves = 1, 1

    def __enter__(self) -> int:
        return ARRIVED


class PushesInGraphs(gather.PushesByCopies):
    """Flags: int32 [piece, rank], then [rank] by which a rank says that it has entered a call."""

    captured, more_flags = None, 1

    @staticmethod
    def workspace(group: Group) -> _OneBuffer:
        return workspace(group, "ag_gemm in graphs", _OneBuffer)

    def prepare(self, x: torch.Tensor) -> None:
        super().prepare(x)
        space, arrivals = self.plan.space, gather.MAX_PIECES * self.plan.group.size
        self.enter = backend().prepare(
            enter_kernel, (1,), (space.flags, space.flags[arrivals:], space.control, team(self.plan.group), arrivals),
            dict(BLOCK=power_of_two(arrivals), num_warps=1), varying=0)

    def start(self, x: torch.Tensor, epoch: int, *streams: Any) -> None:
        self.enter()
        for stream in streams:
            stream.wait_stream(backend().current_stream())
        super().start(x, epoch, *streams)
