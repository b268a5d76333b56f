# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The tiles of rows by expert, as a list for each program, from counts on the device.

A program lists its own tiles before its roles begin, since looking for an expert among hundreds takes longer than a role has
between tiles. What is left of an expert's rows after whole tiles takes a short tile, of half the rows, if it fits: of experts of
about 512 rows, every other one has a few more, and whole tiles alone would take 13 % more than there are.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_dist.cores.hopper.gemm_ws import NUM_WARPS, grouped
from triton_dist.cores.hopper.hopper_prims import cta_barrier
from triton_dist.language.experts import rows_of

ENTRY = gl.constexpr(4)        # words of a tile's entry: first row, number of rows, expert, tile of columns
_LAPS = gl.constexpr(16)       # tiles that are looked for at a time

_rows_of = gluon.jit(rows_of.fn)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _running_sums(values, wide: gl.constexpr):
    """[1, experts]"""
    return gl.convert_layout(gl.associative_scan(values, 0, _add), gl.SliceLayout(0, wide))[None, :]


@gluon.jit
def _before(ends, e, i):
    """Of running sums `ends` [1, experts] at places e: that before place i, for each of i [laps, 1]."""
    return gl.max(gl.where(e < i, ends, 0), 1)


@gluon.jit
def _place_of(ends, t):
    """The place of unit t, for each of t [laps, 1], where place e has what is between ends[e - 1] and ends[e]."""
    return gl.sum((ends <= t).to(gl.int32), 1)


@gluon.jit
def _dealt(first, units):
    """How many of `units` are dealt to a program that gets the unit `first` and every num_programs-th from there."""
    return gl.cdiv(gl.maximum(units - first, 0), gl.num_programs(0))


@gluon.jit
def _heights(rows, BLOCK_M: gl.constexpr, SHORT: gl.constexpr):
    """(tall, short) tiles of rows that `rows` rows of an expert take."""
    if SHORT:
        left = rows % BLOCK_M
        short = ((left > 0) & (left <= BLOCK_M // 2)).to(gl.int32)
        return gl.cdiv(rows, BLOCK_M) - short, short
    else:
        return gl.cdiv(rows, BLOCK_M), rows * 0


@gluon.jit
def _write(tiles, t, begin, rows, expert, m, n, there, BLOCK_M: gl.constexpr):
    at = tiles + t * ENTRY
    gl.store(at, begin + m * BLOCK_M, mask=there)
    gl.store(at + 1, gl.minimum(rows - m * BLOCK_M, BLOCK_M), mask=there)
    gl.store(at + 2, expert, mask=there)
    gl.store(at + 3, n, mask=there)


@gluon.jit
def list_tiles(tiles, begins, counts, experts, room, tiles_n, EXPERTS: gl.constexpr, MASKED: gl.constexpr,
               COUNTED: gl.constexpr, BLOCK_M: gl.constexpr, GROUP_M: gl.constexpr, SHORT: gl.constexpr):
    """Writes this program's entries of `tiles`; the `total` of Experts.

    Tiles of an expert follow each other in groups of rows, so that programs which run at the same time share its weight in L2;
    a short tile follows those of the last group in its columns. Tall and short tiles are dealt out each by themselves, so that
    all programs have equally many of both, and keep that order.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [NUM_WARPS, 1], [1, 0])
    scan: gl.constexpr = gl.BlockedLayout([1], [32], [NUM_WARPS], [0])
    down: gl.constexpr = gl.SliceLayout(1, wide)
    every = gl.arange(0, EXPERTS, layout=scan)
    rows_of_all = _rows_of(begins, counts, every, every < experts, room, MASKED, COUNTED)[1]
    tall, short = _heights(rows_of_all, BLOCK_M, SHORT)
    tall_ends = _running_sums(tall * tiles_n, wide)
    short_ends = _running_sums(short * tiles_n, wide)
    e = gl.arange(0, EXPERTS, layout=gl.SliceLayout(0, wide))[None, :]
    # Short tiles are dealt out from the last program on: it may have a tall one less.
    programs, first = gl.num_programs(0), gl.program_id(0)
    first_short = programs - 1 - first
    own = _dealt(first, gl.sum(tall, 0) * tiles_n)
    own_short = _dealt(first_short, gl.sum(short, 0) * tiles_n)
    for start in range(0, own, _LAPS):
        i = start + gl.arange(0, _LAPS, layout=down)
        t = first + i * programs
        expert = _place_of(tall_ends, t[:, None])
        begin, rows = _rows_of(begins, counts, expert, i < own, room, MASKED, COUNTED)
        talls, shorts = _heights(rows, BLOCK_M, SHORT)
        m, n = grouped(t - _before(tall_ends, e, expert[:, None]), gl.maximum(talls, 1), tiles_n, GROUP_M)
        if SHORT:                                   # of columns before this one, in the last group of rows
            passed = gl.where(m // GROUP_M == (talls - 1) // GROUP_M, shorts * n, 0)
            i_of_all = i + _dealt(first_short, _before(short_ends, e, expert[:, None]) + passed)
        else:
            i_of_all = i
        _write(tiles, first + i_of_all * programs, begin, rows, expert, m, n, i < own, BLOCK_M)
    for start in range(0, own_short, _LAPS):
        i = start + gl.arange(0, _LAPS, layout=down)
        t = first_short + i * programs
        expert = _place_of(short_ends, t[:, None])
        begin, rows = _rows_of(begins, counts, expert, i < own_short, room, MASKED, COUNTED)
        talls = _heights(rows, BLOCK_M, SHORT)[0]
        n = t - _before(short_ends, e, expert[:, None])
        complete = gl.maximum(talls - 1, 0) // GROUP_M * GROUP_M        # rows of tiles in groups before the last one
        passed = _before(tall_ends, e, expert[:, None]) + complete * tiles_n + (talls - complete) * (n + 1)
        i_of_all = i + _dealt(first, passed)
        _write(tiles, first + i_of_all * programs, begin, rows, expert, talls, n, i < own_short, BLOCK_M)
    cta_barrier()
    return first + (own + own_short) * programs
