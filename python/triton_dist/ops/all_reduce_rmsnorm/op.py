# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm: what ranks agree on, its fused plan, and the call."""
from typing import Any

import torch

from triton_dist.ops.all_reduce_rmsnorm.base import Norm, NormedAllReduce
from triton_dist.ops.all_reduce_rmsnorm.unfused import all_reduce_and_add, rmsnorm
from triton_dist.ops.autograd import norm
from triton_dist.ops.calls import checks
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group


class AllReduceRmsnorm(NormedAllReduce):
    """What follows a row-parallel linear in a decoder."""

    name = "all_reduce_rmsnorm"
    tensors = {"x": "partial", "weight": "equal", "bias": "equal", "residual": "equal"}
    outputs = {"out": "summed", "residual_out": "summed"}
    schema = ("(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, float? eps, str group, str method, "
              "float weight_bias=0.0) -> (Tensor, Tensor)")
    gradient = Gradient(norm.keep, norm.backward)

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, out: torch.Tensor | None, residual_out: torch.Tensor | None, eps: Any,
              weight_bias: Any, method: str) -> Norm:
        self.check_inputs(x, weight, bias, residual, eps, weight_bias)
        checks.output("out", out, tuple(x.shape), like=x)
        checks.output("residual_out", residual_out, tuple(x.shape), like=x)
        self.check_outputs(residual, residual_out, {"out": out}, x=x, weight=weight, bias=bias)
        return self.agreed_of(x, method, eps, group, weight_bias)

    def args(self, x, weight, bias, residual, out, residual_out) -> tuple:
        return x.contiguous(), weight, bias, None if residual is None else residual.contiguous(), out, residual_out

    def unfused(self, agreed: Norm, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, out: torch.Tensor, residual_out: torch.Tensor) -> None:
        """all_reduce, then torch."""
        if agreed.m:
            all_reduce_and_add(x, self.sums(group), out, residual_out, bias, residual)
            rmsnorm(residual_out, weight, agreed.eps, agreed.weight_bias, out)


ALL_REDUCE_RMSNORM = AllReduceRmsnorm()


@ALL_REDUCE_RMSNORM.public
def all_reduce_rmsnorm(x: torch.Tensor, weight: torch.Tensor, *, bias: torch.Tensor | None = None,
                       residual: torch.Tensor | None = None, eps: float | None = 1e-6, weight_bias: float = 0.0,
                       group: Any = None, out: torch.Tensor | None = None, residual_out: torch.Tensor | None = None,
                       method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """residual_out = all_reduce(x) + bias + residual and out = rms_norm(residual_out) * (weight + weight_bias). Collective.

    What follows a row-parallel linear in a decoder, fused as serving engines do it.

    Args:
        x: fp16, bf16 or fp32 [..., N] on `triton_dist.device()`: this rank's partial sums. Equal shape and dtype on all ranks.
        weight: [N], same dtype: of the norm. Pass the same on every rank.
        bias: [N] or None, same dtype: added once, to the sum. Pass the same on every rank.
        residual: [..., N] or None, same dtype: likewise. Pass the same on every rank.
        eps: added to the mean of the squares; None: torch.finfo(torch.float32).eps, as in torch.nn.RMSNorm.
        weight_bias: a number that is added to `weight` in fp32: 1 for models whose norm multiplies by 1 + weight, as Gemma's.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. `out=x` writes over x; else nothing read may overlap it.
        residual_out: likewise; `residual_out=residual` adds in place.
        method: "one_shot" (one kernel of self-flagged stores, everything to everyone), "two_shot" (the same, each rank
            sums some rows and sends them), "unfused" (all_reduce, then a kernel for the rest) or "auto" (by size). The same on
            all ranks.

    Returns (out, residual_out), both equal on every rank. The sum, bias and residual are added in fp32 in an order that all
    ranks share, with one rounding to the dtype; the norm is in fp32, of the rounded sum, with another rounding: the same inputs
    give the same bits. "unfused" rounds the sum over ranks once more, before bias and residual are added.
    Gradients (without `out` and `residual_out`): outputs are tensors that all ranks hold, and so are their gradients, which must
    be equal on all ranks. Then nothing is sent in the backward pass, and all gradients are equal on all ranks.
    In graphs: as all_reduce; without a call before capture auto captures "unfused".
    Raises InvalidArgument before anything is sent.

    Example:
        normed, x = all_reduce_rmsnorm(partial, norm.weight, residual=x)
    """
    known = ALL_REDUCE_RMSNORM.known((eps, weight_bias, method), group, x, weight, out, bias, residual, residual_out)
    if known is None:
        return ALL_REDUCE_RMSNORM.record(x=x, weight=weight, bias=bias, residual=residual, eps=eps,
                                         weight_bias=weight_bias, group=group, out=out, residual_out=residual_out,
                                         method=method)
    if out is None:
        out = known.new_out()
    if residual_out is None:
        residual_out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, out, residual_out)
    return out, residual_out
