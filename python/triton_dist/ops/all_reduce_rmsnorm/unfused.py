# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the norms of an all-reduced tensor compute, by torch: for dtypes, rows and captures that no kernel of ours serves."""
from typing import Callable

import torch

from triton_dist.runtime.backend import backend


def all_reduce_and_add(x: torch.Tensor, reduce: Callable, total: torch.Tensor, residual_out: torch.Tensor,
                       bias: torch.Tensor | None, residual: torch.Tensor | None) -> None:
    """residual_out = the sum over ranks of x [..., N], + bias [N] + residual [..., N]. `total` is room of x's shape.

    `reduce(x, out=total)` makes `total` the sum over ranks of x, rounded to the dtype. The rest is added in fp32, with another
    rounding, as the kernel does (norm_rows/kernels.py). `residual_out` may be the residual.
    """
    reduce(x, out=total)
    backend().before_torch()
    extra = [t for t in (bias, residual) if t is not None]
    wide = torch.promote_types(total.dtype, torch.float32) if len(extra) == 2 else total.dtype
    for t in extra:
        total = total.to(wide) + t
    residual_out.copy_(total)


def rmsnorm(total: torch.Tensor, weight: torch.Tensor, eps: float, weight_bias: float, out: torch.Tensor) -> None:
    """out = rms_norm(total [..., N]) * (weight [N] + weight_bias)."""
    if weight_bias:                     # which the weight's dtype may not have room for
        wide = torch.promote_types(weight.dtype, torch.float32)
        total, weight = total.to(wide), weight.to(wide) + weight_bias
    out.copy_(torch.nn.functional.rms_norm(total, weight.shape, weight, eps))
