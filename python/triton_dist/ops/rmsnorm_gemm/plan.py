# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The plans of rmsnorm_gemm: a launch for addition and norm where there is one of them, and one for the product."""
from typing import Any, Callable

import torch

from triton_dist.ops.calls import checks
from triton_dist.ops.calls.plans import Plan, present
from triton_dist.ops.calls.possible import precision
from triton_dist.ops.norm_rows.launch import NormRows
from triton_dist.ops.rmsnorm_gemm.kernels import few_rows_kernel
from triton_dist.ops.rmsnorm_gemm.unfused import multiplied
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group

_AHEAD = 2                              # blocks of its weights that a program asks for ahead of its turn, if all run at once


class Normed(Plan):
    """Addition and norm, where there is one of them, in one launch; then a product, which a subclass says."""

    compiles = True
    norm: NormRows | None = None

    def __init__(self, agreed: Any):
        self._call = agreed

    def _compile_norm(self, x: torch.Tensor, residual: torch.Tensor | None, norm_weight: torch.Tensor | None,
                      residual_out: torch.Tensor | None) -> torch.Tensor:
        """What the product takes."""
        call = self._call
        if not (call.norm or call.adds):
            return x
        normed = self._normed(x)
        self.norm = NormRows(*x.shape, x.dtype, call.eps, call.weight_bias)
        self.norm.compile(*self._rows(x, norm_weight, residual), normed, residual_out)
        return residual_out if normed is None else normed

    def _run_norm(self, x: torch.Tensor, residual: torch.Tensor | None, norm_weight: torch.Tensor | None,
                  residual_out: torch.Tensor | None) -> torch.Tensor:
        if self.norm is None:
            return x
        normed = self._normed(x)
        self.norm.launch(*self._rows(x, norm_weight, residual), normed, residual_out)
        return residual_out if normed is None else normed

    def _normed(self, x: torch.Tensor) -> torch.Tensor | None:
        """Memory for the norm."""
        return x.new_empty(x.shape) if self._call.norm else None

    @staticmethod
    def _rows(x: torch.Tensor, norm_weight: torch.Tensor | None, residual: torch.Tensor | None) -> tuple:
        return (checks.rows_contiguous(x), norm_weight, None,
                None if residual is None else checks.rows_contiguous(residual))


class FewRows(Normed):
    """One kernel or two, which overlap. Holds all that does not change from call to call."""

    product: Callable[..., None]

    def compile(self, x, weight, bias, residual, norm_weight, out, residual_out):
        x = self._compile_norm(x, residual, norm_weight, residual_out)
        self._compile_product(checks.rows_contiguous(x), checks.rows_contiguous(weight), bias, out)

    def _compile_product(self, x, weight, bias, out) -> None:
        (m, k), n, gated = x.shape, out.shape[1], self._call.act is not None
        config = backend().weights_config(x.dtype, m, weight.shape[0])
        grid = -(-n // (config.block_n // (1 + gated))), -(-m // config.block_m)
        varying, args = present(x, weight, bias, out)
        options = dict(HAS_BIAS=bias is not None, SILU=gated, EVEN_K=k % config.block_k == 0, PRECISION=precision(x.dtype),
                       AHEAD=_AHEAD if grid[0] * grid[1] <= backend().num_sms() else 0, **config.options())
        del options["GROUP_M"]
        self.product = backend().prepare(few_rows_kernel, grid, (*args, m, n, k, x.stride(0), weight.stride(0)), options, varying)

    def run(self, group: Group, x, weight, bias, residual, norm_weight, out, residual_out) -> None:
        x = self._run_norm(x, residual, norm_weight, residual_out)
        self.product(checks.rows_contiguous(x), checks.rows_contiguous(weight), bias, out)


class NormThenTorch(Normed):
    """torch multiplies what the kernel has normed."""

    def compile(self, x, weight, bias, residual, norm_weight, out, residual_out):
        self._compile_norm(x, residual, norm_weight, residual_out)

    def run(self, group: Group, x, weight, bias, residual, norm_weight, out, residual_out) -> None:
        x = self._run_norm(x, residual, norm_weight, residual_out)
        backend().before_torch()
        multiplied(x, weight, bias, out, self._call.act is not None)
