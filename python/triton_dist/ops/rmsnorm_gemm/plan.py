# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The fused plan of rmsnorm_gemm: a launch for addition and norm where there is one of them, and one for the product."""
from typing import Any, Callable

import torch
import triton

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import Plan, present
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.rmsnorm_gemm.kernels import few_rows_kernel, norm_rows_kernel
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group

MOST_COLUMNS = 1 << 16                  # of a row that one program of the norm holds in registers
_MOST_THREADS = 1024
_EACH = 16                              # elements of a row that a thread of the norm has, up to as many threads as there may be
_AHEAD = 2                              # blocks of its weights that a program asks for ahead of its turn, if all run at once


class FewRows(Plan):
    """One kernel or two, which overlap. Holds all that does not change from call to call."""

    compiles = True
    product: Callable[..., None]
    norm: Callable[..., None] | None = None

    def __init__(self, agreed: Any):
        self._call = agreed

    def compile(self, x, weight, bias, residual, norm_weight, out, residual_out):
        if self._call.norm or self._call.adds:
            x = self._compile_norm(x, residual, norm_weight, residual_out)
        self._compile_product(checks.rows_contiguous(x), checks.rows_contiguous(weight), bias, out)

    def _compile_norm(self, x, residual, norm_weight, residual_out) -> torch.Tensor:
        """What the product takes."""
        call, k = self._call, x.shape[1]
        block = triton.next_power_of_2(k)
        lanes = backend().warp_size
        threads = max(4 * lanes, min(block // _EACH, _MOST_THREADS))
        normed = self._normed(x, residual_out)
        varying, args = present(*self._rows(x, residual), norm_weight, normed, residual_out)
        options = dict(EPS=call.eps, WEIGHT_BIAS=call.weight_bias, NORM=call.norm, HAS_RESIDUAL=call.adds, BLOCK=block,
                       num_warps=threads // lanes)
        self.norm = backend().prepare(norm_rows_kernel, (x.shape[0],), (*args, k, args[0].stride(0), args[1].stride(0)), options,
                                      varying)
        return normed

    def _compile_product(self, x, weight, bias, out) -> None:
        (m, k), n, gated = x.shape, out.shape[1], self._call.act is not None
        config = backend().weights_config(x.dtype, m, weight.shape[0])
        grid = -(-n // (config.block_n // (1 + gated))), -(-m // config.block_m)
        varying, args = present(x, weight, bias, out)
        options = dict(HAS_BIAS=bias is not None, SILU=gated, EVEN_K=k % config.block_k == 0, PRECISION=precision(x.dtype),
                       AHEAD=_AHEAD if grid[0] * grid[1] <= backend().num_sms() else 0, **config.options())
        del options["GROUP_M"]
        self.product = backend().prepare(few_rows_kernel, grid, (*args, m, n, k, x.stride(0), weight.stride(0)), options, varying)

    def _normed(self, x: torch.Tensor, residual_out: torch.Tensor | None) -> torch.Tensor:
        """Memory for what the product takes."""
        return x.new_empty(x.shape) if self._call.norm else residual_out

    @staticmethod
    def _rows(x: torch.Tensor, residual: torch.Tensor | None) -> tuple:
        return checks.rows_contiguous(x), None if residual is None else checks.rows_contiguous(residual)

    def run(self, group: Group, x, weight, bias, residual, norm_weight, out, residual_out) -> None:
        if self.norm is not None:
            normed = self._normed(x, residual_out)
            self.norm(*self._rows(x, residual), norm_weight, normed, residual_out)
            x = normed
        self.product(checks.rows_contiguous(x), checks.rows_contiguous(weight), bias, out)
