# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of gemm_ar_rmsnorm: how rows are cut over programs, and its one kernel."""
from dataclasses import dataclass

import torch

from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.exchange import sizes
from triton_dist.ops.gemm_ar.packets import Packets, Tiling
from triton_dist.ops.gemm_ar_rmsnorm.kernels import gemm_ar_rmsnorm_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS

MOST_EACH = 16                          # words of a row that a thread holds in registers: with 32 they spill


@dataclass(frozen=True)
class Cut:
    """How rows of the output are cut. programs: of the grid; parts: programs of a row; each: words that a thread holds of it."""
    programs: int
    parts: int
    each: int


def cut_rows(m: int, n: int, dtype: torch.dtype, tiling: Tiling, world: int) -> Cut:
    """The cut of m rows of n elements: as many programs to a row as there are, and as a row has words for.

    The programs of a row wait for each other. So they all run at once: there are no more than SMs, and none has another row.
    `each` is compiled into the kernel, so it is a power of two: one kernel serves many numbers of rows.
    """
    threads = tiling.config.num_warps * backend().warp_size
    groups = -(-sizes.words(n, dtype) // (threads // (sizes.power_of_two(world) * tiling.split)))
    programs = min(max(tiling.pieces(m, n), m), backend().num_sms(), MAX_PROGRAMS)
    each = sizes.power_of_two(-(-groups // max(1, min(programs // m, threads))))
    return Cut(programs, -(-groups // each), each)


class NormPackets(Packets):
    """The same with the norm of its rows."""

    def __init__(self, agreed, group: Group, x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor | None):
        self.group, self.tiling, self.m, self.n, self.k = group, agreed.tiling, agreed.m, agreed.n, weight.shape[1]
        cut = cut_rows(agreed.m, agreed.n, agreed.dtype, agreed.tiling, group.size)
        self.kernel, self.programs, self.more = gemm_ar_rmsnorm_kernel, cut.programs, (cut.parts,)
        self.options = dict(EPS=agreed.eps, WEIGHT_BIAS=agreed.weight_bias, EACH=cut.each, SHARED=cut.parts > 1)
        terms = group.size * agreed.tiling.split * sizes.words(agreed.n, agreed.dtype)
        space, self.slots, self.half = sizes.packets(group, agreed.m * (terms + -(-cut.parts // 2)))
        OnWorkspace.__init__(self, space)
