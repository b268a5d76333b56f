# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ways to run a decoder's linears over ranks: ours, and those of other libraries.

Between layers a rank has a part of the rows ("sequence"), with gathers before and reduce-scatters after each pair of linears, or
all rows ("whole"), with all-reduces.
"""
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F

from triton_dist import ops
from triton_dist.bench import symmetric
from triton_dist.bench.model.decoder import EPS
from triton_dist.compat import distributed as private
from triton_dist.runtime.groups import Group

SEQUENCE, WHOLE = "sequence", "whole"


class Way:
    """How linears are divided. `column` takes what a rank has between layers; `row` gives that back."""

    layout = SEQUENCE

    def __init__(self, group: Group):
        self.group, self.rank, self.world = group, group.rank, group.size

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """All rows of x @ weight^T, for this rank's part of the features."""
        return F.linear(x, weight)

    def gated(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up of column(x, weight), which has gate, then up."""
        gate, up = self.column(x, weight).chunk(2, -1)
        return F.silu(gate) * up

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum over ranks of x @ weight^T."""
        raise NotImplementedError

    def row_norm(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor) -> tuple:
        """(the norm of row(x, weight) + residual, that sum)."""
        total = self.row(x, weight) + residual
        return F.rms_norm(total, (total.shape[-1],), norm, EPS), total


class One(Way):
    """One rank that has everything."""
    layout = WHOLE

    def __init__(self) -> None:
        self.rank, self.world = 0, 1

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class Alone(Way):
    """The arithmetic of a rank alone: nothing is sent. In place of a gather stands a copy. Its results mean nothing."""

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x.repeat(self.world, 1), weight)

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)[:x.shape[0] // self.world]


class AloneWhole(Way):
    """As Alone, with all rows on each rank."""
    layout = WHOLE

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


class Ours(Way):
    """ag_gemm and gemm_rs. In training the gathered x is kept, as plain torch keeps it, and so is the product of gate and up."""

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.ag_gemm(x, weight, save_gathered=True)

    def gated(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return super().gated(x, weight) if torch.is_grad_enabled() else ops.ag_gemm(x, weight, act="silu_mul")

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.gemm_rs(x, weight)


class OursWhole(Way):
    """gemm_ar."""
    layout = WHOLE

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.gemm_ar(x, weight)


class OursNorm(OursWhole):
    """A product, then all_reduce_rmsnorm."""

    def row_norm(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor) -> tuple:
        return ops.all_reduce_rmsnorm(F.linear(x, weight), norm, residual=residual, eps=EPS)


class OursProductNorm(OursWhole):
    """gemm_ar_rmsnorm."""

    def row_norm(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor) -> tuple:
        return ops.gemm_ar_rmsnorm(x, weight, norm, residual=residual, eps=EPS)


class OursGated(OursProductNorm):
    """gemm_ar_rmsnorm, and rmsnorm_gemm that joins gate and up."""

    def gated(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.rmsnorm_gemm(x, weight, act="silu_mul")


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group, out = group, x.new_empty(group.size * x.shape[0], x.shape[1])
        group.all_gather_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return _Scatter.apply(grad, ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group, out = group, x.new_empty(x.shape[0] // group.size, x.shape[1])
        group.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return _Gather.apply(grad, ctx.group), None


class Library(Way):
    """The process group's own gather and reduce-scatter (NCCL), eager calls."""

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(_Gather.apply(x, self.group), weight)

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _Scatter.apply(F.linear(x, weight), self.group)


class LibraryWhole(Way):
    """The process group's own all-reduce (NCCL), eager calls."""
    layout = WHOLE

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, weight)
        self.group.all_reduce_tensor(out)
        return out


class Functional(Way):
    """torch's functional collectives, which torch.compile records."""

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(_functional("all_gather_tensor_autograd")(x, 0, dist.group.WORLD), weight)

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _functional("reduce_scatter_tensor_autograd")(F.linear(x, weight), "sum", 0, dist.group.WORLD)


class FunctionalWhole(Way):
    """torch's functional all-reduce, which torch.compile records."""
    layout = WHOLE

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _functional("all_reduce")(F.linear(x, weight), "sum", dist.group.WORLD)


def _functional(name: str) -> Callable:
    return getattr(private.functional_collectives(), name)


class SymmetricMemory(Way):
    """torch's fused symmetric-memory ops."""

    def __init__(self, group: Group):
        super().__init__(group)
        self.name = _symmetric_group()

    def column(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _, (out,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [weight.t()], 0, self.name, return_A=False)
        return out

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, weight.t(), "sum", 0, self.name)


class SymmetricMemoryWhole(Way):
    """A product into symmetric memory, then torch's one-shot or two-shot all-reduce."""
    layout = WHOLE

    def __init__(self, group: Group, kind: str):
        super().__init__(group)
        self.name, self.buffer = _symmetric_group(), None
        self.reduce = symmetric.all_reduce(kind, self.name)

    def row(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        count = x.shape[0] * weight.shape[0]
        if self.buffer is None or self.buffer.numel() != count:
            self.buffer = symmetric.symmetric_tensor(count, x.dtype, self.name)
        torch.mm(x, weight.t(), out=self.buffer.view(x.shape[0], -1))
        return self.reduce(self.buffer).view(x.shape[0], -1)


def _symmetric_group() -> str:
    name, reason = symmetric.group_name()
    if reason is not None:
        raise RuntimeError(reason)
    return name
