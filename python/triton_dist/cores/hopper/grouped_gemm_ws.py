# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Grouped GEMM on the Hopper core: rows by expert, each times the weight of its expert.

A CTA lists its own tiles before its roles begin (tiles_of_experts.py). A tile that ends inside the block of rows that TMA loads
is stored by the mma warps themselves, row by row: TMA could not leave out rows of the next expert.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton_dist.compat.triton import aggregate

from triton_dist.cores.hopper.gated import load_gate_and_up, silu_mul
from triton_dist.cores.hopper.gemm_ws import GATHERING, NUM_WARPS, acc_layout, gemm_ws, load_rows_of_weights
from triton_dist.cores.hopper.hopper_prims import copies_arrive, copy_async, cta_barrier, tma_load, tma_store
from triton_dist.cores.hopper.tiles_of_experts import ENTRY, list_tiles
from triton_dist.runtime.jit import gluon_jit


_PIECE = gl.constexpr(8)        # elements that a thread gathers at a time


@gluon.constexpr_function
def _gathered(BLOCK_K):
    """Layout of a block of rows that threads gather."""
    lanes = BLOCK_K // 8
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [GATHERING, 1], [1, 0])


@aggregate
class RowsTile:
    """A tile of an expert ("chunk"): `rows` of its rows from `row` on, times a block of columns."""
    chunk: gl.tensor
    row: gl.tensor
    rows: gl.tensor
    n: gl.tensor
    narrow: gl.tensor

    @gluon.constexpr_function
    def __init__(self, chunk, row, rows, n, narrow):
        self.chunk = chunk
        self.row = row
        self.rows = rows
        self.n = n
        self.narrow = narrow


@aggregate
class Experts:
    """Hooks: the tiles that `list_tiles` found; gate and up joined where GATED."""
    x: tma.tensor_descriptor        # [rows, k]
    x_short: tma.tensor_descriptor  # the same, in blocks of short tiles
    out: tma.tensor_descriptor      # [rows, n]
    out_at: gl.tensor               # the same, as a pointer
    tiles: gl.tensor                # int32 [total, ENTRY]
    row_weights: gl.tensor          # float32 [rows]
    x_at: gl.tensor                 # [rows_x, k], as a pointer
    sources: gl.tensor              # the row of x of each row by expert, if threads gather rows
    rows_x: gl.tensor
    pitch_x: gl.tensor              # from row to row of x, in pieces of 16 bytes
    k: gl.tensor
    n: gl.tensor                    # columns of out
    pitch: gl.tensor                # rows of the weights' descriptor from expert to expert
    total: gl.tensor                # the program's own tiles are its id, its id + num_programs, ... below it
    BLOCK_M: gl.constexpr
    GATED: gl.constexpr
    WEIGHTED: gl.constexpr
    PARTS: gl.constexpr             # entries of an expert in the list of experts
    NARROW: gl.constexpr            # false
    EVEN_K: gl.constexpr            # whether blocks of K are whole ones

    @gluon.constexpr_function
    def __init__(self, x, x_short, out, out_at, tiles, row_weights, x_at, sources, rows_x, pitch_x, k, n, pitch, total, BLOCK_M,
                 GATED, WEIGHTED, PARTS, EVEN_K):
        self.x = x
        self.x_short = x_short
        self.out = out
        self.out_at = out_at
        self.tiles = tiles
        self.row_weights = row_weights
        self.x_at = x_at
        self.sources = sources
        self.rows_x = rows_x
        self.pitch_x = pitch_x
        self.k = k
        self.n = n
        self.pitch = pitch
        self.total = total
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.GATED = gl.constexpr(GATED)
        self.WEIGHTED = gl.constexpr(WEIGHTED)
        self.PARTS = gl.constexpr(PARTS)
        self.NARROW = gl.constexpr(False)
        self.EVEN_K = gl.constexpr(EVEN_K)

    @gluon.jit
    def tile(self, t):
        at = self.tiles + t * ENTRY
        return RowsTile(gl.load(at + 2) // self.PARTS, gl.load(at), gl.load(at + 1), gl.load(at + 3), t < 0)

    @gluon.jit
    def _rows(self, t):
        return gl.load(self.tiles + t * ENTRY + 1, mask=t < self.total, other=0)

    @gluon.jit
    def is_tall(self, t):
        return self._rows(t) > self.BLOCK_M // 2

    @gluon.jit
    def is_short(self, t):
        rows = self._rows(t)
        return (rows > 0) & (rows <= self.BLOCK_M // 2)

    @gluon.jit
    def acquire(self, tile):
        pass

    @gluon.jit
    def load(self, tile, k, bar, a):
        if a.shape[0] < self.BLOCK_M:
            tma_load(self.x_short, [tile.row, k], bar, a)
        else:
            tma_load(self.x, [tile.row, k], bar, a)

    @gluon.jit
    def rows_at(self, tile, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr):
        spread: gl.constexpr = _gathered(BLOCK_K)       # lines beyond the tile repeat its last one, as do rows beyond x
        line = gl.minimum(gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, spread)), tile.rows - 1)
        row = gl.load(self.sources + tile.row + line)
        row = gl.maximum(gl.minimum(row, self.rows_x - 1), 0).to(gl.int64)
        col = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, spread))
        return self.x_at + (row * self.pitch_x * _PIECE)[:, None] + col[None, :]

    @gluon.jit
    def gather(self, at, k, bar, a):
        if self.EVEN_K:
            copy_async(a, at + k)
        else:
            cols = k + gl.arange(0, a.shape[1], layout=gl.SliceLayout(0, _gathered(a.shape[1])))
            copy_async(a, at + k, mask=(cols < self.k // _PIECE * _PIECE)[None, :])     # so that masks are of whole pieces
        copies_arrive(bar, increment_count=False)

    @gluon.jit
    def see_copies(self):
        fence_async_shared()

    @gluon.jit
    def load_weights(self, w_desc, tile, k, bar, b, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
        first = tile.chunk * self.pitch
        if self.GATED:
            HALF: gl.constexpr = BLOCK_N // 2
            load_gate_and_up(w_desc, first + tile.n * HALF, first + self.n + tile.n * HALF, k, bar, b, HALF)
        elif COLUMNS:
            load_rows_of_weights(w_desc, tile.n * BLOCK_N, first + k, bar, b, COLUMNS)
        else:
            load_rows_of_weights(w_desc, first + tile.n * BLOCK_N, k, bar, b, COLUMNS)

    @gluon.jit
    def fetch_addend(self, tile, ready, staging):
        mbarrier.arrive(ready, count=1)

    @gluon.jit
    def finish(self, tile, acc, staging, layout: gl.constexpr):
        PARTS: gl.constexpr = 2 if self.GATED else 1
        ROWS: gl.constexpr = acc.shape[0]
        COLS: gl.constexpr = acc.shape[1] // PARTS
        kept: gl.constexpr = acc_layout(ROWS, COLS, 1)
        if self.GATED:
            acc = silu_mul(acc)
        if self.WEIGHTED:
            line = gl.arange(0, ROWS, layout=gl.SliceLayout(1, kept))
            acc *= gl.load(self.row_weights + tile.row + line, mask=line < tile.rows, other=0.0)[:, None]
        if ROWS < self.BLOCK_M:
            staging = staging.slice(0, ROWS, 0)
        staging.store(acc.to(staging.dtype))
        if tile.rows < self.BLOCK_M:
            cta_barrier()
            self._store_rows(tile, staging)

    @gluon.jit
    def _store_rows(self, tile, staging):
        # By way of shared memory, so that a warp stores whole lines: an accumulator has two neighbours of a row in a thread.
        COLS: gl.constexpr = staging.shape[1]
        lanes: gl.constexpr = min(COLS // 8, 32)
        whole: gl.constexpr = gl.BlockedLayout([1, 8], [32 // lanes, lanes], [NUM_WARPS, 1], [1, 0])
        line = gl.arange(0, staging.shape[0], layout=gl.SliceLayout(1, whole))
        cols = tile.n * COLS + gl.arange(0, COLS, layout=gl.SliceLayout(0, whole))
        at = self.out_at + (tile.row + line).to(gl.int64)[:, None] * self.n + cols[None, :]
        gl.store(at, staging.load(whole), mask=(line < tile.rows)[:, None] & (cols < self.n)[None, :])

    @gluon.jit
    def store(self, tile, staging):
        if tile.rows == self.BLOCK_M:
            COLS: gl.constexpr = self.out.block_type.shape[1]
            tma_store(self.out, [tile.row, tile.n * COLS], staging)

    @gluon.jit
    def signal(self, tile):
        pass


@gluon_jit(do_not_specialize=["experts", "room", "pitch", "rows_x", "pitch_x"])
def grouped_gemm_ws_kernel(x_desc, x_short_desc, w_desc, out_desc, x, sources, out, begins, counts, row_weights, tiles, n, k,
                           experts, room, pitch, rows_x, pitch_x, EXPERTS: gl.constexpr, MASKED: gl.constexpr,
                           COUNTED: gl.constexpr, WEIGHTED: gl.constexpr, GATED: gl.constexpr, COLUMNS: gl.constexpr,
                           STAGES: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                           GROUP_M: gl.constexpr, SHORT: gl.constexpr, GATHER: gl.constexpr, EVEN_K: gl.constexpr,
                           PARTS: gl.constexpr = 1):
    """out [rows, n] as grouped_gemm_kernel.

    Row r by expert is row r of x_desc; where GATHER, row sources[r] of x [rows_x, k], whose rows are 16 * pitch_x bytes apart.

    w_desc: weights [experts * pitch, k], gate and up of an expert below each other where GATED; with COLUMNS, where columns are
    contiguous, [experts * pitch, n]. tiles: int32 [all tiles and two for each program, ENTRY], written here. A tile has
    BLOCK_N // 2 columns where GATED. SHORT: there are tiles of BLOCK_M // 2 rows, for which x_short_desc is. PARTS: as for
    grouped_gemm_kernel.
    """
    HALVES: gl.constexpr = 2 if GATED else 1
    total = list_tiles(tiles, begins, counts, experts, room, gl.cdiv(n, BLOCK_N // HALVES), EXPERTS, MASKED, COUNTED, BLOCK_M,
                       GROUP_M, SHORT)
    hooks = Experts(x_desc, x_short_desc, out_desc, out, tiles, row_weights, x, sources, gl.to_tensor(rows_x),
                    gl.to_tensor(pitch_x), k, n, gl.to_tensor(pitch), total, BLOCK_M, GATED, WEIGHTED, PARTS, EVEN_K)
    staging: gl.constexpr = out_desc.layout
    dtype: gl.constexpr = out_desc.dtype
    gemm_ws(hooks, x_desc, w_desc, w_desc, staging, dtype, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, HALVES, SHORT,
            GATHER)
