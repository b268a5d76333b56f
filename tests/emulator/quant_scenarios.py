# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls of all_reduce_rmsnorm_quant that check what they give, for the scripts of scenarios.py."""
import torch
from scenarios import ARN, BF16, F32

from triton_dist.ops import all_reduce_rmsnorm_quant
from triton_dist.testing import all_reduce_rmsnorm_float64, assert_matches, poisoned

QUANTS = ("fp8_tensor", "fp8_row", "fp8_1x128")


class QARN(ARN):
    """One all_reduce_rmsnorm_quant of x [m, n]; the norm beside it where `keep`."""

    def __init__(self, m, n, method, quant, dtype=BF16, bias=False, residual=None, skip=0, keep=True):
        super().__init__(m, n, method, dtype, bias, residual, skip)
        self.quant, self.keep = quant, keep

    def __call__(self, seed, group):
        x, w, b, r, before, total = self.tensors(seed, group)
        given = self.quant == "fp8_tensor"
        scale = torch.tensor([0.01]) if given else None
        out = torch.full((self.skip + self.m * self.n,), 0x7F, dtype=torch.uint8)[self.skip:].view(self.m, self.n)
        scales = None if given else poisoned(self.m, 1 if self.quant == "fp8_row" else -(-self.n // 128), dtype=F32)
        norm_out = poisoned(self.m, self.n, dtype=self.dtype) if self.keep else None
        got = all_reduce_rmsnorm_quant(x, w, quant=self.quant, scale=scale, bias=b, residual=r, eps=self.eps, group=group,
                                       out=out.view(torch.float8_e4m3fn), scales_out=scales, residual_out=total,
                                       norm_out=norm_out, method=self.method)
        assert got.norm_out is norm_out and got.residual_out is total and got.scales is (scale if given else scales)

        def verify():
            roundings = 1 if self.method.endswith("_shot") else group.size + 3
            norm, summed = all_reduce_rmsnorm_float64(x, w, group, b, before, self.eps)
            assert_matches(total, summed, k=group.size, roundings=roundings)
            if self.keep:
                assert_matches(norm_out, norm, k=self.n, roundings=roundings + 3)
            assert_quantized(got.out, got.scales, norm, self.quant, 2 * (roundings + 3) * torch.finfo(self.dtype).eps)
            return torch.cat([t.contiguous().view(torch.uint8).flatten() for t in (out, got.scales, total)])
        return verify


def assert_quantized(q, scales, norm, quant, slack):
    """fp8 numbers times their scales are a float64 `norm`, to half a step of fp8 and `slack` of its size.

    The scale of a row or a group is that of its largest number, to `slack`.
    """
    n = norm.shape[-1]
    each = scales.double().expand(*norm.shape[:-1], -1).repeat_interleave(128 if quant == "fp8_1x128" else n, -1)[..., :n]
    found = q.double() * each
    assert not bool(found.isnan().any())
    scale = norm.square().mean().sqrt()
    near = norm.clamp(-448 * each, 448 * each)
    assert bool(((found - near).abs() <= near.abs() * (2.0**-4 + slack) + each * 2.0**-10 + slack * scale).all())
    if quant != "fp8_tensor":
        groups = torch.nn.functional.pad(norm.abs(), (0, -n % 128)).unflatten(-1, (-1, 128)) if quant == "fp8_1x128" else (
            norm.abs().unsqueeze(-2))
        assert bool(((scales * 448 - groups.amax(-1)).abs() <= slack * (groups.amax(-1) + scale)).all())
