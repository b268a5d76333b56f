# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_rs: plan and dispatch."""
from typing import Any

import torch

from triton_dist.ops import _check, _plan
from triton_dist.ops.gemm_rs.kernels import gemm_rs_kernel
from triton_dist.ops.gemm_rs.reference import gemm_rs_reference
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.workspace import team, workspace


def gemm_rs(x: torch.Tensor, weight: torch.Tensor, *, group: Any = None, bias: torch.Tensor | None = None,
            out: torch.Tensor | None = None, hop_dtype: torch.dtype | None = None, method: str = "auto") -> torch.Tensor:
    """reduce_scatter(x @ weight^T) + bias, with the reduction hidden behind the GEMM. Collective over `group`.

    Args:
        x: [M, K_local] fp16, bf16 or fp32 on `triton_dist.device()`. M divides by the group size W and is equal on all ranks.
        weight: [N, K_local], same dtype: this rank's columns. N is equal on all ranks; K_local may differ and may be 0.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        bias: [N] or None, same dtype: added once, in fp32, to the sum. Pass the same on every rank.
        out: [M / W, N] contiguous, or None to allocate.
        hop_dtype: dtype in which partial sums travel: that of x (one rounding a hop) or torch.float32. None: that of x.
        method: "auto", "ws" (fused, the device's warp-specialised core), "portable" (fused) or "unfused" (a matmul, then
            a collective). The same on all ranks.

    Returns out [M / W, N]: the rows of this rank's group index.
    Products accumulate in fp32; the sum over ranks has a fixed order (for rank c: c + 1, c + 2, ..., c), so the same inputs
    give the same bits. fp16 may overflow at a hop unless hop_dtype is float32.
    Raises InvalidArgument before anything is sent.
    """
    members = resolve(group)
    _check.matrix("x", x)
    _check.matrix("weight", weight, like=x)
    if weight.shape[1] != x.shape[1]:
        raise InvalidArgument(
            f"weight: expected [N, {x.shape[1]}] to match x {list(x.shape)}, found {list(weight.shape)}")
    if x.shape[0] % members.size:
        raise InvalidArgument(f"x: expected a number of rows that divides by the group size {members.size}, "
                              f"found {x.shape[0]}; pad the rows")
    if hop_dtype not in (None, x.dtype, torch.float32):
        raise InvalidArgument(f"hop_dtype: expected None, {x.dtype} or torch.float32, found {hop_dtype}")
    m, n = x.shape[0] // members.size, weight.shape[0]
    _check.vector("bias", bias, n, like=x)
    _check.no_grad(x=x, weight=weight, bias=bias)
    result = _check.output("out", out, (m, n), like=x)
    _check.no_overlap("out", result, x=x, weight=weight, bias=bias)
    if m == 0 or n == 0:                                # the same on every rank: nothing to send
        return result
    core = backend().core("gemm_rs")
    chosen = _plan.choose("gemm_rs", method, members, core is not None and core.serves(x.dtype, n))
    if chosen == "unfused":
        return gemm_rs_reference(x, weight, members, bias, result)
    _fused(_check.rows_contiguous(x), _check.rows_contiguous(weight), members, bias, result, hop_dtype or x.dtype,
           core if chosen == "ws" else None)
    return result


def _fused(x: torch.Tensor, weight: torch.Tensor, group: Group, bias: torch.Tensor | None, out: torch.Tensor,
           hop_dtype: torch.dtype, core: Any) -> None:
    m, n = out.shape
    k = x.shape[1]
    config = core.config(x.dtype, m, hop_dtype) if core else backend().gemm_config(x.dtype, m)
    pitch = -(-m // config.block_m) * config.block_m
    tiles = pitch // config.block_m * -(-n // config.block_n)
    grid = (min(tiles * group.size, backend().num_sms()),)
    space = workspace(group, "gemm_rs")
    space.reserve(max(1, group.size - 1) * pitch * n * hop_dtype.itemsize, max(1, group.size - 1) * tiles)

    def launch() -> tuple:
        if core and core.accepts(x, weight, out):
            kernel, args, options = core.launch(x, weight, bias, out, space, group, pitch, hop_dtype, config)
        else:
            kernel = gemm_rs_kernel
            args = (x, weight, bias if bias is not None else weight, out, space.data.view(hop_dtype), space.flags,
                    space.control, team(group), space.half_bytes // hop_dtype.itemsize, m, n, k, pitch, x.stride(0),
                    weight.stride(0))
            options = dict(config.options(), HAS_BIAS=bias is not None, EVEN_K=k % config.block_k == 0,
                           PRECISION=_plan.precision(x.dtype))
        return kernel, grid, args, dict(options, launch_cooperative_grid=True)

    agreed = dict(m=m, n=n, dtype=x.dtype, hop_dtype=hop_dtype, ws=core is not None)
    _plan.agree_once("gemm_rs", group, agreed, launch)
    with space.call():
        kernel, grid, args, options = launch()
        kernel[grid](*args, **options)
