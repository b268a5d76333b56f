# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Norms: one of what has not been summed over ranks yet, and one of a sequence that ranks divide."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers._held import Held
from triton_dist.layers.replicated import replicated
from triton_dist.ops import all_reduce_rmsnorm
from triton_dist.runtime.errors import InvalidArgument


def weight_and_eps(norm: nn.Module, bias: torch.Tensor | None = None) -> tuple:
    """(weight, bias, eps) of an RMS norm. Raises InvalidArgument for a module that is none over the last dimension."""
    names = [name for name in ("eps", "variance_epsilon", "epsilon") if hasattr(norm, name)]
    wrong = isinstance(norm, (nn.LayerNorm, nn.GroupNorm)) or getattr(norm, "bias", None) is not None
    if not isinstance(norm, nn.Module) or wrong or not names or not hasattr(norm, "weight"):
        raise InvalidArgument(f"norm: expected an nn.RMSNorm, or another RMS norm with a weight and an epsilon, found "
                              f"{type(norm).__name__}")
    if len(getattr(norm, "normalized_shape", [1])) != 1:
        raise InvalidArgument(f"norm: expected one over the last dimension, found normalized_shape "
                              f"{list(norm.normalized_shape)}")
    if norm.weight is None:
        raise InvalidArgument("norm: expected one with a weight, found elementwise_affine=False; pass "
                              "AllReduceRMSNorm(torch.ones(N), eps=norm.eps)")
    if norm.weight.ndim != 1:
        raise InvalidArgument(f"norm: expected a weight over the last dimension, found shape {list(norm.weight.shape)}")
    return norm.weight, bias, getattr(norm, names[0])


class AllReduceRMSNorm(Held):
    """total = all_reduce(x [..., N]) + bias [N] + residual [..., N]; y = rms_norm(total) * (weight [N] + weight_bias)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float | None = 1e-6, group: Any = None,
                 weight_bias: float = 0.0):
        super().__init__(weight, bias, group)
        self.eps, self.weight_bias = eps, weight_bias

    @classmethod
    def from_norm(cls, norm: nn.Module, bias: torch.Tensor | None = None, group: Any = None,
                  weight_bias: float = 0.0) -> "AllReduceRMSNorm":
        """From an RMS norm over the last dimension, the same on all ranks, with its weight and eps. Holds its weight itself.

        Args:
            norm: an nn.RMSNorm, or another module with a `weight` [N] and an `eps`, `variance_epsilon` or `epsilon`, as models of
                Hugging Face have them. It must multiply by `weight` + weight_bias.
            bias: [N] or None, that of the linear before it, which then must not add it on each rank.
            weight_bias: 1 for norms that multiply by 1 + weight, as Gemma's do.
        """
        return cls(*weight_and_eps(norm, bias), group, weight_bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None,
                residual_out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., N] (partial sums), residual [..., N] or None -> (y, total). See triton_dist.ops.all_reduce_rmsnorm."""
        return all_reduce_rmsnorm(x, self.weight, bias=self.bias, residual=residual, eps=self.eps,
                                  weight_bias=self.weight_bias, group=self.group, out=out, residual_out=residual_out)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}"


class SequenceRMSNorm(Held):
    """y = rms_norm(x [..., N]) * weight [N] of the part of a sequence that a rank has.

    A norm's own nn.RMSNorm would have a gradient of this part only. Here the gradient of the weight is summed over ranks, so that
    it is equal on all of them.
    """

    def __init__(self, weight: torch.Tensor, eps: float | None = 1e-6, group: Any = None):
        super().__init__(weight, None, group)
        self.eps = eps

    @classmethod
    def from_norm(cls, norm: nn.Module, group: Any = None) -> "SequenceRMSNorm":
        """From a norm as AllReduceRMSNorm.from_norm takes it. Holds its weight itself."""
        weight, _, eps = weight_and_eps(norm)
        return cls(weight, eps, group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., N] -> [..., N]."""
        return nn.functional.rms_norm(x, (x.shape[-1],), replicated(self.weight, self.group), self.eps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}"
