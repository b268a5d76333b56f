# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Styles for torch's parallelize_module: linear layers that overlap, with parameters that are DTensors.

    from torch.distributed.tensor.parallel import parallelize_module
    parallelize_module(model, mesh["tp"], {"layers.*.mlp.up": OverlapColwise(), "layers.*.mlp.down": OverlapRowwise()})
"""
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from triton_dist.layers import _rows
from triton_dist.layers.replicated import replicated
from triton_dist.ops import ag_gemm, gemm_ar, gemm_rs
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import name_of


def _local(t: Any) -> Any:
    """A DTensor's part of this rank, followed by autograd."""
    return t.to_local() if isinstance(t, DTensor) else t


def _input(x: Any, dim: int | None) -> torch.Tensor:
    """This rank's part of what a layer is given, which ranks divide along `dim`, or have whole where it is None.

    Raises InvalidArgument for a DTensor that is divided otherwise: its part would be taken for something else.
    """
    if not isinstance(x, DTensor):
        return x
    if dim is None:
        wanted = Replicate(),
    else:                                       # torch.compile does not compute with the dimension of a placement
        wanted = Shard(dim % x.ndim), Shard(dim % x.ndim - x.ndim)
    if len(x.placements) != 1 or x.placements[0] not in wanted:
        raise InvalidArgument(f"x: expected a DTensor placed as {wanted[0]}, found {list(x.placements)}; redistribute it, or set "
                              "sequence_parallel and sequence_dim of the layer's style")
    return x.to_local()


class _OverlapLinear(nn.Linear):
    """An nn.Linear whose class a style has changed: a model's copies, hooks and names stay what they are.

    Parameters are read at each call, as FSDP exchanges them.
    """

    overlap_group: str
    sequence_parallel: bool
    sequence_dim: int

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sequence_parallel={self.sequence_parallel}"


class OverlapColwiseLinear(_OverlapLinear):
    """Rows of the weight are divided."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K], of which a rank has a part of the sequence or all -> [..., N_local] of the whole sequence."""
        dim = self.sequence_dim if x.ndim > 2 else 0
        x, weight, bias = _input(x, dim if self.sequence_parallel else None), _local(self.weight), _local(self.bias)
        if not self.sequence_parallel:
            return nn.functional.linear(replicated(x, self.overlap_group), weight, bias)
        return _rows.shaped(ag_gemm(_rows.flat(x, dim), weight, group=self.overlap_group, bias=bias), x, dim)


class OverlapRowwiseLinear(_OverlapLinear):
    """Columns of the weight are divided; every rank has the bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., K_local] of the whole sequence -> [..., N], a part of the sequence or all."""
        x, weight, bias = _input(x, -1), _local(self.weight), _local(self.bias)
        if not self.sequence_parallel:
            y = gemm_ar(_rows.matrix(x), weight, group=self.overlap_group, bias=bias)
            return y.view(*x.shape[:-1], y.shape[-1])
        dim = self.sequence_dim if x.ndim > 2 else 0
        _rows.must_divide(x, dim, self.overlap_group)
        return _rows.shaped(gemm_rs(_rows.flat(x, dim), weight, group=self.overlap_group, bias=bias), x, dim)


class _OverlapStyle(ParallelStyle):
    """What the two styles share."""

    becomes: type
    weight: Any
    bias: Any

    def __init__(self, *, sequence_parallel: bool = False, sequence_dim: int = 1):
        super().__init__()
        self.sequence_parallel, self.sequence_dim = sequence_parallel, _rows.dimension(sequence_dim)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if type(module) is not nn.Linear:
            raise InvalidArgument(f"{type(self).__name__}: expected an nn.Linear, found {type(module).__name__}; take one of "
                                  "torch's styles for it")
        if device_mesh.ndim != 1:
            raise InvalidArgument(f"device_mesh: expected one of one dimension, found {device_mesh.ndim}; pass mesh['tp']")
        for name, placement in (("weight", self.weight), ("bias", self.bias)):
            whole = getattr(module, name)
            if whole is not None:
                parts = distribute_tensor(whole.detach(), device_mesh, [placement], src_data_rank=self.src_data_rank)
                module.register_parameter(name, nn.Parameter(parts, requires_grad=whole.requires_grad))
        module.__class__ = self.becomes
        module.overlap_group = name_of(device_mesh)
        module.sequence_parallel, module.sequence_dim = self.sequence_parallel, self.sequence_dim
        return module


class OverlapColwise(_OverlapStyle):
    """An nn.Linear becomes column-parallel: its outputs are divided over the mesh.

    Args:
        sequence_parallel: x is a part of the sequence, which is gathered under the product (ag_gemm); else every rank has all of
            x, and nothing is sent.
        sequence_dim: which dimension of x [.., K] the ranks divide, where it has more than two: 1 for [B, S, K].
    """

    becomes, weight, bias = OverlapColwiseLinear, Shard(0), Shard(0)


class OverlapRowwise(_OverlapStyle):
    """An nn.Linear becomes row-parallel: its inputs are divided over the mesh.

    Args:
        sequence_parallel: the result is a part of the sequence (gemm_rs); else every rank has all of it (gemm_ar).
        sequence_dim: which dimension of the result [.., N] the ranks divide, where it has more than two: 1 for [B, S, N].
    """

    becomes, weight, bias = OverlapRowwiseLinear, Shard(1), Replicate()
