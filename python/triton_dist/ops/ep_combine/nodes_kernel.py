# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A combine over nodes: each node sums what its ranks have of a token, and sends one row to the token's rank."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import matrix_of, of, owners, sent_to, slots_of, words_of
from triton_dist.ops.ep.nodes_device import HEAD
from triton_dist.ops.ep_combine.kernels import own_choices, own_part
from triton_dist.ops.internode.kernels import arrived_from_node, send
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "limit", "experts", "chunks"])
def ep_combine_nodes_kernel(y, ids, told, positions, weights, packets, packets_half, data, half, meta_half, flags, flags_source,
                            flags_half, rows_out, boxes_out, box, signals, signals_node, signals_half, control, team, m, most,
                            rounds, row, limit, experts, chunks, K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr,
                            PLACED: tl.constexpr, WEIGHTED: tl.constexpr, WORLD: tl.constexpr, RANKS: tl.constexpr,
                            NODES: tl.constexpr, EACH: tl.constexpr, PLACES: tl.constexpr, PITCH: tl.constexpr,
                            TOKENS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, ROUND: tl.constexpr,
                            PARTS: tl.constexpr):
    """The first launch. y, told, positions, weights: as for ep_combine_kernel.

    What this rank has of the rows of rank (node, place) goes to the rank at that place of its own node, into slots
    [node][own place]. That rank sums them, if the node is another one, and puts the sums to their owner, who takes them in the
    next launch. Rows and boxes lie as in ep_dispatch_nodes_kernel; a box has for each token that has choices on a node a word,
    in which bit p is set where it has some at place p there.
    PARTS programs send the rows of a chunk, and the boxes of their tokens. Then PARTS others sum.
    Who writes: a program that sends, rows and then the epoch (sys) into flags [node][own place][epoch & 1][chunk][round] of a
    rank of its node, and a box, by a put with a signal, into each other node; program 0 a packet to each rank of its node. A
    program that sums, rows by puts with signals.
    Who waits: a program that sums, for the box of its chunk, and for the rows of each token before it sums them. Those that send
    have lower numbers and wait for nobody.
    What bounds the epoch: boxes, from ranks of other nodes that this one puts to; packets, in the next launch, from its own node.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    node, place = index // EACH, index % EACH
    near = tl.arange(0, PLACES)
    to_peers = at_member(packets + (epoch & 1) * packets_half + index * PITCH + 0 * near, team,
                         node * EACH + tl.minimum(near, EACH - 1))
    dl.ll_store(to_peers, 1 + 0 * near, epoch, (near < EACH) & (pid == 0))
    count_call(control, epoch)  # while the packets travel
    chunk, part = pid % chunks, pid // chunks % PARTS
    rank, line = tl.arange(0, RANKS), tl.arange(0, ROWS)
    many = tl.arange(0, TOKENS)
    slots = chunks * most
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    rows_sent = rows_out + (epoch & 1).to(tl.int64) * half
    rows_came = rows_sent + (NODES * slots).to(tl.int64) * row
    boxes_sent = boxes_out + (epoch & 1).to(tl.int64) * meta_half
    boxes_came = boxes_sent + (NODES * chunks).to(tl.int64) * box
    came = signals + (epoch & 1) * signals_half + chunk * (1 + 2 * rounds)
    if pid < PARTS * chunks:
        each = tl.cdiv(m, chunks)
        begin = chunk * each
        if part == 0:
            inside = (many < each) & (begin + many < m)
            to = owners(ids, begin + many, inside, experts, K, CHOICES, E_LOC)
            to_nodes = owners(ids, begin + many, inside, experts, K, CHOICES, E_LOC * EACH)
            for hop in range(1, NODES):
                goal = (node + hop) % NODES
                go = tl.sum(sent_to(to_nodes, goal), 0)
                words = boxes_sent + (goal * chunks + chunk).to(tl.int64) * box
                tl.store(words, go)
                at = tl.cumsum(sent_to(to_nodes, goal), 0) - 1
                tl.store(words + HEAD + at, places_of(to, goal * EACH, EACH), mask=sent_to(to_nodes, goal) > 0)
                send(boxes_came + (node * chunks + chunk).to(tl.int64) * box, words, HEAD + go, came + node * signals_node, epoch,
                     dl.team_world_rank(team, goal * EACH + place))
        giving, landing, _ = matrix_of(words_of(told, chunks, WORLD, RANKS, PITCH), chunk)
        rank_of_lane = tl.minimum(rank, WORLD - 1)
        everyone = dl.symm_at(arrived + (rank_of_lane // EACH * EACH + place) * flags_source,
                              dl.team_world_rank(team, node * EACH + rank_of_lane % EACH))
        for t in range(part, tl.cdiv(tl.max(giving, 0), ROUND), PARTS):
            for hop in range(1, WORLD + 1):
                source = (index + hop + EACH) % WORLD
                give = of(giving, source)
                if t * ROUND < give:
                    dl.trace_start("push", t * WORLD + hop, source)
                    outbox = dl.symm_at(rows_in, dl.team_world_rank(team, node * EACH + source % EACH))
                    slot = (source // EACH * EACH + place) * slots + chunk * most
                    for at in range(t * ROUND, tl.minimum((t + 1) * ROUND, give)):
                        land = of(landing, source) + at
                        spots, by, count = own_choices(positions, weights, land, land < limit, K, PLACED, WEIGHTED)
                        goal = outbox + (slot + at).to(tl.int64) * row
                        for column in range(0, row, COLS):
                            cols = column + tl.arange(0, COLS)
                            values = own_part(y, spots, by, count, land, land < limit, cols, row, K, PLACED, WEIGHTED)
                            tl.store(goal + cols, values.to(data.dtype.element_ty), mask=cols < row)
                    dl.trace_stop("push", t * WORLD + hop)
            dl.notify_each(everyone + t, epoch, (rank < WORLD) & (t * ROUND < giving))
    else:
        for hop in range(1, NODES):
            origin = (node + NODES - hop) % NODES  # the node that sends here first
            dl.trace_start("wait", hop, origin * EACH + place)
            token = arrived_from_node(came + origin * signals_node, epoch, "eq")
            dl.trace_stop("wait", hop)
            words = dl.consume_token(boxes_came, token) + (origin * chunks + chunk).to(tl.int64) * box
            count = tl.load(words)
            bits = tl.load(words + HEAD + many, mask=many < count, other=0)
            ours = (origin * slots + chunk * most).to(tl.int64) * row
            theirs = (node * slots + chunk * most).to(tl.int64) * row
            peer = dl.team_world_rank(team, origin * EACH + place)
            parts = rows_in + (origin * EACH * slots + chunk * most).to(tl.int64) * row
            for t in range(part, tl.cdiv(count, ROUND), PARTS):
                n = tl.minimum(count - t * ROUND, ROUND)
                for first in range(t * ROUND, t * ROUND + n, ROWS):
                    at = first + line
                    for column in range(0, row, COLS):
                        cols = column + tl.arange(0, COLS)
                        total = sum_of_node(bits, at, parts, arrived + origin * EACH * flags_source, flags_source, slots, cols,
                                            row, epoch, EACH, ROUND)
                        tl.store(rows_sent + ours + at.to(tl.int64)[:, None] * row + cols[None, :],
                                 total.to(data.dtype.element_ty), mask=(at < count)[:, None] & (cols < row)[None, :])
                done = (t * ROUND).to(tl.int64) * row
                send(rows_came + theirs + done, rows_sent + ours + done, n * row, came + node * signals_node + 1 + t, epoch, peer)


@jit(do_not_specialize=["m", "most", "rounds", "experts", "chunks"])
def ep_combine_take_kernel(ids, bias, residual, out, packets, packets_half, data, half, flags, flags_source, flags_half, rows_out,
                           signals, signals_node, signals_half, control, team, m, most, rounds, row, experts, chunks,
                           K: tl.constexpr, CHOICES: tl.constexpr, E_LOC: tl.constexpr, HAS_BIAS: tl.constexpr,
                           HAS_RESIDUAL: tl.constexpr, NODES: tl.constexpr, EACH: tl.constexpr, PLACES: tl.constexpr,
                           PITCH: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
                           ROUND: tl.constexpr, PARTS: tl.constexpr):
    """The second launch: out [m, row] = the sum over nodes, in order, of what each node has of a token, + bias + residual.

    What a node has is the sum over its ranks, in order, in fp32 with one rounding, also for this rank's own node.
    Who waits: a program, for the rows of its own node and for the signals of others before it sums its tokens; the first one also
    for packets of all ranks of the node, which bounds the epoch.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = tl.load(control + pid)  # of the call that was sent
    chunk, part = pid % chunks, pid // chunks
    node = index // EACH
    many, line = tl.arange(0, TOKENS), tl.arange(0, ROWS)
    slots = chunks * most
    each = tl.cdiv(m, chunks)
    begin = chunk * each
    tokens = tl.maximum(tl.minimum(m - begin, each), 0)
    inside = many < tokens
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    rows_came = rows_out + (epoch & 1).to(tl.int64) * half + (NODES * slots).to(tl.int64) * row
    came = signals + (epoch & 1) * signals_half + chunk * (1 + 2 * rounds)
    to = owners(ids, begin + many, inside, experts, K, CHOICES, E_LOC)
    to_nodes = owners(ids, begin + many, inside, experts, K, CHOICES, E_LOC * EACH)
    bits = places_of(to, node * EACH, EACH)
    parts = rows_in + (node * EACH * slots + chunk * most).to(tl.int64) * row
    for t in range(part, tl.cdiv(tokens, ROWS), PARTS):
        local = t * ROWS + line
        token = (begin + local).to(tl.int64)
        for column in range(0, row, COLS):
            cols = column + tl.arange(0, COLS)
            tile = (local < tokens)[:, None] & (cols < row)[None, :]
            total = tl.zeros((ROWS, COLS), tl.float32)
            for origin in range(NODES):
                if origin == node:
                    own = sum_of_node(bits, local, parts, arrived + node * EACH * flags_source, flags_source, slots, cols, row,
                                      epoch, EACH, ROUND)
                    total += own.to(data.dtype.element_ty).to(tl.float32)  # rounded as others' sums are
                else:
                    at = slots_of(to_nodes, origin, local)
                    there = at >= 0
                    if tl.max(there.to(tl.int32), 0) > 0:  # some of these tokens went to that node
                        source = rows_came + (origin * slots + chunk * most).to(tl.int64) * row
                        first, last = tl.min(tl.where(there, at, slots), 0) // ROUND, tl.max(at, 0) // ROUND
                        for u in range(first, last + 1):
                            signal = came + origin * signals_node + 1 + u
                            source = dl.consume_token(source, arrived_from_node(signal, epoch, "eq"))
                        theirs = tl.load(source + at.to(tl.int64)[:, None] * row + cols[None, :],
                                         mask=there[:, None] & (cols < row)[None, :], other=0.0)
                        total += theirs.to(tl.float32)
            if HAS_BIAS:
                total += tl.load(bias + cols, mask=cols < row, other=0.0).to(tl.float32)[None, :]
            if HAS_RESIDUAL:
                total += tl.load(residual + token[:, None] * row + cols[None, :], mask=tile, other=0.0).to(tl.float32)
            tl.store(out + token[:, None] * row + cols[None, :], total.to(out.dtype.element_ty), mask=tile)
    near = tl.arange(0, PLACES)
    dl.ll_load(packets + (epoch & 1) * packets_half + (node * EACH + near) * PITCH, epoch, (near < EACH) & (pid == 0))


@triton.jit
def places_of(to, first_rank, EACH: tl.constexpr):
    """int32 [tokens]: bit p is set where a token has a choice on rank first_rank + p, one of a node; to: ranks of its choices."""
    bits = sent_to(to, first_rank)
    for p in range(1, EACH):
        bits |= sent_to(to, first_rank + p) << p
    return bits


@triton.jit
def sum_of_node(bits, token, parts, arrived, flags_source, slots, cols, row, epoch, EACH: tl.constexpr, ROUND: tl.constexpr):
    """fp32 [len(token), len(cols)]: the sum over the ranks of a node, in order, of what they have of tokens of a chunk.

    bits: as places_of gives them, of all the chunk's tokens. Rank p's rows lie p * slots rows after `parts`, and it tells of
    their rounds p * flags_source flags after `arrived`.
    """
    total = tl.zeros((token.shape[0], cols.shape[0]), tl.float32)
    for p in range(EACH):
        at = slots_of(((bits >> p) & 1)[:, None], 1, token)
        there = at >= 0
        if tl.max(there.to(tl.int32), 0) > 0:  # some of these tokens went to that rank
            first, last = tl.min(tl.where(there, at, slots), 0) // ROUND, tl.max(at, 0) // ROUND
            arrival = dl.wait(arrived + p * flags_source + first, last - first + 1, "sys", "acquire", epoch)
            source = dl.consume_token(parts, arrival) + (p * slots + at).to(tl.int64)[:, None] * row
            total += tl.load(source + cols[None, :], mask=there[:, None] & (cols < row)[None, :], other=0.0).to(tl.float32)
    return total
