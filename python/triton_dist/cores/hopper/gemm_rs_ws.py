# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-RS on the Hopper core: the ring of tiles inside one kernel."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_dist.compat.triton import aggregate

import triton_dist.language as dl
from triton_dist.cores.hopper.counting import count_call, this_epoch
from triton_dist.cores.hopper.gemm_ws import Tile, gemm_ws, grouped, load_rows_of_weights
from triton_dist.cores.hopper.hopper_prims import (fence_proxy_async, flush_tma_stores, pause, reinterpret, tma_load,
                                                   tma_store)
from triton_dist.runtime.jit import gluon_jit
from triton_dist.runtime.launch_metadata import product


@aggregate
class Ring:
    """Hooks: the loader fetches the tile that arrived from the previous rank, the storer sends the sum to the next."""
    x: tma.tensor_descriptor            # [world * m, k]
    slots_even: tma.tensor_descriptor   # [(world - 1) * padded_m, n], own memory, the halves of even and odd epochs
    slots_odd: tma.tensor_descriptor
    next_even: tma.tensor_descriptor    # the same in the next rank's memory, in boxes
    next_odd: tma.tensor_descriptor
    out: tma.tensor_descriptor          # [m, n]
    bias: gl.tensor
    flags: gl.tensor                    # int32 [world - 1, tiles, 2], own memory, from the word of this epoch's half on
    next_flags: gl.tensor               # the same in the next rank's memory
    epoch: gl.tensor
    index: gl.tensor
    world: gl.tensor
    m: gl.tensor
    n: gl.tensor
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    total: gl.tensor
    gap: gl.tensor                      # clock cycles between two boxes sent, if all programs send
    mixed: gl.tensor                    # how many tiles of the last two steps alternate, of each
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    GROUP_M: gl.constexpr
    HAS_BIAS: gl.constexpr
    NARROW: gl.constexpr                # false: a flag stands for a tile, whose width is the same on all ranks

    @gluon.constexpr_function
    def __init__(self, x, slots_even, slots_odd, next_even, next_odd, out, bias, flags, next_flags, epoch, index, world, m, n,
                 tiles_m, tiles_n, total, gap, mixed, BLOCK_M, BLOCK_N, GROUP_M, HAS_BIAS):
        self.x = x
        self.slots_even = slots_even
        self.slots_odd = slots_odd
        self.next_even = next_even
        self.next_odd = next_odd
        self.out = out
        self.bias = bias
        self.flags = flags
        self.next_flags = next_flags
        self.epoch = epoch
        self.index = index
        self.world = world
        self.m = m
        self.n = n
        self.tiles_m = tiles_m
        self.tiles_n = tiles_n
        self.total = total
        self.gap = gap
        self.mixed = mixed
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.GROUP_M = gl.constexpr(GROUP_M)
        self.HAS_BIAS = gl.constexpr(HAS_BIAS)
        self.NARROW = gl.constexpr(False)

    @gluon.jit
    def tile(self, t):
        # The last step sends nothing. So tiles of it alternate with the last ones of the step before.
        tiles = self.tiles_m * self.tiles_n
        first = self.total - tiles - self.mixed
        after = t - first
        at = gl.where((after >= 0) & (after < 2 * self.mixed), first + after // 2 + after % 2 * self.mixed, t)
        step, number = at // tiles, at % tiles
        m, n = grouped(number, self.tiles_m, self.tiles_n, self.GROUP_M)
        return Tile(step, (self.index + 2 * self.world - 1 - step) % self.world, m, n, number, t < 0)

    @gluon.jit
    def acquire(self, tile):
        pass

    @gluon.jit
    def load(self, tile, k, bar, a):
        tma_load(self.x, [tile.chunk * self.m + tile.m * self.BLOCK_M, k], bar, a)

    @gluon.jit
    def load_weights(self, w_desc, tile, k, bar, b, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
        load_rows_of_weights(w_desc, tile.n * BLOCK_N, k, bar, b, COLUMNS)

    @gluon.jit
    def fetch_addend(self, tile, ready, staging):
        if tile.step > 0:
            flag = self.flags + 2 * ((tile.step - 1) * self.tiles_m * self.tiles_n + tile.number)
            fence_proxy_async(dl.wait(flag, 1, "sys", "acquire", self.epoch))
            row = ((tile.step - 1) * self.tiles_m + tile.m) * self.BLOCK_M
            mbarrier.expect(ready, self.BLOCK_M * self.BLOCK_N * staging.dtype.primitive_bitwidth // 8)
            if (self.epoch & 1) == 0:
                tma_load(self.slots_even, [row, tile.n * self.BLOCK_N], ready, staging)
            else:
                tma_load(self.slots_odd, [row, tile.n * self.BLOCK_N], ready, staging)
        else:
            mbarrier.arrive(ready, count=1)

    @gluon.jit
    def finish(self, tile, acc, staging, layout: gl.constexpr):
        if tile.step > 0:
            acc += staging.load(layout).to(gl.float32)
        if tile.step == self.world - 1:
            if self.HAS_BIAS:
                cols = tile.n * self.BLOCK_N + gl.arange(0, self.BLOCK_N, layout=gl.SliceLayout(0, layout))
                acc += gl.load(self.bias + cols, mask=cols < self.n, other=0.0).to(gl.float32)[None, :]
            self._out_view(staging).store(acc.to(self.out.dtype))
        else:
            staging.store(acc.to(staging.dtype))

    @gluon.jit
    def store(self, tile, staging):
        if tile.step == self.world - 1:
            tma_store(self.out, [tile.m * self.BLOCK_M, tile.n * self.BLOCK_N], self._out_view(staging))
        else:
            self._send(tile, staging)

    @gluon.jit
    def signal(self, tile):
        if tile.step < self.world - 1:
            flush_tma_stores()
            flag = self.next_flags + 2 * (tile.step * self.tiles_m * self.tiles_n + tile.number)
            dl.notify_warp(flag, self.epoch)

    @gluon.jit
    def _send(self, tile, staging):
        # In boxes with a pause behind each: while a link is full, loads of all SMs stand still behind what waits for it.
        ROWS: gl.constexpr = self.next_even.block_type.shape[0]
        COLS: gl.constexpr = self.next_even.block_type.shape[1]
        alternates = (tile.step == self.world - 2) & (tile.number >= self.tiles_m * self.tiles_n - self.mixed)
        gap = gl.where(alternates, self.gap // 2, self.gap)                     # while every other program sends
        first_row = (tile.step * self.tiles_m + tile.m) * self.BLOCK_M
        for j in gl.static_range(self.BLOCK_N // COLS):
            for i in gl.static_range(self.BLOCK_M // ROWS):
                box = staging.slice(j * COLS, COLS, 1).slice(i * ROWS, ROWS, 0)
                row, col = first_row + i * ROWS, tile.n * self.BLOCK_N + j * COLS
                if (self.epoch & 1) == 0:
                    tma_store(self.next_even, [row, col], box)
                else:
                    tma_store(self.next_odd, [row, col], box)
                pause(gap)

    @gluon.jit
    def _out_view(self, staging):
        return reinterpret(staging, self.out.dtype, [self.BLOCK_M, self.BLOCK_N], self.out.layout)


@gluon_jit(do_not_specialize=["index", "world", "m", "n", "k", "gap", "mixed"],
           launch_metadata=product(lambda args: args["m"] * args["world"], passes=2))
def gemm_rs_ws_kernel(x_desc, w_desc, out_desc, slots_even, slots_odd, next_even, next_odd, bias, flags, next_flags, control,
                      index, world, m, n, k, gap, mixed, HAS_BIAS: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr,
                      BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr):
    """out [m, n] = this rank's rows of the sum of x [world * m, k] @ weight [n, k]^T, plus bias; as gemm_rs_kernel.

    A chunk of the slots starts at a multiple of cdiv(m, BLOCK_M) * BLOCK_M rows, so that a store never crosses one.
    """
    epoch = this_epoch(control)
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    hooks = Ring(x_desc, slots_even, slots_odd, next_even, next_odd, out_desc, bias, flags + (epoch & 1),
                 next_flags + (epoch & 1), epoch, index, world, m, n, tiles_m, tiles_n, tiles_m * tiles_n * world, gap,
                 mixed, BLOCK_M, BLOCK_N, GROUP_M, HAS_BIAS)
    staging: gl.constexpr = slots_even.layout
    hop_dtype: gl.constexpr = slots_even.dtype
    gemm_ws(hooks, x_desc, w_desc, w_desc, staging, hop_dtype, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS)
    count_call(control, epoch)
