# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_single by the group's own collective: the method "unfused"."""
import torch

from triton_dist.runtime.groups import Group


def all_to_all_single_unfused(x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
    """out from x, both contiguous, shapes as in all_to_all_single."""
    if out.data_ptr() == x.data_ptr():
        x = x.clone()                           # libraries do not exchange in place
    group.all_to_all_tensor(out, x)
    return out
