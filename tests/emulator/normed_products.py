# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls of gemm_ar_rmsnorm for the scenarios."""
import torch
from scenarios import F16

from triton_dist.ops import gemm_ar_rmsnorm
from triton_dist.testing import assert_matches, gemm_ar_rmsnorm_float64, poisoned, random_tensor


class GARN:
    """One gemm_ar_rmsnorm call: k may be a function of the rank's index. residual: None, "apart", "strided" or "in place"."""
    kind, eps = "packets", 1e-3

    def __init__(self, m, n, k, method="packets", dtype=F16, bias=False, residual=None, norm_weight_bias=0.0):
        self.m, self.n, self.k, self.method, self.dtype, self.bias, self.residual = m, n, k, method, dtype, bias, residual
        self.norm_weight_bias = norm_weight_bias

    def __call__(self, seed, group):
        k = self.k(group.rank) if callable(self.k) else self.k
        x = random_tensor(self.m, k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = random_tensor(self.n, k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank)
        norm = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 400)
        b = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 200) if self.bias else None
        r = random_tensor(self.m, self.n, dtype=self.dtype, seed=1000 * seed + 300) if self.residual else None
        if self.residual == "strided":
            r = r.t().contiguous().t()
        before = r if r is None else r.clone()
        total = r if self.residual == "in place" else poisoned(self.m, self.n, dtype=self.dtype)
        out = poisoned(self.m, self.n, dtype=self.dtype)
        got = gemm_ar_rmsnorm(x, w, norm, bias=b, residual=r, eps=self.eps, norm_weight_bias=self.norm_weight_bias, group=group,
                              out=out, residual_out=total, method=self.method)
        assert got[0] is out and got[1] is total

        def verify():
            roundings = group.size + 1 if self.method == "packets" else group.size + 3
            _, summed = gemm_ar_rmsnorm_float64(x, w, norm, group, bias=b, residual=before)
            assert_matches(total, summed, k=max(1, k) * group.size, roundings=roundings)
            wide = total.double()                       # the norm is of what was rounded
            scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
            assert_matches(out, wide * scale * (norm.double() + self.norm_weight_bias), k=self.n,
                           roundings=1 if self.method == "packets" else 4)
            return torch.stack([out, total])
        return verify
