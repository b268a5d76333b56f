# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gather of ag_gemm over nodes: a kernel beside the GEMM, on SMs that the GEMM leaves to it."""
from typing import Any

import torch

from triton_dist.ops.tuning.table import Choice
from triton_dist.ops.ag_gemm.gather import Gather
from triton_dist.ops.internode.kernels import gather_kernel
from triton_dist.ops.internode.pieces import OPTIONS, Pieces
from triton_dist.runtime.backend import backend
from triton_dist.runtime.workspace import team


class GatherOverNodes(Gather):
    """Each of gather_kernel's programs sends a piece."""

    def __init__(self, plan: Any, choice: Choice):
        super().__init__(plan, choice)
        grain = plan.config.block_m * plan.k
        self.team, self.cut = team(plan.group), Pieces(plan.group, plan.m * plan.k, grain, choice.comm_sms)
        self.pieces = self.programs = self.cut.programs
        self.piece_tiles = self.cut.size // grain
        self.cut.reserve(plan.space, plan.group.size * plan.pitch * plan.k * plan.dtype.itemsize)

    def prepare(self, x: torch.Tensor) -> None:
        self.launch = backend().prepare(gather_kernel, (self.programs,), self._args(x, 0), OPTIONS)

    def start(self, x: torch.Tensor, epoch: int, stream: Any) -> None:
        with backend().use_stream(stream):
            self.launch(*self._args(x, epoch))
        if backend().num_sms() <= self.programs:           # no SM for a GEMM beside it
            backend().current_stream().wait_stream(stream)

    def _args(self, x: torch.Tensor, epoch: int) -> tuple:
        p = self.plan
        return (x, p.halves[epoch & 1], *self.cut.words(p.space), epoch, self.team, p.group.rank, p.group.size,
                p.group.ranks_per_node, p.m * p.k, p.pitch * p.k, self.cut.size)
