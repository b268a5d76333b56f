# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-reduce with what follows it in a decoder: bias, residual, a norm, and a quantised form. One kernel of self-flagged stores.

residual_out [m, n] = sum over ranks of x [m, n], + bias [n] + residual [m, n]; out [m, n] = the norm of its rows, times weight
[n]; quantised [m, n] and scales [m, .] = that in eight bits (norm_rows/finish.py). A program takes whole rows and holds them in
registers, EACH vectors of 16 bytes a thread, so that nothing is read back from memory. `residual_out` may be the residual, and it
or `out` may be x: only the thread that has read a vector of them, and does so no more, writes it.
"""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.launch_metadata import normed_one_hop, normed_two_hops
from triton_dist.ops.device.packets import count_call, deltas_of_peers, epoch_in_turn
from triton_dist.ops.device.selfflag import COPIES, load_vectors, store_vectors, taken_from_all
from triton_dist.ops.norm_rows.finish import extras, rounded, store_normed
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "row_step", "group_step"], launch_metadata=normed_one_hop)
def one_hop_rmsnorm(x, weight, bias, residual, out, residual_out, shift, scale, quantised, scales, slots, half, control, team,
                    m, n, row_step, group_step, EPS: tl.constexpr, WEIGHT_BIAS: tl.constexpr, CENTER: tl.constexpr,
                    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_OUT: tl.constexpr,
                    QUANT: tl.constexpr, WORLD: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, ONE_ROW: tl.constexpr,
                    WHOLE: tl.constexpr):
    """Every row goes to every rank: int32 slots [2 buffers of `half`][rank][m][vectors of a row][4].

    A program sends its next row when it has taken one, so that it travels during the norm. ONE_ROW: programs have one each.
    Programs take rows in one order on all ranks, so that a row is sent before it is awaited. There are no more than rows.
    Who writes: every rank stores its rows into its part of every peer's buffer `epoch & 1`.
    Who waits: a program, for its rows of every peer, and empties what it has taken. That also bounds the epoch.
    """
    index = dl.team_rank(team)
    dtype: tl.constexpr = x.dtype.element_ty
    vectors = tl.cdiv(n * (dtype.primitive_bitwidth // 8), 16)
    deltas = deltas_of_peers(team, WORLD)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    epoch = epoch_in_turn(control)
    first = row_of(x, pid, n, vectors, THREADS, EACH, WHOLE)        # at the same time as the epoch
    inbox = slots + (epoch & 1) * half
    outbox = inbox + 4 * index * m * vectors
    dl.trace_start("push", 0, -1)
    send_row(first, outbox + 4 * pid * vectors, deltas, vectors, WORLD, THREADS, EACH)
    dl.trace_stop("push", 0)
    count_call(control, epoch, COPIES)      # while the data travels
    given = tl.div_rn(1.0, tl.load(scale)) if QUANT == "tensor" else 1.0
    for i in range(1 if ONE_ROW else tl.cdiv(m - pid, programs)):
        row = pid + i * programs
        if ONE_ROW:
            own = first
        else:
            own = row_of(x, row, n, vectors, THREADS, EACH, WHOLE)      # again: from a near cache, while the data travels
        totals, weights = take_row(own, row, i, weight, bias, residual, residual_out, inbox, index, m, n, vectors, HAS_BIAS,
                                   HAS_RESIDUAL, dtype, WORLD, THREADS, EACH, WHOLE)
        if not ONE_ROW:
            following = row + programs
            if following < m:
                dl.trace_start("push", i + 1, -1)
                send_row(row_of(x, following, n, vectors, THREADS, EACH, WHOLE), outbox + 4 * following * vectors, deltas,
                         vectors, WORLD, THREADS, EACH)
                dl.trace_stop("push", i + 1)
        dl.trace_start("store", i, -1)
        store_normed(row, totals, weights, shift, given, out, quantised, scales, n, vectors, row_step, group_step, EPS,
                     WEIGHT_BIAS, CENTER, HAS_SHIFT, HAS_OUT, QUANT, dtype, THREADS, EACH, WHOLE)
        dl.trace_stop("store", i)


@triton.jit
def row_of(x, row, n, vectors, THREADS: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr):
    """Row `row` of x [., n] as self-flagged words: a tuple of EACH blocks [THREADS, 4]."""
    words = ()
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        words = words + (dl.sf_filled(load_vectors(x + row.to(tl.int64) * n, at, at < vectors, n, WHOLE)), )
    return words


@triton.jit
def send_row(words, outbox, deltas, vectors, WORLD: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr):
    """Stores a row to all peers, there at the place that is `outbox` here."""
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        for i in tl.static_range(WORLD - 1):
            dl.sf_store(outbox + deltas[i] + 4 * at, words[v], at < vectors)


@triton.jit
def take_row(own, row, i, weight, bias, residual, residual_out, inbox, index, m, n, vectors, HAS_BIAS: tl.constexpr,
             HAS_RESIDUAL: tl.constexpr, dtype: tl.constexpr, WORLD: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr,
             WHOLE: tl.constexpr):
    """Takes a row of all peers, and stores its sum. Gives the sum and the norm's weight, each a tuple of EACH blocks of words."""
    offset = row.to(tl.int64) * n
    totals, weights = (), ()
    for v in tl.static_range(EACH):
        at = v * THREADS + tl.arange(0, THREADS)
        inside = at < vectors
        extra = extras(bias, residual + offset, at, inside, n, HAS_BIAS, HAS_RESIDUAL, WHOLE)
        weights = weights + (load_vectors(weight, at, inside, n, WHOLE), )
        dl.trace_start("wait", i * EACH + v, -1)
        sums = taken_from_all(own[v], inbox + 4 * (row * vectors + at), 4 * m * vectors, inside, index, dtype, WORLD, "sum")
        dl.trace_stop("wait", i * EACH + v)
        total = rounded(sums, extra, dtype)
        store_vectors(residual_out + offset, at, inside, n, total, WHOLE)
        totals = totals + (total, )
    return totals, weights


@jit(do_not_specialize=["m", "row_step", "group_step"], launch_metadata=normed_two_hops)
def two_hops_rmsnorm(x, weight, bias, residual, out, residual_out, shift, scale, quantised, scales, slots, half, control, team,
                     m, n, row_step, group_step, EPS: tl.constexpr, WEIGHT_BIAS: tl.constexpr, CENTER: tl.constexpr,
                     HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_OUT: tl.constexpr,
                     QUANT: tl.constexpr, WORLD: tl.constexpr, THREADS: tl.constexpr, EACH: tl.constexpr, WHOLE: tl.constexpr):
    """Row r goes to rank r % WORLD, which sends its sum to all; each rank norms all rows.

    int32 slots [2 buffers of `half`][terms: rank, own rows; sums: rows][vectors of a row][4].
    Who writes: every rank stores its term of a row into the owner's terms, and its own rows' sums into all peers' sums.
    Who waits: a program, for its own rows' terms and the others' sums. A rank that owns no row hears of all peers by the
    sums that it waits for, and is heard by its terms; so the epoch is bounded. All terms are sent before anything is
    awaited, and all sums before a sum is.
    """
    index = dl.team_rank(team)
    dtype: tl.constexpr = x.dtype.element_ty
    vectors = tl.cdiv(n * (dtype.primitive_bitwidth // 8), 16)
    owned = tl.cdiv(m, WORLD)                   # rows of terms that a rank has room for
    deltas = deltas_of_peers(team, WORLD)
    epoch = epoch_in_turn(control)
    inbox = slots + (epoch & 1) * half
    outcome = inbox + 4 * WORLD * owned * vectors
    thread = tl.arange(0, THREADS)
    pid, programs = tl.program_id(0), tl.num_programs(0)
    for row in range(pid, m, programs):
        for v in tl.static_range(EACH):
            at = v * THREADS + thread
            for i in tl.static_range(1, WORLD):
                if row % WORLD == (index + i) % WORLD:
                    dl.trace_start("push", (row - pid) // programs * EACH + v, (index + i) % WORLD)
                    inside = at < vectors
                    words = dl.sf_filled(load_vectors(x + row.to(tl.int64) * n, at, inside, n, WHOLE))
                    place = inbox + 4 * ((index * owned + row // WORLD) * vectors + at)
                    dl.sf_store(place + deltas[i - 1], words, inside)
                    dl.trace_stop("push", (row - pid) // programs * EACH + v)
    count_call(control, epoch, COPIES)        # while the data travels
    given = tl.div_rn(1.0, tl.load(scale)) if QUANT == "tensor" else 1.0
    for row in range(pid, m, programs):
        if row % WORLD == index:
            offset = row.to(tl.int64) * n
            totals, weights = (), ()
            for v in tl.static_range(EACH):
                at = v * THREADS + thread
                inside = at < vectors
                own = dl.sf_filled(load_vectors(x + offset, at, inside, n, WHOLE))
                extra = extras(bias, residual + offset, at, inside, n, HAS_BIAS, HAS_RESIDUAL, WHOLE)
                weights = weights + (load_vectors(weight, at, inside, n, WHOLE), )
                dl.trace_start("wait", (row - pid) // programs * EACH + v, -1)
                sums = taken_from_all(own, inbox + 4 * (row // WORLD * vectors + at), 4 * owned * vectors, inside, index, dtype,
                                      WORLD, "sum")
                dl.trace_stop("wait", (row - pid) // programs * EACH + v)
                total = dl.sf_filled(rounded(sums, extra, dtype))
                dl.trace_start("push", (row - pid) // programs * EACH + v, -1)
                for i in tl.static_range(1, WORLD):
                    dl.sf_store(outcome + deltas[i - 1] + 4 * (row * vectors + at), total, inside)
                dl.trace_stop("push", (row - pid) // programs * EACH + v)
                total = dl.sf_plain(total)
                store_vectors(residual_out + offset, at, inside, n, total, WHOLE)
                totals = totals + (total, )
            dl.trace_start("store", (row - pid) // programs, row % WORLD)
            store_normed(row, totals, weights, shift, given, out, quantised, scales, n, vectors, row_step, group_step, EPS,
                         WEIGHT_BIAS, CENTER, HAS_SHIFT, HAS_OUT, QUANT, dtype, THREADS, EACH, WHOLE)
            dl.trace_stop("store", (row - pid) // programs)
    for row in range(pid, m, programs):
        if row % WORLD != index:
            offset = row.to(tl.int64) * n
            totals, weights = (), ()
            for v in tl.static_range(EACH):
                at = v * THREADS + thread
                inside = at < vectors
                weights = weights + (load_vectors(weight, at, inside, n, WHOLE), )
                dl.trace_start("wait", (row - pid) // programs * EACH + v, row % WORLD)
                total = dl.sf_plain(dl.sf_take(outcome + 4 * (row * vectors + at), inside))
                dl.trace_stop("wait", (row - pid) // programs * EACH + v)
                store_vectors(residual_out + offset, at, inside, n, total, WHOLE)
                totals = totals + (total, )
            dl.trace_start("store", (row - pid) // programs, row % WORLD)
            store_normed(row, totals, weights, shift, given, out, quantised, scales, n, vectors, row_step, group_step, EPS,
                         WEIGHT_BIAS, CENTER, HAS_SHIFT, HAS_OUT, QUANT, dtype, THREADS, EACH, WHOLE)
            dl.trace_stop("store", (row - pid) // programs)
