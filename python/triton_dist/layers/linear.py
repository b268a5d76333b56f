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
from triton_dist.layers._shards import Shards
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
    """Column-parallel linear: y [M, N_local] = all_gather(x [M / W, K]) @ weight [N_local, K]^T + bias [N_local].

    Args:
        weight: this rank's shard [N_local, K].
        bias: [N_local] or None.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.

    `parts` has the sizes of this rank's parts of y, for torch.split, where from_full was given any.
    """

    parts: tuple | None = None

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None, *, parts: Any = None, unit: Any = None) -> "AGGemm":
        """From a full nn.Linear [N, K], the same on all ranks: takes this rank's rows, a copy.

        Say what the weight holds where it holds more than one thing. A fused weight that is divided as if it were one is
        wrong without any error, as ranks then get rows of different things.

        Args:
            linear: the whole layer, with or without a bias.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            parts: sizes of what a fused weight holds, such as [q, k, v] or [gate, up], which add up to N. Each part is divided
                by itself, so that a rank has its part of each, one after the other. None: it is one.
            unit: rows that are never cut, such as the size of a head: a number for all parts or one for each. A part of fewer
                units than ranks, such as the key and value heads of grouped-query attention, is held by several ranks each.

        The first units % W ranks get one unit more, where all parts have equally many units. Raises InvalidArgument where a
        unit does not divide its part, or where parts cannot be divided so that heads stay with their key and value heads.

        Example:
            qkv = AGGemm.from_full(attention.qkv, parts=[heads * size, kv_heads * size, kv_heads * size], unit=size)
            q, k, v = qkv(x).split(qkv.parts, -1)
            gate, up = (both := AGGemm.from_full(mlp.gate_up, parts=[inner, inner]))(x).split(both.parts, -1)
        """
        members = resolve(group)
        shards = Shards(_linear(linear).weight.shape[0], members, parts, unit, repeats=True)
        made = cls(shards.take(linear.weight), None if linear.bias is None else shards.take(linear.bias), group)
        made.parts = None if parts is None else tuple(shards.sizes)
        return made

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None) -> "AGGemm":
        """From this rank's shard, an nn.Linear [N_local, K]. Holds its parameters themselves."""
        return cls(_linear(linear).weight, linear.bias, group)

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None, comm_sms: int | None = None) -> torch.Tensor:
        """x [M / W, K] -> [M, N_local]. See triton_dist.ops.ag_gemm."""
        return ag_gemm(x, self.weight, group=self.group, bias=self.bias, out=out, comm_sms=comm_sms)


class _RowParallel(Held):
    """A linear layer of which each rank has some columns."""

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None, *, parts: Any = None, unit: Any = None) -> Self:
        """From a full nn.Linear [N, K], the same on all ranks: takes this rank's columns, a copy, and the whole bias.

        Columns must be divided as what comes in is: behind attention with the head's size as `unit`.

        Args:
            linear: the whole layer, with or without a bias.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            parts: sizes of what comes in one after the other, which add up to K; each is divided by itself. None: it is one.
            unit: columns that are never cut, such as the size of a head: a number for all parts or one for each.

        The first units % W ranks get one unit more, where all parts have equally many units. Raises InvalidArgument as
        AGGemm.from_full does.

        Example:
            out = GemmRS.from_full(attention.out, unit=size)
        """
        shards = Shards(_linear(linear).weight.shape[1], resolve(group), parts, unit)
        return cls(shards.take(linear.weight, dim=1), linear.bias, group)

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None) -> Self:
        """From this rank's shard, an nn.Linear [N, K_local] whose bias, if any, is the full one.

        Holds its parameters themselves.
        """
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
