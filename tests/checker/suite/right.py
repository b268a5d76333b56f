# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Right kernels that look wrong to a careless checker: order that comes by a detour, accesses that do not touch."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import free_symm_tensor, peer_tensor
from triton_dist.runtime.backend import backend

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


# -- detours -----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def by_detour(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Rank 0 puts into rank 2. How rank 2 comes to know is `HOW`."""
    i, me = tl.arange(0, N), dl.rank()
    if me == 0:
        tl.store(dl.symm_at(buffer, 2) + i, tl.load(x + i))
        dl.notify(flag, 2 if HOW != "third-memory" else 1, 1, "add")
    if HOW == "sequence":
        if me == 1:                      # a relaxed add continues what rank 0 has released
            dl.wait(dl.symm_at(flag, 2), 1, "sys", "relaxed", 1)
            tl.atomic_add(dl.symm_at(flag, 2), 1, sem="relaxed", scope="sys")
        if me == 2:
            dl.wait(flag, 1, "sys", "acquire", 2)
            tl.store(out + i, tl.load(buffer + i))
    if HOW == "third-memory":            # the flag lies at rank 1, which does nothing
        if me == 2:
            dl.wait(dl.symm_at(flag, 1), 1, "sys", "acquire")
            tl.store(out + i, tl.load(buffer + i))
    if HOW == "relaxed-then-acquire":    # spins cheaply, then acquires once
        if me == 2:
            dl.wait(flag, 1, "sys", "relaxed")
            dl.wait(flag, 1, "sys", "acquire")
            tl.store(out + i, tl.load(buffer + i))
    if HOW == "sends-it-on":             # the reader is a rank that heard from the owner of the memory
        if me == 2:
            dl.wait(flag, 1, "sys", "acquire")
            dl.notify(flag, 1)
        if me == 1:
            dl.wait(flag, 1, "sys", "acquire")
            tl.store(out + i, tl.load(dl.symm_at(buffer, 2) + i))


@case("right/relaxed-add-in-a-release-sequence", world=3, how="sequence")
@case("right/flag-in-a-third-ranks-memory", world=3, how="third-memory")
@case("right/relaxed-wait-then-acquire", world=3, how="relaxed-then-acquire")
@case("right/owner-sends-it-on", world=3, how="sends-it-on")
def detour(rank, how):
    """Rank 0 puts into rank 2; the reader comes to know of it by a detour."""
    buffer, flag, out = symm(N), flags(1), filled(-1.0)
    by_detour[(1, )](filled(3.0), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 3 if rank == (1 if how == "sends-it-on" else 2) else -1))


@triton_dist.jit
def warps_add(x, buffer, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))
        dl.notify_warp(dl.symm_at(flag, 1), 1, "add")
    else:
        dl.wait(flag, 1, "sys", "acquire", 4)
        tl.store(out + i, tl.load(buffer + i))


@case("right/every-warp-adds")
def every_warp(rank):
    """Each of four warps releases its own stores by an add, and the reader waits for four: no CTA barrier is needed."""
    buffer, flag, out = symm(4 * N), flags(1), filled(-1.0, 4 * N)
    warps_add[(1, )](filled(3.0, 4 * N), buffer, flag, out, N=4 * N, num_warps=4)
    meet()
    return pairs((out, 3 if rank else -1))


@triton_dist.jit
def set_when_read(data, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(data + i))
    dl.notify(flag, dl.rank(), comm_scope="gpu")


@triton_dist.jit
def write_when_told(data, flag, N: tl.constexpr):
    i = tl.arange(0, N)
    dl.wait(flag, 1, "gpu", "acquire")
    tl.store(data + i, tl.zeros([N], tl.float32) + 9)


@case("right/streams-ordered-by-a-flag", world=1, classes=("right", "stream"))
def flag_between_streams(rank):
    """Kernels on two streams, ordered by a flag and by nothing else: read, then write."""
    data, flag, out = filled(4.0), flags(1), filled(-1.0)
    a, b = streams(2)
    with triton_dist.use_stream(a):
        set_when_read[(1, )](data, flag, out, N=N)
    with triton_dist.use_stream(b):
        write_when_told[(1, )](data, flag, N=N)
    meet()
    return pairs((out, 4), (data, 9))


@triton_dist.jit
def add(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(a + i) + tl.load(b + i))


@case("right/diamond-of-streams", world=1, classes=("right", "stream"))
def diamond(rank):
    """One stream forks into two and joins them again; all read the same input."""
    x, left, right, out = filled(1.0), filled(0.0), filled(0.0), filled(-1.0)
    main, a, b = streams(3)
    with triton_dist.use_stream(main):
        add[(1, )](x, x, x, N=N)
    for stream, result in ((a, left), (b, right)):
        stream.wait_stream(main)
        with triton_dist.use_stream(stream):
            add[(1, )](x, x, result, N=N)
    main.wait_stream(a)
    main.wait_stream(b)
    with triton_dist.use_stream(main):
        add[(1, )](left, right, out, N=N)
    meet()
    return pairs((out, 8))


# -- patterns of several ranks -------------------------------------------------------------------------------------------
@triton_dist.jit
def all_to_all(x, buffer, flag, out, epoch, half, N: tl.constexpr):
    """Block p of x goes to rank p; a flag for each sender."""
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    for hop in range(world):
        peer = (me + hop) % world
        tl.store(dl.symm_at(buffer, peer) + half + me * N + i, tl.load(x + peer * N + i))
        dl.notify(flag + me, peer, epoch)
    dl.wait(flag, world, "sys", "acquire", epoch, "ge")
    for peer in range(world):
        tl.store(out + peer * N + i, tl.load(buffer + half + peer * N + i))


def all_to_all_calls(rank, world):
    """All-to-all, three calls over double buffers."""
    buffer, flag = symm(2 * world * N), flags(world)
    out = [filled(-1.0, world * N) for _ in range(3)]
    x = [torch.arange(float(world)).repeat_interleave(N) + 100 * epoch + 10 * rank for epoch in (1, 2, 3)]
    for epoch in (1, 2, 3):
        all_to_all[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, world * N * (epoch & 1), N=N)
    meet()
    return pairs(*((got, 10 * torch.arange(float(world)).repeat_interleave(N) + 100 * epoch + rank)
                   for epoch, got in enumerate(out, 1)))


@case("right/all-to-all-of-1", world=1)
def all_to_all_1(rank):
    """All-to-all of a world of one: it signals itself."""
    return all_to_all_calls(rank, 1)


@case("right/all-to-all-of-2")
def all_to_all_2(rank):
    """All-to-all of two ranks."""
    return all_to_all_calls(rank, 2)


@case("right/all-to-all-of-3", world=3)
def all_to_all_3(rank):
    """All-to-all of three ranks."""
    return all_to_all_calls(rank, 3)


@case("right/all-to-all-of-4", world=4)
def all_to_all_4(rank):
    """All-to-all of four ranks."""
    return all_to_all_calls(rank, 4)


@triton_dist.jit
def tree(buffer, flag, out, value, N: tl.constexpr):
    """Broadcast down a binary tree: rank r sends to 2r + 1 and 2r + 2."""
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    if me == 0:
        block = tl.zeros([N], tl.float32) + value
    else:
        dl.wait(flag, 1, "sys", "acquire")
        block = tl.load(buffer + i)
    for child in range(2 * me + 1, tl.minimum(2 * me + 3, world)):
        tl.store(dl.symm_at(buffer, child) + i, block)
        dl.notify(flag, child)
    tl.store(out + i, block)


@case("right/tree", world=4)
def broadcast(rank):
    """A broadcast down a tree of four ranks."""
    buffer, flag, out = symm(N), flags(1), filled(-1.0)
    tree[(1, )](buffer, flag, out, 6.0, N=N)
    meet()
    return pairs((out, 6))


@triton_dist.jit
def ring_all_reduce(x, buffer, flag, out, N: tl.constexpr):
    """Reduce-scatter then all-gather round a ring; a slot and a flag for each of the 2 (W - 1) hops."""
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    successor = (me + 1) % world
    for hop in range(2 * world - 2):
        chunk = (me + 2 * world - hop) % world
        if hop == 0:
            block = tl.load(x + chunk * N + i)
        else:
            token = dl.wait(flag + hop - 1, 1, "sys", "acquire")
            block = tl.load(dl.consume_token(buffer, token) + (hop - 1) * N + i)
            if hop < world:
                block += tl.load(x + chunk * N + i)
        if hop >= world - 1:
            tl.store(out + chunk * N + i, block)
        tl.store(dl.symm_at(buffer, successor) + hop * N + i, block)
        dl.notify(flag + hop, successor)
    last = 2 * world - 3
    dl.wait(flag + last, 1, "sys", "acquire")
    chunk = (me + 2 * world - last - 1) % world
    tl.store(out + chunk * N + i, tl.load(buffer + last * N + i))


@case("right/ring-all-reduce", world=3)
def ring(rank):
    """A ring all-reduce of three ranks."""
    buffer, flag, out = symm(4 * N), flags(4), filled(-1.0, 3 * N)
    ring_all_reduce[(1, )](torch.arange(3.0).repeat_interleave(N) + rank, buffer, flag, out, N=N)
    meet()
    return pairs((out, 3 * torch.arange(3.0).repeat_interleave(N) + 3))


@triton_dist.jit
def send_with_credit(x, buffer, flag, out, CALLS: tl.constexpr, N: tl.constexpr):
    """One buffer, reused in a loop; the reader gives a credit before the next block is put."""
    i = tl.arange(0, N)
    for call in range(1, CALLS + 1):
        if dl.rank() == 0:
            if call > 1:
                dl.wait(flag + 1, 1, "sys", "acquire", call - 1, "ge")
            tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + call * N + i))
            dl.notify(flag, 1, call)
        else:
            token = dl.wait(flag, 1, "sys", "acquire", call, "ge")
            tl.store(out + call * N + i, tl.load(dl.consume_token(buffer, token) + i))
            if call < CALLS:
                dl.notify(flag + 1, 0, call)


@case("right/credits")
def credits(rank):
    """Blocks one after another through one buffer, with a credit from the reader for each."""
    buffer, flag, x = symm(N), flags(2), torch.arange(5.0).repeat_interleave(N)
    out = filled(-1.0, 5 * N)
    send_with_credit[(1, )](x, buffer, flag, out, CALLS=4, N=N)
    meet()
    return pairs((out[N:], x[N:] if rank else -1))


# -- memory ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def masked(data, out, start, n, N: tl.constexpr):
    """What the mask keeps out lies behind the tensor, and is not touched."""
    i = tl.arange(0, N)
    tl.store(data + start + i, tl.zeros([N], tl.float32) + 2, mask=i < n)
    tl.debug_barrier()
    tl.store(out + i, tl.load(data + start + i, mask=i < n, other=-5.0))


@case("right/mask-keeps-inside", world=1, how="part", classes=("right", "memory"))
@case("right/mask-is-empty", world=1, how="none", classes=("right", "memory"))
def mask(rank, how):
    """A block half or wholly behind the end of a tensor, under a mask."""
    data, neighbour, out = symm(N), symm(N), filled(-1.0)
    start, n = (N // 2, N // 2) if how == "part" else (4 * N, 0)
    masked[(1, )](data, out, start, n, N=N)
    meet()
    return pairs((neighbour, 0), (out[:n], 2), (out[n:], -5))


@case("right/freed-and-made-again", classes=("right", "memory"))
def made_again(rank):
    """A tensor is freed and another takes its place: accesses of the two are not ordered by anything but the free."""
    x, out = filled(float(rank)), [filled(-1.0), filled(-1.0)]
    for k in range(2):
        buffer, flag = symm(N), flags(1)
        put_take[(1, )](x, buffer, flag, out[k], N=N)
        free_symm_tensor(flag)
        free_symm_tensor(buffer)
    meet()
    return pairs(*((got, 1 - rank) for got in out))


@triton_dist.jit
def put_take(x, buffer, flag, out, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))
    dl.notify(flag, peer)
    dl.wait(flag, 1, "sys", "acquire")
    tl.store(out + i, tl.load(buffer + i))


@case("right/output-of-empty", classes=("right", "memory"))
def output_of_empty(rank):
    """Outputs and copies' targets come from torch.empty; nobody reads them before they are written."""
    x, buffer, flag, out, copied = filled(float(rank)), symm(N), flags(1), torch.empty(N), torch.empty(N)
    put_take[(1, )](x, buffer, flag, out, N=N)
    side, = streams(1)
    backend().copy(copied, out, side)
    meet()
    return pairs((out, 1 - rank), (copied, 1 - rank))


@case("right/flag-behind-its-data-in-one-tensor", classes=("right", "memory"))
def one_tensor(rank):
    """Data and flag are parts of one symmetric tensor: bytes beside a flag are no flag."""
    space = symm(2 * N, dtype=torch.int32)
    x, out = filled(rank, N, torch.int32), filled(-1, N, torch.int32)
    put_take[(1, )](x, space, space[N:], out, N=N)
    meet()
    return pairs((out, 1 - rank))


@case("right/pushed-through-a-view", classes=("right", "copy"))
def through_a_view(rank):
    """Rows of one tensor are pushed by the copy engine, each behind the other, and one flag behind the last."""
    x, buffer, flag, out = torch.arange(4.0 * N).view(4, N) + rank, symm(4, N), flags(1), filled(-1.0)
    side, = streams(1)
    there = peer_tensor(buffer, 1 - rank)
    for row in (2, 0, 3, 1):
        backend().copy(there[row], x[row], side)
    backend().write_value32(peer_tensor(flag, 1 - rank), 0, 1, side)
    take_row[(1, )](buffer[3], flag, out, N=N)
    meet()
    return pairs((out, torch.arange(3.0 * N, 4 * N) + 1 - rank))


@triton_dist.jit
def take_row(row, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    dl.wait(flag, 1, "sys", "acquire")
    tl.store(out + i, tl.load(row + i))
