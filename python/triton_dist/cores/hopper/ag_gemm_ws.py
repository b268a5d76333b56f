# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM on the Hopper core."""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_dist.compat.triton import aggregate

import triton_dist.language as dl
from triton_dist.cores.hopper.counting import count_call, this_epoch
from triton_dist.cores.hopper.gated import load_gate_and_up, silu_mul
from triton_dist.cores.hopper.gemm_ws import Tile, gemm_ws, grouped, load_rows_of_weights
from triton_dist.cores.hopper.hopper_prims import fence_proxy_async, reinterpret, tma_load, tma_store
from triton_dist.runtime.jit import gluon_jit
from triton_dist.runtime.launch_metadata import product


@aggregate
class Gather:
    """Hooks: A comes from the own shard first, then from the gather buffer as peers' pieces land; tiles go to `out`.

    Where GATED, half of a tile's weights are gate's and half are up's, and `out` has half as many columns.
    """
    x: tma.tensor_descriptor            # [m, k], this rank's shard
    gathered: tma.tensor_descriptor     # [world * padded_m, k], this epoch's half from first_row on
    out: tma.tensor_descriptor          # [world, m, n]: a store never crosses a chunk
    out_narrow: tma.tensor_descriptor   # the same in blocks of narrow tiles
    bias: gl.tensor
    flags: gl.tensor                    # int32 [pieces, world]; by SMs [pieces, 2, world, MOST], from this epoch's half on
    epoch: gl.tensor
    index: gl.tensor
    world: gl.tensor
    n: gl.tensor                        # columns of out
    tiles_m: gl.tensor
    tiles_n: gl.tensor
    total: gl.tensor
    wide: gl.tensor                     # tiles before the narrow ones
    piece_tiles: gl.tensor
    first_row: gl.tensor
    pushers: gl.tensor                  # flags that stand for a piece
    MOST: gl.constexpr                  # 0: pushed by the copy engine
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    GROUP_M: gl.constexpr
    HAS_BIAS: gl.constexpr
    NARROW: gl.constexpr
    GATED: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, x, gathered, out, out_narrow, bias, flags, epoch, index, world, n, tiles_m, tiles_n, total, wide,
                 piece_tiles, first_row, pushers, MOST, BLOCK_M, BLOCK_N, GROUP_M, HAS_BIAS, NARROW, GATED):
        self.x = x
        self.gathered = gathered
        self.out = out
        self.out_narrow = out_narrow
        self.bias = bias
        self.flags = flags
        self.epoch = epoch
        self.index = index
        self.world = world
        self.n = n
        self.tiles_m = tiles_m
        self.tiles_n = tiles_n
        self.total = total
        self.wide = wide
        self.piece_tiles = piece_tiles
        self.first_row = first_row
        self.pushers = pushers
        self.MOST = gl.constexpr(MOST)
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.BLOCK_N = gl.constexpr(BLOCK_N)
        self.GROUP_M = gl.constexpr(GROUP_M)
        self.HAS_BIAS = gl.constexpr(HAS_BIAS)
        self.NARROW = gl.constexpr(NARROW)
        self.GATED = gl.constexpr(GATED)

    @gluon.jit
    def tile(self, t):
        tiles = self.tiles_m * self.tiles_n
        narrow = t >= self.wide
        half = gl.maximum(t - self.wide, 0)             # narrow ones in pairs, where a wide one would be
        t = t - half + half // 2
        step = t // tiles
        m, n = grouped(t % tiles, self.tiles_m, self.tiles_n, self.GROUP_M)
        if self.NARROW:
            n = gl.where(narrow, 2 * n + half % 2, n)
        return Tile(step, (self.index + step) % self.world, m, n, t % tiles, narrow)

    @gluon.jit
    def acquire(self, tile):
        if tile.step > 0:
            if self.MOST > 0:
                pushed = self.flags + (2 * (tile.m // self.piece_tiles) * self.world + tile.chunk) * self.MOST
                fence_proxy_async(dl.wait(pushed, self.pushers, "sys", "acquire", self.epoch))
            else:
                flag = self.flags + tile.m // self.piece_tiles * self.world + tile.chunk
                fence_proxy_async(dl.wait(flag, 1, "sys", "acquire", self.epoch, "ge"))

    @gluon.jit
    def load(self, tile, k, bar, a):
        if tile.step == 0:
            tma_load(self.x, [tile.m * self.BLOCK_M, k], bar, a)
        else:
            tma_load(self.gathered, [self.first_row + (tile.chunk * self.tiles_m + tile.m) * self.BLOCK_M, k], bar, a)

    @gluon.jit
    def load_weights(self, w_desc, tile, k, bar, b, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
        if self.GATED:
            HALF: gl.constexpr = BLOCK_N // 2
            load_gate_and_up(w_desc, tile.n * HALF, self.n + tile.n * HALF, k, bar, b, HALF)
        else:
            load_rows_of_weights(w_desc, tile.n * BLOCK_N, k, bar, b, COLUMNS)

    @gluon.jit
    def fetch_addend(self, tile, ready, staging):
        mbarrier.arrive(ready, count=1)

    @gluon.jit
    def finish(self, tile, acc, staging, layout: gl.constexpr):
        PARTS: gl.constexpr = 2 if self.GATED else 1
        COLS: gl.constexpr = acc.shape[1] // PARTS
        if self.HAS_BIAS:
            col = gl.arange(0, PARTS * COLS, layout=gl.SliceLayout(0, layout))
            cols = tile.n * COLS + col % COLS
            acc += gl.load(self.bias + col // COLS * self.n + cols, mask=cols < self.n, other=0.0).to(gl.float32)[None, :]
        if self.GATED:
            acc = silu_mul(acc)
        if PARTS * COLS < self.BLOCK_N:
            narrow: gl.constexpr = gl.NVMMASharedLayout.get_default_for([self.BLOCK_M, COLS], staging.dtype)
            staging = reinterpret(staging, staging.dtype, [self.BLOCK_M, COLS], narrow)
        staging.store(acc.to(staging.dtype))

    @gluon.jit
    def store(self, tile, staging):
        WIDTH: gl.constexpr = self.out.block_type.shape[2]
        HALF: gl.constexpr = WIDTH // 2
        if self.NARROW and tile.narrow:
            box = reinterpret(staging, self.out.dtype, [1, self.BLOCK_M, HALF], self.out_narrow.layout)
            tma_store(self.out_narrow, [tile.chunk, tile.m * self.BLOCK_M, tile.n * HALF], box)
        else:
            wide_box = reinterpret(staging, self.out.dtype, [1, self.BLOCK_M, WIDTH], self.out.layout)
            tma_store(self.out, [tile.chunk, tile.m * self.BLOCK_M, tile.n * WIDTH], wide_box)

    @gluon.jit
    def signal(self, tile):
        pass


@gluon_jit(do_not_specialize=["epoch", "index", "world", "m", "n", "k", "pieces", "piece_tiles", "wide"],
           launch_metadata=product(lambda args: args["m"] * args["world"]))
def ag_gemm_ws_kernel(x_desc, gathered_desc, w_desc, w_narrow_desc, out_desc, out_narrow_desc, bias, flags, epoch, index, world,
                      m, n, k, pieces, piece_tiles, wide, HAS_BIAS: gl.constexpr, COLUMNS: gl.constexpr, NARROW: gl.constexpr,
                      GATED: gl.constexpr, STAGES: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                      BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGING: gl.constexpr):
    """out [world, m, n] as ag_gemm_kernel, by the same protocol.

    Chunks of the gather buffer start at multiples of cdiv(m, BLOCK_M) * BLOCK_M rows. Own rows are read from x.
    With NARROW, tiles from number `wide` on are split in two narrow ones, so that the last wave fills the device.
    """
    PARTS: gl.constexpr = 2 if GATED else 1
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N // PARTS)
    total = 2 * tiles_m * tiles_n * world - wide
    hooks = Gather(x_desc, gathered_desc, out_desc, out_narrow_desc, bias, flags, epoch, index, world, n, tiles_m, tiles_n,
                   total, wide, piece_tiles, gl.to_tensor(0), gl.to_tensor(1), 0, BLOCK_M, BLOCK_N, GROUP_M, HAS_BIAS, NARROW,
                   GATED)
    dtype: gl.constexpr = out_desc.dtype
    gemm_ws(hooks, x_desc, w_desc, w_narrow_desc, STAGING, dtype, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, PARTS)
    if gl.program_id(0) == 0:           # what bounds the epoch: every peer has started this call
        last = flags + (pieces - 1) * world
        dl.wait(last, index, "sys", "acquire", epoch, "ge")
        dl.wait(last + index + 1, world - 1 - index, "sys", "acquire", epoch, "ge")


@gluon_jit(do_not_specialize=["half", "pushers", "index", "world", "m", "n", "k", "pieces", "piece_tiles", "wide"],
           launch_metadata=product(lambda args: args["m"] * args["world"]))
def ag_gemm_by_sms_ws_kernel(x_desc, gathered_desc, w_desc, w_narrow_desc, out_desc, out_narrow_desc, bias, flags, control, half,
                             pushers, index, world, m, n, k, pieces, piece_tiles, wide, MOST: gl.constexpr,
                             HAS_BIAS: gl.constexpr, COLUMNS: gl.constexpr, NARROW: gl.constexpr, GATED: gl.constexpr,
                             STAGES: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                             GROUP_M: gl.constexpr, STAGING: gl.constexpr):
    """As ag_gemm_ws_kernel, beside a kernel that pushes; the protocol is ag_gemm_by_sms_kernel's.

    gathered_desc: both halves of the gather buffer, that of odd epochs from row `half` on.
    """
    epoch = this_epoch(control)
    flags += (epoch & 1) * world * MOST
    PARTS: gl.constexpr = 2 if GATED else 1
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N // PARTS)
    total = 2 * tiles_m * tiles_n * world - wide
    hooks = Gather(x_desc, gathered_desc, out_desc, out_narrow_desc, bias, flags, epoch, index, world, n, tiles_m, tiles_n,
                   total, wide, piece_tiles, (epoch & 1) * half, pushers, MOST, BLOCK_M, BLOCK_N, GROUP_M, HAS_BIAS, NARROW,
                   GATED)
    dtype: gl.constexpr = out_desc.dtype
    gemm_ws(hooks, x_desc, w_desc, w_narrow_desc, STAGING, dtype, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, PARTS)
    if gl.program_id(0) == 0:
        for hop in range(1, world):
            last = flags + (2 * (pieces - 1) * world + (index + hop) % world) * MOST
            dl.wait(last, pushers, "sys", "acquire", epoch)
    count_call(control, epoch)
