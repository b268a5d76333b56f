# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What gemm_ar computes, with a matmul and a collective: the unfused method, and the tests' reference."""
from typing import Callable

import torch

from triton_dist.ops.products import product


def gemm_ar_unfused(x: torch.Tensor, weight: torch.Tensor, reduce: Callable[[torch.Tensor], None], out: torch.Tensor,
                      bias: torch.Tensor | None = None, residual: torch.Tensor | None = None) -> torch.Tensor:
    """out [M, N] for x [M, K_local], weight [N, K_local], bias [N], residual [M, N], which may be `out`.

    `reduce` makes a tensor [M, N] the sum over ranks of it. Rounds to the dtype after each step.
    """
    total = out if residual is None else torch.empty_like(out)
    product(x, weight, total)
    reduce(total)
    if bias is not None:
        total += bias
    return total if residual is None else torch.add(total, residual, out=out)
