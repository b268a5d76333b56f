# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What all_reduce computes, with the group's own collective: the method "nccl", and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def all_reduce_reference(x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
    """out = sum over ranks of x, of equal shape. `out` may be x itself."""
    if out.data_ptr() != x.data_ptr():
        out.copy_(x)
    group.all_reduce_tensor(out)
    return out
