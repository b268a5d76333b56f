# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""reduce_scatter by the group's own collective: the method "unfused"."""
import torch

from triton_dist.runtime.groups import Group


def reduce_scatter_unfused(x: torch.Tensor, group: Group, out: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """out from x, both contiguous, shapes as in reduce_scatter."""
    inexact = x.is_floating_point() or x.is_complex()
    if op == "avg" and inexact:
        x = x * (1 / group.size)                    # first, so that a sum does not overflow where the average would not
    group.reduce_scatter_tensor(out, x, "sum" if op == "avg" else op)
    if op == "avg" and not inexact:
        out.div_(group.size, rounding_mode="trunc")
    return out
