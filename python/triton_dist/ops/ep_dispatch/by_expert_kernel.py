# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows of a dispatch whose ids have been dispatched before: they go straight to the places of their choices by expert."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import counts_of, floats, matrix_of, of, owners, spread, token_of_slot, words_of
from triton_dist.ops.ep_dispatch.kernels import put_chunk
from triton_dist.ops.ep_dispatch.place_kernels import clear_gaps
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "limit", "room", "experts", "chunks"])
def rows_by_expert_kernel(x, ids, scales, told, positions, experts_told, out, scales_out, packets, packets_half, data, half, meta,
                          meta_half, flags, flags_source, flags_half, control, team, m, most, rounds, row, limit, room, align,
                          experts, chunks, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                          SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, QUANT: tl.constexpr,
                          FIRST: tl.constexpr, MASKED: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                          PITCH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                          ROUND: tl.constexpr, PARTS: tl.constexpr):
    """out [., row] gets the rows of x [m, row] of all ranks, each at all of its `positions`, and scales_out their scales.

    told, positions, experts_told: of the dispatch of `ids` alone, which came before on this stream. Between experts, where
    `align` leaves gaps, out gets zeros. Chunks, slots, rounds and programs are those of ep_dispatch_kernel.
    FIRST: 1: own rows go straight to `out`, while others' travel; 0: they pass through the workspace too, where they become fp8.
    Who writes: as in ep_dispatch_kernel, with no choices; and program 0 a packet to every rank.
    Who waits: a program that takes, for its rounds; the first of them for the packets of all, which bounds the epoch. Those that
    send have lower numbers and wait for nobody, so programs need not run at the same time.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    chunk, part = pid % chunks, pid // chunks
    rank = tl.arange(0, RANKS)
    inbox = packets + (epoch & 1) * packets_half
    to_peers = at_member(inbox + index * PITCH + 0 * rank, team, tl.minimum(rank, WORLD - 1))
    dl.ll_store(to_peers, 1 + 0 * rank, epoch, (rank < WORLD) & (pid == 0))
    count_call(control, epoch)  # while the packets travel
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    begin = chunk * each
    token = begin + tl.arange(0, TOKENS)
    to = owners(ids, token, (tl.arange(0, TOKENS) < each) & (token < m), experts, K, CHOICES, E_LOC)
    slots = chunks * most  # that a source may fill
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    if part < PARTS:
        put_chunk(x, ids, scales, scales, to, counts_of(to, WORLD, RANKS), begin, begin, rows_in, words_in, arrived, flags_source,
                  flags, rounds, team, index, 0, index, part, epoch, slots, row, 0, CHOICES, SCALES, SCALES_PAD, META, E_LOC,
                  False, QUANT, FIRST, WORLD, RANKS, 1, ROWS, COLS, ROUND, PARTS, False)
    else:
        share, line = part - PARTS, tl.arange(0, ROWS)
        coming, landing, first_slot = matrix_of(words_of(told, chunks, WORLD, RANKS, PITCH), chunk)
        if FIRST == 1:
            own, land_of_own = of(coming, index), of(landing, index)
            dl.trace_start("store", 0, index)
            for first in range(share * ROWS, own, PARTS * ROWS):
                place = first + line
                mine = (begin + token_of_slot(to, index, first, ROWS)).to(tl.int64)
                spread(x + mine * row, scales + mine * SCALES, land_of_own + place, (place < own) & (land_of_own + place < limit),
                       positions, out, scales_out, row, K, CHOICES, SCALES, SCALES_PAD, COLS)
            dl.trace_stop("store", 0)
        longest = tl.max(tl.where((rank == index) & (FIRST == 1), 0, coming), 0)
        for t in range(share, tl.cdiv(longest, ROUND), PARTS):
            for i in range(FIRST, WORLD):
                peer = (index + WORLD - i) % WORLD  # the one that sends here first
                come, land_of_peer, slot = of(coming, peer), of(landing, peer), peer * slots + of(first_slot, peer)
                if t * ROUND < come:
                    dl.trace_start("wait", t * WORLD + i + 1, peer)
                    arrival = dl.wait(arrived + peer * flags_source + t, 1, "sys", "acquire", epoch)
                    dl.trace_stop("wait", t * WORLD + i + 1)
                    dl.trace_start("store", t * WORLD + i + 1, peer)
                    beside, rows = floats(dl.consume_token(words_in, arrival)), dl.consume_token(rows_in, arrival)
                    for first in range(t * ROUND, tl.minimum((t + 1) * ROUND, come), ROWS):
                        place = first + line
                        at, land = (slot + place).to(tl.int64), land_of_peer + place
                        spread(rows + at * row, beside + at * META + (META - SCALES_PAD), land, (place < come) & (land < limit),
                               positions, out, scales_out, row, K, CHOICES, SCALES, SCALES_PAD, COLS)
                    dl.trace_stop("store", t * WORLD + i + 1)
        if not MASKED:
            clear_gaps(experts_told, out, room, align, row, pid - PARTS * chunks, PARTS * chunks, E_LOC, COLS)
    dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == PARTS * chunks))
