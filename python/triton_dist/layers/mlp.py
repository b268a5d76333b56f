# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder's feed-forward part."""
from typing import Any, Callable

import torch
from torch import nn

from triton_dist.layers._held import is_plain
from triton_dist.layers.linear import AGGemm, ColumnLinear, GemmAR, GemmRS, plain_linear


class TPMLP(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))): up is column-parallel, down row-parallel.

    Args:
        up: AGGemm or ColumnLinear, whose two `parts`, if it has any, are gate and up.
        down: GemmRS behind an AGGemm, GemmAR behind a ColumnLinear.
        activation: elementwise.

    Silu of a gate is part of the product where no gradient is wanted: ag_gemm with act="silu_mul", or rmsnorm_gemm for few rows
    behind a ColumnLinear. Where a gradient is wanted, the product is kept instead of being computed twice. The same holds for an
    `up` that has forward hooks, or is another module, such as one that adds an adapter.
    """

    def __init__(self, up: AGGemm | ColumnLinear, down: GemmRS | GemmAR, activation: Callable = nn.functional.silu):
        super().__init__()
        self.up, self.down, self.activation = up, down, activation

    @classmethod
    def from_full(cls, up: nn.Linear, down: nn.Linear, gate: nn.Linear | None = None, *, gated: bool = False,
                  activation: Callable = nn.functional.silu, group: Any = None, sequence_parallel: bool = True,
                  sequence_dim: int = 0) -> "TPMLP":
        """From whole layers, the same on all ranks: takes this rank's shards, copies.

        Args:
            up, down: [I, H] and [H, I]. With `gated`, up is [2 I, H]: gate and up in one.
            gate: [I, H], or None where there is no gate, or it is in `up`.
            activation: elementwise.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            sequence_parallel: whether x and the result are parts of the sequence, [S / W, B, H]; else all ranks have all of it.
            sequence_dim: which dimension of x the ranks divide.
        """
        if gate is not None:
            up, gated = fused(gate, up), True
        parts = [up.weight.shape[0] // 2] * 2 if gated else None
        columns, rows = (AGGemm, GemmRS) if sequence_parallel else (ColumnLinear, GemmAR)
        return cls(columns.from_full(up, group, parts=parts, sequence_dim=sequence_dim),
                   rows.from_full(down, group, sequence_dim=sequence_dim), activation)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, norm: nn.Module | None = None,
                input_norm: nn.Module | None = None) -> Any:
        """x [..., H] -> [..., H].

        Args:
            x: what `up` takes.
            residual: [..., H], added to the result, or None. Where `down` is a GemmAR.
            norm: the RMS norm that follows in a decoder, or None: likewise. With it the result is (norm(y), y), as of GemmAR.
            input_norm: the RMS norm of x that comes first, where `up` is a ColumnLinear, or None.
        """
        more, first = GemmAR.takes(self.down, residual, norm), ColumnLinear.takes(self.up, input_norm)
        if self._joins(x):
            return self.down(self.up(x, act="silu_mul", **first), **more)
        y = self.up(x, **first)
        if self.up.parts is None:
            return self.down(self.activation(y), **more)
        gate, up = y.split(self.up.parts, -1)
        return self.down(self.activation(gate) * up, **more)

    def _joins(self, x: torch.Tensor) -> bool:
        """Whether gate and up are joined by the product itself."""
        up, act = self.up, self.activation
        if not is_plain(up, AGGemm) and not (is_plain(up, ColumnLinear) and up.joins(x, "silu_mul")):
            return False
        if up.parts is None or len(up.parts) != 2 or up.parts[0] != up.parts[1]:
            return False
        if act is not nn.functional.silu and not (isinstance(act, nn.Module) and is_plain(act, nn.SiLU)):
            return False
        return not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, up.weight, up.bias)))


def fused(*linears: nn.Linear) -> nn.Linear:
    """One nn.Linear that gives what all give, one after the other. A bias that only some have is zero for the others."""
    weight = torch.cat([plain_linear(linear).weight.detach() for linear in linears])
    bias = None
    if any(linear.bias is not None for linear in linears):
        bias = torch.cat([weight.new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias.detach()
                          for linear in linears])
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    wanted = any(linear.weight.requires_grad for linear in linears)
    made.weight = nn.Parameter(weight, requires_grad=wanted)
    made.bias = None if bias is None else nn.Parameter(bias, requires_grad=wanted)
    return made
