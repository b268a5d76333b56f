# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What reduce_scatter computes, with the group's own collective: the method "nccl", and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def reduce_scatter_reference(x: torch.Tensor, group: Group, out: torch.Tensor) -> torch.Tensor:
    """out from x, both contiguous, shapes as in reduce_scatter."""
    group.reduce_scatter_tensor(out, x)
    return out
