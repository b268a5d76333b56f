# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows to their places by expert, which a dispatch of ids has told: those that other ranks have, and own ones."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import count_call, this_epoch
from triton_dist.ops.ep.device import counts_of, matrix_of, of, owners, spread, tokens_in, words_of
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "experts", "chunks", "near"])
def exchange_rows_kernel(x, ids, told, positions, out, data, half, flags, flags_source, flags_half, control, team, m,
                         most, row, experts, chunks, near, K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr,
                         WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr,
                         ROWS: tl.constexpr, COLS: tl.constexpr, FAR: tl.constexpr):
    """Sends rows of x [m, row] to the ranks of their choices, and stores what comes from others in out [., row] by expert.

    Ranks are in groups of `near`. FAR: rows go to other groups; else within the own one. Flags go to all ranks in any case.

    ids [m, K]: the choices. told, positions: of the dispatch of these ids. A row is sent once to each rank that needs it,
    into the slot that a dispatch would use. From there it is stored at the place of each of its choices. Own rows are left
    to own_rows_kernel. Any number of programs share the chunks. Each sends all of its chunks before it waits, so programs
    need not run at the same time.
    Who writes: a chunk's program its rows into slots [own index] of the receiver's half `epoch & 1`; then, with rows or
    without, the epoch (sys) into flag [own index][epoch & 1][chunk] there.
    Who waits: the program of the same chunk, for this flag of every other rank. That also bounds the epoch.
    """
    index = dl.team_rank(team)
    epoch = this_epoch(control)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    rank = tl.arange(0, RANKS)
    member = tl.minimum(rank, WORLD - 1)
    line = tl.arange(0, ROWS)
    each = tl.cdiv(m, chunks)
    slots = chunks * most  # that a source may fill
    rows_in = data + (epoch & 1).to(tl.int64) * half
    arrived = flags + (epoch & 1) * flags_half
    everyone = dl.symm_at(arrived + index * flags_source + 0 * rank, dl.team_world_rank(team, member))
    for chunk in range(pid, chunks, programs):
        token = chunk * each + tl.arange(0, TOKENS)
        to = owners(ids, token, (tl.arange(0, TOKENS) < each) & (token < m), experts, K, CHOICES, E_LOC)
        going = counts_of(to, WORLD, RANKS)
        for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
            peer = (index + i) % WORLD
            go = tl.where((peer // near != index // near) == FAR, of(going, peer), 0)
            dl.trace_start("push", chunk * WORLD + i, peer)
            outbox = dl.symm_at(rows_in, dl.team_world_rank(team, peer))
            for first in range(0, go, ROWS):
                place = first + line
                mine = (chunk * each + tokens_in(to, peer, place)).to(tl.int64)
                at = (index * slots + chunk * each + place).to(tl.int64)
                for column in range(0, row, COLS):
                    cols = column + tl.arange(0, COLS)
                    tile = (place < go)[:, None] & (cols < row)[None, :]
                    part = tl.load(x + mine[:, None] * row + cols[None, :], mask=tile)
                    tl.store(outbox + at[:, None] * row + cols[None, :], part, mask=tile)
            dl.trace_stop("push", chunk * WORLD + i)
        dl.notify_each(everyone + chunk, epoch, (rank < WORLD) & (rank != index))
    count_call(control, epoch)
    matrix = words_of(told, chunks, WORLD, RANKS, PITCH)
    for chunk in range(pid, chunks, programs):
        coming, landing, slot = matrix_of(matrix, chunk)
        for i in range(1, WORLD):
            peer = (index + WORLD - i) % WORLD  # the one that sends here first
            dl.trace_start("wait", chunk * WORLD + i, peer)
            arrival = dl.wait(arrived + peer * flags_source + chunk, 1, "sys", "acquire", epoch)
            dl.trace_stop("wait", chunk * WORLD + i)
            dl.trace_start("store", chunk * WORLD + i, peer)
            source = dl.consume_token(rows_in, arrival)
            come = tl.where((peer // near != index // near) == FAR, of(coming, peer), 0)
            for first in range(0, come, ROWS):
                place = first + line
                at = (peer * slots + of(slot, peer) + place).to(tl.int64)
                land = of(landing, peer) + place
                spread(source + at * row, 0, land, place < come, positions, out, 0, row, K, CHOICES, 0, 1, COLS)
            dl.trace_stop("store", chunk * WORLD + i)


@jit(do_not_specialize=["m", "experts", "chunks", "near", "head", "steps"])
def own_rows_kernel(x, ids, told, positions, sources, out, parts, team, m, row, experts, chunks, near, head, steps,
                    K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr, E_PAD: tl.constexpr,
                    WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr,
                    ROWS: tl.constexpr, COLS: tl.constexpr, PER_CHUNK: tl.constexpr, BLOCK_M: tl.constexpr):
    """Stores rows of x [m, row] that stay on this rank in out [., row] by expert, and cuts each expert's rows in parts.

    PER_CHUNK programs share a chunk. Arguments are as for exchange_rows_kernel. parts, int32 [6 * E_LOC], is for two grouped
    GEMMs: first rows [E_LOC] and numbers of rows [E_LOC] of the first one, then both [E_LOC, 2] of the second one. The first
    one has the tiles that consist of BLOCK_M rows of the own group of `near` ranks, of experts below `head`. The second one
    has the rows before them and the rows after them. So both together have the tiles of one GEMM. steps: more than the binary
    digits of the number of rows.
    """
    index = dl.team_rank(team)
    chunk, share = tl.program_id(0) // PER_CHUNK, tl.program_id(0) % PER_CHUNK
    rank = tl.arange(0, RANKS)
    matrix = words_of(told, chunks, WORLD, RANKS, PITCH)
    coming, landing, _ = matrix_of(matrix, chunk)
    each = tl.cdiv(m, chunks)
    token = chunk * each + tl.arange(0, TOKENS)
    to = owners(ids, token, (tl.arange(0, TOKENS) < each) & (token < m), experts, K, CHOICES, E_LOC)
    dl.trace_start("store", 0, index)
    come = of(coming, index)
    for first in range(share * ROWS, come, PER_CHUNK * ROWS):
        place = first + tl.arange(0, ROWS)
        mine = (chunk * each + tokens_in(to, index, place)).to(tl.int64)
        spread(x + mine * row, 0, of(landing, index) + place, place < come, positions, out, 0, row, K, CHOICES, 0, 1, COLS)
    dl.trace_stop("store", 0)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        rows = tl.sum(matrix & 0xFFFF, 1)
        group = index // near
        own = tl.sum(tl.where(rank // near < group, rows, 0), 0)
        end = own + tl.sum(tl.where(rank // near == group, rows, 0), 0)
        expert = tl.arange(0, E_PAD)
        inside = expert < E_LOC
        of_experts = told + 1 + WORLD * chunks
        count = tl.load(of_experts + expert, mask=inside, other=0)
        begin = tl.load(of_experts + E_LOC + expert, mask=inside, other=0)
        low = first_from(sources, begin, count, own, steps)
        high = first_from(sources, begin, count, end, steps)
        low = tl.cdiv(low - begin, BLOCK_M) * BLOCK_M
        high = (high - begin) // BLOCK_M * BLOCK_M
        there = (high > low) & (expert < head)
        low, high = tl.where(there, low, 0), tl.where(there, high, 0)
        tl.store(parts + expert, begin + low, mask=inside)
        tl.store(parts + E_LOC + expert, high - low, mask=inside)
        second = parts + 2 * E_LOC + 2 * expert
        tl.store(second, begin, mask=inside)
        tl.store(second + 1, begin + high, mask=inside)
        tl.store(second + 2 * E_LOC, low, mask=inside)
        tl.store(second + 2 * E_LOC + 1, count - high, mask=inside)


@triton.jit
def first_from(sources, begin, count, value, steps):
    """For each expert, of its `count` places from `begin` on the first whose source is `value` or more. Sources ascend."""
    low, high = begin, begin + count
    for _ in range(steps):
        middle = (low + high) // 2
        less = tl.load(sources + middle, mask=low < high, other=0) < value
        low, high = tl.where(less & (low < high), middle + 1, low), tl.where(less, high, middle)
    return low
