# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Host scripts that drive the Hopper core in a virtual world: small tiles, poisoned slots, any depth of K."""
import contextlib
from unittest import mock

import pytest
import scenarios
import torch
from scenarios import BF16, F16, F32  # noqa: F401

from triton_dist.backends.emulator import backend as emulator
from triton_dist.cores.hopper import cores, descriptors
from triton_dist.ops.calls import aligned
from triton_dist.ops.ag_gemm import gather
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import CountedWorkspace, Workspace, workspace

BLOCK_K, STAGES = 16, 3
STEPS = (0, 1, 2, 3, 5, 8)                     # blocks of K: below, at and above the number of stages


@contextlib.contextmanager
def small_tiles(block_n=32):
    """64 x 32 x 16 tiles (64 x 16 x 16 where sums travel in fp32), also for K = 0, which no op gives the core."""
    describe = cores.descriptor

    def descriptor(t, *block, **described):
        if not t.numel():                      # never read: the kernel's k is 0
            t = torch.full((max(1, t.shape[0]), BLOCK_K), float("nan"), dtype=t.dtype)
        return describe(t, *block, **described)

    def tiles(dtype, m):
        return GemmConfig(64, block_n, BLOCK_K, group_m=2, num_warps=8, num_stages=STAGES)

    with mock.patch.object(emulator, "_core_tiles", tiles), mock.patch.object(cores, "descriptor", descriptor), \
            mock.patch.object(descriptors, "descriptor", descriptor), \
            mock.patch.object(cores, "tma_can_read", lambda t: t.stride(1) == 1 or not t.numel()), \
            mock.patch.object(aligned, "served", lambda op, core, *call: (core is not None, False)):
        yield


@pytest.fixture
def small_core(monkeypatch, request):
    """small_tiles, as wide as a module's CORE_BLOCK_N says, several pieces a shard, and a heap that is made at once."""
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "8M")
    with small_tiles(getattr(request.module, "CORE_BLOCK_N", 32)):
        yield


class AG(scenarios.AG):
    """One ag_gemm call of the core: m rows a rank, k in blocks of K."""
    method, dtype = "ws", BF16


class RS(scenarios.RS):
    """One gemm_rs call of the core: m rows a rank; k may be a function of the rank's index."""
    method, dtype = "ws", BF16


def back_to_back(calls, slow=None):
    """scenarios.back_to_back, in poisoned workspaces."""
    group = resolve()
    for kind in sorted({call.kind for call in calls}):
        space = workspace(group, kind, Workspace if kind == "ag_gemm" else CountedWorkspace)
        space.reserve(1 << 18, 256, writer=lambda flag: 0)
        space.data.fill_(0xFF)
    group.barrier()
    return scenarios.back_to_back(calls, slow=slow)
