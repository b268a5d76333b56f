# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The Hopper core: one warp-specialised persistent GEMM, shared by all ops through hooks (an aggregate with these methods).

Hook `tile(t)` says what the t-th unit of work is. Roles in a CTA of 12 warps:
    loader (1 warp)   TMA loads of operand tiles into a ring of stages. With GATHER it has 2 warps, whose threads copy the
                      rows of A. Hooks `acquire`: waits for a peer's data, so that a wait never stalls the MMA warps, which
                      still have stages to eat; `load`: a block of A; `load_weights`: a block of B; `fetch_addend`: what to
                      add, into the staging buffer. With GATHER, in place of `load`: `rows_at`: where the rows of a tile
                      are; `gather`: copies a block of them, and has its copies arrive.
    mma    (8 warps)  wgmma over the stages. Hook `finish`: the epilogue, from the accumulator into the staging buffer.
                      `see_copies`, with GATHER: makes what threads have written visible to wgmma.
    storer (1 warp)   TMA store of the staging buffer. Hooks `store` and `signal`: where a tile goes, and whom it tells.

Hand-overs, each one mbarrier with one waiter that waits in every lap (protocol rule 18b):
    full[s]  loader -> mma (bytes; with GATHER also an arrival of each thread)      empty[s]  mma -> loader
    ready    loader -> mma: the staging buffer is free and, where there is an addend, holds it
    filled   mma -> storer                free      storer -> loader
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton_dist.compat.triton import aggregate

import triton_dist.language as dl
from triton_dist.cores.hopper.hopper_prims import tma_load

NUM_WARPS = gl.constexpr(8)    # of the mma role; with the other two, padded to four warps, a CTA has 12

GATHERING = gl.constexpr(2)            # warps of a loader that gathers: as many as fit beside the storer in four
GATHERING_REGS = gl.constexpr(72)      # that a thread of it needs; mma then has 216, which is enough as well

HANDOVER = gl.constexpr(8)     # blocks of K before the end of a tile at which the loader sees to the staging buffer


@aggregate
class Stages:
    """Shared memory and barriers of a CTA, and how many blocks of K a tile has."""
    a: gl.shared_memory_descriptor          # [STAGES, BLOCK_M, BLOCK_K]
    b: gl.shared_memory_descriptor          # [STAGES, BLOCK_N, BLOCK_K], or [STAGES, BLOCK_K, BLOCK_N] with COLUMNS
    staging: gl.shared_memory_descriptor    # [BLOCK_M, BLOCK_N // PARTS]
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    steps: gl.tensor
    STAGES: gl.constexpr
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    COLUMNS: gl.constexpr                   # whether columns of the weights, [N, K], are contiguous instead of rows
    PARTS: gl.constexpr
    SHORT: gl.constexpr                     # whether there are tiles of BLOCK_M // 2 rows
    GATHER: gl.constexpr                    # whether rows of A lie anywhere

    @gluon.constexpr_function
    def __init__(self, a, b, staging, full, empty, ready, filled, free, steps, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS,
                 PARTS, SHORT, GATHER):
        self.a = a
        self.b = b
        self.staging = staging
        self.full = full
        self.empty = empty
        self.ready = ready
        self.filled = filled
        self.free = free
        self.steps = steps
        self.STAGES = gl.constexpr(STAGES)
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.BLOCK_K = gl.constexpr(BLOCK_K)
        self.COLUMNS = gl.constexpr(COLUMNS)
        self.PARTS = gl.constexpr(PARTS)
        self.SHORT = gl.constexpr(SHORT)
        self.GATHER = gl.constexpr(GATHER)


@aggregate
class Tile:
    """A unit of work: a chunk of rows at a step of the op's order, row and column of the tile in it, and its number there.

    `narrow`: it has half the columns, and `n` counts in such halves.
    """
    step: gl.tensor
    chunk: gl.tensor
    m: gl.tensor
    n: gl.tensor
    number: gl.tensor
    narrow: gl.tensor

    @gluon.constexpr_function
    def __init__(self, step, chunk, m, n, number, narrow):
        self.step = step
        self.chunk = chunk
        self.m = m
        self.n = n
        self.number = number
        self.narrow = narrow


@gluon.jit
def grouped(t, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """(row, column) of tile `t` in groups of GROUP_M rows, so that operands stay in L2."""
    width = GROUP_M * tiles_n
    first = t // width * GROUP_M
    rows = gl.minimum(tiles_m - first, GROUP_M)
    return first + t % width % rows, t % width // rows


@gluon.constexpr_function
def acc_layout(BLOCK_M, BLOCK_N, PARTS):
    """Layout of an accumulator. A thread has the same columns of each of PARTS equal parts of it."""
    if BLOCK_M >= 16 * NUM_WARPS:
        return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[NUM_WARPS, 1], instr_shape=[16, BLOCK_N, 16])
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, NUM_WARPS // 4],
                                     instr_shape=[16, BLOCK_N * 4 // NUM_WARPS // PARTS, 16])


@gluon.jit
def load_rows_of_weights(w_desc, n, k, bar, b, COLUMNS: gl.constexpr):
    """Loads a block of weights [N, K] from row `n` and column `k` on: a hook `load_weights` for operands of two dimensions."""
    if COLUMNS:
        tma_load(w_desc, [k, n], bar, b)
    else:
        tma_load(w_desc, [n, k], bar, b)


@gluon.jit
def _left(s, slot, BLOCK_M: gl.constexpr):
    """[BLOCK_M, BLOCK_K]: a stage's rows."""
    view = s.a.index(slot)
    if BLOCK_M < s.BLOCK_M:
        view = view.slice(0, BLOCK_M, 0)
    return view


@gluon.jit
def _weights(s, slot, BLOCK_N: gl.constexpr):
    """[BLOCK_N, BLOCK_K]: a stage's weights, whose rows are contiguous."""
    view = s.b.index(slot)
    if BLOCK_N < s.BLOCK_N:
        view = view.slice(0, BLOCK_N, 0)
    return view


@gluon.jit
def _right(s, slot, BLOCK_N: gl.constexpr):
    """[BLOCK_K, BLOCK_N]: the right operand. wgmma reads 16-bit operands of either order."""
    if s.COLUMNS:
        return s.b.index(slot)
    else:
        return _weights(s, slot, BLOCK_N).permute((1, 0))


@gluon.jit
def _load(hooks, w_desc, s, tile, it, lap, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Loads the operands of a tile of BLOCK_M rows and BLOCK_N columns; `it` counts stages, `lap` tiles."""
    by_tma: gl.constexpr = BLOCK_N if s.GATHER else BLOCK_M + BLOCK_N
    load_bytes: gl.constexpr = by_tma * s.BLOCK_K * w_desc.dtype.primitive_bitwidth // 8
    if s.GATHER:
        at = hooks.rows_at(tile, BLOCK_M, s.BLOCK_K)
    # Late, so that few loads are held up if the addend is not there yet; early enough to hide the time it takes to load.
    handover = gl.maximum(s.steps - HANDOVER, 0)
    for k in range(s.steps):
        slot = it % s.STAGES
        mbarrier.wait(s.empty.index(slot), (it // s.STAGES & 1) ^ 1)
        mbarrier.expect(s.full.index(slot), load_bytes)
        b = s.b.index(slot) if s.COLUMNS else _weights(s, slot, BLOCK_N)
        hooks.load_weights(w_desc, tile, k * s.BLOCK_K, s.full.index(slot), b, BLOCK_N, s.COLUMNS)
        if s.GATHER:
            hooks.gather(at, k * s.BLOCK_K, s.full.index(slot), _left(s, slot, BLOCK_M))
        else:
            hooks.load(tile, k * s.BLOCK_K, s.full.index(slot), _left(s, slot, BLOCK_M))
        it += 1
        if k == handover:
            mbarrier.wait(s.free.index(0), (lap & 1) ^ 1)
            hooks.fetch_addend(tile, s.ready.index(0), s.staging)
    if s.steps == 0:
        mbarrier.wait(s.free.index(0), (lap & 1) ^ 1)
        hooks.fetch_addend(tile, s.ready.index(0), s.staging)
    return it


@gluon.jit
def _loader(hooks, w_desc, narrow_desc, s):
    it = 0
    lap = 0
    for t in range(gl.program_id(0), hooks.total, gl.num_programs(0)):
        tile = hooks.tile(t)
        dl.trace_start("wait", lap, tile.chunk)
        hooks.acquire(tile)
        dl.trace_stop("wait", lap)
        dl.trace_start("load", lap, tile.chunk)
        if hooks.NARROW and tile.narrow:
            it = _load(hooks, narrow_desc, s, tile, it, lap, s.BLOCK_M, s.BLOCK_N // 2)
        elif s.SHORT and hooks.is_short(t):
            it = _load(hooks, w_desc, s, tile, it, lap, s.BLOCK_M // 2, s.BLOCK_N)
        else:
            it = _load(hooks, w_desc, s, tile, it, lap, s.BLOCK_M, s.BLOCK_N)
        dl.trace_stop("load", lap)
        lap += 1


@gluon.jit
def _multiply(hooks, s, tile, it, lap, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Sums a tile of BLOCK_M rows and BLOCK_N columns and hands it to the epilogue."""
    layout: gl.constexpr = acc_layout(BLOCK_M, BLOCK_N, s.PARTS)
    dl.trace_start("mma", lap, tile.chunk)
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout=layout)
    for k in range(s.steps):
        slot = it % s.STAGES
        mbarrier.wait(s.full.index(slot), it // s.STAGES & 1)
        if s.GATHER:
            hooks.see_copies()
        acc = warpgroup_mma(_left(s, slot, BLOCK_M), _right(s, slot, BLOCK_N), acc, is_async=True, use_acc=k > 0)
        acc = warpgroup_mma_wait(num_outstanding=1, deps=[acc])
        if k > 0:                       # the wgmma before this one has read its stage
            mbarrier.arrive(s.empty.index((it + s.STAGES - 1) % s.STAGES), count=1)
        it += 1
    acc = warpgroup_mma_wait(num_outstanding=0, deps=[acc])
    if s.steps > 0:
        mbarrier.arrive(s.empty.index((it + s.STAGES - 1) % s.STAGES), count=1)
    dl.trace_stop("mma", lap)
    dl.trace_start("add", lap, tile.chunk)
    mbarrier.wait(s.ready.index(0), lap & 1)
    hooks.finish(tile, acc, s.staging, layout)
    fence_async_shared()
    mbarrier.arrive(s.filled.index(0), count=1)
    dl.trace_stop("add", lap)
    return it


@gluon.jit
def _mma(hooks, s):
    # A loop for each size of tiles, not one with an `if`: with both sizes in one loop the assembler waits after every wgmma.
    it = 0
    lap = 0
    t = gl.program_id(0)
    wide = hooks.total
    if hooks.NARROW:
        wide = hooks.wide
    if s.SHORT:
        while t < hooks.total:
            while hooks.is_tall(t):
                it = _multiply(hooks, s, hooks.tile(t), it, lap, s.BLOCK_M, s.BLOCK_N)
                lap += 1
                t += gl.num_programs(0)
            while hooks.is_short(t):
                it = _multiply(hooks, s, hooks.tile(t), it, lap, s.BLOCK_M // 2, s.BLOCK_N)
                lap += 1
                t += gl.num_programs(0)
    else:
        while t < wide:
            it = _multiply(hooks, s, hooks.tile(t), it, lap, s.BLOCK_M, s.BLOCK_N)
            lap += 1
            t += gl.num_programs(0)
    if hooks.NARROW:
        while t < hooks.total:
            it = _multiply(hooks, s, hooks.tile(t), it, lap, s.BLOCK_M, s.BLOCK_N // 2)
            lap += 1
            t += gl.num_programs(0)


@gluon.jit
def _storer(hooks, s):
    lap = 0
    for t in range(gl.program_id(0), hooks.total, gl.num_programs(0)):
        tile = hooks.tile(t)
        mbarrier.wait(s.filled.index(0), lap & 1)
        dl.trace_start("store", lap, tile.chunk)
        hooks.store(tile, s.staging)
        tma.store_wait(pendings=0)
        mbarrier.arrive(s.free.index(0), count=1)
        hooks.signal(tile)
        dl.trace_stop("store", lap)
        lap += 1


@gluon.jit
def gemm_ws(hooks, a_desc, w_desc, narrow_desc, staging_layout: gl.constexpr, staging_dtype: gl.constexpr, k,
            STAGES: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, COLUMNS: gl.constexpr,
            PARTS: gl.constexpr = 1, SHORT: gl.constexpr = False, GATHER: gl.constexpr = False):
    """Runs the three roles over `hooks.total` tiles of BLOCK_M x BLOCK_N with sums of length k.

    `narrow_desc` describes the weights in blocks for narrow tiles, of BLOCK_N // 2 columns; where hooks.NARROW is false there are
    none, and it is not used. `w_desc` describes the weights [N, K] in blocks [BLOCK_N, BLOCK_K]; with COLUMNS, where columns are
    contiguous, it describes their transpose [K, N] in blocks [BLOCK_K, BLOCK_N], and there are no narrow tiles.
    The epilogue makes one output of PARTS parts of the accumulator, each of BLOCK_N // PARTS columns.
    GATHER: rows of A are copied by threads, from where the hooks say; `a_desc` only tells the layout of their blocks.
    SHORT: tiles may have BLOCK_M // 2 rows. Then hooks `is_tall(t)` and `is_short(t)` say which have, none from hooks.total on;
    `load` gets a block of A of as many rows, and `finish` an accumulator.
    """
    dtype: gl.constexpr = w_desc.dtype
    a = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    weights: gl.constexpr = [STAGES, BLOCK_K, BLOCK_N] if COLUMNS else [STAGES, BLOCK_N, BLOCK_K]
    b = gl.allocate_shared_memory(dtype, weights, w_desc.layout)
    staging = gl.allocate_shared_memory(staging_dtype, [BLOCK_M, BLOCK_N // PARTS], staging_layout)
    bars: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], bars)
    ready = gl.allocate_shared_memory(gl.int64, [1, 1], bars)
    filled = gl.allocate_shared_memory(gl.int64, [1, 1], bars)
    free = gl.allocate_shared_memory(gl.int64, [1, 1], bars)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1 + 32 * GATHERING * GATHER)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(filled.index(0), count=1)
    mbarrier.init(free.index(0), count=1)
    fence_async_shared()
    s = Stages(a, b, staging, full, empty, ready, filled, free, gl.cdiv(k, BLOCK_K), STAGES, BLOCK_M, BLOCK_N, BLOCK_K,
               COLUMNS, PARTS, SHORT, GATHER)
    if GATHER:
        gl.warp_specialize([(_mma, (hooks, s)), (_loader, (hooks, w_desc, narrow_desc, s)), (_storer, (hooks, s))],
                           [GATHERING, 1], [GATHERING_REGS, 24])
    else:
        gl.warp_specialize([(_mma, (hooks, s)), (_loader, (hooks, w_desc, narrow_desc, s)), (_storer, (hooks, s))], [1, 1],
                           [24, 24])
