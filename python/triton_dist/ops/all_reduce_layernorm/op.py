# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_layernorm: what ranks agree on, its fused plan, and the call."""
from typing import Any

import torch

from triton_dist.ops.all_reduce_rmsnorm.base import Norm, NormedAllReduce
from triton_dist.ops.all_reduce_rmsnorm.unfused import all_reduce_and_add
from triton_dist.ops.autograd import layer_norm
from triton_dist.ops.calls import checks
from triton_dist.ops.registry import Gradient
from triton_dist.runtime.groups import Group


class AllReduceLayernorm(NormedAllReduce):
    """What follows a row-parallel linear in a transformer with LayerNorm."""

    name = "all_reduce_layernorm"
    center = True
    tensors = {"x": "partial", "weight": "equal", "bias": "equal", "residual": "equal", "norm_bias": "equal"}
    outputs = {"out": "summed", "residual_out": "summed"}
    schema = ("(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? norm_bias, float? eps, str group, str method) "
              "-> (Tensor, Tensor)")
    gradient = Gradient(layer_norm.keep, layer_norm.backward)

    def check(self, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
              residual: torch.Tensor | None, norm_bias: torch.Tensor | None, out: torch.Tensor | None,
              residual_out: torch.Tensor | None, eps: Any, method: str) -> Norm:
        self.check_inputs(x, weight, bias, residual, eps)
        checks.vector("norm_bias", norm_bias, x.shape[-1], like=x)
        checks.output("out", out, tuple(x.shape), like=x)
        checks.output("residual_out", residual_out, tuple(x.shape), like=x)
        self.check_outputs(residual, residual_out, {"out": out}, x=x, weight=weight, bias=bias, norm_bias=norm_bias)
        return self.agreed_of(x, method, eps, group)

    def args(self, x, weight, bias, residual, norm_bias, out, residual_out) -> tuple:
        return (x.contiguous(), weight, bias, None if residual is None else residual.contiguous(), out, residual_out, norm_bias)

    def unfused(self, agreed: Norm, group: Group, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                residual: torch.Tensor | None, norm_bias: torch.Tensor | None, out: torch.Tensor,
                residual_out: torch.Tensor) -> None:
        """all_reduce, then torch."""
        if agreed.m:
            all_reduce_and_add(x, self.sums(group), out, residual_out, bias, residual)
            out.copy_(torch.nn.functional.layer_norm(residual_out, weight.shape, weight, norm_bias, agreed.eps))


ALL_REDUCE_LAYERNORM = AllReduceLayernorm()


@ALL_REDUCE_LAYERNORM.public
def all_reduce_layernorm(x: torch.Tensor, weight: torch.Tensor, norm_bias: torch.Tensor | None = None, *,
                         bias: torch.Tensor | None = None, residual: torch.Tensor | None = None, eps: float | None = 1e-5,
                         group: Any = None, out: torch.Tensor | None = None, residual_out: torch.Tensor | None = None,
                         method: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """residual_out = all_reduce(x) + bias + residual; out = layer_norm(residual_out) * weight + norm_bias. Collective.

    all_reduce_rmsnorm with torch's layer_norm over the last dimension: of differences from the row's mean.

    Args:
        x: fp16, bf16 or fp32 [..., N] on `triton_dist.device()`: this rank's partial sums. Equal shape and dtype on all ranks.
        weight: [N], same dtype: of the norm. Pass the same on every rank.
        norm_bias: [N] or None, same dtype: of the norm, added after the weight. Pass the same on every rank.
        bias: [N] or None, same dtype: of the linear before, added once, to the sum. Pass the same on every rank.
        residual: [..., N] or None, same dtype: likewise. Pass the same on every rank.
        eps: added to the variance; None: torch.finfo(torch.float32).eps.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of x's shape and dtype, or None to allocate. `out=x` writes over x; else nothing read may overlap it.
        residual_out: likewise; `residual_out=residual` adds in place.
        method: "one_shot", "two_shot", "unfused" or "auto", as in all_reduce_rmsnorm. The same on all ranks.

    Returns (out, residual_out), both equal on every rank. Additions, mean and variance are in fp32, with one rounding of the sum
    to the dtype and one of the norm; the variance is that of differences from the mean, in a second pass over registers.
    Gradients, and calls in graphs: as all_reduce_rmsnorm.
    Raises InvalidArgument before anything is sent.

    Example:
        normed, x = all_reduce_layernorm(partial, norm.weight, norm.bias, bias=linear.bias, residual=x, eps=norm.eps)
    """
    known = ALL_REDUCE_LAYERNORM.known((eps, method), group, x, weight, out, bias, residual, residual_out, norm_bias)
    if known is None:
        return ALL_REDUCE_LAYERNORM.record(x=x, weight=weight, norm_bias=norm_bias, bias=bias, residual=residual, eps=eps,
                                           group=group, out=out, residual_out=residual_out, method=method)
    if out is None:
        out = known.new_out()
    if residual_out is None:
        residual_out = known.new_out()
    known.plan.run(known.group, x, weight, bias, residual, norm_bias, out, residual_out)
    return out, residual_out
