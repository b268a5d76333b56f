# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows that a dispatch has brought, by expert: where each choice lies, and the rows themselves where they are wanted there."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.ep.device import matrix_of, of, rows_told
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["most", "limit", "room", "chunks"])
def place_kernel(hist, told, ids_out, out, scales_out, positions, sources, experts_told, data, half, meta, meta_half,
                 control, most, row, limit, room, align, chunks, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                 SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, E_PAD: tl.constexpr,
                 MASKED: tl.constexpr, EXPAND: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                 PITCH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr, PARTS: tl.constexpr):
    """positions [limit, K]: for each choice of a row that came, its row by expert; -1 for a choice of others or without room.

    By expert: first expert 0's choices in the order (source, token, choice), then, from the next multiple of `align`, expert
    1's, and so on, `room` rows in all; MASKED: expert e's from row e * room on. EXPAND: `out` gets the rows, from the workspace;
    else `sources` [room] gets the row that each of them is. experts_told: int32 [2 * E_LOC + 1]: choices of each expert, then
    where each begins, and the end. PARTS programs share the rows of a chunk, and all of them count all of its choices.
    It follows ep_dispatch_kernel on its stream, and no rank is waited for: whoever starts the next call but one has heard from
    this rank after this kernel.
    """
    dl.gdc_wait()
    chunk, part = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    epoch = tl.load(control + tl.program_id(0))  # of the call that has just ended
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    expert, line = tl.arange(0, E_PAD), tl.arange(0, LINES)
    rank, column_of = tl.arange(0, RANKS), tl.arange(0, PITCH)
    dl.trace_start("load", 0, -1)
    counts = tl.load(told + 1 + rank[:, None] * chunks + column_of[None, :],
                     mask=(rank < WORLD)[:, None] & (column_of < chunks)[None, :],
                     other=0)
    coming, landing, slot = matrix_of(counts, chunk)
    # [RANKS, E_PAD], by source: choices of each expert, and those of chunks before this one
    of_source, earlier = tl.zeros((RANKS, E_PAD), tl.int32), tl.zeros((RANKS, E_PAD), tl.int32)
    for source in range(WORLD):
        for first in range(0, chunks, LINES):
            at = (source * chunks + first + line)[:, None] * E_PAD + expert[None, :]
            found = tl.load(hist + at, mask=((first + line) < chunks)[:, None], other=0).to(tl.int32)
            before_this = tl.sum(tl.where((first + line < chunk)[:, None], found, 0), 0)
            here = (rank == source)[:, None]
            of_source += tl.where(here, tl.sum(found, 0)[None, :], 0)
            earlier += tl.where(here, before_this[None, :], 0)
    total = tl.sum(of_source, 0)
    earlier += tl.cumsum(of_source, 0) - of_source
    dl.trace_stop("load", 0)
    if MASKED:
        begin = expert * room
        end = begin + room
    else:
        wide = tl.cdiv(total, align) * align
        begin = tl.cumsum(wide, 0) - wide
        end = 0 * begin + room
    if tl.program_id(0) == 0:
        tl.store(experts_told + expert, total, mask=expert < E_LOC)
        tl.store(experts_told + E_LOC + expert, begin, mask=expert < E_LOC)
        tl.store(experts_told + 2 * E_LOC,
                 of(begin, E_LOC - 1) + (room if MASKED else tl.cdiv(of(total, E_LOC - 1), align) * align))
    slots = chunks * most
    cell = tl.arange(0, ROWS * CHOICES)  # choices of ROWS rows, one row's after the other's
    for source in range(WORLD):
        dl.trace_start("store", source, source)
        mine = begin + tl.sum(tl.where((rank == source)[:, None], earlier, 0), 0)
        come, land = of(coming, source), of(landing, source)
        come = tl.maximum(tl.minimum(come, limit - land), 0)
        for first in range(0, come, ROWS):
            place = first + cell // CHOICES
            choice = cell % CHOICES
            inside = (place < come) & (choice < K)
            where = (land + place).to(tl.int64) * K + choice
            local = tl.load(ids_out + where, mask=inside, other=-1)
            alike = (local[:, None] == local[None, :]) & (cell[None, :] < cell[:, None])
            which = local[:, None] == expert[None, :]
            spot = tl.sum(tl.where(which, mine[None, :], 0), 1) + tl.sum(alike.to(tl.int32), 1)
            last = tl.sum(tl.where(which, end[None, :], 0), 1)
            spot = tl.where((local >= 0) & (spot < last), spot, -1)
            mine += tl.sum(which.to(tl.int32), 0)
            if (first // ROWS) % PARTS == part:
                tl.store(positions + where, spot, mask=inside)
                if EXPAND:
                    at = (source * slots + of(slot, source) + first + tl.arange(0, ROWS)).to(tl.int64)
                    there = first + tl.arange(0, ROWS) < come
                    expand(rows_in + at * row, words_in + at * META + (META - SCALES), there,
                           tl.reshape(spot, (ROWS, CHOICES)), out, scales_out, row, K, CHOICES, SCALES, SCALES_PAD, COLS)
                else:
                    tl.store(sources + spot, land + place, mask=inside & (spot >= 0))
        dl.trace_stop("store", source)
    if EXPAND and not MASKED:  # zeros between experts
        for e in range(tl.program_id(0), E_LOC, PARTS * chunks):
            count, start = of(total, e), of(begin, e)
            for gap in range(start + count, tl.minimum(start + tl.cdiv(count, align) * align, room)):
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tl.store(out + gap.to(tl.int64) * row + cols,
                             tl.zeros((COLS, ), out.dtype.element_ty),
                             mask=cols < row)
    for first in range(rows_told(counts) + tl.program_id(0) * ROWS, limit, PARTS * chunks * ROWS):
        place = first + cell // CHOICES
        choice = cell % CHOICES
        tl.store(positions + place.to(tl.int64) * K + choice,
                 tl.full((ROWS * CHOICES, ), -1, tl.int32),
                 mask=(place < limit) & (choice < K))


@triton.jit
def expand(source, scale_source, there, spots, out, scales_out, row, K: tl.constexpr, CHOICES: tl.constexpr,
           SCALES: tl.constexpr, SCALES_PAD: tl.constexpr, COLS: tl.constexpr):
    """Stores rows, from pointers, and their scales in `out` at the place of each choice, spots [ROWS, CHOICES]; -1: nowhere."""
    choice, group = tl.arange(0, CHOICES), tl.arange(0, SCALES_PAD)
    for column in range(0, row, COLS):
        cols = column + tl.arange(0, COLS)
        values = tl.load(source[:, None] + cols[None, :], mask=there[:, None] & (cols < row)[None, :], other=0)
        for j in range(K):
            goal = tl.sum(tl.where(choice[None, :] == j, spots, 0), 1)
            tl.store(out + goal.to(tl.int64)[:, None] * row + cols[None, :],
                     values,
                     mask=(there & (goal >= 0))[:, None] & (cols < row)[None, :])
    if SCALES > 0:
        scale = tl.load(scale_source[:, None] + group[None, :], mask=there[:, None] & (group < SCALES)[None, :], other=0)
        for j in range(K):
            goal = tl.sum(tl.where(choice[None, :] == j, spots, 0), 1)
            tl.store(scales_out + goal.to(tl.int64)[:, None] * SCALES + group[None, :],
                     scale.to(tl.float32, bitcast=True),
                     mask=(there & (goal >= 0))[:, None] & (group < SCALES)[None, :])
