# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of collectives over nodes. Member i of a group is at place i % each of node i // each, `each` ranks on a node.

Signals from other nodes are 64-bit words that hold the call's epoch in their upper half, so that a signed difference of words is
one of epochs. Every flag and signal has one writer for good, whatever the shape.
"""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.jit import jit

_SET = tl.constexpr(shmem.NVSHMEM_SIGNAL_SET)
_NE = tl.constexpr(shmem.NVSHMEM_CMP_NE)


@jit
def word_of(epoch):
    """An epoch as other nodes signal it, int64."""
    return epoch.to(tl.int64) << 32


@jit
def arrived_from_node(signal, epoch, CMP: tl.constexpr):
    """Waits until what another node sends in this call is here; the token for consume_token.

    CMP: "ge" where a later call's signal may be here already, "eq" where that of any call before may be.
    """
    token = dl.wait(signal, 1, "sys", "acquire", word_of(epoch), cmp=CMP)
    # SHMEM's own wait, which is met at once, does what the hardware needs for loads to see what a network card has written.
    shmem.signal_wait_until(dl.consume_token(signal, token), _NE, word_of(epoch - 1))
    return token


@jit
def send(to, source, n, signal, epoch, peer):
    """Puts n elements from `source` to `to` on another node, and behind them the signal."""
    shmem.putmem_signal_nbi_block(to, source, n * (to.dtype.element_ty.primitive_bitwidth // 8), signal, word_of(epoch), _SET,
                                  peer)


@jit
def copy(to, source, n, BLOCK: tl.constexpr):
    """n elements from `source` to `to`."""
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(to + at, tl.load(source + at, mask=at < n), mask=at < n)


@jit
def share(data, n, flag, epoch, team, index, each, BLOCK: tl.constexpr):
    """Copies n elements to the same place of the heap of all others on the node, then tells them, and this rank too."""
    first = index // each * each
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(data + at, mask=at < n)
        for hop in range(1, each):
            peer = dl.team_world_rank(team, first + (index + hop) % each)
            tl.store(dl.symm_at(data, peer) + at, value, mask=at < n)
    for hop in range(each):
        dl.notify(flag, dl.team_world_rank(team, first + (index + hop) % each), epoch)


@jit
def gather(x, gathered, flags, signals, epoch, team, index, world, each, count, pitch, piece, BLOCK: tl.constexpr):
    """Brings x [count] of every rank to gathered [world, pitch] of every rank, a piece of each x a program.

    Who writes: a program puts its piece of x to the equal place of each other node, with a signal behind it; and what it has of
    its own or by such a put, it stores to all ranks of its node and releases the epoch into flags[piece, owner] there.
    Who waits: a program, for signals[piece, node], before it shares what came from that node. Nobody waits before it has put.
    What bounds the epoch: whoever has acquired flags[piece, r] for all r knows by chain that all ranks have started the call.
    Own data goes through `gathered` too, from where the network may read it: nobody writes there before all have it.
    """
    program, nodes = tl.program_id(0), world // each
    node, place = index // each, index % each
    start = program.to(tl.int64) * piece
    n = tl.minimum(count - start, piece)
    own = gathered + index.to(tl.int64) * pitch + start
    copy(own, x + start, n, BLOCK)
    for hop in range(1, nodes):
        peer = dl.team_world_rank(team, (node + hop) % nodes * each + place)
        send(own, own, n, signals + program * nodes + node, epoch, peer)
    share(own, n, flags + program * world + index, epoch, team, index, each, BLOCK)
    for hop in range(1, nodes):
        source = (node + nodes - hop) % nodes
        owner = source * each + place
        token = arrived_from_node(signals + program * nodes + source, epoch, "ge")
        data = dl.consume_token(gathered, token) + owner.to(tl.int64) * pitch + start
        share(data, n, flags + program * world + owner, epoch, team, index, each, BLOCK)


@jit(do_not_specialize=["epoch", "index"])
def gather_kernel(x, gathered, flags, signals, epoch, team, index, world, each, count, pitch, piece, BLOCK: tl.constexpr):
    """`gather`, for a kernel that runs beside it and waits for its flags."""
    gather(x, gathered, flags, signals, epoch, team, index, world, each, count, pitch, piece, BLOCK)


@jit(do_not_specialize=["epoch", "index"])
def all_gather_kernel(x, out, gathered, flags, signals, epoch, team, index, world, each, count, piece, BLOCK: tl.constexpr):
    """out [world * count] = x [count] of all ranks, by `gather`, whose flags each program acquires for its piece."""
    gather(x, gathered, flags, signals, epoch, team, index, world, each, count, count, piece, BLOCK)
    program = tl.program_id(0)
    start = program.to(tl.int64) * piece
    n = tl.minimum(count - start, piece)
    for hop in range(world):
        owner = (index + hop) % world
        token = dl.wait(flags + program * world + owner, 1, "sys", "acquire", epoch, cmp="ge")
        at = owner.to(tl.int64) * count + start
        copy(out + at, dl.consume_token(gathered, token) + at, n, BLOCK)


@jit(do_not_specialize=["epoch", "index"])
def reduce_scatter_kernel(x, out, slots, flags, signals, epoch, team, index, world, each, count, piece, BLOCK: tl.constexpr):
    """out [count] = this rank's part of the sum over ranks of x [world, count], a piece a program.

    slots: [world + 2 * nodes, count]: parts from this node for each node, sums for other nodes, sums from other nodes.
    Who writes: a program stores its part for rank (to, place) to the rank at that place of its own node, and releases the epoch
    into flags[piece, to, my place] there. That rank adds the parts of its node and puts the sum, with a signal, to its owner.
    Who waits: for the flags of a node's parts before they are added; for signals[piece, node] before the last sum.
    What bounds the epoch: a signal says that all ranks of its node have started the call, the flags say it of the own node.
    Sums are fp32, over places then over nodes, both in order; one rounding where a sum goes to another node.
    """
    program, nodes = tl.program_id(0), world // each
    node, place = index // each, index % each
    start = program.to(tl.int64) * piece
    n = tl.minimum(count - start, piece)
    for hop in range(world):                                  # other nodes first
        to = (node + 1 + hop // each) % nodes
        beside = (place + hop) % each
        peer = dl.team_world_rank(team, node * each + beside)
        slot = slots + (to * each + place).to(tl.int64) * count + start
        copy(dl.symm_at(slot, peer), x + (to * each + beside).to(tl.int64) * count + start, n, BLOCK)
        dl.notify(flags + program * world + to * each + place, peer, epoch)
    sums = slots + world.to(tl.int64) * count + start
    heard = sums + nodes.to(tl.int64) * count
    for hop in range(1, nodes):
        to = (node + hop) % nodes
        token = dl.wait(flags + program * world + to * each, each, "sys", "acquire", epoch, cmp="ge")
        parts = dl.consume_token(slots, token) + (to * each).to(tl.int64) * count + start
        mine = sums + to.to(tl.int64) * count
        for first in range(0, n, BLOCK):
            at = first + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK,), tl.float32)
            for i in range(each):
                total += tl.load(parts + i.to(tl.int64) * count + at, mask=at < n).to(tl.float32)
            tl.store(mine + at, total.to(slots.dtype.element_ty), mask=at < n)
        send(heard + node.to(tl.int64) * count, mine, n, signals + program * nodes + node, epoch,
             dl.team_world_rank(team, to * each + place))
    dl.wait(flags + program * world + node * each, each, "sys", "acquire", epoch, cmp="ge")
    parts = slots + (node * each).to(tl.int64) * count + start
    for hop in range(1, nodes):
        heard = dl.consume_token(heard, arrived_from_node(signals + program * nodes + (node + hop) % nodes, epoch, "ge"))
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for source in range(nodes):
            if source == node:
                for i in range(each):
                    total += tl.load(parts + i.to(tl.int64) * count + at, mask=at < n).to(tl.float32)
            else:
                total += tl.load(heard + source.to(tl.int64) * count + at, mask=at < n).to(tl.float32)
        tl.store(out + start + at, total.to(out.dtype.element_ty), mask=at < n)
