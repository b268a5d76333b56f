# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_combine: what ranks agree on, its plan of one kernel, and the call by tensors. What users call is in ep/calls.py."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.autograd import experts as gradients
from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import OnWorkspace, Plan
from triton_dist.ops.ep import checks as ep_checks, chunks
from triton_dist.ops.ep.chunks import Room, chunks_of, tile_of
from triton_dist.ops.ep.op import TWO_LEVEL, ExpertsOp, OfTokens
from triton_dist.ops.ep.self_flagged import METHOD
from triton_dist.ops.ep_combine.kernels import ep_combine_kernel
from triton_dist.ops.ep_combine.nodes import OverNodes
from triton_dist.ops.ep_combine.self_flagged import SelfFlagged
from triton_dist.ops.ep_combine.unfused import ep_combine_unfused
from triton_dist.ops.exchange.sizes import power_of_two
from triton_dist.ops.registry import Gradient
from triton_dist.ops.tuning.table import Choice
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group
from triton_dist.runtime.workspace import CountedWorkspace, team


@dataclass(frozen=True, kw_only=True)
class Sums(OfTokens):
    """Sums go back to the tokens."""

    def options(self, group: Group, positions: Any, weights: Any, bias: Any, residual: Any) -> dict:
        """Those that both kernels have, for a call with these tensors or None."""
        return dict(K=self.k, CHOICES=power_of_two(self.k), E_LOC=self.experts // group.size, WORLD=group.size,
                    PLACED=positions is not None, WEIGHTED=weights is not None, HAS_BIAS=bias is not None,
                    HAS_RESIDUAL=residual is not None)


class EPCombine(ExpertsOp):
    """Results of experts back to the ranks that have the tokens."""

    name = "ep_combine"
    tensors = {
        "y": "sharded",
        "topk_ids": "sharded",
        "told": "local",
        "positions": "local",
        "topk_weights": "sharded",
        "bias": "equal",
        "residual": "sharded"
    }
    outputs = {"out": "sharded"}
    schema = (
        "(Tensor y, Tensor topk_ids, Tensor told, Tensor? positions, Tensor? topk_weights, Tensor? bias, Tensor? residual, "
        "SymInt num_experts, SymInt rows, SymInt? max_tokens, str group, str method) -> Tensor")
    gradient = Gradient(gradients.keep_combine, gradients.backward_combine)

    def check(self, group: Group, y: torch.Tensor, topk_ids: torch.Tensor, told: torch.Tensor,
              positions: torch.Tensor | None, topk_weights: torch.Tensor | None, bias: torch.Tensor | None,
              residual: torch.Tensor | None, out: torch.Tensor | None, num_experts: Any, rows: Any, max_tokens: Any,
              method: str) -> Sums:
        checks.tensor("y", y)
        ep_checks.choices(topk_ids, None)
        ep_checks.experts(num_experts, group)
        tokens, k = topk_ids.shape
        if y.ndim not in ((2, ) if positions is None else (2, 3)):
            raise InvalidArgument(
                f"y: expected [rows, H], or [experts, rows, H] of a masked dispatch, found shape {list(y.shape)}")
        checks.size("rows", rows)
        row, local = y.shape[-1], num_experts // group.size
        if y.shape[:-1].numel() != rows or y.ndim == 3 and y.shape[0] != local:
            by = "" if positions is None else " by expert"
            each = f", or {[local, rows // local, 'H']}" if y.ndim == 3 and not rows % local else ""
            raise InvalidArgument(
                f"y: expected {[rows, 'H']}{each}, since the dispatch has room for {rows} rows{by}, found shape {list(y.shape)}; "
                "pass a row for each of the dispatch, also where nothing came")
        agreed = self._agreed(row, y.dtype, k, num_experts, ep_checks.most_tokens(max_tokens, tokens), method, group)
        counted = 1 + group.size * agreed.chunks.count
        if not isinstance(told, torch.Tensor) or told.ndim != 1 or told.dtype != torch.int32 or told.numel() < counted:
            raise InvalidArgument(
                "told: expected what ep_dispatch gave for these tokens; pass its handle, and the same max_tokens")
        if positions is None:
            if topk_weights is not None:
                raise InvalidArgument(
                    "topk_weights: expected None, since rows of a compact dispatch are sums over choices already; "
                    "apply the weights before, or dispatch by another layout")
        else:
            checks.counts("positions", positions, (positions.shape[0], k))
            if positions.dtype != torch.int32:
                raise InvalidArgument(f"positions: expected torch.int32, found {positions.dtype}")
            ep_checks.floats("topk_weights", topk_weights, (positions.shape[0], k))
        checks.vector("bias", bias, row, like=y)
        if residual is not None:
            checks.tensor("residual", residual, like=y)
            if tuple(residual.shape) != (tokens, row):
                raise InvalidArgument(f"residual: expected None or shape {[tokens, row]}, found {list(residual.shape)}")
        checks.output("out", out, (tokens, row), like=y)
        checks.no_overlap("out",
                          out,
                          y=y,
                          topk_ids=topk_ids,
                          told=told,
                          positions=positions,
                          topk_weights=topk_weights,
                          bias=bias,
                          residual=residual)
        checks.no_grad(y=y, topk_weights=topk_weights, bias=bias, residual=residual)
        self.refuse_unfused_capture(agreed)
        return agreed

    def _agreed(self, row: int, dtype: torch.dtype, k: int, experts: int, max_tokens: int, method: str,
                group: Group) -> Sums:
        method, why = self.chosen_for_rows(method, row * dtype.itemsize, max_tokens, k, experts, group)
        return Sums(op=self.name,
                    dtype=dtype,
                    method=method,
                    why=why,
                    row=row,
                    k=k,
                    experts=experts,
                    max_tokens=max_tokens)

    def plan(self, choice: Choice, agreed: Sums, group: Group, *tensors: torch.Tensor | None) -> Plan:
        if choice.method == METHOD:
            return SelfFlagged(agreed, group, tensors)
        if choice.method == TWO_LEVEL:
            return OverNodes(agreed, group, tensors)
        return Push(agreed, group, tensors, chunks.whole_calls(group))

    def unfused(self, agreed: Sums, group: Group, *tensors: torch.Tensor | None) -> None:
        """The group's own collective."""
        if agreed.max_tokens:
            ep_combine_unfused(agreed, group, *tensors)

    def out_shape(self, world: int, y: torch.Tensor, topk_ids: torch.Tensor, *_: torch.Tensor | None) -> tuple:
        return topk_ids.shape[0], y.shape[-1]

    def at(self, m: int, n: int, k: int, dtype: torch.dtype, group: Group) -> Sums:
        """m tokens of all ranks, rows of n elements; k does not matter: one expert a rank, to which its own tokens go."""
        return self._agreed(n, dtype, 1, group.size, -(-m // group.size), "auto", group)

    def inputs(self, m: int, n: int, k: int, group: Group) -> dict:
        """Tokens that all go to their own rank: what comes back can be said without a dispatch."""
        rows = -(-m // group.size)
        chunks, device = chunks_of(rows), backend().device()
        told = torch.zeros(1 + group.size * chunks.count, dtype=torch.int32)
        told[0], each = rows, -(-rows // chunks.count)
        for chunk in range(chunks.count):
            told[1 + group.rank * chunks.count + chunk] = each << 16 | max(0, min(each, rows - chunk * each))
        ids = torch.full((rows, 1), group.rank, dtype=torch.int32)
        return {"y": (rows, n), "topk_ids": ids.to(device), "told": told.to(device), "num_experts": group.size, "rows": rows}


class Push(OnWorkspace):
    """One kernel. Holds all that does not change from call to call. send, take: as in a dispatch's."""
    def __init__(self,
                 agreed: Sums,
                 group: Group,
                 tensors: Sequence,
                 space: CountedWorkspace,
                 send: bool = True,
                 take: bool = True):
        self.halves = dict(send=send, take=take)
        y, topk_ids, _, positions = tensors[:4]
        self.agreed, self.group, self.tokens, self.chunks = agreed, group, topk_ids.shape[0], agreed.chunks
        self.limit = y.shape[0] if positions is None else positions.shape[0]
        self.tile = tile_of(self.chunks, agreed.row, 4, chunks.SUMMED)
        self.cols = self.tile.cols
        if positions is None:  # rows of more than two ranks are added one after the other, which takes more registers
            most = chunks.PASSED // agreed.dtype.itemsize // (1 if group.size <= 2 else 2)
            self.cols = min(power_of_two(agreed.row), most)
        self.room = Room(group, self.chunks, self.tile, agreed.dtype, agreed.row, 0, space)
        super().__init__(self.room.space)

    def compile(self, *tensors):
        args, agreed, room = self.args(*tensors), self.agreed, self.room
        _, _, _, positions, weights, bias, residual, _ = tensors
        rest = (*room.packets, *room.rows, *room.flags, room.space.control, team(self.group), self.tokens,
                self.chunks.each, self.tile.rounds, agreed.row, self.limit, agreed.experts, self.chunks.count)
        self.launch = backend().prepare(ep_combine_kernel, self.tile.grid(self.chunks, **self.halves), (*args, *rest),
                                        dict(agreed.options(self.group, positions, weights, bias, residual),
                                             RANKS=room.ranks,
                                             PITCH=room.pitch,
                                             TOKENS=power_of_two(self.chunks.each),
                                             COLS=self.cols,
                                             ROUND=self.tile.round,
                                             PARTS=self.tile.parts,
                                             SEND=self.halves["send"],
                                             TAKE=self.halves["take"],
                                             **chunks.SUMMED.options,
                                             num_stages=1,
                                             enable_fp_fusion=False),  # else not the bits of the unfused sums
                                        varying=len(args))

    def args(self, y, topk_ids, told, positions, topk_weights, bias, residual, out) -> tuple:
        return (y.contiguous(), topk_ids, told, told if positions is None else positions,
                out if topk_weights is None else topk_weights, out if bias is None else bias,
                out if residual is None else residual.contiguous(), out)


EP_COMBINE = EPCombine()


@EP_COMBINE.public
def ep_combine_rows(y: torch.Tensor,
                    topk_ids: torch.Tensor,
                    told: torch.Tensor,
                    positions: torch.Tensor | None = None,
                    topk_weights: torch.Tensor | None = None,
                    bias: torch.Tensor | None = None,
                    residual: torch.Tensor | None = None,
                    *,
                    num_experts: int,
                    rows: int,
                    max_tokens: int | None = None,
                    group: Any = None,
                    out: torch.Tensor | None = None,
                    method: str = "auto") -> torch.Tensor:
    """The operator of ep_combine in graphs: it takes tensors instead of a handle. In a program call ep_combine instead.

    rows: number of rows of y, for which the dispatch has made room.

    Returns out [T, H].
    """
    known = EP_COMBINE.known((num_experts, rows, max_tokens, method), group, y, topk_ids, out, told, positions, None,
                             topk_weights, bias, residual)
    if known is None:
        return EP_COMBINE.record(y=y,
                                 topk_ids=topk_ids,
                                 told=told,
                                 positions=positions,
                                 topk_weights=topk_weights,
                                 bias=bias,
                                 residual=residual,
                                 num_experts=num_experts,
                                 rows=rows,
                                 max_tokens=max_tokens,
                                 group=group,
                                 out=out,
                                 method=method)
    if out is None:
        out = known.new_out()
    known.plan.run(known.group, y, topk_ids, told, positions, topk_weights, bias, residual, out)
    return out
