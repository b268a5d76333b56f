# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ag_gemm computes, with a collective and a matmul: the unfused method, and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def ag_gemm_reference(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                      out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [M, N_local], gathered x [M, K]) for x [M / W, K], weight [N_local, K], bias [N_local]."""
    gathered = x.new_empty((x.shape[0] * group.size, x.shape[1]))
    group.all_gather_tensor(gathered, x.contiguous())
    result = torch.matmul(gathered, weight.t(), out=out)
    if bias is not None:
        result += bias
    return result, gathered
