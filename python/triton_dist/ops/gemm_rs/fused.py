# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of gemm_rs: a ring, one in each node, or tiles that go straight to their owners, inside one GEMM."""
from typing import Any

import torch

from triton_dist.ops.calls import aligned, checks, possible
from triton_dist.ops.calls.plans import OnWorkspace
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.nodes import RingsOverNodes
from triton_dist.ops.gemm_rs.scatter_kernel import gemm_rs_scatter_kernel
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import absent
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team, workspace


class Fused(OnWorkspace):
    """The exchange and the GEMM in one kernel. Holds all that does not change from call to call.

    asked: whether the caller named the core's method. m, n, k: sizes of out [m, n] and weight [n, k].
    reader: the core, where it reads the caller's weight itself. columns: whether that has contiguous columns.
    pitch: rows from one chunk of the slots to the next, whole tiles.
    """

    def __init__(self, choice: Choice, agreed: Any, group: Group, x: torch.Tensor, weight: torch.Tensor, *_: Any):
        self.group, self.dtype, self.hop_dtype, self.config = group, x.dtype, agreed.hop_dtype, choice.config
        self.asked = agreed.method == "ws"
        self.n, self.k = weight.shape
        self.core, self.hops = backend().core("gemm_rs") if choice.method == "ws" else None, max(1, group.size - 1)
        within = Scatter if choice.method == "scatter" else Portable
        self.portable = RingsOverNodes if possible.across_nodes(group) else within
        self.space = workspace(group, self.portable.kind, self.portable.space)
        self._make_room(agreed.m)
        super().__init__(self.space)
        self.captured = False if self.portable is RingsOverNodes else None

    def _make_room(self, m: int) -> None:
        tiles_m = -(-m // self.config.block_m)
        tiles = tiles_m * -(-self.n // self.config.block_n)
        self.m, self.pitch = m, tiles_m * self.config.block_m
        self.programs = min(tiles * self.group.size, backend().num_sms())
        self.space.reserve(*self.portable.room(self, tiles))

    def resize(self, agreed, x, weight, bias, out):
        if self.copies or self.portable is RingsOverNodes:
            return None
        self._make_room(agreed.m)
        return (self.programs,), self.call.resized(self, checks.rows_contiguous(x), out)

    def compile(self, x, weight, bias, out):
        x, weight = checks.rows_contiguous(x), aligned.weight_for(self.core, weight)
        by_core, self.copies = aligned.served("gemm_rs", self.core, self.asked, x, weight, out)
        self.reader = self.core if by_core and not self.copies else None
        weight = aligned.weight_for(self.reader, weight)
        if self.copies:
            x, weight, out = (aligned.readable(self.core, t) for t in (x, weight, out))
        self.columns = weight.stride(1) != 1
        self.call = (self.core.bind if by_core else self.portable)(self, bias is not None)
        self.launch = backend().prepare(self.call.kernel, (self.programs,),
                                        self.call.described(x, weight, bias, out),
                                        dict(self.call.options, launch_cooperative_grid=True), self.call.varying)

    def run(self, group, x, weight, bias, out):
        if not self.copies:
            super().run(group, x, weight, bias, out)
            return
        backend().before_torch()
        x, weight = (aligned.readable(self.core, checks.rows_contiguous(t)) for t in (x, weight))
        target = out if self.core.accepts(out) else aligned.room(out)
        super().run(group, x, weight, bias, target)
        if target is not out:
            backend().before_torch()
            out.copy_(target)

    def args(self, x, weight, bias, out) -> tuple:
        return self.call.args(checks.rows_contiguous(x), aligned.weight_for(self.reader, weight), bias, out)


class Portable:
    """Arguments of the portable kernel for the calls of a plan.

    `args` gives those that change from call to call, in their places; `varying` says which these are. `described` gives all.
    """

    kernel, space, kind = gemm_rs_kernel, CountedWorkspace, "gemm_rs"

    @staticmethod
    def room(plan: Fused, tiles: int) -> tuple:
        """(bytes of a half, flags, who writes a flag) for chunks of `tiles` tiles."""
        return (plan.hops * plan.pitch * plan.n * plan.hop_dtype.itemsize, 2 * plan.hops * tiles,
                lambda flag: (plan.group.rank - 1) % plan.group.size)

    def __init__(self, plan: Fused, has_bias: bool):
        self.plan, self.slots, self.team = plan, plan.space.data.view(plan.hop_dtype), team(plan.group)
        self.half = plan.space.half_bytes // plan.hop_dtype.itemsize
        self.options = dict(plan.config.options(), HAS_BIAS=has_bias, EVEN_K=plan.k % plan.config.block_k == 0,
                            PRECISION=possible.precision(plan.dtype))
        self.varying = (0, 1, *[2] * has_bias, 3)

    def args(self, x, weight, bias, out) -> tuple:
        """Of one call: x [world * m, k], weight [n, k], bias [n] or None, out [m, n]."""
        return x, weight, bias, out

    def resized(self, plan, x, out) -> dict:
        """{position: argument of the kernel that depends on the number of rows}, which `plan` has."""
        return {9: plan.m, 12: plan.pitch}

    def described(self, x, weight, bias, out) -> tuple:
        bias = absent(weight) if bias is None else bias
        p = self.plan
        return (x, weight, bias, out, self.slots, p.space.flags, p.space.control, self.team,
                self.half, p.m, p.n, p.k, p.pitch, x.stride(0), weight.stride(0))


class Scatter(Portable):
    """The same where tiles go straight to their owners.

    Its workspace is its own, since other ranks write its flags than the ring's.
    """

    kernel, kind = gemm_rs_scatter_kernel, "gemm_rs scatter"

    @staticmethod
    def room(plan: Fused, tiles: int) -> tuple:
        """The same: a slot, and a flag of each tile, for each peer."""
        nbytes, flags, _ = Portable.room(plan, tiles)
        return nbytes, flags, lambda flag: (plan.group.rank + 1 + flag % plan.hops) % plan.group.size
