# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Puts of the copy engine to a peer, which may land late and in any order of bytes, and the flags behind them."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import peer_tensor
from triton_dist.runtime.backend import backend

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


@triton_dist.jit
def take(buffer, flag, epoch, out, SCOPE: tl.constexpr, N: tl.constexpr):
    """out = the block behind flag word 0."""
    i = tl.arange(0, N)
    dl.wait(flag, 1, SCOPE, "acquire", epoch, "ge")
    tl.store(out + i, tl.load(buffer + i))  # FAULT


@triton_dist.jit
def fill(data, value, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(data + i, tl.zeros([N], tl.float32) + value)  # FAULT


@triton_dist.jit
def set_flag(flag, to):
    dl.notify(flag, to)


@case("copy/push-and-flag")
@case("copy/flag-before-the-push", "race", how="first", twin="copy/push-and-flag",
      why="The flag write is on the stream before the copy.")
@case("copy/flag-on-another-stream", "race", how="stream", twin="copy/push-and-flag",
      why="The flag is written on a stream that is not ordered behind the copy.")
@case("copy/flag-by-a-kernel-of-another-stream", "race", how="kernel", twin="copy/push-and-flag",
      why="A kernel signals that the copy has landed, on a stream that does not know.")
@case("copy/flag-by-a-kernel-behind-an-event", how="event")
@case("copy/waited-for-at-gpu-scope", "race", how="gpu", twin="copy/push-and-flag",
      why="A peer's copy engine writes the flag, so gpu scope is too narrow (rule 3).")
def push(rank, how):
    """Each rank's copy engine pushes a block to the other and writes a flag behind it; a kernel waits and reads."""
    x, buffer, flag, out = filled(rank + 1.0), symm(N), flags(), filled(-1.0)
    side, other = streams(2)
    there = peer_tensor(flag, 1 - rank)
    if how == "first":
        backend().write_value32(there, 0, 1, side)
    backend().copy(peer_tensor(buffer, 1 - rank), x, side)  # FAULT
    if how == "event":
        other.wait_event(side.record_event())
    if how in ("kernel", "event"):
        with triton_dist.use_stream(other):
            set_flag[(1, )](flag, 1 - rank)
    elif how != "first":
        backend().write_value32(there, 0, 1, other if how == "stream" else side)
    take[(1, )](buffer, flag, 1, out, SCOPE="gpu" if how == "gpu" else "sys", N=N)
    meet()
    return pairs((out, 2 - rank))


@case("copy/own-flag-at-gpu-scope", world=1)
def own_flag(rank):
    """A stream write-value issued on this device may be waited for at gpu scope (rule 3)."""
    x, buffer, flag, out = filled(5.0), symm(N), flags(), filled(-1.0)
    side, = streams(1)
    backend().copy(buffer, x, side)
    backend().write_value32(flag, 0, 1, side)
    take[(1, )](buffer, flag, 1, out, SCOPE="gpu", N=N)
    meet()
    return pairs((out, 5))


@case("copy/calls-in-two-halves")
@case("copy/calls-in-one-buffer", "race", how="single", twin="copy/calls-in-two-halves",
      why="The next call's push lands where the peer may still read this call's.")
@case("copy/source-reused", "race", how="source", twin="copy/calls-in-two-halves",
      why="The source is filled for the next call while the copy may still read it.")
def calls(rank, how):
    """Four calls: fill, push with the epoch behind it, wait and read; halves alternate, and each call hears from the peer."""
    x, buffer, flag = filled(0.0), symm(2 * N), flags()
    out = [filled(-1.0) for _ in range(4)]
    side, main = streams(2)
    with triton_dist.use_stream(main):
        for epoch in range(1, 5):
            half = buffer[:N] if epoch % 2 or how == "single" else buffer[N:]
            if how != "source":
                main.wait_stream(side)
            fill[(1, )](x, 10.0 * epoch + rank, N=N)
            side.wait_stream(main)
            backend().copy(peer_tensor(half, 1 - rank), x, side)  # FAULT
            backend().write_value32(peer_tensor(flag, 1 - rank), 0, epoch, side)
            take[(1, )](half, flag, epoch, out[epoch - 1], SCOPE="sys", N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out, 1)))


@case("copy/disjoint-pushes", world=3)
@case("copy/pushes-overlap", "race", world=3, how="overlap", twin="copy/disjoint-pushes",
      why="Two ranks push into the same bytes.")
def disjoint(rank, how):
    """Ranks 1 and 2 push into their halves of a buffer of rank 0; a kernel there waits for both."""
    x, buffer, flag, out = filled(float(rank)), symm(2 * N), flags(), filled(-1.0)
    side, = streams(1)
    if rank:
        start = 0 if how else (rank - 1) * N
        backend().copy(peer_tensor(buffer, 0)[start:start + N], x, side)  # FAULT
        backend().write_value32(peer_tensor(flag, 0), rank - 1, 1, side)
    else:
        take_both[(1, )](buffer, flag, out, N=N)
    meet()
    return pairs((out, -1 if rank else 3))


@triton_dist.jit
def take_both(buffer, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    dl.wait(flag, 2, "sys", "acquire")
    tl.store(out + i, tl.load(buffer + i) + tl.load(buffer + N + i))


@case("copy/pull-behind-a-flag", classes=("copy", "hybrid"))
@case("copy/pull-too-early", "race", how="early", twin="copy/pull-behind-a-flag", classes=("copy", "hybrid"),
      why="The copy that pulls from the peer is not behind the kernel that waits for the peer's flag.")
def pull(rank, how):
    """A kernel of the peer makes a block and sets a flag; a kernel here waits for it; then the copy engine pulls the block."""
    buffer, flag, mine = symm(N), flags(), filled(-1.0)
    main, side = streams(2)
    with triton_dist.use_stream(main):
        fill[(1, )](buffer, rank + 1.0, N=N)
        set_flag[(1, )](flag, 1 - rank)
        waits[(1, )](flag)
        if not how:
            side.wait_stream(main)
        backend().copy(mine, peer_tensor(buffer, 1 - rank), side)  # FAULT
    meet()
    return pairs((mine, 2 - rank))


@triton_dist.jit
def waits(flag):
    dl.wait(flag, 1, "sys", "acquire")


@case("copy/source-lives")
@case("copy/source-freed", "use-after-free", how="freed", twin="copy/source-lives",
      why="The source tensor is gone while its copy is still on the stream.")
def source_lives(rank, how):
    """The source of a copy is kept until the copy has landed."""
    kept, buffer = [torch.full((N, ), 7.0)], symm(N)
    side, gate = streams(2)
    word = flags()
    with triton_dist.use_stream(gate):
        waits[(1, )](word)
    side.wait_stream(gate)
    backend().copy(peer_tensor(buffer, 1 - rank), kept[0], side)  # FAULT
    if how:
        kept.clear()  # FAULT
    set_flag[(1, )](word, rank)
    meet()
    return pairs((buffer, 7))


@case("copy/kernel-and-copy-beside", classes=("copy", "hybrid"), world=3)
@case("copy/kernel-put-over-a-copy", "race", how="over", world=3, twin="copy/kernel-and-copy-beside", classes=("copy", "hybrid"),
      why="A kernel's put and a copy engine's put land on the same bytes.")
def beside(rank, how):
    """Rank 1 puts by a kernel, rank 2 by its copy engine, into halves of a buffer of rank 0."""
    x, buffer = filled(float(rank)), symm(2 * N)
    side, = streams(1)
    if rank == 1:
        put_half[(1, )](x, buffer, N if how else 0, N=N)
    if rank == 2:
        backend().copy(peer_tensor(buffer, 0)[N:], x, side)  # FAULT
    meet()
    return pairs((buffer, 0 if rank else torch.tensor([1.0, 2.0]).repeat_interleave(N)))


@triton_dist.jit
def put_half(x, buffer, start, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, 0) + start + i, tl.load(x + i))  # FAULT
