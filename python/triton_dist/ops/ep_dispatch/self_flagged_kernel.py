# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch of few tokens in one kernel: rows are their own flags, and what belongs to them travels in packets."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import count_call, epoch_in_turn
from triton_dist.ops.ep.device import of, owners, sent_to, slot_in, token_in
from triton_dist.ops.ep_dispatch.self_flagged_device import (begins_of, choices_of, keep_choices, keep_told,
                                                             key_of, nothing_came, of_source_in, order_of, part_of_row,
                                                             places_of, spread_words, tell_rows, tell_totals,
                                                             words_beside, words_of_row, zeros_between)
from triton_dist.runtime.jit import jit
from triton_dist.runtime.workspace import TEAM_PEERS

_PEERS = tl.constexpr(TEAM_PEERS)


@jit(do_not_specialize=["m", "each", "most", "limit", "room", "align", "experts", "chunks"])
def ep_dispatch_self_flagged(x, ids, weights, scales, out, scales_out, ids_out, weights_out, told, positions, sources, packets,
                             packets_half, slots, half, control, team, m, each, most, vectors, limit, room, align, experts,
                             chunks, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr, WEIGHTS: tl.constexpr,
                             QUANT: tl.constexpr, ORDERED: tl.constexpr, EXPANDED: tl.constexpr, MASKED: tl.constexpr,
                             E_LOC: tl.constexpr, E_PAD: tl.constexpr, COUNTED: tl.constexpr, WORLD: tl.constexpr,
                             RANKS: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr, THREADS: tl.constexpr,
                             EACH: tl.constexpr, HEAD: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr,
                             TELLERS: tl.constexpr, BLOCK: tl.constexpr):
    """What ep_dispatch_kernel, place_kernel and expand_kernel do, bit by bit, for rows that are sent as `vectors` vectors.

    Tokens are cut into `chunks` chunks. PARTS programs move the rows of a chunk, a row at a time, each some of the PIECES pieces
    of THREADS * EACH vectors: they send those for other ranks, store those that stay, and take what the same chunk of each source
    brings. TELLERS programs before them tell every rank in packets how many rows of each chunk go there ([source][PITCH][2]).
    Packets beside each row ([source][slot]) have its choices, their weights, its scales, and the key of each piece. A piece is
    sent as its words xor its key. The key is none of them, so no word that is sent is 0. A key of 0 says that no row comes.
    ORDERED: packets also tell how many choices of each of the receiver's experts a source has ([source][E_LOC]), and the choices
    beside a row, also beside one that stays, how many of their source precede them. So the receiver finds their places by expert.
    Who writes: a program that moves, its pieces into slots [own index] of the receiver's half `epoch & 1`, and packets there;
    tellers, packets.
    Who waits: a program that moves, for the packets of all ranks' tellers, which bounds the epoch, for the keys and pieces that
    the program of its own number sends on other ranks, whose slots it empties, also those of rows that do not fit, and for what
    the first program of its chunk sends beside a row; the first teller, for the packets of all others. All have sent all of their
    own before, and wait for programs of no higher number. So programs need not run at the same time.
    """
    N: tl.constexpr = THREADS * EACH
    MINE: tl.constexpr = (PIECES + PARTS - 1) // PARTS  # pieces of a row, at most, that a program has
    SENT_BESIDE: tl.constexpr = K * (1 + WEIGHTS) + (0 if QUANT else SCALES)
    META: tl.constexpr = K * (1 + WEIGHTS) + SCALES + PIECES
    dtype: tl.constexpr = x.dtype.element_ty
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    index = dl.team_rank(team)
    inbox = packets + (epoch & 1) * packets_half
    totals = inbox + 2 * RANKS * PITCH
    heads = totals + WORLD * E_LOC if ORDERED else totals
    rows_in = slots + (epoch & 1) * half
    slots_of_source = chunks * most
    deltas = (team + _PEERS).to(tl.pointer_type(tl.int64), bitcast=True)
    if pid < TELLERS:
        if pid == 0:
            tell_rows(ids, inbox + 2 * index * PITCH, deltas, index, m, each, chunks, experts, epoch, K, CHOICES, E_LOC, WORLD,
                      PITCH)
        if ORDERED:
            tell_totals(ids, totals + index * E_LOC, team, m, experts, epoch, K, E_LOC, COUNTED, BLOCK)
        count_call(control, epoch)
        if pid == 0:
            keep_told(inbox, epoch, told, chunks, WORLD, RANKS, PITCH)
    else:
        chunk, part = pid - TELLERS, 0
        for _ in tl.static_range(1, PARTS):
            part += (chunk >= chunks).to(tl.int32)
            chunk -= tl.where(chunk >= chunks, chunks, 0)
        begin = chunk * each
        tokens = tl.maximum(tl.minimum(m - begin, each), 0)
        vector, lane, token = tl.arange(0, N), tl.arange(0, THREADS), tl.arange(0, TOKENS)
        word = HEAD - 1 - tl.arange(0, HEAD)  # the last threads have the first words: few of them have vectors
        # everything that the first row needs is loaded at once
        nearest = tl.load(deltas + 1)  # of one rank, nobody
        piece = part_of_row(x, begin, part * N, vector, vectors, tokens > 0, QUANT, N)
        chosen, weight = choices_of(ids, weights, begin, word, tokens > 0, K, WEIGHTS)
        to = owners(ids, begin + token, token < tokens, experts, K, CHOICES, E_LOC)
        for u in range(tokens * MINE):
            t, number = u // MINE, part + u % MINE * PARTS
            at = number * N + vector
            words, scale = words_of_row(piece, dtype, QUANT, N)
            key = key_of(words, at < vectors, QUANT)
            before = 0 * word
            if ORDERED:
                before = order_of(ids, begin + t, word, K, CHOICES, BLOCK)
                own, place = slot_in(to, index, t, token)
                data = words_beside(chosen, weight, scales, begin + t, index, before, word, K, E_LOC, SCALES, WEIGHTS, QUANT)
                dl.ll_store(heads + (index * slots_of_source + chunk * most + place) * META + word, data, epoch,
                            own & (number == 0) & (word < K))
            for i in range(1, WORLD):  # not unrolled: the code would grow with the ranks
                peer = index + i - tl.where(index + i < WORLD, 0, WORLD)
                goes, place = slot_in(to, peer, t, token)
                if goes & (number < PIECES):
                    slot = index * slots_of_source + chunk * most + place
                    away = nearest
                    if i > 1:
                        away = tl.load(deltas + i)
                    dl.trace_start("push", u * WORLD + i, peer)
                    head = heads + (away >> 3) + slot * META
                    data = words_beside(chosen, weight, scales, begin + t, peer, before, word, K, E_LOC, SCALES, WEIGHTS, QUANT)
                    data = tl.where(word == META - PIECES + number, key, data)
                    dl.ll_store(head + word, data, epoch,
                                (number == 0) & (word < SENT_BESIDE) | (word == META - PIECES + number))
                    if QUANT:
                        dl.ll_store(head + K * (1 + WEIGHTS) + at // 8, scale.to(tl.int32, bitcast=True), epoch,
                                    (at < vectors) & (at % 8 == 0))
                    dl.sf_store(rows_in + (away >> 2) + 4 * (slot * vectors + at), words ^ key, at < vectors)
                    dl.trace_stop("push", u * WORLD + i)
            if u + 1 < tokens * MINE:
                number = part + (u + 1) % MINE * PARTS
                following = begin + (u + 1) // MINE
                piece = part_of_row(x, following, number * N, vector, vectors, number < PIECES, QUANT, N)
                chosen, weight = choices_of(ids, weights, following, word, True, K, WEIGHTS)
        for i in range(1, WORLD):
            peer = index + i - tl.where(index + i < WORLD, 0, WORLD)
            if (tl.max(sent_to(to, peer), 0) == 0) & (part < PIECES):
                tell_none(heads + (index * slots_of_source + chunk * most) * META + META - PIECES + part, deltas + i, epoch)
        count_call(control, epoch)  # while rows travel
        rank = tl.arange(0, RANKS)
        dl.trace_start("wait", 0, -1)
        coming, landing, counted, keys = first_told(
            inbox, chunk, chunks - 1, heads + chunk * most * META + META - PIECES + tl.minimum(part, PIECES - 1),
            slots_of_source * META, index, epoch, WORLD, RANKS, PITCH)
        landing += tl.cumsum(counted, 0) - counted
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
        # rows that stay, and rows that nothing comes for, while others travel
        stay = of(coming, index)
        for u in range(stay * MINE):
            t, number = u // MINE, part + u % MINE * PARTS
            at, land = number * N + vector, of(landing, index) + t
            fits, spots, which = land < limit, 0, begin + token_in(to, index, t)
            if ORDERED:
                head = heads + (index * slots_of_source + chunk * most + t) * META
                dl.trace_start("wait", t * WORLD * (MINE + 1) + 1, index)
                spots = places_of(head, epoch, of_source_in(first_of, rank, index), ends, positions, sources, land, fits,
                                  number == 0, K, CHOICES, E_PAD, EXPANDED)
                dl.trace_stop("wait", t * WORLD * (MINE + 1) + 1)
            if number < PIECES:
                words, scale = words_of_row(part_of_row(x, which, number * N, vector, vectors, True, QUANT, N), dtype, QUANT, N)
                lap = t * WORLD * (MINE + 1) + 2 + u % MINE
                dl.trace_start("store", lap, index)
                spread_words(words, at, vectors, land, fits, spots, out, K, EXPANDED)
                if QUANT:
                    group = tl.where(at % 8 == 0, at // 8, SCALES)
                    spread_words(scale, group, SCALES, land, fits, spots, scales_out, K, EXPANDED)
                if number == 0:
                    chosen, weight = choices_of(ids, weights, which, word, fits, K, WEIGHTS)
                    data = words_beside(chosen, weight, scales, which, index, 0 * word, word, K, E_LOC, SCALES, WEIGHTS, QUANT)
                    keep_choices(data, word, fits, land.to(tl.int64), ids_out, weights_out, K, WEIGHTS)
                    if SCALES > 0 and not QUANT:
                        of_row = word - K * (1 + WEIGHTS)
                        spread_words(data.to(tl.float32, bitcast=True), tl.where(of_row >= 0, of_row, SCALES), SCALES, land,
                                     fits, spots, scales_out, K, EXPANDED)
                dl.trace_stop("store", lap)
        nothing_came(tl.sum(counted, 0), limit, pid - TELLERS, PARTS * chunks, ids_out, weights_out, positions, lane, K, WEIGHTS,
                     ORDERED)
        for t in range(tl.max(tl.where(rank == index, 0, coming), 0)):
            for i in range(1, WORLD):
                peer = index - i + tl.where(index < i, WORLD, 0)  # the one that sends here first
                land = of(landing, peer) + t
                fits = land < limit
                if t < of(coming, peer):
                    slot = peer * slots_of_source + chunk * most + t
                    head = heads + slot * META
                    spots = 0
                    if ORDERED:
                        dl.trace_start("wait", (t * WORLD + i) * (MINE + 1) + 1, peer)
                        spots = places_of(head, epoch, of_source_in(first_of, rank, peer), ends, positions, sources, land, fits,
                                          part == 0, K, CHOICES, E_PAD, EXPANDED)
                        dl.trace_stop("wait", (t * WORLD + i) * (MINE + 1) + 1)
                    for number in range(part, PIECES, PARTS):
                        lap = (t * WORLD + i) * (MINE + 1) + 2 + number // PARTS
                        at = number * N + vector
                        beside = (number == 0) & (word < SENT_BESIDE)
                        if QUANT:
                            in_piece = (word - K * (1 + WEIGHTS)) // (N // 8) == number
                            beside |= in_piece & (word >= SENT_BESIDE) & (word < META - PIECES)
                        dl.trace_start("wait", lap, peer)
                        key = of(keys, peer) + 0 * vector
                        if (t > 0) | (number > part):  # each thread loads it itself: no barrier
                            key = dl.ll_load(head + META - PIECES + number + 0 * vector, epoch, at < vectors)
                        data = dl.ll_load(head + word, epoch, beside)  # was sent before the row
                        words = dl.sf_take(rows_in + 4 * (slot * vectors + at), at < vectors) ^ key[:, None]
                        dl.trace_stop("wait", lap)
                        dl.trace_start("store", lap, peer)
                        spread_words(words, at, vectors, land, fits, spots, out, K, EXPANDED)
                        keep_choices(data, word, beside & fits, land.to(tl.int64), ids_out, weights_out, K, WEIGHTS)
                        if SCALES > 0:
                            of_row = word - K * (1 + WEIGHTS)
                            spread_words(data.to(tl.float32, bitcast=True), tl.where(beside & (of_row >= 0), of_row, SCALES),
                                         SCALES, land, fits, spots, scales_out, K, EXPANDED)
                        dl.trace_stop("store", lap)
        if EXPANDED and not MASKED:
            zeros_between(out, vectors, counts, starts, room, align, pid - TELLERS, PARTS * chunks, vector, E_LOC)


@triton.jit
def tell_none(keys, delta, epoch):
    """Tells the peer at `delta` bytes that no row of this chunk goes there: a key of 0 in a packet at `keys`."""
    one = tl.arange(0, 1)
    dl.ll_store(keys + (tl.load(delta) >> 3) + one, one, epoch)


@triton.jit
def first_told(inbox, chunk, last, keys, step, index, epoch, WORLD: tl.constexpr, RANKS: tl.constexpr, PITCH: tl.constexpr):
    """What one wait brings of each source, int32 [RANKS]: its rows in this chunk, in those before it, and in all, by tell_rows.

    And the key of the first one, 0 of this rank and where none comes. keys: where that of rank 0 is; others' are `step` packets
    apart.
    """
    at = tl.arange(0, 4 * RANKS)
    what, rank = at // RANKS, at % RANKS
    place = inbox + 2 * (PITCH * rank + tl.where(what == 2, last, chunk)) + tl.minimum(what, 1)
    there = (rank < WORLD) & ((what < 3) | (rank != index))
    found = dl.ll_load(tl.where(what == 3, keys + step * rank, place), epoch, there)
    found, row = tl.reshape(found, (4, RANKS)), tl.arange(0, 4)[:, None]
    coming = tl.sum(tl.where(row == 0, found, 0), 0) & 0xFFFF
    return (coming, tl.sum(tl.where(row == 1, found, 0), 0) - coming, tl.sum(tl.where(row == 2, found, 0), 0),
            tl.sum(tl.where(row == 3, found, 0), 0))
