# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch by the group's own collective: the method "unfused". The host waits for the numbers of rows."""
from typing import Any

import torch

from triton_dist.runtime.groups import Group


def chosen(topk_ids: torch.Tensor, num_experts: int, world: int) -> torch.Tensor:
    """bool [T, W]: whether a token has a choice on each rank."""
    owner = torch.where((topk_ids >= 0) & (topk_ids < num_experts), topk_ids // (num_experts // world), -1)
    return (owner.unsqueeze(-1) == torch.arange(world, device=owner.device)).any(1)


def by_chunks(sent: torch.Tensor, count: int) -> torch.Tensor:
    """int32 [W, count]: what each rank is told of each chunk (ep/device.py), from bool `sent` [T, W]."""
    each = -(-sent.shape[0] // count)
    padded = sent.new_zeros((count * each, sent.shape[1]))
    padded[:sent.shape[0]] = sent
    return (padded.view(count, each, sent.shape[1]).sum(1).t() + (each << 16)).to(torch.int32).contiguous()


def exchanged(t: torch.Tensor, theirs: list, mine: list, group: Group) -> torch.Tensor:
    """Rows that all ranks have for this one, sources in order. mine, theirs: how many rows go to, and come from, each rank."""
    found, width = t.new_empty((sum(theirs), t.shape[1])), t.shape[1] * t.itemsize

    def raw(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(torch.uint8).view(len(rows), width)  # libraries may not take its dtype

    group.all_to_all_tensor(raw(found), raw(t.contiguous()), theirs, mine)
    return found


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(x [T, H] as float8_e4m3fn, fp32 scales [T, H / 128]): each 128 values over their scale, for which NaNs do not count."""
    values = x.float().unflatten(1, (-1, 128))
    most = values.abs().nan_to_num(0.0, torch.inf).amax(-1).clamp_min(1e-4)
    inverse = torch.full_like(most, 448.0) / most  # not by a reciprocal
    scaled = (values * inverse.unsqueeze(-1)).clamp(-448.0, 448.0)
    return scaled.to(torch.float8_e4m3fn).view(
        x.shape), most * torch.tensor(1.0 / 448.0, dtype=torch.float32, device=x.device)


def placed(ids: torch.Tensor, experts: int, align: int, room: int, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions [rows, K], [rows by expert, where each begins, and the end]) of local ids [rows, K], -1 for others' experts."""
    flat = ids.reshape(-1).long()
    valid = flat >= 0
    rows = torch.bincount(flat[valid], minlength=experts)
    if masked:
        begin, end = torch.arange(experts, device=ids.device) * room, experts * room
    else:
        wide = -(-rows // align) * align
        begin, end = wide.cumsum(0) - wide, int(wide.sum())
    order = torch.where(valid, flat, experts).argsort(stable=True)[:int(valid.sum())]
    of = flat[order]
    within = torch.arange(len(order), device=ids.device) - (rows.cumsum(0) - rows)[of]
    spot = begin[of] + within
    spot = torch.where(within < room if masked else spot < room, spot, -1)
    positions = torch.full_like(flat, -1, dtype=torch.int32)
    positions[order] = spot.to(torch.int32)
    return positions.view(ids.shape), torch.cat([rows, begin, begin.new_tensor([end])]).to(torch.int32)


def ep_dispatch_unfused(agreed: Any, group: Group, x: torch.Tensor, topk_ids: torch.Tensor,
                        topk_weights: torch.Tensor | None, scales: torch.Tensor | None, out: torch.Tensor,
                        scales_out: torch.Tensor, ids_out: torch.Tensor, weights_out: torch.Tensor, told: torch.Tensor,
                        positions: torch.Tensor, sources: torch.Tensor) -> None:
    """Fills the outputs of a dispatch. agreed: a Tokens (op.py)."""
    world, chunks, local = group.size, agreed.chunks, agreed.experts // group.size
    sent = chosen(topk_ids, agreed.experts, world)
    token = sent.t().nonzero()[:, 1]  # of each row, the first rank's rows first
    counts = by_chunks(sent, chunks.count)
    theirs = torch.empty_like(counts)
    group.all_to_all_tensor(theirs, counts)
    come, go = ((t & 0xFFFF).sum(1).tolist() for t in (theirs, counts))
    if agreed.quant:
        x, scales = quantised(x)

    def fetched(t: torch.Tensor) -> torch.Tensor:
        return exchanged(t.contiguous()[token], come, go, group)

    limit, total = ids_out.shape[0], sum(come)
    kept = min(limit, total)
    rows = fetched(x.view(torch.uint8) if x.dtype.itemsize == 1 else x)[:kept]
    ids = fetched(topk_ids)[:kept] - group.rank * local
    mine = (ids >= 0) & (ids < local)
    ids_out.fill_(-1)
    ids_out[:kept] = torch.where(mine, ids, -1).to(torch.int32)
    if topk_weights is not None:
        weights_out.zero_()
        weights_out[:kept] = torch.where(mine, fetched(topk_weights)[:kept], 0.0)
    told[0] = total
    told[1:1 + world * chunks.count] = theirs.view(-1)
    part = fetched(scales)[:kept] if scales is not None else None
    flat = out.view(torch.uint8) if out.dtype.itemsize == 1 else out
    if agreed.ordered:
        masked = agreed.layout == "masked"
        positions.fill_(-1)
        positions[:kept], told[1 + world * chunks.count:] = placed(ids_out[:kept], local, agreed.align, agreed.room,
                                                                   masked)
        row, _ = (positions[:kept] >= 0).nonzero(as_tuple=True)
        spot = positions[:kept][positions[:kept] >= 0].long()
        if agreed.layout == "indexed":
            sources[spot] = row.to(torch.int32)
        else:
            if agreed.layout == "expert":  # rows between experts are zeros
                flat[:int(told[-1])].zero_()
            flat.view(-1, x.shape[1])[spot] = rows[row]
            if part is not None:
                scales_out.view(-1, part.shape[1])[spot] = part[row]
            return
    flat[:kept] = rows
    if part is not None:
        scales_out[:kept] = part
