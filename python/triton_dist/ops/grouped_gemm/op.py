# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""grouped_gemm: what is allowed, the ways to run it, and the call. Nothing is sent, so ranks need not call it alike."""
import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.autograd import grouped as gradients
from triton_dist.ops.calls import acts, checks
from triton_dist.ops.calls.plans import Plan
from triton_dist.ops.grouped_gemm.plans import ByCore, Portable, flat_rows
from triton_dist.ops.grouped_gemm.unfused import grouped_gemm_unfused
from triton_dist.ops.grouped_gemm.weight import grouped_weight
from triton_dist.ops.op import Agreed, Op
from triton_dist.ops.registry import Gradient, Operator
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

EXPERTS = 8         # of the calls that explain, tune and bench speak of


@dataclass(frozen=True, kw_only=True)
class Rows(Agreed):
    """m rows by expert, room for them included, of k elements each, times weights [experts, n, k].

    no_core: why the device's core cannot serve the call; None where it can.
    """
    m: int
    n: int
    k: int
    experts: int
    act: str | None
    no_core: str | None

    @property
    def columns(self) -> int:
        """Of the result."""
        return acts.columns(self.act, self.n)

    @property
    def each(self) -> int:
        """Rows of an expert, about."""
        return max(1, self.m // max(1, self.experts))


class GroupedGemm(Op):
    """Rows by expert, each times the weight of its expert."""

    name = "grouped_gemm"
    tensors = dict.fromkeys(("x", "weight", "offsets", "counts", "sources", "row_weights"), "local")
    outputs = {"out": "local"}
    methods = ("ws", "portable", "unfused")
    schema = ("(Tensor x, Tensor weight, Tensor? offsets, Tensor? counts, Tensor? sources, str? act, Tensor? row_weights, "
              "str method) -> Tensor")
    gradient = Gradient(gradients.keep, gradients.backward)
    local = True
    timed = True
    unfused_in_graphs = False           # the host waits for the numbers of rows

    def check(self, group: Group, x: Any, weight: Any, offsets: Any, counts: Any, sources: Any, row_weights: Any, out: Any,
              act: Any, method: Any) -> Rows:
        method, _ = self.possible(method, None)
        checks.tensor("x", x)
        checks.tensor("weight", weight, like=x, ndim=3)
        experts, n, k = weight.shape
        if x.ndim not in (2, 3) or x.shape[-1] != k or x.ndim == 3 and x.shape[0] != experts:
            raise InvalidArgument(
                f"x: expected [R, {k}] or [{experts}, capacity, {k}] to match weight {list(weight.shape)}, found "
                f"{list(x.shape)}")
        if x.ndim == 3 and (counts is None or offsets is not None or sources is not None):
            raise InvalidArgument("counts: expected with rows [E, capacity, K], without offsets and sources")
        if x.ndim == 2 and offsets is None:
            raise InvalidArgument(
                "offsets: expected where each expert's rows begin, found None; pass ep_dispatch's expert_offsets")
        for name, t, shape in (("offsets", offsets, (experts + 1, )), ("counts", counts, (experts, ))):
            if t is not None:
                checks.counts(name, t, shape)
        if sources is not None:
            checks.counts("sources", sources, tuple(getattr(sources, "shape", (0, ))[:1]))
        acts.check(act, n)
        shape = _shape(x, weight, sources, act)
        rows = math.prod(shape[:-1])
        if row_weights is not None and (not isinstance(row_weights, torch.Tensor) or row_weights.dtype != torch.float32
                                        or row_weights.numel() != rows or not row_weights.is_contiguous()):
            raise InvalidArgument(f"row_weights: expected None or {rows} contiguous float32, one for each row by expert")
        checks.output("out", out, shape, like=x)
        given = dict(x=x, weight=weight, offsets=offsets, counts=counts, sources=sources, row_weights=row_weights)
        checks.no_overlap("out", out, **given)
        if out is not None:
            checks.no_grad(x=x, weight=weight, row_weights=row_weights)
        if method == "unfused" and backend().is_capturing():
            raise InvalidArgument("method: graph capture needs 'ws' or 'portable', since the host waits for the numbers of rows "
                                  "otherwise")
        no_core = _no_core(x, weight, sources, out, act, rows // max(1, experts))
        if method == "ws" and no_core is not None and rows and n and k:
            raise InvalidArgument(f"method: 'ws' is not possible here: {no_core}; use 'auto' or 'portable'")
        return self._agreed(rows, n, k, x.dtype, experts, act, no_core, method)

    def _agreed(self, m: int, n: int, k: int, dtype: torch.dtype, experts: int, act: str | None, no_core: str | None,
                method: str) -> Rows:
        return Rows(op=self.name, dtype=dtype, method=method, m=m, n=n, k=k, experts=experts, act=act, no_core=no_core)

    def candidates(self, agreed: Rows, group: Group) -> Sequence[Choice]:
        if not agreed.m * agreed.n * agreed.k:
            return [Choice("unfused")]
        core, ways = backend().core(self.name), [Choice("portable", backend().gemm_config(agreed.dtype, agreed.each))]
        if agreed.no_core is None:
            tilings = core.configs(agreed.dtype, agreed.each, agreed.act is not None)
            by_core = [Choice("ws", config) for config in tilings]
            ways = [*by_core, *ways] if core.preferred else [*ways, *by_core]
        if agreed.method == "auto":
            return ways[:1] if backend().is_capturing() else ways           # nothing can be measured in a capture
        return [way for way in (*ways, Choice("unfused")) if way.method == agreed.method]

    def rule(self, agreed: Rows, group: Group, ways: Sequence[Choice]) -> tuple[Choice, str]:
        if agreed.method != "auto":
            return ways[0], "it was asked for"
        if ways[0].method == "unfused":
            return ways[0], "there is nothing to multiply"
        return ways[0], agreed.no_core or "it is what this device prefers"

    def plan(self, choice: Choice, agreed: Rows, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return (ByCore if choice.method == "ws" else Portable)(choice.config)

    def unfused(self, agreed: Rows, group: Group, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor | None,
                counts: torch.Tensor | None, sources: torch.Tensor | None, row_weights: torch.Tensor | None,
                out: torch.Tensor) -> None:
        """A loop of torch's products, for which the host waits."""
        if not agreed.m * agreed.n:
            return
        if not agreed.k:
            out.zero_()
        else:
            grouped_gemm_unfused(x, weight, offsets, counts, sources, row_weights, out, agreed.act is not None)

    def shape_of_out(self, agreed: Rows, group: Group, *tensors: torch.Tensor | None) -> tuple:
        return _shape(tensors[0], tensors[1], tensors[4], agreed.act)

    def fake(self, **call: Any) -> torch.Tensor:
        return call["x"].new_empty(_shape(call["x"], call["weight"], call["sources"], call["act"]))

    def shape(self, agreed: Rows, group: Group, local: int) -> Shape:
        act = "" if agreed.act is None else f", {agreed.act}"
        return Shape(self.name, f"{str(agreed.dtype).removeprefix('torch.')}, {agreed.experts} experts{act}", agreed.m, agreed.n,
                     agreed.k)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Rows:
        """m rows of EXPERTS experts with weights [n, k], as `inputs` makes them."""
        x = torch.empty((max(1, m), k), dtype=dtype, device=backend().device())
        weight = x.new_empty((1, n, k))
        return self._agreed(m, n, k, dtype, EXPERTS, None, _no_core(x, weight, None, None, None, m // EXPERTS), "auto")

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        offsets = torch.arange(EXPERTS + 1, dtype=torch.int32) * m // EXPERTS
        return {"x": (m, k), "weight": (EXPERTS, n, k), "offsets": offsets.to(torch.int32).to(backend().device())}


def _shape(x: torch.Tensor, weight: torch.Tensor, sources: torch.Tensor | None, act: str | None) -> tuple:
    """Of the result. Sizes may be symbolic."""
    rows = x.shape[:-1] if sources is None else sources.shape
    return *rows, acts.columns(act, weight.shape[1])


def _no_core(x: torch.Tensor, weight: torch.Tensor, sources: torch.Tensor | None, out: torch.Tensor | None, act: str | None,
             each: int) -> str | None:
    """Why the device's core cannot serve a call with about `each` rows of an expert; None where it can."""
    core = backend().core("grouped_gemm")
    if core is None:
        return "this device has no Hopper core"
    if not weight.numel() or not x.numel():
        return "there is nothing to read"
    if out is not None and out.data_ptr() % 16:
        return "the result must begin at a multiple of 16 bytes"
    read = flat_rows(x) if sources is None else x[:1].contiguous()
    columns, gated = acts.columns(act, weight.shape[1]), act is not None
    usual = core.configs(x.dtype, max(1, each), gated)[0]
    return core.refuses(read, weight, columns, usual, gated)


GROUPED_GEMM = GroupedGemm()


@GROUPED_GEMM.public
def grouped_gemm(x: torch.Tensor,
                 weight: torch.Tensor,
                 *,
                 offsets: torch.Tensor | None = None,
                 counts: torch.Tensor | None = None,
                 sources: torch.Tensor | None = None,
                 act: str | None = None,
                 row_weights: torch.Tensor | None = None,
                 out: torch.Tensor | None = None,
                 method: str = "auto") -> torch.Tensor:
    """Multiplies each row by the weight of its expert. The host waits for nothing; works in graphs.

    Nothing is sent: each rank calls it independently, and ranks may make different calls.

    Args:
        x: fp16, bf16 or fp32 [R, K], rows in the order of experts; or [E, capacity, K], each expert's from row 0 on ("masked").
        weight: [E, N, K] of x's dtype, any strides: a row for each output column, as in nn.Linear.
        offsets: int32 or int64 [E + 1] on the device, contiguous: where each expert's rows begin, and the end.
        counts: int32 or int64 [E] on the device, contiguous: rows of each expert. None: all rows up to the next expert. Rows
            beyond x are ignored.
        sources: int32 [rows] or None: row r in the order of experts is row sources[r] of x, as an "indexed" dispatch gives it.
        act: None, or "silu_mul": the result is silu(x @ the first N / 2 rows of the weight^T) * (x @ the others^T).
        row_weights: float32, one for each row in the order of experts, or None: factors of the result's rows.
        out: contiguous, of the result's shape, or None to allocate. A call with `out` has no gradient.
        method: "auto", "ws" (the Hopper core: fp16 and bf16, tensors that TMA can read), "portable" (a Triton kernel for all
            devices) or "unfused" (a loop of torch's products, which rounds after each step; the host waits for the numbers of
            rows, so it cannot be captured). "auto" takes the core if it supports the call. For N up to 2048 the core gathers the
            rows that `sources` names while it loads them. For larger N it copies them first, which is faster.

    Returns:
        [rows, N], or [E, capacity, N]; N / 2 columns with "silu_mul". Sums are in fp32 and rounded once. Rows between experts are
        not written. Gradients flow through x, weight and row_weights. With "silu_mul" the backward pass computes gate and up
        again.

    Example:
        came = ep_dispatch(x, ids, weights, num_experts=64, layout="expert")
        h = grouped_gemm(came.x, w13, offsets=came.expert_offsets, counts=came.expert_rows, act="silu_mul")
        y = grouped_gemm(h, w2, offsets=came.expert_offsets, counts=came.expert_rows)
    """
    known = GROUPED_GEMM.known((act, method), None, x, weight, out, offsets, counts, None, sources, row_weights)
    if known is None:
        return GROUPED_GEMM.record(x=x,
                                   weight=weight,
                                   offsets=offsets,
                                   counts=counts,
                                   sources=sources,
                                   act=act,
                                   row_weights=row_weights,
                                   out=out,
                                   method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, x, weight, offsets, counts, sources, row_weights, out)
    return out


# The gradient of the weights as an operator of its own: [E, N, K] from the gradient of the result and x.
GROUPED_GEMM_WEIGHT = Operator(
    "grouped_gemm_weight",
    "(Tensor grad, Tensor x, Tensor? offsets, Tensor? counts, Tensor? sources, SymInt experts) -> Tensor", grouped_weight,
    lambda grad, x, offsets, counts, sources, experts: x.new_empty((experts, grad.shape[-1], x.shape[-1])))
