# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev by the group's own collective: the method "unfused"."""
import torch

from triton_dist.ops.calls.carriers import rows_of_bytes
from triton_dist.runtime.groups import Group


def all_to_all_vdev_unfused(x: torch.Tensor, in_splits: torch.Tensor, group: Group, out: torch.Tensor,
                              out_splits_offsets: torch.Tensor) -> None:
    """Fills out [capacity, ...] and out_splits_offsets [2, W] from x [rows, ...] and in_splits [W]. The host waits for splits."""
    ends = in_splits.to(torch.int64).clamp(0, x.shape[0]).cumsum(0).clamp(max=x.shape[0])
    sent = torch.diff(ends, prepend=ends.new_zeros(1))
    received = torch.empty_like(sent)
    group.all_to_all_tensor(received, sent)
    out_splits_offsets[0], out_splits_offsets[1] = received, received.cumsum(0) - received
    counts, mine = received.tolist(), sent.tolist()
    rows = x.new_empty((sum(counts), *x.shape[1:]))
    group.all_to_all_tensor(rows_of_bytes(rows), rows_of_bytes(x[:sum(mine)]), counts, mine)
    out[:len(rows)] = rows[:len(out)]
