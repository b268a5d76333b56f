# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows that a dispatch has brought, by expert: where each choice lies, and the rows themselves where they are wanted there."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.ep.device import matrix_of, of, rows_told
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["most", "limit", "room"])
def place_kernel(hist, told, ids_out, out, scales_out, positions, sources, experts_told, data, half, meta, meta_half,
                 control, most, row, limit, room, align, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                 SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, E_PAD: tl.constexpr,
                 MASKED: tl.constexpr, EXPAND: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                 PITCH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, LINES: tl.constexpr):
    """positions [limit, K]: for each choice of a row that came, its row by expert; -1 for a choice of others or without room.

    By expert: first expert 0's choices in the order (source, token, choice), then, from the next multiple of `align`, expert
    1's, and so on, `room` rows in all; MASKED: expert e's from row e * room on. EXPAND: `out` gets the rows, from the workspace;
    else `sources` [room] gets the row that each of them is. experts_told: int32 [2 * E_LOC + 1]: choices of each expert, then
    where each begins, and the end.
    It follows ep_dispatch_kernel on its stream, and no rank is waited for: whoever starts the next call but one has heard from
    this rank after this kernel.
    """
    pid, chunks = tl.program_id(0), tl.num_programs(0)
    epoch = tl.load(control + pid)  # of the call that has just ended
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    expert, line = tl.arange(0, E_PAD), tl.arange(0, LINES)
    rank, chunk = tl.arange(0, RANKS), tl.arange(0, PITCH)
    dl.trace_start("load", 0, -1)
    counts = tl.load(told + 1 + rank[:, None] * chunks + chunk[None, :],
                     mask=(rank < WORLD)[:, None] & (chunk < chunks)[None, :],
                     other=0)
    coming, landing, slot = matrix_of(counts, pid)
    total = tl.zeros((E_PAD, ), tl.int32)
    for first in range(0, WORLD * chunks, LINES):
        at = (first + line)[:, None] * E_PAD + expert[None, :]
        total += tl.sum(tl.load(hist + at, mask=((first + line) < WORLD * chunks)[:, None], other=0), 0)
    dl.trace_stop("load", 0)
    if MASKED:
        begin = expert * room
        end = begin + room
    else:
        wide = tl.cdiv(total, align) * align
        begin = tl.cumsum(wide, 0) - wide
        end = 0 * begin + room
    if pid == 0:
        tl.store(experts_told + expert, total, mask=expert < E_LOC)
        tl.store(experts_told + E_LOC + expert, begin, mask=expert < E_LOC)
        tl.store(experts_told + 2 * E_LOC,
                 of(begin, E_LOC - 1) + (room if MASKED else tl.cdiv(of(total, E_LOC - 1), align) * align))
    slots = chunks * most
    cell = tl.arange(0, ROWS * CHOICES)  # choices of ROWS rows, one row's after the other's
    before = begin
    for source in range(WORLD):
        dl.trace_start("store", source, source)
        mine = before
        for first in range(0, chunks, LINES):
            at = (source * chunks + first + line)[:, None] * E_PAD + expert[None, :]
            part = tl.load(hist + at, mask=((first + line) < chunks)[:, None], other=0)
            mine += tl.sum(tl.where((first + line < pid)[:, None], part, 0), 0)
            before += tl.sum(part, 0)
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
            if EXPAND:
                spots = tl.reshape(spot, (ROWS, CHOICES))
                at = source * slots + of(slot, source) + first + tl.arange(0, ROWS)
                there = first + tl.arange(0, ROWS) < come
                begin_of = rows_in + at.to(tl.int64)[:, None] * row
                words = words_in + at.to(tl.int64)[:, None] * META + (META - SCALES)
                group = tl.arange(0, SCALES_PAD)
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    part = tl.load(begin_of + cols[None, :], mask=there[:, None] & (cols < row)[None, :], other=0)
                    for j in range(K):
                        goal = tl.sum(tl.where(tl.arange(0, CHOICES)[None, :] == j, spots, 0), 1)
                        tl.store(out + goal.to(tl.int64)[:, None] * row + cols[None, :],
                                 part,
                                 mask=(there & (goal >= 0))[:, None] & (cols < row)[None, :])
                if SCALES > 0:
                    scale = tl.load(words + group[None, :], mask=there[:, None] & (group < SCALES)[None, :], other=0)
                    for j in range(K):
                        goal = tl.sum(tl.where(tl.arange(0, CHOICES)[None, :] == j, spots, 0), 1)
                        tl.store(scales_out + goal.to(tl.int64)[:, None] * SCALES + group[None, :],
                                 scale.to(tl.float32, bitcast=True),
                                 mask=(there & (goal >= 0))[:, None] & (group < SCALES)[None, :])
            else:
                tl.store(sources + spot, land + place, mask=inside & (spot >= 0))
        dl.trace_stop("store", source)
    if EXPAND and not MASKED:  # zeros between experts
        for e in range(pid, E_LOC, chunks):
            count, start = of(total, e), of(begin, e)
            for gap in range(start + count, tl.minimum(start + tl.cdiv(count, align) * align, room)):
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tl.store(out + gap.to(tl.int64) * row + cols,
                             tl.zeros((COLS, ), out.dtype.element_ty),
                             mask=cols < row)
    for first in range(rows_told(counts) + pid * ROWS, limit, chunks * ROWS):
        place = first + cell // CHOICES
        choice = cell % CHOICES
        tl.store(positions + place.to(tl.int64) * K + choice,
                 tl.full((ROWS * CHOICES, ), -1, tl.int32),
                 mask=(place < limit) & (choice < K))
