# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed: inputs of one shape, and the ways to compute it."""
import math
from abc import ABC, abstractmethod
from typing import Any

import torch

from triton_dist.bench.host import l2_bytes
from triton_dist.bench.shapes import Shape
from triton_dist.ops import ag_gemm, explain, gemm_rs
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device
from triton_dist.testing import ag_gemm_float64, gemm_rs_float64, random_tensor, share

_MAX_SETS = 64


class Problem(ABC):
    """One op at one shape, with several sets of random inputs: `sets`, or more than fit into L2.

    Each way to compute it takes the number of a set.
    `x`, `weight`, `out` are lists with a tensor a set; `full` is what lies between the collective and the matmul.
    """

    op: str

    def __init__(self, shape: Shape, dtype: torch.dtype, group: Group, sets: int | None = None):
        self.shape, self.dtype, self.group = shape, dtype, group
        x, weight, full, out = self._sizes()
        elements = sum(math.prod(size) for size in (x, weight, full, out))
        self.sets = sets or max(group.all_gather_object(rotation(elements * dtype.itemsize)))
        self.x = [random_tensor(*x, dtype=dtype, seed=1000 * s + group.rank) for s in range(self.sets)]
        self.weight = [random_tensor(*weight, dtype=dtype, seed=1000 * s + 500 + group.rank) for s in range(self.sets)]
        self.full = [torch.empty(full, dtype=dtype, device=device()) for _ in range(self.sets)]
        self.out = [torch.empty(out, dtype=dtype, device=device()) for _ in range(self.sets)]

    @abstractmethod
    def _sizes(self) -> tuple:
        """Shapes of x, weight, full and out on this rank."""

    @abstractmethod
    def prepare(self) -> None:
        """Fills `full`, so that matmul and collective have random inputs also when timed alone."""

    @abstractmethod
    def gemm(self, s: int) -> Any:
        """The matmul alone, on data that is there already."""

    @abstractmethod
    def comm(self, s: int) -> Any:
        """The collective alone."""

    @abstractmethod
    def sequential(self, s: int) -> torch.Tensor:
        """One after the other: what people run today."""

    @abstractmethod
    def ours(self, s: int, method: str) -> torch.Tensor:
        """The op by one of its methods, into out[s]."""

    @abstractmethod
    def torch_fused(self, s: int, group_name: str) -> torch.Tensor:
        """torch's fused op over symmetric memory; its own output."""

    @abstractmethod
    def reference(self) -> torch.Tensor:
        """float64 result of set 0."""

    @abstractmethod
    def roundings(self) -> int:
        """How often a partial sum may be rounded to the dtype on its way."""

    def chosen(self) -> str:
        """The method behind method="auto"."""
        return explain(self.op, self.shape.m, self.shape.n, self.shape.k, group=self.group, dtype=self.dtype).chosen


class AgGemm(Problem):
    """all_gather(x [M / W, K]) @ weight [N / W, K]^T; full is the gathered x."""

    op = "ag_gemm"

    def _sizes(self) -> tuple:
        m, n, k = self.shape.m, share(self.shape.n, self.group), self.shape.k
        return (m // self.group.size, k), (n, k), (m, k), (m, n)

    def prepare(self) -> None:
        for s in range(self.sets):
            self.comm(s)

    def gemm(self, s: int) -> torch.Tensor:
        return torch.matmul(self.full[s], self.weight[s].t(), out=self.out[s])

    def comm(self, s: int) -> None:
        self.group.all_gather_tensor(self.full[s], self.x[s])

    def sequential(self, s: int) -> torch.Tensor:
        self.comm(s)
        return self.gemm(s)

    def ours(self, s: int, method: str) -> torch.Tensor:
        return ag_gemm(self.x[s], self.weight[s], group=self.group, out=self.out[s], method=method)

    def torch_fused(self, s: int, group_name: str) -> torch.Tensor:
        return torch.ops.symm_mem.fused_all_gather_matmul(self.x[s], [self.weight[s].t()], 0, group_name)[1][0]

    def reference(self) -> torch.Tensor:
        return ag_gemm_float64(self.x[0], self.weight[0], self.group)

    def roundings(self) -> int:
        return 1


class GemmRs(Problem):
    """reduce_scatter(x [M, K / W] @ weight [N, K / W]^T); full is the unreduced product."""

    op = "gemm_rs"

    def _sizes(self) -> tuple:
        m, n, k = self.shape.m, self.shape.n, share(self.shape.k, self.group)
        return (m, k), (n, k), (m, n), (m // self.group.size, n)

    def prepare(self) -> None:
        for s in range(self.sets):
            self.gemm(s)

    def gemm(self, s: int) -> torch.Tensor:
        return torch.matmul(self.x[s], self.weight[s].t(), out=self.full[s])

    def comm(self, s: int) -> torch.Tensor:
        self.group.reduce_scatter_tensor(self.out[s], self.full[s])
        return self.out[s]

    def sequential(self, s: int) -> torch.Tensor:
        self.gemm(s)
        return self.comm(s)

    def ours(self, s: int, method: str) -> torch.Tensor:
        return gemm_rs(self.x[s], self.weight[s], group=self.group, out=self.out[s], method=method)

    def torch_fused(self, s: int, group_name: str) -> torch.Tensor:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(self.x[s], self.weight[s].t(), "sum", 0, group_name)

    def reference(self) -> torch.Tensor:
        return gemm_rs_float64(self.x[0], self.weight[0], self.group)

    def roundings(self) -> int:
        return self.group.size + 1                      # NCCL and torch round the product, then each partial sum


PROBLEMS = {cls.op: cls for cls in (AgGemm, GemmRs)}


def rotation(set_bytes: int) -> int:
    """Sets to rotate over, so that none is still in L2 when its turn comes; at least two."""
    if device().type != "cuda":
        return 2
    return min(_MAX_SETS, max(2, math.ceil(2.5 * l2_bytes() / max(1, set_bytes))))
