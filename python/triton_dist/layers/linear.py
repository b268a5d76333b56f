# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor-parallel linear layers: column-parallel AGGemm and ColumnLinear, row-parallel GemmRS and GemmAR.

A pair AGGemm -> GemmRS keeps activations sharded by rows outside: [M / W, K] in, [M / W, N] out. In a pair ColumnLinear -> GemmAR
every rank has all rows, [M, K] in and [M, N] out, as a decoder of few rows wants it.

Inputs may have any number of dimensions, features last. Ranks divide the sequence, which is dimension `sequence_dim`: 0 for
[S, B, H], 1 for [B, S, H]. The first needs no copy; see docs/models.md.
"""
from typing import Any, Self

import torch
from torch import nn

from triton_dist.layers import _rows
from triton_dist.layers._held import Held
from triton_dist.layers._shards import Shards
from triton_dist.layers.norm import of_norm, rms_norm
from triton_dist.layers.replicated import replicated
from triton_dist.ops import ag_gemm, gemm_ar, gemm_ar_rmsnorm, gemm_rs, rmsnorm_gemm
from triton_dist.ops.calls import acts
from triton_dist.ops.rmsnorm_gemm.op import joins
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


def plain_linear(layer: nn.Linear) -> nn.Linear:
    """`layer`. Raises InvalidArgument unless all that it computes is in its weight and bias."""
    if not isinstance(layer, nn.Linear):
        raise InvalidArgument(f"linear: expected an nn.Linear, found {type(layer).__name__}")
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise InvalidArgument("linear: its parameters are not initialised, found an nn.LazyLinear; run it once before")
    if type(layer).forward is not nn.Linear.forward or "forward" in vars(layer):
        raise InvalidArgument(f"linear: expected an nn.Linear with its own forward, found {type(layer).__name__} with another, "
                              "which would be lost; pass the weight to the layer")
    return layer


class _Linear(Held):
    """A shard of a linear layer."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, group: Any = None, *, sequence_dim: int = 0):
        super().__init__(weight, bias, group)
        self.sequence_dim = _rows.dimension(sequence_dim)

    @property
    def in_features(self) -> int:
        """Columns of this rank's weight."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Rows of this rank's weight."""
        return self.weight.shape[0]


class _ColumnParallel(_Linear):
    """A linear layer of which each rank has some rows.

    `parts` has the sizes of this rank's parts of y, for torch.split, where from_full was given any. `repeated` says whether other
    ranks hold some of its rows too.
    """

    parts: tuple | None = None
    repeated = False

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None, *, parts: Any = None, unit: Any = None,
                  sequence_dim: int = 0) -> Self:
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
                Such a layer is frozen, since its copies would be trained apart.
            sequence_dim: which dimension of x the ranks divide.

        The first units % W ranks get one unit more, where all parts have equally many units. Raises InvalidArgument where a
        unit does not divide its part, or where parts cannot be divided so that heads stay with their key and value heads.

        Example:
            qkv = AGGemm.from_full(attention.qkv, parts=[heads * size, kv_heads * size, kv_heads * size], unit=size)
            q, k, v = qkv(x).split(qkv.parts, -1)
            gate, up = (both := AGGemm.from_full(mlp.gate_up, parts=[inner, inner]))(x).split(both.parts, -1)
        """
        members = resolve(group)
        shards = Shards(plain_linear(linear).weight.shape[0], members, parts, unit, repeats=True)
        made = cls(shards.parameter(linear.weight), shards.parameter(linear.bias), group, sequence_dim=sequence_dim)
        made.parts, made.repeated = None if parts is None else tuple(shards.sizes), shards.shared
        return made

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None, *, sequence_dim: int = 0) -> Self:
        """From this rank's shard, an nn.Linear [N_local, K]. Holds its parameters themselves."""
        return cls(plain_linear(linear).weight, linear.bias, group, sequence_dim=sequence_dim)


class AGGemm(_ColumnParallel):
    """Column-parallel linear: y [M, N_local] = all_gather(x [M / W, K]) @ weight [N_local, K]^T + bias [N_local].

    Args:
        weight: this rank's shard [N_local, K].
        bias: [N_local] or None.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        sequence_dim: which dimension of x the ranks divide: 0 for [S / W, B, K], 1 for [B, S / W, K].

    `parts` has the sizes of this rank's parts of y, for torch.split, where from_full was given any. Set `save_gathered` to keep
    the gathered x for the gradient of the weight, instead of gathering it again.
    """

    save_gathered = False

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None, comm_sms: int | None = None,
                return_gathered: bool = False, act: str | None = None) -> Any:
        """x [M / W, K] -> [M, N_local], or (that, gathered x [M, K]). See triton_dist.ops.ag_gemm."""
        dim = self.sequence_dim
        y = ag_gemm(_rows.flat(x, dim), self.weight, group=self.group, bias=self.bias, out=_rows.written(out, x, dim),
                    comm_sms=comm_sms, return_gathered=return_gathered, save_gathered=self.save_gathered, act=act)
        if return_gathered:
            return _rows.shaped(y[0], x, dim), _rows.shaped(y[1], x, dim)
        return _rows.shaped(y, x, dim)


class ColumnLinear(_ColumnParallel):
    """Column-parallel linear of what every rank has: y [M, N_local] = x [M, K] @ weight [N_local, K]^T + bias [N_local].

    Arguments as for AGGemm. Nothing is sent; the gradient of x is summed over ranks.
    """

    def forward(self, x: torch.Tensor, act: str | None = None, norm: nn.Module | None = None) -> torch.Tensor:
        """x [..., K], the same on all ranks -> [..., N_local], or [..., N_local / 2] with `act`.

        act: None, or "silu_mul": silu(the first of its two `parts`) * the other one.
        norm: an RMS norm that is applied to x before the product, or None.
        For few rows, where no gradient is wanted, both are joined with the product: see triton_dist.ops.rmsnorm_gemm.
        """
        if act is not None:
            acts.check(act, self.weight.shape[0])
        if (act is not None or norm is not None) and self.joins(x, act, norm):
            weight, eps, weight_bias = (None, None, 0.0) if norm is None else of_norm(norm)
            y = rmsnorm_gemm(_rows.matrix(x), self.weight, weight, bias=self.bias, eps=eps, act=act, norm_weight_bias=weight_bias)
            return y.view(*x.shape[:-1], y.shape[-1])
        y = nn.functional.linear(replicated(x if norm is None else _normed(x, norm), self.group), self.weight, self.bias)
        if act is None:
            return y
        gate, up = y.chunk(2, -1)
        return nn.functional.silu(gate) * up

    @staticmethod
    def takes(column: nn.Module, norm: nn.Module | None) -> dict:
        """What `column`, the first linear of a block, is given of what comes before the block: arguments of `forward`, or {}.

        Raises InvalidArgument where there is a norm, and `column` is no ColumnLinear.
        """
        if norm is None:
            return {}
        if not isinstance(column, ColumnLinear):
            raise InvalidArgument(f"input_norm: expected a block that begins with a ColumnLinear, found {type(column).__name__}; "
                                  "leave it out, and norm what the block takes")
        return {"norm": norm}

    def joins(self, x: torch.Tensor, act: str | None, norm: nn.Module | None = None) -> bool:
        """Whether rmsnorm_gemm has kernels for this call, which has no gradient."""
        tensors = (x, self.weight, self.bias, None if norm is None else norm.weight)
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            return False
        return x.ndim > 0 and joins(x.numel() // max(1, x.shape[-1]), self.weight, act, norm is not None)


def _normed(x: torch.Tensor, norm: nn.Module) -> torch.Tensor:
    """norm(x), also of an AllReduceRMSNorm, which stands for the norm alone here."""
    return rms_norm(x, *of_norm(norm))


class _RowParallel(_Linear):
    """A linear layer of which each rank has some columns."""

    @classmethod
    def from_full(cls, linear: nn.Linear, group: Any = None, *, parts: Any = None, unit: Any = None,
                  sequence_dim: int = 0) -> Self:
        """From a full nn.Linear [N, K], the same on all ranks: takes this rank's columns, a copy, and the whole bias.

        Columns must be divided as what comes in is: behind attention with the head's size as `unit`.

        Args:
            linear: the whole layer, with or without a bias.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            parts: sizes of what comes in one after the other, which add up to K; each is divided by itself. None: it is one.
            unit: columns that are never cut, such as the size of a head: a number for all parts or one for each.
            sequence_dim: which dimension of x the ranks divide.

        The first units % W ranks get one unit more, where all parts have equally many units. Raises InvalidArgument as
        AGGemm.from_full does.

        Example:
            out = GemmRS.from_full(attention.out, unit=size)
        """
        shards = Shards(plain_linear(linear).weight.shape[1], resolve(group), parts, unit)
        return cls(shards.parameter(linear.weight, dim=1), linear.bias, group, sequence_dim=sequence_dim)

    @classmethod
    def from_shard(cls, linear: nn.Linear, group: Any = None, *, sequence_dim: int = 0) -> Self:
        """From this rank's shard, an nn.Linear [N, K_local] whose bias, if any, is the full one.

        Holds its parameters themselves.
        """
        return cls(plain_linear(linear).weight, linear.bias, group, sequence_dim=sequence_dim)


class GemmRS(_RowParallel):
    """Row-parallel linear: y [M / W, N] = reduce_scatter(x [M, K_local] @ weight [N, K_local]^T) + bias [N].

    `sequence_dim` says which dimension of y the ranks divide: 0 for [S / W, B, N], 1 for [B, S / W, N].
    """

    def forward(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K_local] -> [M / W, N]. See triton_dist.ops.gemm_rs."""
        dim = self.sequence_dim
        _rows.must_divide(x, dim, self.group)
        y = gemm_rs(_rows.flat(x, dim), self.weight, group=self.group, bias=self.bias, out=_rows.written(out, x, dim))
        return _rows.shaped(y, x, dim)


class GemmAR(_RowParallel):
    """Row-parallel linear: y [M, N] = all_reduce(x [M, K_local] @ weight [N, K_local]^T) + bias [N] + residual [M, N]."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None,
                norm: nn.Module | None = None) -> Any:
        """x [M, K_local], residual [M, N] or None -> y [M, N]; rows may have any dimensions. See triton_dist.ops.gemm_ar.

        norm: the RMS norm that follows in a decoder, or None. With it the result is (norm(y), y), for few rows by one kernel: see
        triton_dist.ops.gemm_ar_rmsnorm. An nn.RMSNorm or another norm that AllReduceRMSNorm.from_norm takes, or what that gives,
        without a bias; for norms that multiply by 1 + weight the latter, with weight_bias=1.
        """
        if norm is not None:
            return self._normed(x, residual, out, norm)
        if not isinstance(x, torch.Tensor) or x.ndim == 2:
            return gemm_ar(x, self.weight, group=self.group, bias=self.bias, residual=residual, out=out)
        rows = None if residual is None else _rows.matrix(residual)
        y = gemm_ar(_rows.matrix(x), self.weight, group=self.group, bias=self.bias, residual=rows,
                    out=None if out is None else out.view(*_rows.matrix_of(out)))
        return y.view(*x.shape[:-1], self.weight.shape[0])

    @staticmethod
    def takes(row: nn.Module, residual: torch.Tensor | None, norm: nn.Module | None) -> dict:
        """What `row`, the last linear of a block, is given of what follows the block: arguments of GemmAR.forward, or {}.

        Raises InvalidArgument where there is something, and `row` is no GemmAR.
        """
        if residual is None and norm is None:
            return {}
        if not isinstance(row, GemmAR):
            raise InvalidArgument(f"{'residual' if norm is None else 'norm'}: expected a block that ends in a GemmAR, found "
                                  f"{type(row).__name__}; leave it out, and add and norm what the block gives")
        return {"residual": residual, "norm": norm}

    def _normed(self, x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor | None, norm: nn.Module) -> tuple:
        weight, eps, weight_bias = of_norm(norm)
        shape = (*x.shape[:-1], self.weight.shape[0])
        rows = None if residual is None else _rows.matrix(residual)
        y, total = gemm_ar_rmsnorm(_rows.matrix(x), self.weight, weight, bias=self.bias, residual=rows, eps=eps,
                                   norm_weight_bias=weight_bias, group=self.group,
                                   out=None if out is None else out.view(*_rows.matrix_of(out)))
        return y.view(shape), total.view(shape)
