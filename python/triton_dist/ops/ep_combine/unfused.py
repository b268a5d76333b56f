# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Combine by the group's own collective: the method "unfused". The host waits for the numbers of rows."""
from typing import Any

import torch

from triton_dist.ops.ep_dispatch.unfused import chosen, exchanged
from triton_dist.runtime.groups import Group


def ep_combine_unfused(agreed: Any, group: Group, y: torch.Tensor, topk_ids: torch.Tensor, told: torch.Tensor,
                       positions: torch.Tensor | None, topk_weights: torch.Tensor | None, bias: torch.Tensor | None,
                       residual: torch.Tensor | None, out: torch.Tensor) -> None:
    """Fills out [T, H]. agreed: a Sums (op.py)."""
    counts = told[1:1 + group.size * agreed.chunks.count].view(group.size, -1) & 0xFFFF
    sent = chosen(topk_ids, agreed.experts, group.size)
    give, take = counts.sum(1).tolist(), sent.sum(0).tolist()
    flat = y.reshape(-1, y.shape[-1])
    parts = flat.new_zeros((sum(give), flat.shape[1]))
    kept = min(sum(give), len(flat) if positions is None else len(positions))
    parts[:kept] = flat[:kept] if positions is None else weighted(flat, positions[:kept], topk_weights)
    back = exchanged(parts, take, give, group)
    total = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
    for index, rows in enumerate(back.split(take)):
        total[sent[:, index]] += rows.float()
    for added in (bias, residual):
        if added is not None:
            total += added.float()
    out.copy_(total)


def weighted(flat: torch.Tensor, positions: torch.Tensor, topk_weights: torch.Tensor | None) -> torch.Tensor:
    """[rows, H]: the sum over choices in order, in fp32 with one rounding, of rows of `flat`, each times its weight."""
    total = torch.zeros((len(positions), flat.shape[1]), dtype=torch.float32, device=flat.device)
    for j in range(positions.shape[1] if len(flat) else 0):
        there = positions[:, j] >= 0
        term = flat[positions[:, j].clamp(min=0).long()].float()
        if topk_weights is not None:
            term = term * topk_weights[:len(positions), j, None]
        total += torch.where(there[:, None], term, 0.0)
    return total.to(flat.dtype)
