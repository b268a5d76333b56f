# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Grouped GEMM on the Hopper core: rows by expert, each times the weight of its expert.

A CTA lists its own tiles from the experts' counts before its roles begin, since looking for an expert among hundreds takes longer
than a role has between tiles. A tile that ends inside the block of rows that TMA loads is stored by the mma warps themselves,
row by row: TMA could not leave out rows of the next expert.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton_dist.compat.triton import aggregate

from triton_dist.cores.hopper.gemm_ws import NUM_WARPS, acc_layout, gemm_ws, grouped, load_rows_of_weights
from triton_dist.cores.hopper.hopper_prims import cta_barrier, tma_load, tma_store
from triton_dist.language.experts import rows_of
from triton_dist.runtime.jit import gluon_jit

ENTRY = gl.constexpr(4)        # words of a tile's entry: first row, number of rows, expert, tile of columns
_LAPS = gl.constexpr(16)       # tiles that are looked for at a time

_rows_of = gluon.jit(rows_of.fn)


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
    out: tma.tensor_descriptor      # [rows, n]
    out_at: gl.tensor               # the same, as a pointer
    tiles: gl.tensor                # int32 [total, ENTRY]
    row_weights: gl.tensor          # float32 [rows]
    n: gl.tensor                    # columns of out
    pitch: gl.tensor                # rows of the weights' descriptor from expert to expert
    total: gl.tensor
    BLOCK_M: gl.constexpr
    GATED: gl.constexpr
    WEIGHTED: gl.constexpr
    NARROW: gl.constexpr            # false

    @gluon.constexpr_function
    def __init__(self, x, out, out_at, tiles, row_weights, n, pitch, total, BLOCK_M, GATED, WEIGHTED):
        self.x = x
        self.out = out
        self.out_at = out_at
        self.tiles = tiles
        self.row_weights = row_weights
        self.n = n
        self.pitch = pitch
        self.total = total
        self.BLOCK_M = gl.constexpr(BLOCK_M)
        self.GATED = gl.constexpr(GATED)
        self.WEIGHTED = gl.constexpr(WEIGHTED)
        self.NARROW = gl.constexpr(False)

    @gluon.jit
    def tile(self, t):
        at = self.tiles + t * ENTRY
        return RowsTile(gl.load(at + 2), gl.load(at), gl.load(at + 1), gl.load(at + 3), t < 0)

    @gluon.jit
    def acquire(self, tile):
        pass

    @gluon.jit
    def load(self, tile, k, bar, a):
        tma_load(self.x, [tile.row, k], bar, a)

    @gluon.jit
    def load_weights(self, w_desc, tile, k, bar, b, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr):
        first = tile.chunk * self.pitch
        if self.GATED:
            HALF: gl.constexpr = BLOCK_N // 2
            tma_load(w_desc, [first + tile.n * HALF, k], bar, b.slice(0, HALF, 0))
            tma_load(w_desc, [first + self.n + tile.n * HALF, k], bar, b.slice(HALF, HALF, 0))
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
        COLS: gl.constexpr = acc.shape[1] // PARTS
        kept: gl.constexpr = acc_layout(self.BLOCK_M, COLS, 1)
        if self.GATED:
            gate, up = gl.split(gl.permute(gl.reshape(acc, [self.BLOCK_M, 2, COLS]), [0, 2, 1]))
            acc = gl.convert_layout(gate / (1.0 + gl.exp(-gate)) * up, kept)
        if self.WEIGHTED:
            line = gl.arange(0, self.BLOCK_M, layout=gl.SliceLayout(1, kept))
            acc *= gl.load(self.row_weights + tile.row + line, mask=line < tile.rows, other=0.0)[:, None]
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
        line = gl.arange(0, self.BLOCK_M, layout=gl.SliceLayout(1, whole))
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


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def list_tiles(tiles, begins, counts, experts, room, tiles_n, EXPERTS: gl.constexpr, MASKED: gl.constexpr,
               COUNTED: gl.constexpr, BLOCK_M: gl.constexpr, GROUP_M: gl.constexpr):
    """Writes this program's entries of `tiles`; the number of all programs' tiles.

    Tiles of an expert follow each other in groups of rows, so that programs which run at the same time share its weight in L2.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [NUM_WARPS, 1], [1, 0])
    scan: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])
    e = gl.arange(0, EXPERTS, layout=scan)
    _, count = _rows_of(begins, counts, e, e < experts, room, MASKED, COUNTED)
    ends = gl.associative_scan(gl.cdiv(count, BLOCK_M) * tiles_n, 0, _add)
    total = gl.max(ends, 0)
    ends = gl.convert_layout(ends, gl.SliceLayout(0, wide))
    lap = gl.arange(0, _LAPS, layout=gl.SliceLayout(1, wide))
    for first in range(gl.program_id(0), total, _LAPS * gl.num_programs(0)):
        t = first + lap * gl.num_programs(0)
        passed = ends[None, :] <= t[:, None]
        expert = gl.sum(passed.to(gl.int32), 1)
        before = gl.max(gl.where(passed, ends[None, :], 0), 1)
        begin, rows = _rows_of(begins, counts, expert, t < total, room, MASKED, COUNTED)
        m, n = grouped(t - before, gl.maximum(gl.cdiv(rows, BLOCK_M), 1), tiles_n, GROUP_M)
        at = tiles + t * ENTRY
        gl.store(at, begin + m * BLOCK_M, mask=t < total)
        gl.store(at + 1, gl.minimum(rows - m * BLOCK_M, BLOCK_M), mask=t < total)
        gl.store(at + 2, expert, mask=t < total)
        gl.store(at + 3, n, mask=t < total)
    cta_barrier()
    return total


@gluon_jit(do_not_specialize=["experts", "room", "pitch"])
def grouped_gemm_ws_kernel(x_desc, w_desc, out_desc, out, begins, counts, row_weights, tiles, n, k, experts, room, pitch,
                           EXPERTS: gl.constexpr, MASKED: gl.constexpr, COUNTED: gl.constexpr, WEIGHTED: gl.constexpr,
                           GATED: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, BLOCK_M: gl.constexpr,
                           BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr):
    """out [rows, n] as grouped_gemm_kernel, of x [rows, k] that need not be gathered.

    w_desc: weights [experts * pitch, k], gate and up of an expert below each other where GATED; with COLUMNS, where columns are
    contiguous, [experts * pitch, n]. tiles: int32 [all tiles, ENTRY], written here. A tile has BLOCK_N // 2 columns where GATED.
    """
    PARTS: gl.constexpr = 2 if GATED else 1
    total = list_tiles(tiles, begins, counts, experts, room, gl.cdiv(n, BLOCK_N // PARTS), EXPERTS, MASKED, COUNTED, BLOCK_M,
                       GROUP_M)
    hooks = Experts(x_desc, out_desc, out, tiles, row_weights, n, gl.to_tensor(pitch), total, BLOCK_M, GATED, WEIGHTED)
    staging: gl.constexpr = out_desc.layout
    dtype: gl.constexpr = out_desc.dtype
    gemm_ws(hooks, x_desc, w_desc, w_desc, staging, dtype, k, STAGES, BLOCK_M, BLOCK_N, BLOCK_K, COLUMNS, PARTS)
