# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch: a row goes once to each rank that has an expert of its token, in one hop. One program a chunk of tokens."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.float8 import e4m3
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import counts_of, matrix_of, of, owners, rows_told, tokens_in
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts"])
def ep_dispatch_kernel(x, ids, weights, scales, out, scales_out, ids_out, weights_out, told, hist, packets,
                       packets_half, data, half, meta, meta_half, flags, flags_source, flags_half, control, team, m,
                       most, rounds, row, limit, experts, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                       SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, E_PAD: tl.constexpr,
                       WEIGHTS: tl.constexpr, QUANT: tl.constexpr, INDEX: tl.constexpr, FIRST: tl.constexpr,
                       WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr,
                       ROWS: tl.constexpr, COLS: tl.constexpr, SEND: tl.constexpr = True, TAKE: tl.constexpr = True):
    """Rows of x [m, row] to the ranks of their choices, ids [m, K]; there they lie in the order (source, token).

    out, ids_out, weights_out, scales_out [limit, .]: what this rank gets, its own experts counted from 0, -1 for others'; what
    is beyond `limit` rows is not stored. told: int32 [1 + WORLD * chunks]: how many rows came, and a word of each source's chunk.
    Each program at once tells every rank how many rows of its chunk go there, in packets [source][PITCH]. From the matrix of
    these the receiver knows where rows belong. Rows are sent without waiting for it.
    FIRST: 1: own rows go straight to `out`; 0: rows stay in the workspace, own ones as well, for place_kernel.
    INDEX: hist, int32 [WORLD * chunks, E_PAD], becomes the choices of each expert among the rows of each chunk.
    SEND, TAKE: both in one launch; or a launch that only sends and waits for nobody, and later one that only takes, with no
    other call on this workspace in between.
    Who writes: a chunk's program its rows into slots [own index] of the receiver's half `epoch & 1`, and after each round of
    ROWS rows the epoch (sys) into flags [own index][epoch & 1][chunk][round] there.
    Who waits: every program for the whole matrix, which bounds the epoch; the same chunk's program for rows of a round.
    """
    index = dl.team_rank(team)
    pid, chunks = tl.program_id(0), tl.num_programs(0)
    if SEND:
        epoch = epoch_in_turn(control)
    else:
        epoch = tl.load(control + pid)  # of the call that was sent
    rank = tl.arange(0, RANKS)
    member = tl.minimum(rank, WORLD - 1)
    inbox = packets + (epoch & 1) * packets_half
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    to = owners(ids, pid * each + tl.arange(0, TOKENS),
                (tl.arange(0, TOKENS) < each) & (pid * each + tl.arange(0, TOKENS) < m), experts, K, CHOICES, E_LOC)
    going = counts_of(to, WORLD, RANKS)
    if SEND:
        to_peers = at_member(inbox + index * PITCH + pid + 0 * rank, team, member)
        dl.ll_store(to_peers, each << 16 | going, epoch, rank < WORLD)
        count_call(control, epoch)  # while the packets travel
    slots = chunks * most  # that a source may fill
    arrived = flags + (epoch & 1) * flags_half + pid * rounds
    everyone = dl.symm_at(arrived + index * flags_source + 0 * rank, dl.team_world_rank(team, member))
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    slot = tl.arange(0, ROWS)
    choice, group = tl.arange(0, CHOICES), tl.arange(0, SCALES_PAD)
    cells = rank[:, None] * PITCH + tl.arange(0, PITCH)[None, :]
    known = (rank < WORLD)[:, None] & (tl.arange(0, PITCH) < chunks)[None, :]
    coming, landing, first = 0 * going, 0 * going, 0 * going
    total = 0
    last = tl.cdiv(tl.max(tl.where((rank == index) & (FIRST == 1), 0, going), 0), ROWS) if SEND else 0
    t = 0
    while t <= last:
        # -- send round t ---------------------------------------------------------------------------------------
        if SEND:
            for i in range(FIRST, WORLD):  # not unrolled: the code would grow with the ranks
                peer = (index + i) % WORLD
                go = of(going, peer)
                if t * ROWS < go:
                    dl.trace_start("push", t * WORLD + i, peer)
                    place = t * ROWS + slot
                    there = place < go
                    token = (pid * each + tokens_in(to, peer, place)).to(tl.int64)
                    target = dl.team_world_rank(team, peer)
                    at = (index * slots + pid * each + place).to(tl.int64)
                    words = dl.symm_at(words_in, target) + at * META
                    local = tl.load(ids + token[:, None] * K + choice[None, :],
                                    mask=there[:, None] & (choice < K)[None, :],
                                    other=-1)
                    mine = (local >= peer * E_LOC) & (local < (peer + 1) * E_LOC)
                    local = tl.where(mine, local - peer * E_LOC, -1).to(tl.int32)
                    tl.store(words[:, None] + choice[None, :], local, mask=there[:, None] & (choice < K)[None, :])
                    if WEIGHTS:
                        by = tl.load(weights + token[:, None] * K + choice[None, :],
                                     mask=mine & (choice < K)[None, :],
                                     other=0.0)
                        tl.store(words[:, None] + K + choice[None, :],
                                 by.to(tl.int32, bitcast=True),
                                 mask=there[:, None] & (choice < K)[None, :])
                    if SCALES > 0 and not QUANT:
                        scale = tl.load(scales + token[:, None] * SCALES + group[None, :],
                                        mask=there[:, None] & (group < SCALES)[None, :],
                                        other=0.0)
                        tl.store(words[:, None] + (META - SCALES) + group[None, :],
                                 scale.to(tl.int32, bitcast=True),
                                 mask=there[:, None] & (group < SCALES)[None, :])
                    outbox = dl.symm_at(rows_in, target) + at * row
                    for column in range(0, row, COLS):
                        cols = column + tl.arange(0, COLS)
                        tile = there[:, None] & (cols < row)[None, :]
                        part = tl.load(x + token[:, None] * row + cols[None, :], mask=tile, other=0)
                        if QUANT:
                            part, scale = quantised(part, ROWS, COLS)
                            of_cols = column // 128 + tl.arange(0, COLS // 128)
                            tl.store(words[:, None] + (META - SCALES) + of_cols[None, :],
                                     scale.to(tl.int32, bitcast=True),
                                     mask=there[:, None] & (of_cols < SCALES)[None, :])
                        tl.store(outbox[:, None] + cols[None, :], part, mask=tile)
                    dl.trace_stop("push", t * WORLD + i)
            dl.notify_each(everyone + t, epoch, (rank < WORLD) & ((rank != index) | (FIRST == 0)) & (t * ROWS < going))
        if TAKE:
            # -- the matrix, once the first round is on its way ----------------------------------------------------
            if t == 0:
                dl.trace_start("wait", 0, -1)
                words_told = dl.ll_load(inbox + cells, epoch, known)
                dl.trace_stop("wait", 0)
                coming, landing, first = matrix_of(words_told, pid)
                total = rows_told(words_told)
                if pid == 0:
                    tl.store(told, total)
                    tl.store(told + 1 + rank[:, None] * chunks + tl.arange(0, PITCH)[None, :], words_told, mask=known)
                longest = tl.max(tl.where((rank == index) & (FIRST == 1), 0, tl.maximum(coming, going)), 0)
                last = tl.cdiv(longest, ROWS)
            # -- take what came in round t - 1 ---------------------------------------------------------------------
            if t >= 1:
                for i in range(FIRST, WORLD):
                    peer = (index + i) % WORLD
                    come = of(coming, peer)
                    if (t - 1) * ROWS < come:
                        dl.trace_start("wait", t * WORLD + i, peer)
                        arrival = dl.wait(arrived + peer * flags_source + t - 1, 1, "sys", "acquire", epoch)
                        dl.trace_stop("wait", t * WORLD + i)
                        dl.trace_start("store", t * WORLD + i, peer)
                        place = (t - 1) * ROWS + slot
                        at = (peer * slots + of(first, peer) + place).to(tl.int64)
                        land = (of(landing, peer) + place).to(tl.int64)
                        there = (place < come) & (land < limit)
                        words = dl.consume_token(words_in, arrival) + at * META
                        take_words(words, land, there, ids_out, weights_out, scales_out, K, CHOICES,
                                   SCALES if FIRST == 1 else 0, SCALES_PAD, META, WEIGHTS)
                        if FIRST == 1:
                            source = dl.consume_token(rows_in, arrival) + at * row
                            for column in range(0, row, COLS):
                                cols = column + tl.arange(0, COLS)
                                tile = there[:, None] & (cols < row)[None, :]
                                tl.store(out + land[:, None] * row + cols[None, :],
                                         tl.load(source[:, None] + cols[None, :], mask=tile),
                                         mask=tile)
                        dl.trace_stop("store", t * WORLD + i)
        t += 1
    if TAKE:
        if FIRST == 1:  # own rows, while others' are on their way
            own = of(going, index)
            for t in range(tl.cdiv(own, ROWS)):
                place = t * ROWS + slot
                dl.trace_start("store", t * WORLD, index)
                land = (of(landing, index) + place).to(tl.int64)
                there = (place < own) & (land < limit)
                token = (pid * each + tokens_in(to, index, place)).to(tl.int64)
                here = there[:, None] & (choice < K)[None, :]
                local = tl.load(ids + token[:, None] * K + choice[None, :], mask=here, other=-1)
                mine = (local >= index * E_LOC) & (local < (index + 1) * E_LOC)
                local = tl.where(mine, local - index * E_LOC, -1).to(tl.int32)
                tl.store(ids_out + land[:, None] * K + choice[None, :], local, mask=here)
                if WEIGHTS:
                    by = tl.load(weights + token[:, None] * K + choice[None, :], mask=mine & here, other=0.0)
                    tl.store(weights_out + land[:, None] * K + choice[None, :], by, mask=here)
                if SCALES > 0 and not QUANT:
                    of_row = there[:, None] & (group < SCALES)[None, :]
                    scale = tl.load(scales + token[:, None] * SCALES + group[None, :], mask=of_row, other=0.0)
                    tl.store(scales_out + land[:, None] * SCALES + group[None, :], scale, mask=of_row)
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tile = there[:, None] & (cols < row)[None, :]
                    part = tl.load(x + token[:, None] * row + cols[None, :], mask=tile, other=0)
                    if QUANT:
                        part, scale = quantised(part, ROWS, COLS)
                        of_cols = column // 128 + tl.arange(0, COLS // 128)
                        tl.store(scales_out + land[:, None] * SCALES + of_cols[None, :],
                                 scale,
                                 mask=there[:, None] & (of_cols < SCALES)[None, :])
                    tl.store(out + land[:, None] * row + cols[None, :], part, mask=tile)
                dl.trace_stop("store", t * WORLD)
        # rows that nothing came for: no expert, no weight
        for begin in range(total + pid * ROWS, limit, chunks * ROWS):
            empty = ((begin + slot) < limit)[:, None] & (choice < K)[None, :]
            at = (begin + slot).to(tl.int64)[:, None] * K + choice[None, :]
            tl.store(ids_out + at, tl.full((ROWS, CHOICES), -1, tl.int32), mask=empty)
            if WEIGHTS:
                tl.store(weights_out + at, tl.zeros((ROWS, CHOICES), tl.float32), mask=empty)
        if INDEX:
            tl.debug_barrier()  # every thread's part of ids_out is there
            expert = tl.arange(0, E_PAD)
            for source in range(WORLD):
                come, land = of(coming, source), of(landing, source)
                found = tl.zeros((E_PAD, ), tl.int32)
                for i in range(0, tl.minimum(come, limit - land) * K, 128):
                    entry = i + tl.arange(0, 128)
                    inside = entry < tl.minimum(come, limit - land) * K
                    local = tl.load(ids_out + land.to(tl.int64) * K + entry, mask=inside, other=-1)
                    found += tl.sum((local[:, None] == expert[None, :]).to(tl.int32), 0)
                tl.store(hist + (source * chunks + pid) * E_PAD + expert, found)


@triton.jit
def take_words(words, land, there, ids_out, weights_out, scales_out, K: tl.constexpr, CHOICES: tl.constexpr,
               SCALES: tl.constexpr, SCALES_PAD: tl.constexpr, META: tl.constexpr, WEIGHTS: tl.constexpr):
    """Stores what came beside rows, `words` [ROWS] pointers to META int32 each, into the outputs' rows `land`."""
    choice, group = tl.arange(0, CHOICES), tl.arange(0, SCALES_PAD)
    here = there[:, None] & (choice < K)[None, :]
    at = land[:, None] * K + choice[None, :]
    tl.store(ids_out + at, tl.load(words[:, None] + choice[None, :], mask=here), mask=here)
    if WEIGHTS:
        by = tl.load(words[:, None] + K + choice[None, :], mask=here)
        tl.store(weights_out + at, by.to(tl.float32, bitcast=True), mask=here)
    if SCALES > 0:
        of_row = there[:, None] & (group < SCALES)[None, :]
        scale = tl.load(words[:, None] + (META - SCALES) + group[None, :], mask=of_row)
        tl.store(scales_out + land[:, None] * SCALES + group[None, :], scale.to(tl.float32, bitcast=True), mask=of_row)


@triton.jit
def quantised(part, ROWS: tl.constexpr, COLS: tl.constexpr):
    """(int8 bits of float8_e4m3fn [ROWS, COLS], fp32 scales [ROWS, COLS / 128]) of `part`: values over their scale."""
    values = tl.reshape(part.to(tl.float32), (ROWS, COLS // 128, 128))
    most = tl.maximum(tl.max(tl.abs(values), 2), 1e-4)
    inverse = tl.div_rn(tl.full((ROWS, COLS // 128), 448.0, tl.float32), most)
    return tl.reshape(e4m3(values * inverse[:, :, None]), (ROWS, COLS)), most * (1.0 / 448.0)
