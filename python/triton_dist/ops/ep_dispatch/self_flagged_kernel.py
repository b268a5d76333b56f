# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch of few tokens in one kernel: rows are their own flags, and what belongs to them travels in packets."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import count_call, epoch_in_turn
from triton_dist.ops.ep.device import distance, matrix_of, of, owners, rows_told, sent_to
from triton_dist.ops.ep_dispatch.self_flagged_device import (begins_of, keep_choices, key_of,
                                                             nothing_came, order_of, part_of_row, places_of, spread_words,
                                                             tell_rows, tell_totals, token_in, words_beside, words_of_row,
                                                             zeros_between)
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "limit", "room", "align", "experts", "chunks"])
def ep_dispatch_self_flagged(x, ids, weights, scales, out, scales_out, ids_out, weights_out, told, positions, sources, packets,
                             packets_half, slots, half, control, team, m, most, vectors, limit, room, align, experts, chunks,
                             K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr, WEIGHTS: tl.constexpr,
                             QUANT: tl.constexpr, ORDERED: tl.constexpr, EXPANDED: tl.constexpr, MASKED: tl.constexpr,
                             E_LOC: tl.constexpr, E_PAD: tl.constexpr, COUNTED: tl.constexpr, WORLD: tl.constexpr,
                             RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr, THREADS: tl.constexpr,
                             EACH: tl.constexpr, HEAD: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr,
                             TELLERS: tl.constexpr, BLOCK: tl.constexpr):
    """What ep_dispatch_kernel, place_kernel and expand_kernel do, bit by bit, for rows that are sent as `vectors` vectors.

    Tokens are cut into `chunks` chunks. PARTS programs move the rows of a chunk, a row at a time, each some of the PIECES pieces
    of THREADS * EACH vectors: first they send all of them, then they take what the same chunk of each source brings. TELLERS
    programs before them tell every rank in packets how many rows of each chunk go there ([source][PITCH]). Packets beside each
    row ([source][slot]), the receiver's own ones as well, have its choices, their weights, its scales, and the key of each piece.
    A piece is sent as its words xor its key. The key is none of them, so no word that is sent is 0.
    ORDERED: packets also tell how many choices of each of the receiver's experts a source has ([source][E_LOC]), and the choices
    beside a row how many of their source precede them. So the receiver finds their places by expert.
    Who writes: a program that moves, its pieces into slots [own index] of the receiver's half `epoch & 1`, and packets there;
    tellers, packets.
    Who waits: a program that moves, for the packets of all ranks' tellers, which bounds the epoch, and for the pieces that the
    program of its own number sends on other ranks, whose slots it empties, also those of rows that do not fit. It has sent all of
    its own before, and tellers wait for nobody. So programs need not run at the same time.
    """
    N: tl.constexpr = THREADS * EACH
    MINE: tl.constexpr = (PIECES + PARTS - 1) // PARTS  # pieces of a row, at most, that a program has
    SENT_BESIDE: tl.constexpr = K * (1 + WEIGHTS) + (0 if QUANT else SCALES)
    META: tl.constexpr = K * (1 + WEIGHTS) + SCALES + PIECES
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    each = tl.cdiv(m, chunks)  # tokens of a chunk, of at most `most`
    inbox = packets + (epoch & 1) * packets_half
    totals = inbox + RANKS * PITCH
    heads = totals + WORLD * E_LOC if ORDERED else totals
    rows_in = slots + (epoch & 1) * half
    slots_of_source = chunks * most
    if pid < TELLERS:
        if pid == 0:
            tell_rows(ids, inbox + index * PITCH, team, m, each, chunks, experts, epoch, K, CHOICES, E_LOC, WORLD, RANKS, PITCH)
        if ORDERED:
            tell_totals(ids, totals + index * E_LOC, team, m, experts, epoch, K, E_LOC, COUNTED, BLOCK)
        count_call(control, epoch)
    else:
        chunk, part = (pid - TELLERS) % chunks, (pid - TELLERS) // chunks
        begin = chunk * each
        tokens = tl.maximum(tl.minimum(m - begin, each), 0)
        vector, lane, word, token = tl.arange(0, N), tl.arange(0, THREADS), tl.arange(0, HEAD), tl.arange(0, TOKENS)
        # the first piece is loaded while the choices are
        piece = part_of_row(x, begin, part * N, vector, vectors, tokens > 0, QUANT, N)
        to = owners(ids, begin + token, token < tokens, experts, K, CHOICES, E_LOC)
        for u in range(tokens * MINE):
            t, number = u // MINE, part + u % MINE * PARTS
            at = number * N + vector
            words, scale = words_of_row(piece, QUANT, N)
            key = key_of(words, at < vectors)
            before = 0 * word
            if ORDERED:
                before = order_of(ids, begin + t, word, K, CHOICES, BLOCK)
            for i in range(WORLD):  # not unrolled: the code would grow with the ranks
                peer = (index + i) % WORLD
                sent = sent_to(to, peer)
                if (tl.sum(tl.where(token == t, sent, 0)) > 0) & (number < PIECES):
                    slot = index * slots_of_source + begin + tl.sum(tl.where(token < t, sent, 0))
                    away = distance(team, peer)
                    dl.trace_start("push", u * WORLD + i, peer)
                    head = heads + (away >> 3) + slot * META
                    data = words_beside(ids, weights, scales, begin + t, peer, before, word, K, E_LOC, SCALES, WEIGHTS, QUANT)
                    data = tl.where(word == META - PIECES + number, key, data)
                    some = (number == 0) & (word < SENT_BESIDE) | (i > 0) & (word == META - PIECES + number)
                    dl.ll_store(head + word, data, epoch, some)
                    if i > 0:
                        if QUANT:
                            group = number * (N // 8) + tl.arange(0, N // 8)
                            dl.ll_store(head + K * (1 + WEIGHTS) + group, scale.to(tl.int32, bitcast=True), epoch,
                                        group < SCALES)
                        dl.sf_store(rows_in + (away >> 2) + 4 * (slot * vectors + at), words ^ key, at < vectors)
                    dl.trace_stop("push", u * WORLD + i)
            if u + 1 < tokens * MINE:
                number = part + (u + 1) % MINE * PARTS
                piece = part_of_row(x, begin + (u + 1) // MINE, number * N, vector, vectors, number < PIECES, QUANT, N)
        count_call(control, epoch)  # while rows travel
        rank = tl.arange(0, RANKS)
        cells = rank[:, None] * PITCH + tl.arange(0, PITCH)[None, :]
        known = (rank < WORLD)[:, None] & (tl.arange(0, PITCH) < chunks)[None, :]
        dl.trace_start("wait", 0, -1)
        words_told = dl.ll_load(inbox + cells, epoch, known)
        coming, landing, first_slot = matrix_of(words_told, chunk)
        total = rows_told(words_told)
        if pid == TELLERS:
            tl.store(told, total)
            tl.store(told + 1 + rank[:, None] * chunks + tl.arange(0, PITCH)[None, :], words_told, mask=known)
        if ORDERED:
            expert = tl.arange(0, E_PAD)
            by_source = dl.ll_load(totals + rank[:, None] * E_LOC + expert[None, :], epoch,
                                   (rank < WORLD)[:, None] & (expert < E_LOC)[None, :])
            counts = tl.sum(by_source, 0)
            starts, ends = begins_of(counts, room, align, E_PAD, MASKED)
            if pid == TELLERS:
                of_experts = told + 1 + WORLD * chunks
                tl.store(of_experts + expert, counts, mask=expert < E_LOC)
                tl.store(of_experts + E_LOC + expert, starts, mask=expert < E_LOC)
                last = of(counts, E_LOC - 1)
                tl.store(of_experts + 2 * E_LOC, of(starts, E_LOC - 1) + (room if MASKED else tl.cdiv(last, align) * align))
            first_of = starts[None, :] + tl.cumsum(by_source, 0) - by_source  # where each source's begin
        dl.trace_stop("wait", 0)
        for t in range(tl.max(coming, 0)):
            for i in range(WORLD):
                peer = (index + WORLD - i) % WORLD  # own rows first, then those of the one that sends here first
                land = of(landing, peer) + t
                fits = land < limit
                if t < of(coming, peer):
                    slot = peer * slots_of_source + of(first_slot, peer) + t
                    head = heads + slot * META
                    spots = 0
                    if ORDERED:
                        of_peer = tl.sum(tl.where((rank == peer)[:, None], first_of, 0), 0)
                        dl.trace_start("wait", (t * WORLD + i) * (MINE + 1) + 1, peer)
                        spots = places_of(head, epoch, of_peer, ends, positions, sources, land, fits, part, K, CHOICES, E_PAD,
                                          EXPANDED)
                        dl.trace_stop("wait", (t * WORLD + i) * (MINE + 1) + 1)
                    for number in range(part, PIECES, PARTS):
                        lap = (t * WORLD + i) * (MINE + 1) + 2 + number // PARTS
                        at = number * N + vector
                        in_piece = (word - K * (1 + WEIGHTS)) // (N // 8) == number
                        beside = (number == 0) & (word < SENT_BESIDE)
                        if QUANT:
                            beside |= (i > 0) & in_piece & (word >= SENT_BESIDE) & (word < META - PIECES)
                        dl.trace_start("wait", lap, peer)
                        data = dl.ll_load(head + word, epoch, beside | (i > 0) & (word == META - PIECES + number))
                        if i == 0:
                            raw = part_of_row(x, begin + token_in(to, index, t), number * N, vector, vectors, True, QUANT, N)
                            words, scale = words_of_row(raw, QUANT, N)
                            dl.trace_stop("wait", lap)
                            dl.trace_start("store", lap, peer)
                            spread_words(words, at, vectors, land, fits, spots, out, K, EXPANDED)
                            if QUANT:
                                group = number * (N // 8) + tl.arange(0, N // 8)
                                spread_words(scale, group, SCALES, land, fits, spots, scales_out, K, EXPANDED)
                        else:
                            key = tl.sum(tl.where(word == META - PIECES + number, data, 0), 0)
                            words = dl.sf_take(rows_in + 4 * (slot * vectors + at), at < vectors) ^ key
                            dl.trace_stop("wait", lap)
                            dl.trace_start("store", lap, peer)
                            spread_words(words, at, vectors, land, fits, spots, out, K, EXPANDED)
                        keep_choices(data, word, beside & fits, land.to(tl.int64), ids_out, weights_out, K, WEIGHTS)
                        if SCALES > 0:
                            of_row = word - K * (1 + WEIGHTS)
                            spread_words(data.to(tl.float32, bitcast=True), tl.where(beside & (of_row >= 0), of_row, SCALES),
                                         SCALES, land, fits, spots, scales_out, K, EXPANDED)
                        dl.trace_stop("store", lap)
        program = pid - TELLERS
        nothing_came(total, limit, program, PARTS * chunks, ids_out, weights_out, positions, lane, K, WEIGHTS, ORDERED)
        if EXPANDED and not MASKED:
            zeros_between(out, vectors, counts, starts, room, align, program, PARTS * chunks, vector, E_LOC)
