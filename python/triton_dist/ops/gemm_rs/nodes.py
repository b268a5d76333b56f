# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_rs over nodes: room and arguments of its kernel."""
from typing import Any

import torch

from triton_dist.ops.calls.possible import precision
from triton_dist.ops.gemm_rs.nodes_kernel import gemm_rs_nodes_kernel
from triton_dist.runtime.device import absent
from triton_dist.runtime.workspace import Workspace, team


class RingsOverNodes:
    """Arguments of the kernel for the calls of a plan, as the portable one's."""

    kernel, space, kind = gemm_rs_nodes_kernel, Workspace, "gemm_rs"

    @staticmethod
    def room(plan: Any, tiles: int) -> tuple:
        """(bytes of a half, flags in int32 words, who writes a flag) for chunks of `tiles` tiles."""
        group, each, nodes, config = plan.group, plan.group.ranks_per_node, plan.group.nodes, plan.config
        members, place, rings = nodes[group.node], group.local_rank, len(nodes) * (each - 1)
        elements = rings * plan.pitch * plan.n + 2 * len(nodes) * tiles * config.block_m * config.block_n

        def writer(word: int) -> int:
            flag = word // 2 % group.size
            return members[(place - 1) % each] if flag < rings else nodes[flag - rings][place]
        return elements * plan.hop_dtype.itemsize, 2 * tiles * group.size, writer

    def __init__(self, plan: Any, has_bias: bool):
        self.plan, self.slots, self.team = plan, plan.space.data.view(plan.hop_dtype), team(plan.group)
        self.flags = plan.space.flags.view(torch.int64)
        self.half = plan.space.half_bytes // plan.hop_dtype.itemsize
        self.options = dict(plan.config.options(), HAS_BIAS=has_bias, EVEN_K=plan.k % plan.config.block_k == 0,
                            PRECISION=precision(plan.dtype))
        self.varying = (0, 1, *[2] * has_bias, 3)

    def args(self, x, weight, bias, out) -> tuple:
        """Of one call: x [world * m, k], weight [n, k], bias [n] or None, out [m, n]."""
        return x, weight, bias, out

    def described(self, x, weight, bias, out) -> tuple:
        bias = absent(weight) if bias is None else bias
        p = self.plan
        return (x, weight, bias, out, self.slots, self.flags, p.space.control, self.team, self.half,
                p.group.ranks_per_node, p.m, p.n, p.k, p.pitch, x.stride(0), weight.stride(0))
