# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What all_to_all_single computes, with the group's own collective: the method "nccl", and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def all_to_all_single_reference(x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
    """out from x, both contiguous, shapes as in all_to_all_single."""
    if out.data_ptr() == x.data_ptr():
        x = x.clone()                           # libraries do not exchange in place
    group.all_to_all_tensor(out, x)
    return out
