# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Streams and events of one device: local memory that two streams share."""
import torch
import triton.language as tl

import triton_dist
from triton_dist.runtime.backend import backend

from .common import N, filled, meet, pairs, streams
from .registry import case


@triton_dist.jit
def write(data, value, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(data + i, tl.zeros([N], tl.float32) + value)  # FAULT


@triton_dist.jit
def read(data, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(data + i))  # FAULT


@case("stream/wait-stream", world=1)
@case("stream/no-wait", "race", world=1, how="none", twin="stream/wait-stream",
      why="Nothing orders the reader's stream after the writer's.")
@case("stream/waits-the-wrong-way", "race", world=1, how="reverse", twin="stream/wait-stream",
      why="The writer's stream waits for the reader's.")
@case("stream/waits-too-early", "race", world=1, how="early", twin="stream/wait-stream",
      why="wait_stream covers what is on the other stream at the call; the kernel was put there later.")
def wait_stream(rank, how):
    """A kernel on one stream writes, a kernel on another reads."""
    data, out = filled(0.0), filled(-1.0)
    a, b = streams(2)
    if how == "early":
        b.wait_stream(a)
    if how == "reverse":
        a.wait_stream(b)
    with triton_dist.use_stream(a):
        write[(1, )](data, 5.0, N=N)
    if how == "":
        b.wait_stream(a)
    with triton_dist.use_stream(b):
        read[(1, )](data, out, N=N)
    meet()
    return pairs((out, 5))


@case("stream/event", world=1)
@case("stream/event-recorded-too-early", "race", world=1, how="early", twin="stream/event",
      why="The event is recorded before the kernel that it should cover.")
@case("stream/event-of-another-stream", "race", world=1, how="other", twin="stream/event",
      why="The event is recorded on a stream that has nothing to do with the writer.")
@case("stream/event-waited-for-elsewhere", "race", world=1, how="elsewhere", twin="stream/event",
      why="Another stream than the reader's waits for the event.")
@case("stream/event-recorded-again", world=1, how="again")
@case("stream/event-waited-for-before-it-is-recorded-again", "race", world=1, how="before-again",
      twin="stream/event-recorded-again",
      why="The wait is for what the event was at the call: the first record.")
def event(rank, how):
    """The reader's stream waits for an event that is recorded behind the writer."""
    data, out = filled(0.0), filled(-1.0)
    a, b, other = streams(3)
    mark = a.record_event() if how in ("early", "again", "before-again") else None
    if how == "before-again":
        b.wait_event(mark)
    with triton_dist.use_stream(a):
        write[(1, )](data, 5.0, N=N)
    if how != "early":
        mark = (other if how == "other" else a).record_event(mark)
    if how != "before-again":
        (other if how == "elsewhere" else b).wait_event(mark)
    with triton_dist.use_stream(b):
        read[(1, )](data, out, N=N)
    meet()
    return pairs((out, 5))


@case("stream/chain-of-events", world=1)
@case("stream/chain-of-events-broken", "race", world=1, how="broken", twin="stream/chain-of-events",
      why="The stream in the middle records its event before it waits for the first.")
def events_in_a_chain(rank, how):
    """Three streams: the last one waits for an event of the middle one, which has waited for the first."""
    data, out = filled(0.0), filled(-1.0)
    a, b, c = streams(3)
    with triton_dist.use_stream(a):
        write[(1, )](data, 5.0, N=N)
    if how:
        middle = b.record_event()
        b.wait_event(a.record_event())
    else:
        b.wait_event(a.record_event())
        middle = b.record_event()
    c.wait_event(middle)
    with triton_dist.use_stream(c):
        read[(1, )](data, out, N=N)
    meet()
    return pairs((out, 5))


@case("stream/two-writers-in-turn", world=1)
@case("stream/two-writers-at-once", "race", world=1, how="open", twin="stream/two-writers-in-turn",
      why="Two streams write one tensor in no order.")
def two_writers(rank, how):
    """Kernels on two streams write the same local tensor, the second behind the first."""
    data = filled(0.0)
    a, b = streams(2)
    for stream, value in ((a, 1.0), (b, 2.0)):
        if value == 2.0 and not how:
            b.wait_stream(a)
        with triton_dist.use_stream(stream):
            write[(1, )](data, value, N=N)
    meet()
    return pairs((data, 2))


@case("stream/reader-then-writer", world=1)
@case("stream/writer-overtakes-reader", "race", world=1, how="open", twin="stream/reader-then-writer",
      why="The next write is not ordered behind the read on the other stream.")
def reader_then_writer(rank, how):
    """A stream reads what the other has written; then the first writes again."""
    data, out = filled(0.0), filled(-1.0)
    a, b = streams(2)
    with triton_dist.use_stream(a):
        write[(1, )](data, 1.0, N=N)
    b.wait_stream(a)
    with triton_dist.use_stream(b):
        read[(1, )](data, out, N=N)
    if not how:
        a.wait_stream(b)
    with triton_dist.use_stream(a):
        write[(1, )](data, 2.0, N=N)
    meet()
    return pairs((out, 1), (data, 2))


@case("stream/back-to-back", world=1)
def back_to_back(rank):
    """Kernels on one stream, each reading what the one before wrote, with nothing between."""
    data, out = filled(0.0), [filled(-1.0) for _ in range(3)]
    stream, = streams(1)
    with triton_dist.use_stream(stream):
        for k in range(3):
            write[(1, )](data, float(k), N=N)
            read[(1, )](data, out[k], N=N)
    meet()
    return pairs(*((got, k) for k, got in enumerate(out)))


@case("stream/halves-of-one-tensor", world=1)
def halves_of_one_tensor(rank):
    """Two streams write the halves of one tensor: no order is needed."""
    data = filled(0.0, 2 * N)
    a, b = streams(2)
    for k, stream in enumerate((a, b)):
        with triton_dist.use_stream(stream):
            write[(1, )](data[k * N:], k + 1.0, N=N)
    meet()
    return pairs((data, torch.tensor([1.0, 2.0]).repeat_interleave(N)))


@case("stream/host-synchronises", world=1)
@case("stream/host-synchronises-another-stream", "race", world=1, how="other", twin="stream/host-synchronises",
      why="The host waits for a stream with nothing on it.")
def host_synchronises(rank, how):
    """The host waits for the writer's stream before it launches the reader elsewhere."""
    data, out = filled(0.0), filled(-1.0)
    a, b, other = streams(3)
    with triton_dist.use_stream(a):
        write[(1, )](data, 5.0, N=N)
    (other if how else a).synchronize()
    with triton_dist.use_stream(b):
        read[(1, )](data, out, N=N)
    meet()
    return pairs((out, 5))


# -- the copy engine ---------------------------------------------------------------------------------------------------
@case("stream/copy-behind-its-producer", world=1, classes=("stream", "copy"))
@case("stream/copy-before-its-producer", "race", world=1, how="before", twin="stream/copy-behind-its-producer",
      classes=("stream", "copy"), why="The copy's stream does not wait for the kernel that makes its source.")
@case("stream/read-before-the-copy-has-landed", "race", world=1, how="unread", twin="stream/copy-behind-its-producer",
      classes=("stream", "copy"), why="The reader does not wait for the copy.")
@case("stream/source-overwritten-under-the-copy", "race", world=1, how="overwrite", twin="stream/copy-behind-its-producer",
      classes=("stream", "copy"), why="The source is written again while the copy may still read it.")
def copies(rank, how):
    """A kernel makes a block, the copy engine copies it, a kernel reads the copy; then the block is made anew."""
    source, target, out = filled(0.0), filled(-2.0), filled(-1.0)
    main, side = streams(2)
    with triton_dist.use_stream(main):
        write[(1, )](source, 5.0, N=N)
        if how != "before":
            side.wait_stream(main)
        backend().copy(target, source, side)  # FAULT
        landed = side.record_event()
        if how == "overwrite":
            write[(1, )](source, 6.0, N=N)
        if how != "unread":
            main.wait_event(landed)
        read[(1, )](target, out, N=N)
        main.wait_event(landed)
        if how != "overwrite":
            write[(1, )](source, 6.0, N=N)
    meet()
    return pairs((out, 5), (source, 6))
