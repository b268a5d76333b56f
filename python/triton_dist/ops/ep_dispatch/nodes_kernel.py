# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The first launch of a dispatch over nodes: a row goes once to each node, and from there to the ranks that need it."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.packets import at_member, count_call, epoch_in_turn
from triton_dist.ops.ep.device import counts_of, floats, owners, sent_to
from triton_dist.ops.ep.nodes_device import HEAD
from triton_dist.ops.ep_dispatch.kernels import put_choices, put_chunk, put_rows
from triton_dist.ops.internode.kernels import arrived_from_node, send
from triton_dist.runtime.jit import jit


@jit(do_not_specialize=["m", "most", "rounds", "experts", "chunks"])
def ep_dispatch_nodes_kernel(x, ids, weights, scales, packets, packets_half, data, half, meta, meta_half, flags, flags_source,
                             flags_half, rows_out, boxes_out, box, signals, signals_node, signals_half, control, team, m, most,
                             rounds, row, experts, chunks, K: tl.constexpr, CHOICES: tl.constexpr, SCALES: tl.constexpr,
                             SCALES_PAD: tl.constexpr, META: tl.constexpr, E_LOC: tl.constexpr, WEIGHTS: tl.constexpr,
                             QUANT: tl.constexpr, FIRST: tl.constexpr, NODES: tl.constexpr, EACH: tl.constexpr,
                             PLACES: tl.constexpr, PITCH: tl.constexpr, TOKENS: tl.constexpr, WIDE: tl.constexpr,
                             ROWS: tl.constexpr, COLS: tl.constexpr, ROUND: tl.constexpr, PARTS: tl.constexpr):
    """Rows of x [m, row] into the slots of the ranks of their choices, where ep_dispatch_kernel takes them in the next launch.

    In a half of the workspace `rows_out` [2][NODES][slot][row] has rows to other nodes, then rows from them, and `boxes_out`
    [2][NODES][chunk][box] has, of a chunk's rows, HEAD words, their choices, as the node counts its experts, and their weights;
    at the end of the box their scales.
    PARTS programs send the rows of a chunk, as in ep_dispatch_kernel, first those to other nodes; then PARTS others forward what
    the ranks at this place of other nodes have sent.
    Who writes: a program that sends, into the rows and boxes of the rank at its place of each other node, by puts with signals
    [own node][epoch & 1][chunk]; and as in ep_dispatch_kernel to ranks of its own node. A program that forwards, to ranks of its
    own node all that the source itself would write there: packets, rows, words and flags.
    Who waits: a program that forwards, for each signal before it reads what came with it. Those that send have lower numbers and
    wait for nobody.
    What bounds the epoch: the next launch has packets of all sources; those of other nodes are forwarded after their signal.
    """
    index = dl.team_rank(team)
    pid = tl.program_id(0)
    epoch = epoch_in_turn(control)
    count_call(control, epoch)
    chunk, part = pid % chunks, pid // chunks % PARTS
    node, place = index // EACH, index % EACH
    first_rank = node * EACH
    near = tl.arange(0, PLACES)
    slots = chunks * most
    inbox = packets + (epoch & 1) * packets_half
    arrived = flags + (epoch & 1) * flags_half + chunk * rounds
    rows_in = data + (epoch & 1).to(tl.int64) * half
    words_in = meta + (epoch & 1).to(tl.int64) * meta_half
    rows_sent = rows_out + (epoch & 1).to(tl.int64) * half
    rows_came = rows_sent + (NODES * slots).to(tl.int64) * row
    boxes_sent = boxes_out + (epoch & 1).to(tl.int64) * meta_half
    boxes_came = boxes_sent + (NODES * chunks).to(tl.int64) * box
    came = signals + (epoch & 1) * signals_half + chunk * (1 + 2 * rounds)
    if pid < PARTS * chunks:
        each = tl.cdiv(m, chunks)
        begin = chunk * each
        token = begin + tl.arange(0, TOKENS)
        inside = (tl.arange(0, TOKENS) < each) & (token < m)
        to = owners(ids, token, inside, experts, K, CHOICES, E_LOC)
        going = counts_of(to - first_rank, EACH, PLACES)
        to_peers = at_member(inbox + index * PITCH + chunk + 0 * near, team, first_rank + tl.minimum(near, EACH - 1))
        dl.ll_store(to_peers, each << 16 | going, epoch, (near < EACH) & (part == 0))
        to_nodes = owners(ids, token, inside, experts, K, CHOICES, E_LOC * EACH)
        for hop in range(1, NODES):
            goal = (node + hop) % NODES
            peer = dl.team_world_rank(team, goal * EACH + place)
            go = tl.sum(sent_to(to_nodes, goal), 0)
            words = boxes_sent + (goal * chunks + chunk).to(tl.int64) * box
            their_words = boxes_came + (node * chunks + chunk).to(tl.int64) * box
            told = came + node * signals_node
            if part == 0:
                tl.store(words, each << 16 | go)
                put_choices(ids, weights, to_nodes, begin, go, go, goal, words + HEAD, floats(words + HEAD + go * K), K, K,
                            CHOICES, E_LOC * EACH, WEIGHTS, WIDE)
                send(their_words, words, HEAD + go * (2 * K if WEIGHTS else K), told, epoch, peer)
            sent = rows_sent + (goal * slots + chunk * most).to(tl.int64) * row
            theirs = rows_came + (node * slots + chunk * most).to(tl.int64) * row
            scales_at = box - most * SCALES
            for t in range(part, tl.cdiv(go, ROUND), PARTS):
                dl.trace_start("push", t * NODES + hop, goal * EACH + place)
                n = tl.minimum(go - t * ROUND, ROUND)
                put_rows(x, scales, to_nodes, goal, begin, t * ROUND, t * ROUND + n, sent, floats(words + scales_at), SCALES, row,
                         SCALES, SCALES_PAD, QUANT, ROWS, COLS)
                done = (t * ROUND).to(tl.int64) * row
                send(theirs + done, sent + done, n * row, told + 1 + t, epoch, peer)
                if SCALES > 0:
                    done = scales_at + t * ROUND * SCALES
                    send(their_words + done, words + done, n * SCALES, told + 1 + rounds + t, epoch, peer)
                dl.trace_stop("push", t * NODES + hop)
        put_chunk(x, ids, weights, scales, to, going, begin, begin, rows_in, words_in, arrived, flags_source, came, rounds, team,
                  index, first_rank, place, part, epoch, slots, row, K, CHOICES, SCALES, SCALES_PAD, META, E_LOC, WEIGHTS, QUANT,
                  FIRST, EACH, PLACES, WIDE, ROWS, COLS, ROUND, PARTS, False)
    else:
        for hop in range(1, NODES):
            origin = (node + NODES - hop) % NODES  # the node that sends here first
            source = origin * EACH + place
            told = came + origin * signals_node
            dl.trace_start("wait", hop, source)
            token = arrived_from_node(told, epoch, "eq")
            dl.trace_stop("wait", hop)
            words = dl.consume_token(boxes_came, token) + (origin * chunks + chunk).to(tl.int64) * box
            head = tl.load(words)
            count, each = head & 0xFFFF, head >> 16
            to = owners(words + HEAD, tl.arange(0, TOKENS), tl.arange(0, TOKENS) < count, E_LOC * EACH, K, CHOICES, E_LOC)
            going = counts_of(to, EACH, PLACES)
            to_peers = at_member(inbox + source * PITCH + chunk + 0 * near, team, first_rank + tl.minimum(near, EACH - 1))
            dl.ll_store(to_peers, each << 16 | going, epoch, (near < EACH) & (part == 0))
            put_chunk(rows_came + (origin * slots + chunk * most).to(tl.int64) * row, words + HEAD,
                      floats(words + HEAD + count * K), floats(words + box - most * SCALES), to, going, 0, chunk * each, rows_in,
                      words_in, arrived, flags_source, told + 1, rounds, team, source, first_rank, place, part, epoch, slots,
                      row, K, CHOICES, SCALES, SCALES_PAD, META, E_LOC, WEIGHTS, False, 0, EACH, PLACES, WIDE, ROWS, COLS, ROUND,
                      PARTS, True)
