# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor-parallel linear layers for inference: column-parallel AGGemm and row-parallel GemmRS, sequence-sharded between.

A pair AGGemm -> GemmRS keeps activations sharded by rows outside: [M / W, K] in, [M / W, N] out. GemmAR is row-parallel, too, and
leaves every rank the whole output [M, N], as a decoder of few rows wants it.
"""
from typing import Any, Self

import torch
from torch import nn

from triton_dist.layers._held import Held
from triton_dist.ops import ag_gemm, gemm_ar, gemm_rs
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


def _linear(layer: nn.Linear) -> nn.Linear:
    if not isinstance(layer, nn.Linear):
        raise InvalidArgument(f"linear: expected an nn.Linear, found {type(layer).__name__}")
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise InvalidArgument("linear: its parameters are not initialised, found an nn.LazyLinear; run it once before")
    return layer


class AGGemm(Held):
    """Column-parallel linear: y [M, N_local] = all_gather(x [M / W, K]) @ weight [N_local, K]^T + bias [N_local]."""

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None) -> "AGGemm":
        """From a full nn.Linear [N, K], the same on all ranks: takes this rank's rows; the first N % W ranks get one more."""
        members = resolve(group)
        weight = _linear(linear).weight.tensor_split(members.size)[members.rank].clone()
        bias = None if linear.bias is None else linear.bias.tensor_split(members.size)[members.rank].clone()
        return cls(weight, bias, group)

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None) -> "AGGemm":
        """From this rank's shard, an nn.Linear [N_local, K]. Shares its memory."""
        return cls(_linear(linear).weight, linear.bias, group)

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None, comm_sms: int | None = None) -> torch.Tensor:
        """x [M / W, K] -> [M, N_local]. See triton_dist.ops.ag_gemm."""
        return ag_gemm(x, self.weight, group=self.group, bias=self.bias, out=out, comm_sms=comm_sms)


class _RowParallel(Held):
    """A linear layer of which each rank has some columns."""

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None) -> Self:
        """From a full nn.Linear [N, K], the same on all ranks: takes this rank's columns; the first K % W ranks get one more."""
        members = resolve(group)
        weight = _linear(linear).weight.tensor_split(members.size, dim=1)[members.rank].clone(
            memory_format=torch.contiguous_format)
        return cls(weight, linear.bias, group)

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None) -> Self:
        """From this rank's shard, an nn.Linear [N, K_local] whose bias, if any, is the full one. Shares its memory."""
        return cls(_linear(linear).weight, linear.bias, group)


class GemmRS(_RowParallel):
    """Row-parallel linear: y [M / W, N] = reduce_scatter(x [M, K_local] @ weight [N, K_local]^T) + bias [N]."""

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K_local] -> [M / W, N]. See triton_dist.ops.gemm_rs."""
        return gemm_rs(x, self.weight, group=self.group, bias=self.bias, out=out)


class GemmAR(_RowParallel):
    """Row-parallel linear: y [M, N] = all_reduce(x [M, K_local] @ weight [N, K_local]^T) + bias [N] + residual [M, N]."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K_local], residual [M, N] or None -> [M, N]. See triton_dist.ops.gemm_ar."""
        return gemm_ar(x, self.weight, group=self.group, bias=self.bias, residual=residual, out=out)
