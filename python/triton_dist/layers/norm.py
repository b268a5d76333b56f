# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The norm behind a row-parallel linear whose output has not been summed over ranks yet."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers._held import Held
from triton_dist.ops import all_reduce_rmsnorm
from triton_dist.runtime.errors import InvalidArgument


class AllReduceRMSNorm(Held):
    """total = all_reduce(x [..., N]) + bias [N] + residual [..., N]; y = rms_norm(total) * weight [N]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float | None = 1e-6, group: Any = None):
        super().__init__(weight, bias, group)
        self.eps = eps

    @classmethod
    def from_norm(cls, norm: nn.RMSNorm, bias: torch.Tensor | None = None, group: Any = None) -> "AllReduceRMSNorm":
        """From an nn.RMSNorm over the last dimension, the same on all ranks, with its weight and eps. Holds its weight itself.

        bias: [N] or None, that of the linear before it, which then must not add it on each rank.
        """
        if not isinstance(norm, nn.RMSNorm):
            raise InvalidArgument(f"norm: expected an nn.RMSNorm, found {type(norm).__name__}")
        if len(norm.normalized_shape) != 1:
            raise InvalidArgument(f"norm: expected one over the last dimension, found normalized_shape "
                                  f"{list(norm.normalized_shape)}")
        if norm.weight is None:
            raise InvalidArgument("norm: expected one with a weight, found elementwise_affine=False; pass "
                                  "AllReduceRMSNorm(torch.ones(N), eps=norm.eps)")
        return cls(norm.weight, bias, norm.eps, group)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None,
                residual_out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., N] (partial sums), residual [..., N] or None -> (y, total). See triton_dist.ops.all_reduce_rmsnorm."""
        return all_reduce_rmsnorm(x, self.weight, bias=self.bias, residual=residual, eps=self.eps, group=self.group, out=out,
                                  residual_out=residual_out)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}"
