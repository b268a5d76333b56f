# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_rs: what ranks agree on, the ways to run it, what they move, and the call."""
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Callable, Sequence

import torch

from triton_dist.ops import products, registry
from triton_dist.ops.autograd import gemms as gradients
from triton_dist.ops.calls import checks, possible
from triton_dist.ops.calls.plans import Plan
from triton_dist.ops.gemm_rs.fused import Fused
from triton_dist.ops.gemm_rs.scatter_kernel import MOST_ROWS
from triton_dist.ops.gemm_rs.unfused import gemm_rs_unfused
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.reduce_scatter.op import REDUCE_SCATTER, reduce_scatter
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning import model
from triton_dist.ops.tuning.table import Choice, Shape, choices
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group


@dataclass(frozen=True, kw_only=True)
class Chunk(Agreed):
    """out is [m, n] on each rank. Partial sums travel in hop_dtype.

    core: the device's, if it serves such calls. straight: whether tiles go straight to their owners, or may: an "auto" has that
    way where there is no switch.
    """
    m: int
    n: int
    hop_dtype: torch.dtype
    core: Any = field(compare=False)
    straight: bool = field(compare=False)

    @property
    def nbytes(self) -> int:
        """Of what travels in a hop."""
        return self.m * self.n * self.hop_dtype.itemsize


class GemmRs(Op):
    """A ring, one in each node, or tiles that go straight to their owners, inside one GEMM."""

    name = "gemm_rs"
    tensors = {"x": "sharded", "weight": "sharded", "bias": "equal"}
    outputs = {"out": "summed"}
    methods = ("ws", "portable", "scatter", "unfused")
    schema = "(Tensor x, Tensor weight, Tensor? bias, str group, ScalarType? hop_dtype, str method) -> Tensor"
    gradient = Gradient(gradients.keep_gemm_rs, gradients.gemm_rs_backward)
    autocasts = timed = True
    local_axis = "k"

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None,
              hop_dtype: torch.dtype | None, method: str) -> Chunk:
        checks.matrix("x", x)
        checks.matrix("weight", weight, like=x)
        products.check_columns(x, weight)
        if x.shape[0] % group.size:
            raise InvalidArgument(f"x: expected a number of rows divisible by the group size {group.size}, "
                                  f"found {x.shape[0]}; pad the rows")
        if hop_dtype is not None and hop_dtype is not x.dtype and hop_dtype is not torch.float32:
            raise InvalidArgument(f"hop_dtype: expected None, {x.dtype} or torch.float32, found {hop_dtype!r}; leave it out for "
                                  "None")
        m, n = x.shape[0] // group.size, weight.shape[0]
        checks.vector("bias", bias, n, like=x)
        checks.output("out", out, (m, n), like=x)
        checks.no_overlap("out", out, x=x, weight=weight, bias=bias)
        checks.no_grad(x=x, weight=weight, bias=bias)
        return self._agreed(m, n, x.dtype, hop_dtype or x.dtype, method, group)

    def resized(self, agreed: Chunk, group: Group, x: torch.Tensor, asked: tuple) -> Chunk | None:
        m, rest = divmod(x.shape[0], group.size)
        return agreed.of_rows(m) if 0 < m < 2**31 // group.size and not rest else None

    def _agreed(self, m: int, n: int, dtype: torch.dtype, hop_dtype: torch.dtype, method: str, group: Group) -> Chunk:
        core, apart = backend().core("gemm_rs"), possible.across_nodes(group)
        core = core if core is not None and not apart and core.serves(dtype, n) else None
        straight = group.size > 1 and not apart and not possible.switched() if method == "auto" else method == "scatter"
        if method == "scatter" and apart:
            self.possible(method, possible.no_kernel(group))
        found = Chunk(op=self.name, dtype=dtype, method=method, m=m, n=n, hop_dtype=hop_dtype, core=core, straight=straight)
        return products.resolved(self, found, group, False, possible.BEFORE_CAPTURE, core)

    def candidates(self, agreed: Chunk, group: Group) -> Sequence[Choice]:
        if agreed.method == "unfused" or not agreed.m * agreed.n:
            return [Choice("unfused")]
        core, portable = agreed.core, backend().gemm_configs(agreed.dtype, agreed.m)
        by_core = core.configs(agreed.dtype, agreed.m, agreed.n, agreed.hop_dtype) if core else ()
        return _ways(agreed.method, tuple(by_core), tuple(portable), agreed.straight)

    def rule(self, agreed: Chunk, group: Group, ways: Sequence[Choice]) -> tuple[Choice, str]:
        return products.rule(self, agreed, group, ways, (group.size - 1) * agreed.m * agreed.n * agreed.dtype.itemsize,
                             scatters=True)

    def plan(self, choice: Choice, agreed: Chunk, group: Group, *tensors: torch.Tensor | None) -> Fused:
        return Fused(choice, agreed, group, *tensors)

    def collective_of_unfused(self, agreed: Chunk, group: Group, x: torch.Tensor, weight: torch.Tensor,
                              bias: torch.Tensor | None, out: torch.Tensor | None) -> Plan | None:
        if not agreed.m * agreed.n:
            return None
        hop, m = agreed.hop_dtype, agreed.m * group.size
        return REDUCE_SCATTER.part(group, REDUCE_SCATTER.at(m, agreed.n, 1, hop, group),
                                   backend().maker((m, agreed.n), hop)(), None if out is None or out.dtype != hop else out)

    def unfused(self, agreed: Chunk, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                out: torch.Tensor, collective: Callable | None = None) -> None:
        """A matmul, then a collective."""
        if not agreed.m * agreed.n:
            return

        run = collective or partial(reduce_scatter, group=group)

        def scatter(terms: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            rows = run(terms, out=rows)
            backend().before_torch()
            return rows
        gemm_rs_unfused(x, weight, scatter, bias, out, agreed.hop_dtype, group.size)

    def out_shape(self, world: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> tuple:
        registry.require(weight.shape[1] == x.shape[1], "weight: expected [N, K_local] with the K of x [M, K_local]")
        registry.require(x.shape[0] % world == 0, "x: expected a number of rows divisible by the group size; pad the rows")
        return x.shape[0] // world, weight.shape[0]

    def traffic(self, agreed: Chunk, group: Group) -> dict[int, int]:
        """W - 1 chunks of partial sums to the next rank; over nodes these inside the own one, and a chunk to each other node.

        Where tiles go straight to their owners, a chunk to each other rank.
        """
        if possible.across_nodes(group):
            return products.summed_over_nodes(group, agreed.nbytes)
        if agreed.straight:
            return {rank: agreed.nbytes for rank in group.world_ranks if rank != group.world_ranks[group.rank]}
        return {group.world_ranks[(group.rank + 1) % group.size]: (group.size - 1) * agreed.nbytes}

    def local_size(self, x: torch.Tensor, *_: torch.Tensor | None) -> int:
        return x.shape[1]

    def shape(self, agreed: Chunk, group: Group, local: int) -> Shape:
        return Shape(self.name, _names(agreed.dtype, agreed.hop_dtype), agreed.m * group.size, agreed.n, local)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Chunk:
        return self._agreed(-(-m // group.size), n, dtype, dtype, "auto", group)

    def estimates(self, agreed: Chunk, group: Group, shape: Shape, ways: Sequence[Choice]) -> dict:
        return products.estimates(model.gemm_rs_estimates, agreed, group, ways, agreed.m, shape.n, -(-shape.k // group.size))

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        return {"x": (m, products.part(k, group)), "weight": (n, products.part(k, group))}


@cache
def _ways(method: str, by_core: tuple, portable: tuple, straight: bool) -> tuple[Choice, ...]:
    """Candidates with these tilings, of the core and the portable kernel. straight: whether tiles may go to their owners."""
    found = [*choices("ws", *by_core)]
    if straight:
        found += [Choice("scatter", config) for config in portable if config.block_m <= MOST_ROWS]
    found += choices("portable", *portable[:1 if by_core or straight else None])
    return tuple([choice for choice in (*found, Choice("unfused")) if method in ("auto", choice.method)])


@cache
def _names(*kinds: torch.dtype) -> str:
    return ", hops ".join([str(kind).removeprefix("torch.") for kind in dict.fromkeys(kinds)])


GEMM_RS = GemmRs()


@GEMM_RS.public
def gemm_rs(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, hop_dtype: torch.dtype | None = None, method: str = "auto") -> torch.Tensor:
    """reduce_scatter(x @ weight^T) + bias, with the reduction hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M, K_local] fp16, bf16 or fp32 on `triton_dist.device()`. M is a multiple of the group size W, equal on all ranks.
        weight: [N, K_local], same dtype: this rank's columns. N is equal on all ranks; K_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N] or None, same dtype: added once, in fp32, to the sum. Pass the same on every rank.
        out: [M / W, N] contiguous, or None to allocate.
        hop_dtype: dtype in which partial sums travel: that of x (one rounding a hop) or torch.float32. None: that of x.
            By "scatter" products travel in it, rounded once.
        method: "auto", "ws" (fused, the device's warp-specialised core; what it cannot read or write is copied at each
            call), "portable" (fused, a ring), "scatter" (fused, each tile straight to the rank that sums it: for machines
            without a switch, inside a node) or "unfused" (a matmul, then a collective). The same on all ranks.

    Returns out [M / W, N]: the rows of this rank's group index.
    Gradients (without `out`): that of x by ag_gemm, whose gathered gradient also gives that of weight and, summed over all M
    rows, that of bias, equal on all ranks. The same tensors must require them on all ranks.
    Products accumulate in fp32. The sum over ranks has a fixed order (for rank c: c + 1, c + 2, ..., c; with "scatter" c, c + 1,
    ...; over nodes a ring in each node, then its own node's sum and those of the nodes after it), so the same inputs give the
    same bits. fp16 may overflow at a hop unless hop_dtype is float32.
    In graphs: run the same call once before capture, else auto captures "unfused" and other methods refuse. Replays and
    eager calls may follow each other in any order, all on one stream or on streams that wait for each other.
    Under autocast operands are cast and the output has its dtype, as for nn.Linear; `out` must have that dtype.
    Raises InvalidArgument before anything is sent.

    Example:
        y = gemm_rs(hidden, down_proj.weight)               # hidden [M, K_local] -> [M / W, N]
    """
    known = GEMM_RS.known((hop_dtype, method), group, x, weight, out, bias)
    if known is None:
        return GEMM_RS.record(x=x, weight=weight, group=group, bias=bias, out=out, hop_dtype=hop_dtype, method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, weight, bias, out)
    return out
