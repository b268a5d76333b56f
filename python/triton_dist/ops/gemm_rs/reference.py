# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What gemm_rs computes, with a matmul and a collective: the unfused method, and the tests' reference."""
import torch

from triton_dist.runtime.groups import Group


def gemm_rs_reference(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None = None,
                      out: torch.Tensor | None = None, hop_dtype: torch.dtype | None = None) -> torch.Tensor:
    """out [M / W, N] for x [M, K_local], weight [N, K_local], bias [N]; partial sums are reduced in `hop_dtype`."""
    dtype, hop = x.dtype, hop_dtype or x.dtype
    if hop != x.dtype:
        x, weight = x.to(hop), weight.to(hop)
    partial = torch.matmul(x, weight.t())
    result = partial.new_empty((x.shape[0] // group.size, weight.shape[0])) if out is None or out.dtype != hop else out
    group.reduce_scatter_tensor(result, partial)
    if bias is not None:
        result += bias
    if result is out:
        return out
    return result.to(dtype) if out is None else out.copy_(result)
