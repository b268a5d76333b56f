# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What all_reduce_rmsnorm_quant computes, with torch's own steps: its unfused method, and the tests' reference."""
import torch

GROUP = 128                     # columns that have a scale of their own where quant is "fp8_1x128"
_LARGEST, _LEAST = 448.0, 1e-10


def quantized(x: torch.Tensor, quant: str, scale: torch.Tensor | None, out: torch.Tensor, scales: torch.Tensor | None) -> None:
    """out [..., N] float8_e4m3fn = x [..., N] over its scales, to nearest, larger ones cut to 448.

    quant: "fp8_tensor": by `scale`, one fp32. "fp8_row" and "fp8_1x128": by `scales` [..., 1] or [..., groups], which are
    written: the largest size of a row or of 128 columns, at least 1e-10, over 448.
    """
    values = x.float()
    if quant == "fp8_tensor":
        _round(values * scale.reshape(()).reciprocal(), out)
        return
    n = x.shape[-1]
    parts = values.unsqueeze(-2)
    if quant == "fp8_1x128":
        parts = torch.nn.functional.pad(values, (0, -n % GROUP)).unflatten(-1, (-1, GROUP))
    most = (parts.abs().amax(-1) if n else parts.new_zeros(scales.shape)).clamp_min(_LEAST)
    scales.copy_(most * (1.0 / _LARGEST))
    inverse = torch.full_like(most, _LARGEST) / most
    _round((parts * inverse.unsqueeze(-1)).flatten(-2)[..., :n], out)


def _round(values: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(values.clamp(-_LARGEST, _LARGEST))
