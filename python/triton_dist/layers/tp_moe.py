# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder's mixture of experts, by tensor parallelism: each rank has a part of every expert, and all tokens."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers._experts import Experts, gathered
from triton_dist.layers._shards import Shards
from triton_dist.layers.replicated import replicated, summed
from triton_dist.layers.router import TopKRouter
from triton_dist.ops import grouped_gemm
from triton_dist.ops.registry import cast
from triton_dist.runtime.groups import resolve


class TPMoE(Experts):
    """Mixture of experts down_e(silu(gate_e(x)) * up_e(x)), each sharded over the ranks as TPMLP shards an MLP.

    Every rank passes the same tokens, as for decoding, and gets the whole result. Only the sum over ranks is communicated.

    Args:
        router: gives (ids, weights) of x [T, H], such as a TopKRouter. The same on all ranks.
        gate_up: [E, 2 * I_local, H]: this rank's rows of gate, then of up.
        down: [E, H, I_local].
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        shared: shared experts for all tokens, the same on each rank, or None.

    Gradients are those of one loss that all ranks compute identically. Under autocast as EPMoE.
    """
    def __init__(self,
                 router: nn.Module,
                 gate_up: torch.Tensor,
                 down: torch.Tensor,
                 group: Any = None,
                 *,
                 shared: Any = None):
        super().__init__(router, gate_up, down, group, shared)

    @classmethod
    def from_full(cls,
                  router: nn.Module,
                  gate_up: torch.Tensor,
                  down: torch.Tensor,
                  group: Any = None,
                  **options: Any) -> "TPMoE":
        """From whole experts, [E, 2 * I, H] and [E, H, I], the same on all ranks: takes this rank's shards, copies."""
        members, inner = resolve(group), down.shape[2]
        both, rows = Shards(2 * inner, members, [inner, inner]), Shards(inner, members)
        return cls(router, both.parameter(gate_up, dim=1), rows.parameter(down, dim=2), group, **options)

    def full_experts(self) -> tuple[torch.Tensor, torch.Tensor]:
        members = resolve(self.group)
        halves = [gathered(half, members, 1) for half in self.weight.chunk(2, 1)]
        return torch.cat(halves, 1), gathered(self.down, members, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., H], the same on all ranks -> [..., H]."""
        flat = x.reshape(-1, x.shape[-1])
        ids, weights = self.router(flat)
        k, experts = ids.shape[1], self.weight.shape[0]
        if not isinstance(self.router, TopKRouter):  # as of EPMoE, a number of no expert counts for nothing
            chosen = (ids >= 0) & (ids < experts)
            ids, weights = torch.where(chosen, ids, 0), torch.where(chosen, weights, 0.0)
        order = ids.flatten().argsort(stable=True)  # choices by expert, each expert's in the order of tokens
        ends = torch.arange(experts, dtype=ids.dtype, device=ids.device)
        offsets = torch.searchsorted(ids.flatten()[order], ends, right=True).to(torch.int32)
        offsets = torch.cat([offsets.new_zeros(1), offsets])
        flat, gate_up, down = cast(flat, self.weight, self.down)
        rows, sources = replicated(flat, self.group), order // k
        by = replicated(weights, self.group).flatten()[order]
        if torch.is_grad_enabled():  # the gradient of `sources` adds in any order
            rows, sources = rows[sources], None
        h = grouped_gemm(rows, gate_up, offsets=offsets, sources=sources, act="silu_mul")
        y = grouped_gemm(h, down, offsets=offsets, row_weights=by.contiguous())
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        out = summed(y[back].view(-1, k, y.shape[-1]).float().sum(1).to(y.dtype), self.group)
        if self.shared is not None:
            out = out + self.shared(x.reshape(-1, x.shape[-1]))
        return out.view(x.shape)

    def extra_repr(self) -> str:
        return f"gate_up={list(self.weight.shape)}, down={list(self.down.shape)}"
