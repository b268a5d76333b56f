# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Host scripts that drive the Hopper core in a virtual world: small tiles, poisoned slots, any depth of K."""
import contextlib
from unittest import mock

import torch

import triton_dist
from triton_dist.backends.emulator import backend as emulator
from triton_dist.backends.nvidia import cores
from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.backend import GemmConfig
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import workspace
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, poisoned, random_tensor

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
BLOCK_K, STAGES = 16, 3
STEPS = (0, 1, 2, 3, 5, 8)                     # blocks of K: below, at and above the number of stages


@contextlib.contextmanager
def small_tiles():
    """64 x 32 x 16 tiles (64 x 16 x 16 where sums travel in fp32), also for K = 0, which no op gives the core."""
    describe = cores._descriptor

    def descriptor(t, *block):
        if not t.numel():                      # never read: the kernel's k is 0
            t = torch.full((max(1, t.shape[0]), BLOCK_K), float("nan"), dtype=t.dtype)
        return describe(t, *block)

    def tiles(dtype, m):
        return GemmConfig(64, 32, BLOCK_K, group_m=2, num_warps=8, num_stages=STAGES)

    with mock.patch.object(emulator, "_core_tiles", tiles), mock.patch.object(cores, "_descriptor", descriptor), \
            mock.patch.object(cores, "_tma_can_read", lambda *tensors: True):
        yield


class AG:
    """One ag_gemm call: m rows a rank, k in blocks of K."""
    kind = "ag_gemm"

    def __init__(self, m, n, k, dtype=BF16, bias=False):
        self.m, self.n, self.k, self.dtype, self.bias = m, n, k, dtype, bias

    def __call__(self, seed, group):
        x = random_tensor(self.m, self.k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = random_tensor(self.n, self.k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank)
        b = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 200 + group.rank) if self.bias else None
        out = poisoned(self.m * group.size, self.n, dtype=self.dtype)
        ag_gemm(x, w, group=group, bias=b, out=out, method="ws")

        def verify():
            assert_matches(out, ag_gemm_float64(x, w, group, b), k=self.k)
            return out
        return verify


class RS:
    """One gemm_rs call: m rows a rank; k may be a function of the rank's index."""
    kind = "gemm_rs"

    def __init__(self, m, n, k, dtype=BF16, bias=False, hop=None):
        self.m, self.n, self.k, self.dtype, self.bias, self.hop = m, n, k, dtype, bias, hop

    def __call__(self, seed, group):
        k = self.k(group.rank) if callable(self.k) else self.k
        x = random_tensor(self.m * group.size, k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = random_tensor(self.n, k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank)
        b = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 200) if self.bias else None
        out = poisoned(self.m, self.n, dtype=self.dtype)
        gemm_rs(x, w, group=group, bias=b, out=out, method="ws", hop_dtype=self.hop)

        def verify():
            roundings = group.size if self.hop is None else 1
            assert_matches(out, gemm_rs_float64(x, w, group, b), k=max(1, k) * group.size, roundings=roundings)
            return out
        return verify


def back_to_back(calls, slow=None):
    """The calls in order with nothing between them, in poisoned workspaces; then all results are checked.

    `slow`: a rank that dawdles before each call, so that the others run as far ahead as they are let.
    """
    group = resolve()
    for kind in sorted({call.kind for call in calls}):
        space = workspace(group, kind)
        space.reserve(1 << 18, 256)
        space.data.fill_(0xFF)
    group.barrier()
    pending = []
    for seed, call in enumerate(calls):
        if group.rank == slow:
            dawdle()
        pending.append(call(seed, group))
    triton_dist.synchronize()
    return [verify() for verify in pending]


def dawdle(turns=200):
    """Gives other actors the floor many times."""
    from triton_dist.backends.emulator import scheduler
    for _ in range(turns):
        scheduler.active().point()
