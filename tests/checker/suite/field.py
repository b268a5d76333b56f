# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bugs that users of this field have reported, made again in small: the first seven. The others are in field_more.py."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


@triton_dist.jit
def accumulate_locked(lock, tile, x, HOW: tl.constexpr, N: tl.constexpr):
    """Adds a block to a tile of rank 0 under its lock."""
    i = tl.arange(0, N)
    word, there = dl.symm_at(lock, 0), dl.symm_at(tile, 0) + i
    while tl.atomic_cas(word, 0, 1, sem="acquire", scope="sys") != 0:  # FAULT
        pass
    tl.store(there, tl.load(there) + tl.load(x + i))  # FAULT
    tl.debug_barrier()
    if HOW == "gpu":
        tl.atomic_xchg(word, 0, sem="release", scope="gpu")  # FAULT
    elif HOW == "default":
        tl.atomic_xchg(word, 0, sem="release")  # FAULT
    else:
        tl.atomic_xchg(word, 0, sem="release", scope="sys")


@case("field/01-lock-released-at-system-scope", world=3, classes=("field", "lock"))
@case("field/01-lock-released-at-gpu-scope", "race", world=3, how="gpu", twin="field/01-lock-released-at-system-scope",
      classes=("field", "lock"), why="The next holder is on another device, and gpu scope does not reach it.")
@case("field/01-lock-released-at-default-scope", "race", world=3, how="default", twin="field/01-lock-released-at-system-scope",
      classes=("field", "lock"), why="The default scope of an atomic is gpu.")
def lock_scope(rank, how):
    """Ranks add to a tile under a lock in peer-visible memory."""
    lock, tile = flags(1), symm(N)
    accumulate_locked[(1, )](lock, tile, filled(rank + 1.0), HOW=how, N=N)
    meet()
    return pairs((tile, 0 if rank else 6))


@triton_dist.jit
def all_gather(x, buffer, flag, out, value, half, N: tl.constexpr):
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    for hop in range(world):
        peer = (me + hop) % world
        tl.store(dl.symm_at(buffer, peer) + half + me * N + i, tl.load(x + i))  # FAULT
        dl.notify(flag + me, peer, value)
    for peer in range(world):
        token = dl.wait(flag + peer, 1, "sys", "acquire", value, "ge")
        tl.store(out + peer * N + i, tl.load(dl.consume_token(buffer, token) + half + peer * N + i))  # FAULT


@case("field/02-flags-get-the-epoch", world=3, classes=("field", "epoch"))
@case("field/02-flags-are-always-one", "race", world=3, how="one", twin="field/02-flags-get-the-epoch",
      classes=("field", "epoch"),
      why="The flags of the first call are still 1 in the second.")
def stale_flags(rank, how):
    """Three all-gathers on the same flags and two halves."""
    buffer, flag, out = symm(6 * N), flags(4), [filled(-1.0, 3 * N) for _ in range(3)]
    x = [filled(10.0 * epoch + rank) for epoch in (1, 2, 3)]
    for epoch in (1, 2, 3):
        all_gather[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], 1 if how else epoch, 3 * N * (epoch & 1), N=N)
    meet()
    return pairs(*((got, torch.arange(3.0).repeat_interleave(N) + 10 * epoch) for epoch, got in enumerate(out, 1)))


@triton_dist.jit
def one_shot(x, shared, out, HOW: tl.constexpr, N: tl.constexpr):
    """All-reduce in one shot: publish the input, a barrier, read all peers' inputs, a barrier."""
    i, world = tl.arange(0, N), dl.num_ranks()
    tl.store(shared + i, tl.load(x + i))  # FAULT
    if HOW != "no-entry":
        dl.barrier_all()
    total = tl.zeros([N], tl.float32)
    for hop in range(world):
        total += tl.load(dl.symm_at(shared, (dl.rank() + hop) % world) + i)  # FAULT
    tl.store(out + i, total)
    if HOW != "no-exit":
        dl.barrier_all()


@case("field/03-one-shot-all-reduce", world=3)
@case("field/03-all-reduce-without-entry-barrier", "race", world=3, how="no-entry", twin="field/03-one-shot-all-reduce",
      why="A peer's input may not be there yet.")
@case("field/03-all-reduce-without-exit-barrier", "race", world=3, how="no-exit", twin="field/03-one-shot-all-reduce",
      why="The next call's input replaces one that a peer still reads.")
def all_reduce(rank, how):
    """Two one-shot all-reduces, one after the other."""
    shared, out = symm(N), [filled(-1.0) for _ in range(2)]
    x = [filled(rank + 1.0), filled(rank + 2.0)]
    for call in range(2):
        one_shot[(1, )](x[call], shared, out[call], HOW=how, N=N)
    meet()
    return pairs((out[0], 6), (out[1], 9))


@triton_dist.jit
def with_partner(x, buffer, word, out, partner, slot, epoch, N: tl.constexpr):
    """An exchange with one partner: `slot` of the buffer, one word of the signal pad."""
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, partner) + slot * N + i, tl.load(x + i))  # FAULT
    dl.notify(word, partner, epoch)
    dl.wait(word, 1, "sys", "acquire", epoch, "ge")
    tl.store(out + i, tl.load(buffer + slot * N + i))  # FAULT


@case("field/04-pad-of-each-group", world=3, classes=("field", "group"))
@case("field/04-pads-of-groups-collide", "race", world=3, how="shared", twin="field/04-pad-of-each-group",
      classes=("field", "group"),
      why="The signal of the other group's partner ends the wait for this one's.")
def pads(rank, how):
    """Rank 1 is in a group with rank 0 and in another with rank 2, and exchanges blocks in both, call after call."""
    buffer, pad, groups, calls = symm(4 * N), flags(2), [(0, 1), (1, 2)], range(1, 7)
    found, x = [], [filled(10.0 * epoch + rank) for epoch in calls]
    for epoch in calls:
        for number, group in enumerate(groups):
            if rank in group:
                partner = sum(group) - rank
                found.append((filled(-1.0), 10 * epoch + partner))
                with_partner[(1, )](x[epoch - 1], buffer, pad if how else pad[number:], found[-1][0], partner,
                                    number + 2 * (epoch & 1), epoch, N=N)
    meet()
    return pairs(*found)


@triton_dist.jit
def one_call(x, buffer, flag, out, epoch, half, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + half + i, tl.load(x + i))  # FAULT
    dl.notify(flag, peer, epoch)  # FAULT
    dl.wait(flag, 1, "sys", "acquire", epoch, "ge")  # FAULT
    tl.store(out + i, tl.load(buffer + half + i))  # FAULT


@case("field/05-one-workspace-on-one-stream-after-another", classes=("field", "stream"))
@case("field/05-one-workspace-on-two-streams", "race", how="open", also=("deadlock", ), classes=("field", "stream"),
      twin="field/05-one-workspace-on-one-stream-after-another",
      why="Calls of one workspace run at once; the later epoch ends the wait of the earlier call, or is overwritten by it "
          "(rule 6).")
def two_streams(rank, how):
    """Four calls on one workspace, in turn on two streams; a call first waits for the last call's stream."""
    buffer, flag, out = symm(2 * N), flags(1), [filled(-1.0) for _ in range(4)]
    x = [filled(10.0 * epoch + rank) for epoch in range(1, 5)]
    both = streams(2)
    for epoch in range(1, 5):
        mine, other = both[epoch % 2], both[1 - epoch % 2]
        if not how:
            mine.wait_stream(other)
        with triton_dist.use_stream(mine):
            one_call[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, N * (epoch & 1), N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out, 1)))


@triton_dist.jit
def put_with_signal(x, buffer, flag, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))  # FAULT
    dl.notify(flag, peer)


@triton_dist.jit
def wait_for_signal(flag):
    dl.wait(flag, 1, "sys", "acquire")


@triton_dist.jit
def multiply(buffer, w, out, B: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    tl.store(out + i * B + j, tl.dot(tl.load(buffer + i * B + j), tl.load(w + i * B + j)))  # FAULT


@case("field/06-signal-wait-and-gemm-in-order", classes=("field", "stream"))
@case("field/06-signal-waited-for-on-another-stream", "race", how="other", twin="field/06-signal-wait-and-gemm-in-order",
      classes=("field", "stream"), why="The kernel that waits for the signal is on a stream that the GEMM does not follow.")
def two_bindings(rank, how):
    """All-gather and GEMM by separate kernels: put with signal, wait for the signal, multiply."""
    x, buffer, flag, w, out = filled(rank + 1.0, 256), symm(256), flags(1), torch.eye(16), filled(-1.0, 256)
    main, side = streams(2)
    with triton_dist.use_stream(side):
        put_with_signal[(1, )](x, buffer, flag, N=256)
        wait_for_signal[(1, )](flag)
    if not how:
        main.wait_stream(side)
    with triton_dist.use_stream(main):
        multiply[(1, )](buffer, w, out, B=16)
    meet()
    return pairs((out, 2 - rank))


@triton_dist.jit
def push_or_pull(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Push: into the peer's memory, then a flag there. Pull: into own memory, then a flag at the peer, which reads it here."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    target = buffer if HOW == "pull" else dl.symm_at(buffer, peer)
    tl.store(target + i, tl.load(x + i))  # FAULT
    if HOW == "stale":
        tl.debug_barrier()
        tl.atomic_xchg(dl.symm_at(flag, peer), 1, sem="relaxed", scope="sys")
    else:
        dl.notify(flag, peer)
    dl.wait(flag, 1, "sys", "acquire")
    source = dl.symm_at(buffer, peer) if HOW == "pull" else buffer
    tl.store(out + i, tl.load(source + i))  # FAULT


@case("field/07-push")
@case("field/07-pull", how="pull")
@case("field/07-pushed-data-behind-a-relaxed-flag", "race", how="stale", twin="field/07-push",
      why="The flag overtakes the pushed data: nothing orders the two stores.")
def push_pull(rank, how):
    """An exchange by push, and by pull."""
    buffer, flag, out = symm(N), flags(1), filled(-1.0)
    push_or_pull[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 1 - rank))
