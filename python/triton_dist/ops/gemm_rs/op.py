# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_rs: plan and dispatch."""
from typing import Any

import torch

from triton_dist.ops import _plan, _recent, _tune
from triton_dist.ops.calls import aligned, checks
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.nodes import RingsOverNodes
from triton_dist.ops.gemm_rs.reference import gemm_rs_reference
from triton_dist.ops.reduce_scatter.op import reduce_scatter
from triton_dist.ops.registry import record
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team, workspace


def gemm_rs(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, hop_dtype: torch.dtype | None = None, method: str = "auto") -> torch.Tensor:
    """reduce_scatter(x @ weight^T) + bias, with the reduction hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M, K_local] fp16, bf16 or fp32 on `triton_dist.device()`. M divides by the group size W and is equal on all ranks.
        weight: [N, K_local], same dtype: this rank's columns. N is equal on all ranks; K_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N] or None, same dtype: added once, in fp32, to the sum. Pass the same on every rank.
        out: [M / W, N] contiguous, or None to allocate.
        hop_dtype: dtype in which partial sums travel: that of x (one rounding a hop) or torch.float32. None: that of x.
        method: "auto", "ws" (fused, the device's warp-specialised core; what it cannot read or write is copied at each
            call), "portable" (fused) or "unfused" (a matmul, then a collective). The same on all ranks.

    Returns out [M / W, N]: the rows of this rank's group index.
    Gradients (without `out`): that of x by ag_gemm, whose gathered gradient also gives that of weight and, summed over all M
    rows, that of bias, equal on all ranks. The same tensors must require them on all ranks.
    Products accumulate in fp32; the sum over ranks has a fixed order (for rank c: c + 1, c + 2, ..., c; over nodes so in each
    node, then the own node's sum and those of the nodes after it), so the same inputs give the same bits. fp16 may overflow at
    a hop unless hop_dtype is float32.
    In graphs: run the same call once before capture, else auto captures "unfused" and other methods refuse. Replays and
    eager calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent.
    """
    known = _CALLS.known((hop_dtype, method), group, x, weight, out, bias)
    if known is None:
        return record(gemm_rs, x, weight, group=group, bias=bias, out=out, hop_dtype=hop_dtype, method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, weight, bias, out)
    return out


def _checked(group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None,
             hop_dtype: torch.dtype | None, method: str) -> dict:
    """Refuses bad arguments; of good ones, what all ranks must agree on."""
    checks.matrix("x", x)
    checks.matrix("weight", weight, like=x)
    if weight.shape[1] != x.shape[1]:
        raise InvalidArgument(f"weight: expected [N, {x.shape[1]}] to match x {list(x.shape)}, found {list(weight.shape)}; it "
                              "has a row for each output column, as in nn.Linear")
    if x.shape[0] % group.size:
        raise InvalidArgument(f"x: expected a number of rows that divides by the group size {group.size}, "
                              f"found {x.shape[0]}; pad the rows")
    if hop_dtype is not None and hop_dtype is not x.dtype and hop_dtype is not torch.float32:
        raise InvalidArgument(f"hop_dtype: expected None, {x.dtype} or torch.float32, found {hop_dtype!r}; leave it out for None")
    m, n = x.shape[0] // group.size, weight.shape[0]
    checks.vector("bias", bias, n, like=x)
    checks.output("out", out, (m, n), like=x)
    checks.no_overlap("out", out, x=x, weight=weight, bias=bias)
    checks.no_grad(x=x, weight=weight, bias=bias)
    return agreement(m, n, x.dtype, hop_dtype or x.dtype, method, group)


def agreement(m: int, n: int, dtype: torch.dtype, hop_dtype: torch.dtype, method: str, group: Group) -> dict:
    """What all ranks must agree on. Raises InvalidArgument where `method` cannot run."""
    method = _plan.possible("gemm_rs", method, group, _core(n, dtype, group) is not None)
    return dict(op="gemm_rs", m=m, n=n, dtype=dtype, hop_dtype=hop_dtype, method=method)


def candidates(m: int, n: int, dtype: torch.dtype, hop_dtype: torch.dtype, group: Group) -> list[Choice]:
    """Ways to run gemm_rs to out [m, n] a rank, the default of each method first."""
    core, portable = _core(n, dtype, group), backend().gemm_configs(dtype, m)
    found = [Choice("ws", config) for config in core.configs(dtype, m, n, hop_dtype)] if core else []
    return [*found, *(Choice("portable", config) for config in portable[:1 if core else None]), Choice("unfused")]


def shape(m: int, n: int, dtype: torch.dtype, hop_dtype: torch.dtype, k: int, world: int) -> Shape:
    """Of out [m, n] a rank and sums of length `k` over all ranks together."""
    names = [str(kind).removeprefix("torch.") for kind in dict.fromkeys((dtype, hop_dtype))]
    return Shape("gemm_rs", ", hops ".join(names), m * world, n, k)


def bytes_in(m: int, n: int, dtype: torch.dtype, world: int) -> int:
    """What the reduce-scatter brings to a rank."""
    return (world - 1) * m * n * dtype.itemsize


def _core(n: int, dtype: torch.dtype, group: Group) -> Any:
    core = None if _plan.across_nodes(group) else backend().core("gemm_rs")
    return core if core is not None and core.serves(dtype, n) else None


def _make_plan(group: Group, agreed: dict, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
               out: torch.Tensor | None) -> _plan.Plan:
    """How calls like this one run."""
    m, n, dtype, hop_dtype, method = (agreed[name] for name in ("m", "n", "dtype", "hop_dtype", "method"))
    if not m * n:                                       # the same on every rank: nothing to send
        return _Empty((m, n))

    def make(choice: Choice) -> _plan.Plan:
        if choice.method == "unfused":
            return _Unfused((m, n), hop_dtype)
        return _Fused(x, weight, group, hop_dtype, choice, method == "ws")

    if method == "unfused":
        return make(Choice(method))
    ways = [choice for choice in candidates(m, n, dtype, hop_dtype, group) if method in ("auto", choice.method)]
    rule = _plan.rule("gemm_rs", ways, group, bytes_in(m, n, dtype, group.size))
    call = _tune.Call(tuple(agreed.items()), x.shape[1], lambda total: shape(m, n, dtype, hop_dtype, total, group.size), ways,
                      rule, lambda choice: _plan.Trial(lambda: make(choice), group, (x, weight, bias, out)))
    return make(_tune.decide(group, call).choice)


class _Empty(_plan.Plan):
    """No rows or no columns."""

    def __init__(self, out_shape: tuple):
        self.out_shape = out_shape

    def run(self, group, x, weight, bias, out):
        pass


class _Unfused(_plan.Unfused):
    """A matmul, then a collective."""

    def __init__(self, out_shape: tuple, hop_dtype: torch.dtype):
        super().__init__()
        self.out_shape, self.hop_dtype = out_shape, hop_dtype

    def run(self, group, x, weight, bias, out):
        backend().before_torch()

        def scatter(products: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            rows = reduce_scatter(products, group=group, out=rows)
            backend().before_torch()
            return rows
        gemm_rs_reference(x, weight, scatter, bias, out, self.hop_dtype)


class _Fused(_plan.OnWorkspace):
    """A ring, or one in each node, inside one kernel. Holds all that does not change from call to call.

    asked: whether the caller named the method. m, n, k: sizes of out [m, n] and weight [n, k].
    pitch: rows from one chunk of the slots to the next, whole tiles.
    """

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, group: Group, hop_dtype: torch.dtype, choice: Choice,
                 asked: bool):
        self.group, self.dtype, self.hop_dtype, self.config, self.asked = group, x.dtype, hop_dtype, choice.config, asked
        self.m, (self.n, self.k) = x.shape[0] // group.size, weight.shape
        self.out_shape = (self.m, self.n)
        self.core = backend().core("gemm_rs") if choice.method == "ws" else None
        tiles_m = -(-self.m // self.config.block_m)
        tiles = tiles_m * -(-self.n // self.config.block_n)
        self.pitch, self.hops = tiles_m * self.config.block_m, max(1, group.size - 1)
        self.programs = min(tiles * group.size, backend().num_sms())
        self.portable = RingsOverNodes if _plan.across_nodes(group) else _Portable
        space = workspace(group, "gemm_rs", self.portable.space)
        space.reserve(*self.portable.room(self, tiles))
        super().__init__(space)
        self.captured = False if self.portable is RingsOverNodes else None

    def compile(self, x, weight, bias, out):
        x, weight = checks.rows_contiguous(x), checks.rows_contiguous(weight)
        out = x.new_empty(self.out_shape) if out is None else out
        by_core, self.copies = aligned.served("gemm_rs", self.core, self.asked, x, weight, out)
        if self.copies:
            x, weight, out = (aligned.readable(self.core, t) for t in (x, weight, out))
        self.call = (self.core.bind if by_core else self.portable)(self, bias is not None)
        self.launch = backend().prepare(self.call.kernel, (self.programs,),
                                        self.call.args(x, weight, bias, out),
                                        dict(self.call.options, launch_cooperative_grid=True))

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
        return self.call.args(checks.rows_contiguous(x), checks.rows_contiguous(weight), bias, out)


class _Portable:
    """Arguments of the portable kernel for the calls of a plan."""

    kernel, space = gemm_rs_kernel, CountedWorkspace

    @staticmethod
    def room(plan: _Fused, tiles: int) -> tuple:
        """(bytes of a half, flags, who writes a flag) for chunks of `tiles` tiles."""
        return (plan.hops * plan.pitch * plan.n * plan.hop_dtype.itemsize, 2 * plan.hops * tiles,
                lambda flag: (plan.group.rank - 1) % plan.group.size)

    def __init__(self, plan: _Fused, has_bias: bool):
        self.plan, self.slots, self.team = plan, plan.space.data.view(plan.hop_dtype), team(plan.group)
        self.half = plan.space.half_bytes // plan.hop_dtype.itemsize
        self.options = dict(plan.config.options(), HAS_BIAS=has_bias, EVEN_K=plan.k % plan.config.block_k == 0,
                            PRECISION=_plan.precision(plan.dtype))

    def args(self, x, weight, bias, out) -> tuple:
        p = self.plan
        return (x, weight, weight if bias is None else bias, out, self.slots, p.space.flags, p.space.control, self.team,
                self.half, p.m, p.n, p.k, p.pitch, x.stride(0), weight.stride(0))


_CALLS = _recent.Calls("gemm_rs", "x weight bias out", _checked, _plan.first_use(_make_plan), autocasts=True)
