# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed of all_reduce_rmsnorm: rows alone, or a decoder's chain of a product and what follows it."""
from functools import partial
from typing import Any, Sequence

import torch

from triton_dist.bench import symmetric
from triton_dist.bench.collective import outside
from triton_dist.bench.collective.norm_words import COMMAND
from triton_dist.bench.collective.problem import Candidate
from triton_dist.bench.problems import rotation
from triton_dist.bench.shapes import Shape
from triton_dist.ops import all_reduce, all_reduce_rmsnorm, all_reduce_rmsnorm_quant, explain, gemm_ar_rmsnorm
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device
from triton_dist.testing import all_reduce_rmsnorm_float64, random_tensor

_EPS = 1e-6


class Norm:
    """all_reduce(x) + residual, and its RMSNorm, for x [M, N]; where K is not 0, x is a product [M, K] @ [N, K]^T each time.

    A peer is its all-reduce, then torch's sum and norm; "parts" is ours. Beside them: "gemm" is the product alone,
    "gemm_ar_rmsnorm" the op that has the product in it, and each of `quants` what all_reduce_rmsnorm_quant takes, after the same
    product.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, group: Group, sets: int | None = None, quants: Sequence[str] = ()):
        self.shape, self.dtype, self.group = shape, dtype, group
        m, n, k = shape.m, shape.n, shape.k
        self.sets = sets or max(group.all_gather_object(rotation((4 * m * n + (m + n) * k) * dtype.itemsize)))
        self.x = [random_tensor(m, n, dtype=dtype, seed=1000 * s + group.rank) for s in range(self.sets)]
        self.weight = random_tensor(n, dtype=dtype, seed=77)
        self.residual = [random_tensor(m, n, dtype=dtype, seed=1000 * s + 300) for s in range(self.sets)]
        self.out, self.total = ([torch.empty(m, n, dtype=dtype, device=device()) for _ in range(self.sets)] for _ in range(2))
        self.beside: dict = {"gemm": self._product, "gemm_ar_rmsnorm": self._with_product} if k else {}
        if k:
            self._a = [random_tensor(m, k, dtype=dtype, seed=1000 * s + 600 + group.rank) for s in range(self.sets)]
            self._b = [random_tensor(n, k, dtype=dtype, seed=1000 * s + 900 + group.rank) for s in range(self.sets)]
            self._product(0)
        if quants:
            self._scale = torch.full((1,), 0.01, dtype=torch.float32, device=device())
            self._fp8 = [torch.empty(m, n, dtype=torch.float8_e4m3fn, device=device()) for _ in range(self.sets)]
            self.beside.update({quant: partial(self._quantised, quant) for quant in quants})

    def about(self) -> dict:
        """What a row says of the problem."""
        return {"shape": self.shape.name, "m": self.shape.m, "n": self.shape.n, "k": self.shape.k}

    def rates(self, us: float) -> dict:
        """Figures that follow from the time of a call: none."""
        return {}

    def chosen(self) -> str:
        """The method that auto takes."""
        return explain(COMMAND, self.shape.m, self.shape.n, group=self.group, dtype=self.dtype).chosen

    def repeats(self, method: str) -> bool:
        """Every method gives the same bits for the same inputs."""
        return True

    def ours(self, method: str) -> Candidate:
        """The op by one of its methods."""
        def call(s: int) -> torch.Tensor:
            self._product(s)
            return all_reduce_rmsnorm(self.x[s], self.weight, residual=self.residual[s], eps=_EPS, group=self.group,
                                      out=self.out[s], residual_out=self.total[s], method=method)[0]
        return Candidate(call)

    def peer(self, name: str, group_name: str) -> Candidate:
        """An all-reduce, of the group's library, of ours or of torch on a symmetric tensor, then torch's sum and norm."""
        reduced: Any = None
        if name == "nccl":
            def reduce(s: int) -> torch.Tensor:
                self.total[s].copy_(self.x[s])
                self.group.all_reduce_tensor(self.total[s])
                return self.total[s]
        elif name == "parts":
            def reduce(s: int) -> torch.Tensor:
                total = all_reduce(self.x[s], group=self.group, out=self.total[s])
                backend().before_torch()
                return total
        else:
            reduced = symmetric.symmetric_tensor(self.x[0].numel(), self.dtype, group_name)
            torchs = symmetric.all_reduce(name, group_name)

            def reduce(s: int) -> torch.Tensor:
                return torchs(reduced.copy_(self.x[s].view(-1))).view(self.x[s].shape)

        def call(s: int) -> torch.Tensor:
            self._product(s)
            return self._normed(s, reduce(s))
        return Candidate(call)

    def outside(self, make: type) -> Candidate:
        """A fused norm of another project (outside.py), or its all-reduce, then torch's sum and norm."""
        peer = make(self.shape.m, self.shape.n, self.dtype)
        fused = getattr(peer, "all_reduce_rmsnorm", None)

        def timed(s: int) -> torch.Tensor:
            if self.shape.k:
                torch.matmul(self._a[s], self._b[s].t(), out=peer.x)
            if fused is not None:
                return fused(self.residual[s], self.weight, _EPS)[0].view(self.out[s].shape)
            return self._normed(s, outside.summed(peer, self.out[s]))

        def checked(s: int) -> torch.Tensor:
            peer.x.copy_(self.x[s])
            return timed(s)
        return Candidate(checked, timed)

    def _normed(self, s: int, reduced: torch.Tensor) -> torch.Tensor:
        """What follows an all-reduce, by torch."""
        torch.add(reduced, self.residual[s], out=self.total[s])
        return self.out[s].copy_(torch.nn.functional.rms_norm(self.total[s], (self.shape.n,), self.weight, _EPS))

    def _with_product(self, s: int) -> torch.Tensor:
        return gemm_ar_rmsnorm(self._a[s], self._b[s], self.weight, residual=self.residual[s], eps=_EPS, group=self.group,
                               out=self.out[s], residual_out=self.total[s])[0]

    def _quantised(self, quant: str, s: int) -> torch.Tensor:
        self._product(s)
        return all_reduce_rmsnorm_quant(self.x[s], self.weight, quant=quant, residual=self.residual[s], eps=_EPS,
                                        scale=self._scale if quant == "fp8_tensor" else None, group=self.group,
                                        out=self._fp8[s], residual_out=self.total[s]).out

    def _product(self, s: int) -> torch.Tensor:
        if self.shape.k:
            torch.matmul(self._a[s], self._b[s].t(), out=self.x[s])
        return self.x[s]

    def reference(self) -> torch.Tensor:
        """float64 result of set 0."""
        return all_reduce_rmsnorm_float64(self.x[0], self.weight, self.group, residual=self.residual[0], eps=_EPS)[0]

    def roundings(self) -> int:
        """The sum may be rounded after each step, then the norm."""
        return self.group.size + 5
