# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather by the group's own collective: the method "unfused"."""
import torch

from triton_dist.runtime.groups import Group


def all_gather_unfused(x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
    """out from x, both contiguous, shapes as in all_gather."""
    group.all_gather_tensor(out, x)
    return out
