# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Norms: one of what has not been summed over ranks yet, and one of a sequence that ranks divide."""
import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from triton_dist.layers._held import Held
from triton_dist.layers.replicated import replicated
from triton_dist.ops import all_reduce_rmsnorm
from triton_dist.ops.norm_rows.eps import eps_of
from triton_dist.runtime.errors import InvalidArgument


_known: WeakKeyDictionary = WeakKeyDictionary()         # norm that multiplies by its weight: name of its epsilon


def of_norm(norm: nn.Module, weight_bias: float | None = None) -> tuple[torch.Tensor, float | None, float]:
    """(weight, eps, weight_bias) of an RMS norm over the last dimension, which multiplies by weight + weight_bias.

    weight_bias: None for that of a norm of this package, and 0 for others. Raises InvalidArgument for a module that is none, and
    where weight_bias is not given, for one whose forward shows that it does not multiply by its weight.
    """
    if isinstance(norm, _Norm) and norm.bias is None and (weight := norm.weight).ndim == 1:
        return weight, norm.eps, norm.weight_bias if weight_bias is None else weight_bias
    traced = torch.compiler.is_compiling()
    eps = _known.get(norm) if not traced and isinstance(norm, nn.Module) else None
    if eps is None:
        eps = _name_of_eps(norm)
        if not traced and weight_bias is None:
            _expect_weight_itself(norm, eps)
            _known[norm] = eps
    return norm.weight, getattr(norm, eps), weight_bias or 0.0


def _name_of_eps(norm: nn.Module) -> str:
    """The attribute that is its epsilon. Raises InvalidArgument for what is no RMS norm over the last dimension."""
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
    return names[0]


def _expect_weight_itself(norm: nn.Module, eps: str) -> None:
    """Raises InvalidArgument where the forward of this norm shows that it does not multiply by its weight."""
    found = None if type(norm).forward is nn.RMSNorm.forward else _factors(norm, eps)
    if found is not None and 0.0 not in found:
        does = ("multiplies by 1 + weight; pass AllReduceRMSNorm.from_norm(norm, weight_bias=1)" if found else
                "computes something else")
        raise InvalidArgument(f"norm: expected an RMS norm that multiplies by its weight, found {type(norm).__name__}, which "
                              f"{does}")


def _factors(norm: nn.Module, eps: str) -> tuple | None:
    """Of 0 and 1 those for which this norm multiplies by weight + that; None where it does not tell.

    Its class's forward is called on the host, with a row and a weight of other values.
    """
    twin, n = copy.copy(norm), len(norm.weight)
    twin._parameters = {"weight": nn.Parameter(torch.linspace(0.5, 2, n, dtype=torch.float32, device="cpu"))}
    row = torch.linspace(-2, 3, n, dtype=torch.float32, device="cpu").unsqueeze(0)
    try:
        with torch.no_grad():
            found = type(norm).forward(twin, row)
            by = {more: rms_norm(row, twin.weight, getattr(norm, eps), more) for more in (0.0, 1.0)}
            return tuple(more for more, expected in by.items() if torch.allclose(found, expected, 1e-3))
    except Exception:                   # it wants other arguments, or another device
        return None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float | None, weight_bias: float) -> torch.Tensor:
    """rms_norm(x [..., N]) * (weight [N] + weight_bias), by torch."""
    if not weight_bias:
        return nn.functional.rms_norm(x, weight.shape, weight, eps)
    wide = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)  # 1 + weight is rounded in less
    y = nn.functional.rms_norm(x.to(wide), weight.shape, weight.to(wide) + weight_bias, eps_of(eps, x.dtype))
    return y.to(x.dtype)


class _Norm(Held):
    """Holds the weight of an RMS norm that multiplies by weight [N] + weight_bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float | None, group: Any, weight_bias: float):
        super().__init__(weight, bias, group)
        self.eps, self.weight_bias = eps, weight_bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}" + (f", weight_bias={self.weight_bias}" if self.weight_bias else "")


class AllReduceRMSNorm(_Norm):
    """total = all_reduce(x [..., N]) + bias [N] + residual [..., N]; y = rms_norm(total) * (weight [N] + weight_bias)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float | None = 1e-6, group: Any = None,
                 weight_bias: float = 0.0):
        super().__init__(weight, bias, eps, group, weight_bias)

    @classmethod
    def from_norm(cls, norm: nn.Module, bias: torch.Tensor | None = None, group: Any = None,
                  weight_bias: float | None = None) -> "AllReduceRMSNorm":
        """From an RMS norm over the last dimension, the same on all ranks, with its weight and eps. Holds its weight itself.

        Args:
            norm: an nn.RMSNorm, or another module with a `weight` [N] and an `eps`, `variance_epsilon` or `epsilon`, as models of
                Hugging Face have them. It must multiply by `weight` + weight_bias.
            bias: [N] or None, that of the linear before it, which then must not add it on each rank.
            weight_bias: 1 for norms that multiply by 1 + weight, as Gemma's do. None: 0, or that of a norm of this package.

        Raises InvalidArgument for what is no such norm, and without a weight_bias for one whose forward adds 1 to its weight.
        """
        weight, eps, weight_bias = of_norm(norm, weight_bias)
        return cls(weight, bias, eps, group, weight_bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None, out: torch.Tensor | None = None,
                residual_out: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., N] (partial sums), residual [..., N] or None -> (y, total). See triton_dist.ops.all_reduce_rmsnorm."""
        return all_reduce_rmsnorm(x, self.weight, bias=self.bias, residual=residual, eps=self.eps,
                                  weight_bias=self.weight_bias, group=self.group, out=out, residual_out=residual_out)


class SequenceRMSNorm(_Norm):
    """y = rms_norm(x [..., N]) * (weight [N] + weight_bias) of the part of a sequence that a rank has.

    A norm's own nn.RMSNorm would have a gradient of this part only. Here the gradient of the weight is summed over ranks, so that
    it is equal on all of them.
    """

    def __init__(self, weight: torch.Tensor, eps: float | None = 1e-6, group: Any = None, weight_bias: float = 0.0):
        super().__init__(weight, None, eps, group, weight_bias)

    @classmethod
    def from_norm(cls, norm: nn.Module, group: Any = None, weight_bias: float | None = None) -> "SequenceRMSNorm":
        """From a norm as AllReduceRMSNorm.from_norm takes it. Holds its weight itself."""
        weight, eps, weight_bias = of_norm(norm, weight_bias)
        return cls(weight, eps, group, weight_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., N] -> [..., N]."""
        return rms_norm(x, replicated(self.weight, self.group), self.eps, self.weight_bias)
