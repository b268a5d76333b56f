# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Right Gluon kernels that keep more in flight: two staging buffers, a pipelined K loop, several programs, a ring of ranks."""
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (fence_async_shared, mbarrier, tma, warpgroup_mma,
                                                              warpgroup_mma_wait)

import triton_dist.language as dl
from triton_dist import peer_tensor
from triton_dist.cores.hopper.hopper_prims import fence_proxy_async, flush_tma_stores, tma_load, tma_store
from triton_dist.runtime.jit import gluon_jit

from .common import flags, meet, pairs, symm
from .gluon_ring import ROWS, desc
from .registry import case


@gluon_jit
def two_buffers(target, tiles):
    """Stores tiles from two staging buffers in turn; one store may be under way while the next tile is made."""
    staging = gl.allocate_shared_memory(target.dtype, [2] + target.block_type.shape, target.layout)
    for t in range(tiles):
        tma.store_wait(pendings=1)
        staging.index(t % 2).store(gl.full([16, 32], 0, gl.float32, layout=ROWS) + t)
        fence_async_shared()
        tma_store(target, [(gl.program_id(0) * tiles + t) * 16, 0], staging.index(t % 2))
    tma.store_wait(pendings=0)


@case("gluon/two-staging-buffers", world=1)
def staging_in_turn(rank):
    """One TMA store may still read its buffer while the other buffer is filled."""
    target = torch.full((80, 32), -1.0)
    two_buffers[(1, )](desc(target, 16, 32), 5, num_warps=4)
    meet()
    return pairs((target, torch.arange(5.0).repeat_interleave(16)[:, None].expand(80, 32)))


@case("gluon/programs-store-their-tiles", world=1)
def programs(rank):
    """Three programs store tiles of one tensor, each its own rows."""
    target = torch.full((96, 32), -1.0)
    two_buffers[(3, )](desc(target, 16, 32), 2, num_warps=4)
    meet()
    return pairs((target, torch.arange(2.0).repeat_interleave(16).repeat(3)[:, None].expand(96, 32)))


@gluon.jit
def _fill(a_desc, b_desc, a, b, full, empty, steps, STAGES: gl.constexpr):
    for k in range(steps):
        slot = k % STAGES
        mbarrier.wait(empty.index(slot), (k // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma_load(a_desc, [0, k * 16], full.index(slot), a.index(slot))
        tma_load(b_desc, [k * 16, 0], full.index(slot), b.index(slot))


@gluon.jit
def _multiply(out, a, b, full, empty, steps, STAGES: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    acc = gl.zeros([64, 32], gl.float32, layout=mma)
    for k in range(steps):
        mbarrier.wait(full.index(k % STAGES), k // STAGES & 1)
        acc = warpgroup_mma(a.index(k % STAGES), b.index(k % STAGES), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        if k > 0:
            mbarrier.arrive(empty.index((k + STAGES - 1) % STAGES), count=1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    rows, cols = gl.arange(0, 64, layout=gl.SliceLayout(1, mma)), gl.arange(0, 32, layout=gl.SliceLayout(0, mma))
    gl.store(out + rows[:, None] * 32 + cols[None, :], acc)


@gluon_jit
def matmul(a_desc, b_desc, out, steps, STAGES: gl.constexpr):
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize([(_multiply, (out, a, b, full, empty, steps, STAGES)),
                        (_fill, (a_desc, b_desc, a, b, full, empty, steps, STAGES))], [1], [24])


def product(steps, stages):
    a, b = torch.ones(64, 16 * steps).half(), torch.full((16 * steps, 32), 2.0).half()
    out = torch.full((64, 32), -1.0)
    matmul[(1, )](desc(a, 64, 16), desc(b, 16, 32), out, steps, STAGES=stages, num_warps=4)
    meet()
    return pairs((out, 32 * steps))


@case("gluon/pipelined-k-loop", world=1)
def pipelined(rank):
    """A stage is handed back one step late, while the next product is in flight."""
    return product(7, 4)


@case("gluon/k-below-the-stages", world=1)
def shallow(rank):
    """Fewer steps than stages: barriers stay in their first phase."""
    return product(2, 4)


ONE_WARP = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0]))


@gluon_jit
def pass_on(after, here, target, flag, next_flag, hops):
    """A tile travels round a ring of ranks; a slot and a flag for each hop, all by TMA."""
    box = gl.allocate_shared_memory(here.dtype, here.block_type.shape, here.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    box.store(gl.full([16, 32], 0, gl.float32, layout=ONE_WARP) + dl.rank())
    fence_async_shared()
    for hop in range(hops):
        tma_store(after, [hop * 16, 0], box)
        flush_tma_stores()
        dl.notify_warp(next_flag + hop, 1)
        fence_proxy_async(dl.wait(flag + hop, 1, "sys", "acquire"))
        mbarrier.expect(bar, here.block_type.nbytes)
        tma_load(here, [hop * 16, 0], bar, box)
        mbarrier.wait(bar, hop & 1)
    tma_store(target, [0, 0], box)
    tma.store_wait(pendings=0)


@case("gluon/ring-of-ranks", world=3, classes=("gluon", "proxy"))
def ranks(rank):
    """After two of three hops a rank has the tile of its successor."""
    buffer, words, target = symm(32, 32), flags(2), torch.full((16, 32), -1.0)
    after = (rank + 1) % 3
    pass_on[(1, )](desc(peer_tensor(buffer, after), 16, 32), desc(buffer, 16, 32), desc(target, 16, 32), words,
                   peer_tensor(words, after), 2, num_warps=1)
    meet()
    return pairs((target, after))
