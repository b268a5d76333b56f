# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What all_reduce_rmsnorm computes, with an all_reduce and torch's own steps: the unfused method, and the tests' reference."""
from typing import Callable

import torch


def all_reduce_rmsnorm_unfused(x: torch.Tensor, weight: torch.Tensor, reduce: Callable[[torch.Tensor, torch.Tensor], None],
                                 out: torch.Tensor, residual_out: torch.Tensor, eps: float, bias: torch.Tensor | None = None,
                                 residual: torch.Tensor | None = None) -> None:
    """residual_out = the sum over ranks of x [..., N], + bias [N] + residual [..., N]; out = rms_norm(residual_out) * weight [N].

    `reduce(x, total)` makes `total` the sum over ranks of x. Rounds to the dtype after each step. `residual_out` may be the
    residual.
    """
    reduce(x, out)
    if bias is not None:
        out += bias
    if residual is None:
        residual_out.copy_(out)
    else:
        torch.add(out, residual, out=residual_out)
    out.copy_(torch.nn.functional.rms_norm(residual_out, weight.shape, weight, eps))
