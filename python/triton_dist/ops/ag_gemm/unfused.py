# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ag_gemm computes, with a collective and a matmul: the unfused method, and the tests' reference."""
from typing import Callable

import torch

from triton_dist.ops.products import product


def ag_gemm_unfused(x: torch.Tensor, weight: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor],
                    bias: torch.Tensor | None = None, out: torch.Tensor | None = None,
                    gated: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [M, N_local], gathered x [M, K]) for x [M / W, K], weight [N_local, K], bias [N_local].

    `gather` gives the rows of all ranks for those of this one. gated: with "silu_mul", so that out has half as many columns.
    """
    gathered = gather(x)
    result = product(gathered, weight, None if gated else out, step=gathered.shape[0] // x.shape[0])
    if bias is not None:
        result += bias
    if gated:
        gate, up = result.chunk(2, -1)
        result = torch.mul(torch.nn.functional.silu(gate), up, out=out)
    return result, gathered
