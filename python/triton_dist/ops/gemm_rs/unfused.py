# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What gemm_rs computes, with a matmul and a collective: the unfused method, and the tests' reference."""
from typing import Callable

import torch

from triton_dist.ops.products import product


def gemm_rs_unfused(x: torch.Tensor, weight: torch.Tensor, scatter: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
                      bias: torch.Tensor | None = None, out: torch.Tensor | None = None,
                      hop_dtype: torch.dtype | None = None, world: int = 1) -> torch.Tensor:
    """out [M / W, N] for x [M, K_local], weight [N, K_local], bias [N]; partial sums are reduced in `hop_dtype`.

    M is a multiple of `world`.

    `scatter` of [M, N] and, or None, [M / W, N] for the result gives this rank's rows of the sum over ranks.
    """
    dtype, hop = x.dtype, hop_dtype or x.dtype
    if hop != x.dtype:
        x, weight = x.to(hop), weight.to(hop)
    result = scatter(product(x, weight, step=world), None if out is None or out.dtype != hop else out)
    if bias is not None:
        result += bias
    if result is out:
        return out
    return result.to(dtype) if out is None else out.copy_(result)
