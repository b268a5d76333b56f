# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder's mixture of experts, by expert parallelism: each rank has some of the experts, and its own tokens."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers._experts import Experts, gathered
from triton_dist.ops import dispatch_grouped_gemm, ep_dispatch, grouped_gemm, grouped_gemm_combine
from triton_dist.ops.registry import cast
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve, size_of


class EPMoE(Experts):
    """Mixture of experts down_e(silu(gate_e(x)) * up_e(x)): each rank has E / W of the experts, and the whole router.

    Each rank passes its own tokens. They are sent to the ranks of their experts, and the sums are sent back.

    Args:
        router: gives (ids, weights) of x [T, H], such as a TopKRouter.
        gate_up: [E / W, 2 * I, H], this rank's experts: gate's rows, then up's.
        down: [E / W, H, I].
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        shared: shared experts for all tokens, such as an nn.Module [T, H] -> [T, H], or None.
        max_tokens: the most tokens that a rank may pass in a call. None: all ranks pass equally many. It determines how much of
            the symmetric heap is used (ep_dispatch).
        capacity: number of rows in the order of experts, for calls with gradients. None: all rows fit.

    The gradients of experts' weights are those of the sum of all ranks' losses. The gradients of the router are this rank's part.
    Under autocast experts compute in its dtype, as nn.Linear does.
    """
    def __init__(self,
                 router: nn.Module,
                 gate_up: torch.Tensor,
                 down: torch.Tensor,
                 group: Any = None,
                 *,
                 shared: Any = None,
                 max_tokens: int | None = None,
                 capacity: int | None = None):
        super().__init__(router, gate_up, down, group, shared)
        self.max_tokens, self.capacity = max_tokens, capacity

    @classmethod
    def from_full(cls,
                  router: nn.Module,
                  gate_up: torch.Tensor,
                  down: torch.Tensor,
                  group: Any = None,
                  **options: Any) -> "EPMoE":
        """Copies this rank's part of all experts, [E, 2 * I, H] and [E, H, I], which are the same on all ranks.

        Raises InvalidArgument if E is not a multiple of the number of ranks. options: as for the layer.
        """
        members, experts = resolve(group), gate_up.shape[0]
        if experts % members.size:
            raise InvalidArgument(
                f"gate_up: expected a number of experts divisible by the {members.size} ranks, found {experts}")
        mine = slice(members.rank * (experts // members.size), (members.rank + 1) * (experts // members.size))
        parts = [nn.Parameter(t.detach()[mine].clone(), requires_grad=t.requires_grad) for t in (gate_up, down)]
        return cls(router, *parts, group, **options)

    def full_experts(self) -> tuple[torch.Tensor, torch.Tensor]:
        members = resolve(self.group)
        return gathered(self.weight, members, 0), gathered(self.down, members, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., H], this rank's tokens -> [..., H]."""
        flat = x.reshape(-1, x.shape[-1])
        ids, weights = self.router(flat)
        experts = self.weight.shape[0] * size_of(self.group)
        rows, gate_up, down = cast(flat, self.weight, self.down)
        if torch.is_grad_enabled():
            came = ep_dispatch(rows,
                               ids,
                               weights,
                               num_experts=experts,
                               layout="expert",
                               capacity=self.capacity,
                               max_tokens=self.max_tokens,
                               group=self.group)
            h = grouped_gemm(came.x,
                             gate_up,
                             offsets=came.expert_offsets,
                             counts=came.expert_rows,
                             act="silu_mul")
        else:
            h, came = dispatch_grouped_gemm(rows,
                                            ids,
                                            weights,
                                            gate_up,
                                            num_experts=experts,
                                            max_tokens=self.max_tokens,
                                            group=self.group)
        shared = None if self.shared is None else self.shared(flat)
        joined = shared is None or shared.dtype == h.dtype  # the combine adds it, which saves an addition by a kernel of its own
        out = grouped_gemm_combine(h, down, came, residual=shared if joined else None)
        return (out if joined else out + shared).view(x.shape)

    def extra_repr(self) -> str:
        return f"gate_up={list(self.weight.shape)}, down={list(self.down.shape)}, max_tokens={self.max_tokens}"
