# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is timed of gemm_ar: a shape, and the ways to compute it."""
import torch

from triton_dist.bench import symmetric
from triton_dist.bench.collective import outside
from triton_dist.bench.collective.problem import Candidate
from triton_dist.bench.problems import rotation
from triton_dist.bench.shapes import Shape
from triton_dist.ops import explain, gemm_ar
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device
from triton_dist.testing import gemm_ar_float64, random_tensor, share


class GemmAr:
    """all_reduce(x [M, K / W] @ weight [N, K / W]^T), with `sets` sets of random inputs, or more than fit into L2.

    A peer is a matmul, then other means to all-reduce; "gemm" is the matmul alone.
    """

    op = "gemm_ar"

    def __init__(self, shape: Shape, dtype: torch.dtype, group: Group, sets: int | None = None):
        self.shape, self.dtype, self.group = shape, dtype, group
        m, n, k = shape.m, shape.n, share(shape.k, group)
        self.nbytes = m * n * dtype.itemsize
        self.sets = sets or max(group.all_gather_object(rotation((m * k + n * k + m * n) * dtype.itemsize)))
        self.x = [random_tensor(m, k, dtype=dtype, seed=1000 * s + group.rank) for s in range(self.sets)]
        self.weight = [random_tensor(n, k, dtype=dtype, seed=1000 * s + 500 + group.rank) for s in range(self.sets)]
        self.out = [torch.empty(m, n, dtype=dtype, device=device()) for _ in range(self.sets)]
        self.beside = {"gemm": self._matmul}

    def about(self) -> dict:
        """What a row says of the problem."""
        return {"shape": self.shape.name, "m": self.shape.m, "n": self.shape.n, "k": self.shape.k}

    def rates(self, us: float) -> dict:
        """Figures that follow from the time of a call: none."""
        return {}

    def chosen(self) -> str:
        """The method behind auto."""
        return explain(self.op, self.shape.m, self.shape.n, self.shape.k, group=self.group, dtype=self.dtype).chosen

    def repeats(self, method: str) -> bool:
        """Every method gives the same bits for the same inputs."""
        return True

    def ours(self, method: str) -> Candidate:
        """The op by one of its methods."""
        return Candidate(lambda s: gemm_ar(self.x[s], self.weight[s], group=self.group, out=self.out[s], method=method))

    def peer(self, name: str, group_name: str) -> Candidate:
        """A matmul, then the group's own all-reduce, or torch's ops on a symmetric tensor, which it knows as `group_name`."""
        if name == "nccl":
            def library(s: int) -> torch.Tensor:
                self._matmul(s)
                self.group.all_reduce_tensor(self.out[s])
                return self.out[s]
            return Candidate(library)
        product = symmetric.symmetric_tensor(self.shape.m * self.shape.n, self.dtype, group_name)
        reduce = symmetric.all_reduce(name, group_name)

        def symmetric_memory(s: int) -> torch.Tensor:
            torch.matmul(self.x[s], self.weight[s].t(), out=product.view(self.out[s].shape))
            return reduce(product).view(self.out[s].shape)
        return Candidate(symmetric_memory)

    def outside(self, make: type) -> Candidate:
        """A matmul, then the all-reduce of another project (outside.py)."""
        peer = make(self.shape.m, self.shape.n, self.dtype)

        def call(s: int) -> torch.Tensor:
            torch.matmul(self.x[s], self.weight[s].t(), out=peer.x)
            return outside.summed(peer, self.out[s])
        return Candidate(call)

    def _matmul(self, s: int) -> torch.Tensor:
        return torch.matmul(self.x[s], self.weight[s].t(), out=self.out[s])

    def reference(self) -> torch.Tensor:
        """float64 result of set 0."""
        return gemm_ar_float64(self.x[0], self.weight[0], self.group)

    def roundings(self) -> int:
        """The product, then each partial sum, may be rounded."""
        return self.group.size + 1
