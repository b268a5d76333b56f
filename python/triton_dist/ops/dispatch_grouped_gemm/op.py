# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""dispatch_grouped_gemm: what ranks agree on, the ways to run it, and the call by tensors. ep/products.py has what users call."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.calls import acts, checks
from triton_dist.ops.calls.plans import Plan
from triton_dist.ops.calls.possible import across_nodes
from triton_dist.ops.dispatch_grouped_gemm.plan import Fused, estimate
from triton_dist.ops.ep import checks as ep_checks, self_flagged
from triton_dist.ops.ep.op import ExpertsOp, OfTokens
from triton_dist.ops.ep_dispatch.op import EP_DISPATCH, ep_dispatch_rows
from triton_dist.ops.grouped_gemm.op import grouped_gemm
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group

EXPERTS = 8  # of each rank, of the calls that explain, tune and bench speak of
COMM_SMS = (22, 33, 12)  # that move rows while the product of own rows runs
PAYS = 1.08  # so much faster than the ops in turn must the estimate be for "auto" to run fused: it errs by less


@dataclass(frozen=True, kw_only=True)
class Rows(OfTokens):
    """Tokens are dispatched, by weights of choices or none, and multiplied by weights [experts, n, row].

    no_core: why the device's core cannot serve the call; None where it can. by_expert: whether rows are stored by expert, not
    gathered or copied by the product, where the two ops run in turn.
    """
    n: int
    by_expert: bool
    weighted: bool
    act: str | None
    no_core: str | None

    @property
    def columns(self) -> int:
        """Of the result."""
        return acts.columns(self.act, self.n)

    @property
    def each(self) -> int:
        """Rows of an expert, if all are chosen equally often; the same over groups of other sizes."""
        return max(1, self.max_tokens * self.k // max(1, self.experts))

    def ids(self, group: Group) -> Any:
        """What ranks agree on in the dispatch of ids."""
        return EP_DISPATCH.of_ids(self.dtype, self.k, self.weighted, self.experts, self.max_tokens, group)


class DispatchGroupedGemm(ExpertsOp):
    """Tokens to the ranks that have their experts, then their product with the weight of each."""

    name = "dispatch_grouped_gemm"
    tensors = {"x": "sharded", "topk_ids": "sharded", "topk_weights": "sharded", "weight": "local"}
    outputs = {"h": "local", "ids_out": "sharded", "weights_out": "sharded", "told": "local", "positions": "local"}
    methods = ("ws", "portable", "unfused")
    schema = ("(Tensor x, Tensor topk_ids, Tensor? topk_weights, Tensor weight, SymInt num_experts, str? act, "
              "SymInt? max_tokens, str group, str method) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
    timed = True
    core = "grouped_gemm"
    unfused_in_graphs = True

    def check(self, group: Group, x: Any, topk_ids: Any, topk_weights: Any, weight: Any, *rest: Any) -> Rows:
        num_experts, act, max_tokens, method = rest[-4:]
        checks.tensor("x", x, ndim=2)
        ep_checks.choices(topk_ids, x.shape[0])
        ep_checks.experts(num_experts, group)
        ep_checks.floats("topk_weights", topk_weights, tuple(topk_ids.shape))
        checks.tensor("weight", weight, like=x, ndim=3)
        local = num_experts // group.size
        if weight.shape[0] != local or weight.shape[2] != x.shape[1]:
            raise InvalidArgument(f"weight: expected [{local}, N, {x.shape[1]}], for each of this rank's experts, found "
                                  f"{list(weight.shape)}")
        acts.check(act, weight.shape[1])
        agreed = self._agreed(x.shape[1], weight.shape[1], x.dtype, topk_ids.shape[1], topk_weights is not None, num_experts, act,
                              ep_checks.most_tokens(max_tokens, x.shape[0]), method, group)
        if agreed.method == "ws" and agreed.no_core is not None:
            raise InvalidArgument(f"method: 'ws' is not possible here: {agreed.no_core}; use 'auto' or 'portable'")
        return agreed

    def _agreed(self, row: int, n: int, dtype: torch.dtype, k: int, weighted: bool, experts: int, act: str | None,
                max_tokens: int, method: Any, group: Group) -> Rows:
        method, why = self.chosen(method, max_tokens, group)
        no_core = _no_core(dtype, row, acts.columns(act, n))
        return Rows(op=self.name, dtype=dtype, method=method, why=why, row=row, n=n, k=k, weighted=weighted, experts=experts,
                    act=act, max_tokens=max_tokens, no_core=no_core, by_expert=no_core is None and not across_nodes(group)
                    and not self_flagged.serves(row * dtype.itemsize, max_tokens, k, experts // group.size, group))

    def candidates(self, agreed: Rows, group: Group) -> Sequence[Choice]:
        unfused = Choice("unfused")
        if group.size == 1 or not agreed.max_tokens * agreed.row * agreed.n:
            return [unfused]
        core, ways, tilings = backend().core("grouped_gemm"), [], []
        steps = (1, 2) if group.size % 2 == 0 and group.size > 2 else (1, )
        if agreed.no_core is None:
            tilings = core.configs(agreed.dtype, agreed.each * group.size, agreed.act is not None)
            ways = [Choice("ws", config, pieces, sms) for pieces in steps for config in tilings for sms in COMM_SMS]
        config = backend().gemm_config(agreed.dtype, agreed.each * group.size)
        portable = [Choice("portable", config, pieces, COMM_SMS[0]) for pieces in steps]
        if agreed.method != "auto":
            return [way for way in (*ways, *portable, unfused) if way.method == agreed.method]
        hiding = [way for way in ways if core.preferred and way.config == tilings[0] and self._pays(agreed, group, way)]
        if hiding:
            return [*hiding, *(way for way in ways if way not in hiding), unfused]
        return [unfused, *ways, *portable]

    def _pays(self, agreed: Rows, group: Group, way: Choice) -> bool:
        if way.pieces != 1:         # two steps have not run on GPUs: they are only measured, on request
            return False
        found = estimate(agreed, group.size, way, way.comm_sms, backend().num_sms())
        return found.in_turn >= PAYS * found.fused

    def rule(self, agreed: Rows, group: Group, ways: Sequence[Choice]) -> tuple[Choice, str]:
        if agreed.method != "auto":
            return ways[0], agreed.why or "it was asked for"
        if ways[0].method == "unfused":
            return ways[0], agreed.no_core or "too few rows of this rank itself to hide the exchange of the others"
        return ways[0], "the product of its own rows hides much of the exchange"

    def plan(self, choice: Choice, agreed: Rows, group: Group, *tensors: torch.Tensor | None) -> Plan:
        return Fused(choice, agreed, group, tensors)

    def unfused(self, agreed: Rows, group: Group, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None,
                weight: torch.Tensor, h: torch.Tensor | None = None, *_: torch.Tensor | None) -> tuple:
        """The two ops in turn."""
        rows, _, ids_out, weights_out, told, positions, sources = ep_dispatch_rows(
            x, topk_ids, topk_weights, num_experts=agreed.experts, layout="expert" if agreed.by_expert else "indexed",
            max_tokens=agreed.max_tokens, group=group)
        local = agreed.experts // group.size
        h = grouped_gemm(rows, weight, offsets=told[-local - 1:], counts=told[-2 * local - 1:-local - 1],
                         sources=None if agreed.by_expert else sources, act=agreed.act, out=h)
        return h, ids_out, weights_out, told, positions

    def shape_of_out(self, agreed: Rows, group: Group, *_: torch.Tensor | None) -> tuple:
        return group.size * agreed.max_tokens * agreed.k, agreed.columns

    def filled(self, group: Group, agreed: Rows, tensors: Sequence) -> list:
        x, topk_ids, topk_weights = tensors[:3]
        made = EP_DISPATCH.filled(group, agreed.ids(group), [x[:, :0], topk_ids, topk_weights, None, *[None] * 7])
        given, found = tensors[len(self.tensors):], (x.new_empty(self.shape_of_out(agreed, group)), *made[6:10])
        return [*tensors[:len(self.tensors)], *(t if t is not None else room for t, room in zip(given, found))]

    def fake(self, **call: Any) -> tuple:
        x, weight = call["x"], call["weight"]
        made = EP_DISPATCH.fake(x=x, topk_ids=call["topk_ids"], topk_weights=call["topk_weights"], scales=None,
                                num_experts=call["num_experts"], layout="indexed", align=1, capacity=None,
                                max_tokens=call["max_tokens"], quant=None, group=call["group"])
        h = x.new_empty((made[6].shape[0], acts.columns(call["act"], weight.shape[1])))
        return (h, *made[2:6])

    def shape(self, agreed: Rows, group: Group, local: int) -> Shape:
        act = "" if agreed.act is None else f", {agreed.act}"
        words = f"{str(agreed.dtype).removeprefix('torch.')}, {agreed.k} of {agreed.experts} experts{act}"
        return Shape(self.name, words, agreed.max_tokens * group.size, agreed.n, agreed.row)

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Rows:
        """m tokens of all ranks, rows of k elements, weights [n, k] of EXPERTS experts on each rank.

        Each token has a choice on each of up to 16 ranks.
        """
        choices = min(group.size, ep_checks.MOST_CHOICES)
        return self._agreed(k, n, dtype, choices, False, EXPERTS * group.size, None, -(-m // group.size), "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        found = EP_DISPATCH.inputs(m, k, 1, group)
        return {**found, "topk_weights": None, "weight": (EXPERTS, n, k)}


def _no_core(dtype: torch.dtype, row: int, columns: int) -> str | None:
    """Why the device's core cannot serve any rank; None where it can. A rank whose weight it cannot read runs on a copy."""
    if backend().core("grouped_gemm") is None:
        return "this device has no Hopper core"
    if dtype.itemsize != 2:
        return f"the core multiplies fp16 and bf16, not {dtype}"
    if row % 8 or columns % 8:
        return "rows of x and of the result must begin at multiples of 16 bytes"
    return None


DISPATCH_GROUPED_GEMM = DispatchGroupedGemm()


@DISPATCH_GROUPED_GEMM.public
def dispatch_grouped_gemm_rows(x: torch.Tensor,
                               topk_ids: torch.Tensor,
                               topk_weights: torch.Tensor | None,
                               weight: torch.Tensor,
                               *,
                               num_experts: int,
                               act: str | None = None,
                               max_tokens: int | None = None,
                               group: Any = None,
                               method: str = "auto") -> tuple:
    """The operator of dispatch_grouped_gemm in graphs: it takes and returns tensors, and has no gradient.

    In a program call dispatch_grouped_gemm instead.

    Returns (h, ids_out, weights_out, told, positions); tensors that the call does not have are empty.
    """
    known = DISPATCH_GROUPED_GEMM.known((num_experts, act, max_tokens, method), group, x, topk_ids, None, topk_weights, weight,
                                        None, None, None, None)
    if known is None:
        return DISPATCH_GROUPED_GEMM.record(x=x, topk_ids=topk_ids, topk_weights=topk_weights, weight=weight,
                                            num_experts=num_experts, act=act, max_tokens=max_tokens, group=group, method=method)
    return known.plan.run(known.group, x, topk_ids, topk_weights, weight)
