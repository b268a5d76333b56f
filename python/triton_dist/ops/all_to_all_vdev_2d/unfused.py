# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Both all-to-alls of chunks by the group's own collective: the method "unfused". The host waits for sizes."""
import torch

from triton_dist.ops.calls.carriers import rows_of_bytes
from triton_dist.runtime.groups import Group


def chunks_of(splits: torch.Tensor, rows: int, world: int, by_rank: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, begins) int64 [W, E] of the chunks of x [rows, ...] for each (rank, expert), cut to what x has."""
    splits = splits.to(torch.int64)
    if by_rank:
        wanted = splits.clamp(0, rows)
        ends = wanted.cumsum(0)
        begins = (ends - wanted).clamp(max=rows)
        return (ends.clamp(max=rows) - begins).view(world, -1), begins.view(world, -1)
    begins = splits[1].clamp(0, rows)
    return (splits[0].clamp(min=0).minimum(rows - begins).view(-1, world).t(), begins.view(-1, world).t())


def places_of(came: torch.Tensor, align: int, by_rank: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(places int64 [W, E] in out of chunks of `came` [W, E] rows, out_splits_offsets)."""
    if by_rank:
        wide = ((came.sum(0) + (align - 1)) // align * align).clamp(min=align)
        places = (wide.cumsum(0) - wide) + came.cumsum(0) - came
        return places, torch.stack([came.t().reshape(-1), places.t().reshape(-1)])
    flat = came.reshape(-1)
    places = flat.cumsum(0) - flat
    return places.view(came.shape), torch.stack([flat, places])


def listed(counts: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """int64: the numbers from each begin on, as many as its count, chunk after chunk. The host waits."""
    counts, begins = counts.reshape(-1), begins.reshape(-1)
    before = counts.cumsum(0) - counts
    return torch.repeat_interleave(begins - before, counts) + torch.arange(int(counts.sum()), device=counts.device)


def all_to_all_vdev_2d_unfused(x: torch.Tensor, splits: torch.Tensor, align: int, by_rank: bool, group: Group, out: torch.Tensor,
                               out_splits_offsets: torch.Tensor) -> None:
    """Fills out [capacity, ...] and out_splits_offsets."""
    counts, begins = chunks_of(splits, len(x), group.size, by_rank)
    counts, came = counts.contiguous(), torch.empty_like(counts, memory_format=torch.contiguous_format)
    group.all_to_all_tensor(came, counts)
    places, told = places_of(came, align, by_rank)
    out_splits_offsets.copy_(told)
    sent = x[listed(counts, begins)]
    rows = x.new_empty((int(came.sum()), *x.shape[1:]))
    group.all_to_all_tensor(rows_of_bytes(rows), rows_of_bytes(sent), came.sum(1).tolist(), counts.sum(1).tolist())
    land = listed(came, places)
    fits = land < len(out)
    out[land[fits]] = rows[fits]
