# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The gradient of grouped_gemm's weights."""
import torch

from triton_dist.ops.grouped_gemm.kernels import grouped_weight_kernel
from triton_dist.ops.grouped_gemm.plans import flat_rows, launch_options, lists, options_of
from triton_dist.runtime.backend import backend

_BLOCK_R = 64       # rows that are taken at a time


def grouped_weight(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor | None, counts: torch.Tensor | None,
                   sources: torch.Tensor | None, experts: int) -> torch.Tensor:
    """[experts, N, K]: each expert's rows of `grad` [rows, N]^T times its rows of x. Arguments as for grouped_gemm."""
    n, k = grad.shape[-1], x.shape[-1]
    out = x.new_empty((experts, n, k))
    if not out.numel():
        return out
    if not grad.numel() or not x.numel():
        return out.zero_()
    room = x.shape[1] if x.ndim == 3 else grad.shape[0]
    flat, to = flat_rows(x), flat_rows(grad)
    config = backend().gemm_config(x.dtype, n)
    tiles = experts * -(-n // config.block_m) * -(-k // config.block_n)
    grouped_weight_kernel[(min(backend().num_sms(), tiles), )](
        to, flat, *lists(offsets, counts), out if sources is None else sources, out, n, k, to.stride(0), flat.stride(0), experts,
        room, BLOCK_N=config.block_m, BLOCK_K=config.block_n, BLOCK_R=_BLOCK_R, GATHER=sources is not None,
        **launch_options(x.dtype, config), **options_of(x, counts, experts))
    return out
