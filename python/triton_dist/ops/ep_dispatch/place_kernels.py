# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where each choice of rows that a dispatch has brought lies by expert; and the rows themselves, where they are wanted there."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.ep.device import floats, matrix_of, of, rows_told, spread, words_of
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["limit", "room", "chunks"])
def place_kernel(hist, told, ids_out, positions, sources, experts_told, limit, room, align, chunks, K: tl.constexpr,
                 CHOICES: tl.constexpr, E_LOC: tl.constexpr, E_PAD: tl.constexpr, MASKED: tl.constexpr,
                 SOURCES: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr,
                 ROWS: tl.constexpr, LINES: tl.constexpr):
    """positions [limit, K]: for each choice of a row that came, its row by expert; -1 for a choice of others or without room.

    By expert: first expert 0's choices in the order (source, token, choice), then, from the next multiple of `align`, expert
    1's, and so on, `room` rows in all; MASKED: expert e's from row e * room on. SOURCES: sources [room] gets the row that each
    of them is. experts_told: int32 [2 * E_LOC + 1]: choices of each expert, then where each begins, and the end.
    It follows ep_dispatch_kernel on its stream. One program a chunk.
    """
    dl.gdc_wait()
    chunk = tl.program_id(0)
    expert, line = tl.arange(0, E_PAD), tl.arange(0, LINES)
    rank = tl.arange(0, RANKS)
    dl.trace_start("load", 0, -1)
    counts = words_of(told, chunks, WORLD, RANKS, PITCH)
    coming, landing, _ = matrix_of(counts, chunk)
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
    if chunk == 0:
        tl.store(experts_told + expert, total, mask=expert < E_LOC)
        tl.store(experts_told + E_LOC + expert, begin, mask=expert < E_LOC)
        tl.store(experts_told + 2 * E_LOC,
                 of(begin, E_LOC - 1) + (room if MASKED else tl.cdiv(of(total, E_LOC - 1), align) * align))
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
            tl.store(positions + where, spot, mask=inside)
            if SOURCES:
                tl.store(sources + spot, land + place, mask=inside & (spot >= 0))
        dl.trace_stop("store", source)
    for first in range(rows_told(counts) + chunk * ROWS, limit, chunks * ROWS):
        place = first + cell // CHOICES
        choice = cell % CHOICES
        tl.store(positions + place.to(tl.int64) * K + choice,
                 tl.full((ROWS * CHOICES, ), -1, tl.int32),
                 mask=(place < limit) & (choice < K))


@jit(do_not_specialize=["most", "limit", "room", "chunks"])
def expand_kernel(told, positions, experts_told, out, scales_out, data, half, meta, meta_half, control, most, row, limit,
                  room, align, chunks, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                  SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, MASKED: tl.constexpr,
                  WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr, ROWS: tl.constexpr,
                  COLS: tl.constexpr, PARTS: tl.constexpr):
    """out [., row] gets the rows that came, from the workspace, each at all of its `positions`, and scales_out their scales.

    Between experts, where `align` leaves gaps, it gets zeros. PARTS programs share a chunk. It follows place_kernel on its
    stream, and no rank is waited for: whoever starts the next call but one has heard from this rank after this kernel.
    """
    dl.gdc_wait()
    chunk, part = tl.program_id(0) % chunks, tl.program_id(0) // chunks
    epoch = tl.load(control + tl.program_id(0))  # of the call that has just ended
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = floats(meta) + (epoch & 1).to(tl.int64) * meta_half + (META - SCALES_PAD)
    counts = words_of(told, chunks, WORLD, RANKS, PITCH)
    coming, landing, first_slot = matrix_of(counts, chunk)
    for source in range(WORLD):
        come, land = of(coming, source), of(landing, source)
        come = tl.minimum(come, limit - land)
        dl.trace_start("store", source, source)
        for first in range(part * ROWS, come, PARTS * ROWS):
            place = first + tl.arange(0, ROWS)
            at = (source * chunks * most + of(first_slot, source) + place).to(tl.int64)
            spread(rows_in + at * row, words_in + at * META, land + place, place < come, positions, out, scales_out, row, K,
                   CHOICES, SCALES, SCALES_PAD, COLS)
        dl.trace_stop("store", source)
    if not MASKED:
        clear_gaps(experts_told, out, room, align, row, tl.program_id(0), PARTS * chunks, E_LOC, COLS)


@triton.jit
def clear_gaps(experts_told, out, room, align, row, share, shares, E_LOC: tl.constexpr, COLS: tl.constexpr):
    """Stores zeros in out where `align` leaves rows between experts: those of every `shares`-th expert from `share` on."""
    for e in range(share, E_LOC, shares):
        count, start = tl.load(experts_told + e), tl.load(experts_told + E_LOC + e)
        for gap in range(start + count, tl.minimum(start + tl.cdiv(count, align) * align, room)):
            for column in range(0, row, COLS):
                cols = column + tl.arange(0, COLS)
                tl.store(out + gap.to(tl.int64) * row + cols, tl.zeros((COLS, ), out.dtype.element_ty), mask=cols < row)
