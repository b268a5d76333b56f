# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce by the group's own collective: the method "unfused"."""
import torch

from triton_dist.runtime.groups import Group


def all_reduce_unfused(x: torch.Tensor, group: Group, out: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """out = reduction over ranks of x, of equal shape. `out` may be x itself."""
    inexact = x.is_floating_point() or x.is_complex()
    if op == "avg" and inexact:
        torch.mul(x, 1 / group.size, out=out)       # first, so that a sum does not overflow where the average would not
    elif out.data_ptr() != x.data_ptr():
        out.copy_(x)
    group.all_reduce_tensor(out, "sum" if op == "avg" else op)
    if op == "avg" and not inexact:
        out.div_(group.size, rounding_mode="trunc")
    return out
