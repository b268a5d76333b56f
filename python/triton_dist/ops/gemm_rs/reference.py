# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What gemm_rs computes, with a matmul and a collective: the unfused method, and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def gemm_rs_reference(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                      out: torch.Tensor | None = None) -> torch.Tensor:
    """out [M / W, N] for x [M, K_local], weight [N, K_local], bias [N]."""
    partial = torch.matmul(x, weight.t())
    result = partial.new_empty((x.shape[0] // group.size, weight.shape[0])) if out is None else out
    group.reduce_scatter_tensor(result, partial)
    if bias is not None:
        result += bias
    return result
