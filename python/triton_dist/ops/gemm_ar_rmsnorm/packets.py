# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of gemm_ar_rmsnorm: how rows are cut over programs, and its one kernel."""
from dataclasses import dataclass

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import OnWorkspace, present
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.device.boxes import boxes, can_read
from triton_dist.ops.exchange import sizes
from triton_dist.ops.gemm_ar.packets import Tiling
from triton_dist.ops.gemm_ar_rmsnorm.kernels import gemm_ar_rmsnorm_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import MAX_PROGRAMS, team

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


class NormPackets(OnWorkspace):
    """One kernel on the workspace of packets. Holds all that does not change from call to call."""

    def __init__(self, agreed, group: Group, x: torch.Tensor, weight: torch.Tensor, *_: torch.Tensor | None):
        self.group, self.agreed, self.tiling = group, agreed, agreed.tiling
        self.k = weight.shape[1]
        self.cut = cut_rows(agreed.m, agreed.n, agreed.dtype, agreed.tiling, group.size)
        terms = group.size * agreed.tiling.split * sizes.words(agreed.n, agreed.dtype)
        space, self.slots, self.half = sizes.packets(group, agreed.m * (terms + -(-self.cut.parts // 2)))
        super().__init__(space)

    def compile(self, x, weight, bias, residual, norm_weight, out, residual_out):
        agreed, config, group, cut = self.agreed, self.tiling.config, self.group, self.cut
        given = (x, weight, bias, residual, norm_weight, out, residual_out)
        args = self.args(*given)
        self.plain = all(arg is t for arg, t in zip(args, given))
        x, weight = args[:2]
        by_boxes = backend().copies_boxes() and can_read(x, weight)
        used = [t.contiguous() for t in given[2:] if t is not None]
        options = dict(EPS=agreed.eps, WEIGHT_BIAS=agreed.weight_bias, WORLD=group.size,
                       RANKS=sizes.power_of_two(group.size), SPLIT=self.tiling.split, EACH=cut.each, SHARED=cut.parts > 1,
                       HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
                       WHOLE=sizes.whole_words(agreed.n, *used), BOXES=by_boxes, EVEN_K=self.k % config.block_k == 0,
                       PRECISION=precision(x.dtype), THREADS=config.num_warps * backend().warp_size, **config.options())
        del options["GROUP_M"]
        rest = (self.slots, self.half, self.space.control, team(group), agreed.m, agreed.n, self.k, x.stride(0),
                weight.stride(0), cut.parts)
        varying, tensors = present(*args)
        if by_boxes:
            tensors[:2] = boxes(x, config.block_m, config.block_k), boxes(weight, config.block_n, config.block_k)
        self.launch = backend().prepare(gemm_ar_rmsnorm_kernel, (cut.programs,), (*tensors, *rest), options, varying)

    def args(self, x, weight, bias, residual, norm_weight, out, residual_out) -> tuple:
        return (checks.rows_contiguous(x), checks.rows_contiguous(weight), bias,
                None if residual is None else residual.contiguous(), norm_weight, out, residual_out)
