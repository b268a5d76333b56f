# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ag_gemm computes, with a collective and a matmul: the unfused method, and the tests' reference."""
from typing import Callable

import torch


def ag_gemm_unfused(x: torch.Tensor, weight: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor],
                      bias: torch.Tensor | None = None, out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [M, N_local], gathered x [M, K]) for x [M / W, K], weight [N_local, K], bias [N_local].

    `gather` gives the rows of all ranks for those of this one.
    """
    gathered = gather(x)
    result = torch.matmul(gathered, weight.t(), out=out)
    if bias is not None:
        result += bias
    return result, gathered
