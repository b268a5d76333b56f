# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What rmsnorm_gemm computes, by torch. Each step rounds to the dtype."""
import torch

from triton_dist.ops.all_reduce_rmsnorm.unfused import rmsnorm


def rmsnorm_gemm_unfused(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None,
                         norm_weight: torch.Tensor | None, out: torch.Tensor, residual_out: torch.Tensor | None, eps: float,
                         weight_bias: float, gated: bool) -> None:
    """Writes out and residual_out. Arguments as for rmsnorm_gemm; `gated`: with "silu_mul"."""
    if residual is not None:
        x = torch.add(x, residual, out=residual_out)
    if norm_weight is not None:
        normed = torch.empty_like(x, memory_format=torch.contiguous_format)
        rmsnorm(x, norm_weight, eps, weight_bias, normed)
        x = normed
    multiplied(x, weight, bias, out, gated)


def multiplied(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, gated: bool) -> None:
    """out = x @ weight^T + bias, and silu-and-multiply of that where it is `gated`."""
    if not gated:
        torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)
        return
    gate, up = torch.nn.functional.linear(x, weight, bias).chunk(2, -1)
    torch.mul(torch.nn.functional.silu(gate), up, out=out)
