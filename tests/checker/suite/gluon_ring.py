# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon kernels for Hopper, shared memory: a ring of stages between two partitions, and wgmma."""
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (fence_async_shared, mbarrier, tma, warpgroup_mma,
                                                              warpgroup_mma_wait)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_dist.cores.hopper.hopper_prims import tma_load, tma_store
from triton_dist.runtime.jit import gluon_jit

from .common import meet, pairs
from .registry import case

ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))
_TYPES = {torch.float16: gl.float16, torch.float32: gl.float32}


def desc(t: torch.Tensor, *block: int) -> TensorDescriptor:
    """A descriptor of boxes of `t`."""
    layout = gl.NVMMASharedLayout.get_default_for(list(block), _TYPES[t.dtype])
    return TensorDescriptor.from_tensor(t, list(block), layout)


# -- a ring of stages --------------------------------------------------------------------------------------------------
@gluon.jit
def _load(source, stages, full, empty, tiles, HOW: gl.constexpr, STAGES: gl.constexpr):
    for t in range(tiles):
        slot = t % STAGES
        lap = t // STAGES
        if HOW == "no-empty":
            pass
        elif HOW == "every-other-lap":
            if lap % 2 == 0:
                mbarrier.wait(empty.index(slot), (lap & 1) ^ 1)  # FAULT
        elif HOW == "parity":
            mbarrier.wait(empty.index(slot), lap & 1)  # FAULT parity
        else:
            mbarrier.wait(empty.index(slot), (lap & 1) ^ 1)  # FAULT no-arrive, no-full
        if HOW == "short":
            mbarrier.expect(full.index(slot), source.block_type.nbytes // 2)  # FAULT short
        elif HOW != "no-expect":
            mbarrier.expect(full.index(slot), source.block_type.nbytes)  # FAULT no-full, no-empty, every-other-lap
        tma_load(source, [t * 16, 0], full.index(slot), stages.index(slot))  # FAULT race, short, no-expect


@gluon.jit
def _add_one(target, stages, staging, full, empty, tiles, HOW: gl.constexpr, STAGES: gl.constexpr):
    for t in range(tiles):
        slot = t % STAGES
        if HOW != "no-full":
            mbarrier.wait(full.index(slot), t // STAGES & 1)  # FAULT no-expect, every-other-lap, short, no-empty
        if HOW == "early-arrive":
            mbarrier.arrive(empty.index(slot), count=1)
        values = stages.index(slot).load(ROWS) + 1  # FAULT race
        if HOW == "over":
            mbarrier.arrive(empty.index(slot), count=2)  # FAULT over
        elif HOW != "early-arrive" and HOW != "no-arrive":
            mbarrier.arrive(empty.index(slot), count=1)
        staging.store(values)  # FAULT no-fence, no-store-wait
        if HOW != "no-fence":
            fence_async_shared()
        tma_store(target, [t * 16, 0], staging)  # FAULT no-fence, no-store-wait
        if HOW != "no-store-wait":
            tma.store_wait(pendings=0)
    tma.store_wait(pendings=0)


@gluon_jit
def ring(source, target, tiles, HOW: gl.constexpr, STAGES: gl.constexpr):
    stages = gl.allocate_shared_memory(source.dtype, [STAGES] + source.block_type.shape, source.layout)
    staging = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)  # FAULT init
        mbarrier.init(empty.index(i), count=1)  # FAULT init
    if HOW != "init":
        fence_async_shared()
    gl.warp_specialize([(_add_one, (target, stages, staging, full, empty, tiles, HOW, STAGES)),
                        (_load, (source, stages, full, empty, tiles, HOW, STAGES))], [1], [24])


@case("gluon/ring", world=1)
@case("gluon/ring-of-four-stages", world=1, how="four")
@case("gluon/ring-with-fewer-tiles-than-stages", world=1, how="few")
@case("gluon/ring-of-one-stage", world=1, how="one")
@case("gluon/consumer-does-not-wait", "race", world=1, how="no-full", twin="gluon/ring",
      also=("uninitialized-read", "barrier-misuse", "deadlock"),
      why="The stage is read before TMA has filled it.")
@case("gluon/loader-does-not-wait", "race", world=1, how="no-empty", twin="gluon/ring", also=("barrier-misuse", "deadlock"),
      why="A stage is filled again while it may still be read.")
@case("gluon/loader-waits-in-every-other-lap", "race", world=1, how="every-other-lap", twin="gluon/ring",
      also=("deadlock", "barrier-misuse"), why="Without a wait in every lap the parity is lapped (rule 18b).")
@case("gluon/loader-wrong-parity", "deadlock", world=1, how="parity", twin="gluon/ring",
      why="The first wait is for a phase that nobody completes.")
@case("gluon/stage-handed-back-too-early", "race", world=1, how="early-arrive", twin="gluon/ring",
      why="The consumer hands the stage back before it has read it.")
@case("gluon/stage-not-handed-back", "deadlock", world=1, how="no-arrive", twin="gluon/ring",
      why="Nobody arrives at `empty`, and the loader waits in the second lap.")
@case("gluon/fewer-bytes-expected", "barrier-misuse", world=1, how="short", twin="gluon/ring", also=("race", "deadlock"),
      why="The stage is announced with half of the bytes that TMA will write.")
@case("gluon/barriers-without-a-fence", "race", world=1, how="init", twin="gluon/ring", also=("barrier-misuse", ),
      why="TMA arrives at barriers whose initialisation the async proxy need not have seen.")
@case("gluon/nothing-expected", "deadlock", world=1, how="no-expect", twin="gluon/ring", also=("barrier-misuse", ),
      why="Without expect nobody arrives at `full` for the bytes that come.")
@case("gluon/too-many-arrivals", "barrier-misuse", world=1, how="over", twin="gluon/ring", also=("error", ),
      why="Two arrivals at a barrier of one.")
@case("gluon/store-without-proxy-fence", "race", world=1, how="no-fence", twin="gluon/ring",
      why="TMA reads the staging buffer by the async proxy, and no fence makes the threads' stores known to it.")
@case("gluon/staging-overwritten-under-a-store", "race", world=1, how="no-store-wait", twin="gluon/ring",
      why="The next tile goes into the staging buffer while the TMA store may still read it.")
def ring_of_stages(rank, how):
    """A loader partition fills two stages by TMA, the other adds one and stores by TMA."""
    stages, tiles = {"four": (4, 9), "few": (4, 2), "one": (1, 5)}.get(how, (2, 5))
    source = torch.arange(tiles * 16.0 * 32).view(tiles * 16, 32)
    target = torch.full_like(source, -1.0)
    ring[(1, )](desc(source, 16, 32), desc(target, 16, 32), tiles, HOW=how, STAGES=stages, num_warps=4)
    meet()
    return pairs((target, source + 1))


# -- one tile at a time ------------------------------------------------------------------------------------------------
@gluon.jit
def _first(out, box, ready, done, HOW: gl.constexpr):
    if HOW != "unwritten":
        box.store(gl.full([16, 32], 3.0, gl.float32, layout=ROWS))  # FAULT race
    if HOW == "cycle":
        mbarrier.wait(done, 0)  # FAULT cycle
    if HOW != "unsignalled":
        mbarrier.arrive(ready, count=1)
    if HOW != "cycle":
        mbarrier.wait(done, 0)  # FAULT unsignalled
    if HOW != "unwritten":
        box.store(gl.full([16, 32], 4.0, gl.float32, layout=ROWS))


@gluon.jit
def _second(out, box, ready, done, HOW: gl.constexpr):
    SMALL: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0])
    if HOW != "unordered":
        mbarrier.wait(ready, 0)  # FAULT unsignalled, cycle
    rows, cols = gl.arange(0, 16, layout=gl.SliceLayout(1, SMALL)), gl.arange(0, 32, layout=gl.SliceLayout(0, SMALL))
    where = rows[:, None] * 32 + cols[None, :]
    gl.store(out + where, box.load(SMALL))  # FAULT
    mbarrier.arrive(done, count=1)


@gluon_jit
def two_roles(out, HOW: gl.constexpr):
    box = gl.allocate_shared_memory(gl.float32, [16, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bars.index(0), count=1)
    mbarrier.init(bars.index(1), count=1)
    fence_async_shared()
    gl.warp_specialize([(_first, (out, box, bars.index(0), bars.index(1), HOW)),
                        (_second, (out, box, bars.index(0), bars.index(1), HOW))], [1], [24])


@case("gluon/two-partitions", world=1)
@case("gluon/shared-memory-never-written", "uninitialized-read", world=1, how="unwritten", twin="gluon/two-partitions",
      why="The box is read and nothing has written it.")
@case("gluon/partitions-unordered", "race", world=1, how="unordered", twin="gluon/two-partitions", also=("uninitialized-read", ),
      why="The second partition does not wait for the first one's store.")
@case("gluon/partition-never-signals", "deadlock", world=1, how="unsignalled", twin="gluon/two-partitions",
      why="Nobody arrives at the barrier that the second partition waits for.")
@case("gluon/partitions-wait-for-each-other", "deadlock", world=1, how="cycle", twin="gluon/two-partitions",
      why="Each partition waits before it arrives.")
def partitions(rank, how):
    """One partition writes shared memory, the other reads it; then the first writes again. Threads only, no TMA."""
    out = torch.full((16, 32), -1.0)
    two_roles[(1, )](out, HOW=how, num_warps=4)
    meet()
    return pairs((out, 3))


# -- wgmma -------------------------------------------------------------------------------------------------------------
@gluon_jit
def product(out, HOW: gl.constexpr):
    """Two products on one accumulator; the operands are stored by the threads."""
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    a = gl.allocate_shared_memory(gl.float16, [64, 16], gl.NVMMASharedLayout.get_default_for([64, 16], gl.float16))
    b = gl.allocate_shared_memory(gl.float16, [16, 32], gl.NVMMASharedLayout.get_default_for([16, 32], gl.float16))
    a.store(gl.full([64, 16], 1.0, gl.float16, layout=mma))  # FAULT no-fence
    b.store(gl.full([16, 32], 2.0, gl.float16, layout=mma))  # FAULT no-fence
    if HOW != "no-fence":
        fence_async_shared()
    acc = warpgroup_mma(a, b, gl.zeros([64, 32], gl.float32, layout=mma), is_async=True)  # FAULT race
    if HOW == "in-flight":
        acc = warpgroup_mma_wait(1, deps=[acc])
    elif HOW != "overwritten":
        acc = warpgroup_mma_wait(0, deps=[acc])
    rows, cols = gl.arange(0, 64, layout=gl.SliceLayout(1, mma)), gl.arange(0, 32, layout=gl.SliceLayout(0, mma))
    where = rows[:, None] * 32 + cols[None, :]
    if HOW == "in-flight":
        gl.store(out + where, acc)  # FAULT in-flight
    a.store(gl.full([64, 16], 3.0, gl.float16, layout=mma))  # FAULT overwritten
    fence_async_shared()
    acc = warpgroup_mma(a, b, acc, is_async=True)  # FAULT overwritten
    acc = warpgroup_mma_wait(0, deps=[acc])
    gl.store(out + where, acc)


@case("gluon/wgmma", world=1)
@case("gluon/accumulator-read-in-flight", "race", world=1, how="in-flight", twin="gluon/wgmma", also=("error", ),
      why="The wait leaves one product outstanding, and its result is read.")
@case("gluon/operand-overwritten-in-flight", "race", world=1, how="overwritten", twin="gluon/wgmma",
      why="An operand in shared memory changes while wgmma may still read it.")
@case("gluon/operand-without-proxy-fence", "race", world=1, how="no-fence", twin="gluon/wgmma",
      why="wgmma reads by the async proxy what threads have stored, with no fence between.")
def wgmma(rank, how):
    """Two wgmma products with operands from registers, waited for and fenced."""
    out = torch.full((64, 32), -1.0)
    product[(1, )](out, HOW=how, num_warps=4)
    meet()
    return pairs((out, 32 + 96))
