# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the tests of Gluon kernels share: descriptors, runs in every mode, and two small kernels."""
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.scheduler import MODES, Scheduler
from triton_dist.cores.hopper.hopper_prims import tma_load, tma_store

_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32, torch.int32: gl.int32}
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))


def layout(block, dtype):
    return gl.NVMMASharedLayout.get_default_for(list(block), _TYPES[dtype])


def desc(t, *block, **kwargs):
    return TensorDescriptor.from_tensor(t, list(block), layout(block, t.dtype), **kwargs)


def in_every_mode(test, seeds=2):
    """Runs `test` on a scheduler of each mode and several seeds; what it returned."""
    results = []
    for mode in MODES:
        for seed in range(seeds):
            with scheduler.activated(Scheduler(seed=seed, mode=mode)):
                results.append(test())
    return results


@gluon.jit
def move(source, target, x, y, to_x, to_y):
    """One box from `source` at (x, y) to `target` at (to_x, to_y)."""
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    mbarrier.expect(bar, source.block_type.nbytes)
    tma_load(source, [x, y], bar, box)
    mbarrier.wait(bar, 0)
    tma_store(target, [to_x, to_y], box)
    tma.store_wait(pendings=0)


@gluon.jit
def arrive_times(bar, times):
    for i in range(times):
        mbarrier.arrive(bar, count=1)
