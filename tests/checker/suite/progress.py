# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels that do not come to an end: cycles of waits, programs that find no SM, loops that run for ever."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, streams
from .registry import case


@triton_dist.jit
def token_ring(flag, out, HOW: tl.constexpr):
    """A token goes round once; rank 0 starts it."""
    me, world = dl.rank(), dl.num_ranks()
    if me == 0 and HOW != "nobody-starts":
        dl.notify(flag, 1 % world)
    dl.wait(flag, 1, "sys", "acquire")  # FAULT
    if me != 0 or HOW == "nobody-starts":
        dl.notify(flag, (me + 1) % world)
    tl.store(out, me + 1)


@case("progress/ring", world=4)
@case("progress/ring-nobody-starts", "deadlock", world=4, how="nobody-starts", twin="progress/ring",
      why="Every rank waits for its predecessor before it signals its successor.")
def ring(rank, how):
    """A ring of four passes a token on."""
    flag, out = flags(1), filled(-1, 1, torch.int32)
    token_ring[(1, )](flag, out, HOW=how)
    meet()
    return pairs((out, rank + 1))


@triton_dist.jit
def meet_peer(flag, out, HOW: tl.constexpr):
    peer = 1 - dl.rank()
    if HOW == "wait-first":
        dl.wait(flag, 1, "sys", "acquire")  # FAULT
        dl.notify(flag, peer)
    elif HOW == "self":
        dl.notify(flag, dl.rank())
        dl.wait(flag + 1, 1, "sys", "acquire")  # FAULT
    else:
        dl.notify(flag, peer)
        dl.wait(flag, 1, "sys", "acquire")
    tl.store(out, 1)


@case("progress/meeting")
@case("progress/both-wait-first", "deadlock", how="wait-first", twin="progress/meeting",
      why="Both ranks wait before they signal.")
@case("progress/signals-itself", "deadlock", how="self", twin="progress/meeting",
      why="Each rank signals itself and waits for a word that its peer should have set.")
def meeting(rank, how):
    """Two ranks signal each other, then wait."""
    flag, out = flags(2), filled(-1, 1, torch.int32)
    meet_peer[(1, )](flag, out, HOW=how)
    meet()
    return pairs((out, 1))


@triton_dist.jit
def with_idle_ranks(flag, out, work, HOW: tl.constexpr):
    """Everybody waits for everybody; a rank with no work signals too."""
    me, world = dl.rank(), dl.num_ranks()
    if work > 0 or HOW != "idle":
        for peer in range(world):
            dl.notify(flag + me, peer)
    dl.wait(flag, world, "sys", "acquire")  # FAULT
    tl.store(out, work)


@case("progress/idle-rank-signals", world=3)
@case("progress/idle-rank-keeps-silent", "deadlock", world=3, how="idle", twin="progress/idle-rank-signals",
      why="The rank with no tiles returns early, and the others wait for its flag (rule 11).")
def idle(rank, how):
    """Rank 1 has no tiles, and still takes part."""
    flag, out = flags(4), filled(-1, 1, torch.int32)
    with_idle_ranks[(1, )](flag, out, 0 if rank == 1 else 2, HOW=how)
    meet()
    return pairs((out, 0 if rank == 1 else 2))


@triton_dist.jit
def some_barriers(out, count):
    for _ in range(count):
        dl.barrier_all()  # FAULT
    tl.store(out, 1)


@case("progress/equal-barriers", world=3)
@case("progress/one-barrier-more", "deadlock", world=3, how="more", twin="progress/equal-barriers",
      also=("collective-mismatch", ),
      why="One rank passes one barrier more than its peers.")
def barriers(rank, how):
    """All ranks pass the same number of barriers."""
    out = filled(-1, 1, torch.int32)
    some_barriers[(1, )](out, 3 if how and rank == 2 else 2)
    meet()
    return pairs((out, 1))


# -- own work that never comes -------------------------------------------------------------------------------------------
@triton_dist.jit
def wait_here(flag, out):
    dl.wait(flag, 1, "gpu", "acquire")  # FAULT
    tl.store(out, 1)


@triton_dist.jit
def set_here(flag):
    dl.notify(flag, dl.rank(), comm_scope="gpu")


@case("progress/signal-launched-first", world=1)
@case("progress/signal-launched-behind-its-waiter", "deadlock", world=1, how="behind", twin="progress/signal-launched-first",
      why="The kernel that sets the flag is on the same stream, behind the kernel that waits for it.")
@case("progress/signal-on-another-stream", world=1, how="stream")
@case("progress/signal-behind-an-event-of-its-waiter", "deadlock", world=1, how="event", twin="progress/signal-on-another-stream",
      why="The signalling stream waits for an event behind the kernel that waits for the signal.")
def own_stream(rank, how):
    """One kernel sets a flag, another of the same rank waits for it."""
    flag, out = flags(1), filled(-1, 1, torch.int32)
    main, side = streams(2)
    if how == "stream":                  # first, so that no device queue holds it up behind its waiter (rule 15)
        with triton_dist.use_stream(side):
            set_here[(1, )](flag)
    with triton_dist.use_stream(main):
        if how == "":
            set_here[(1, )](flag)
        wait_here[(1, )](flag, out)
        if how == "behind":
            set_here[(1, )](flag)
    if how == "event":
        side.wait_event(main.record_event())
        with triton_dist.use_stream(side):
            set_here[(1, )](flag)
    meet()
    return pairs((out, 1))


@triton_dist.jit
def two_locks(locks, total, SWAP: tl.constexpr):
    first = dl.symm_at(locks, 0) + (1 if SWAP and dl.rank() == 1 else 0)
    second = dl.symm_at(locks, 0) + (0 if SWAP and dl.rank() == 1 else 1)
    for _ in range(64):
        while tl.atomic_cas(first, 0, 1, sem="acquire", scope="sys") != 0:  # FAULT
            pass
        while tl.atomic_cas(second, 0, 1, sem="acquire", scope="sys") != 0:  # FAULT
            pass
        tl.store(dl.symm_at(total, 0), tl.load(dl.symm_at(total, 0)) + 1)
        tl.debug_barrier()
        tl.atomic_xchg(second, 0, sem="release", scope="sys")
        tl.atomic_xchg(first, 0, sem="release", scope="sys")


@case("progress/locks-in-one-order")
@case("progress/locks-in-opposite-orders", "deadlock", how="swap", twin="progress/locks-in-one-order", schedules=20,
      why="Each rank may hold one lock and wait for the other.")
def locks(rank, how):
    """Two ranks take two locks, many times, always in the same order."""
    words, total = flags(2), flags(1)
    two_locks[(1, )](words, total, SWAP=how == "swap")
    meet()
    return pairs((total, 0 if rank else 128))


# -- residency ---------------------------------------------------------------------------------------------------------
@triton_dist.jit
def grid_barrier(counter, data, out):
    """All programs of a grid wait for each other: they must all be resident."""
    pid, size = tl.program_id(0), tl.num_programs(0)
    tl.store(data + pid, pid + 1)
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="gpu")
    dl.wait(counter, 1, "gpu", "acquire", size, "ge")  # FAULT
    tl.store(out + pid, tl.load(data + (pid + 1) % size))


@case("residency/grid-barrier", world=1, num_sms=4)
@case("residency/grid-barrier-too-large", "residency", world=1, num_sms=4, how="large", twin="residency/grid-barrier",
      also=("deadlock", ), why="Six programs wait for each other, and four can be resident.")
def grid_of(rank, how):
    """A barrier of all programs of a grid, on a device that holds four of them."""
    size = 6 if how else 4
    counter, data, out = filled(0, 1, torch.int32), filled(0, size, torch.int32), filled(-1, size, torch.int32)
    grid_barrier[(size, )](counter, data, out)
    meet()
    return pairs((out, torch.tensor([(pid + 1) % size + 1 for pid in range(size)], dtype=torch.int32)))


@triton_dist.jit
def roles(buffer, flag, out, CONSUMERS_FIRST: tl.constexpr, HALF: tl.constexpr, N: tl.constexpr):
    """Half of the programs produce blocks, half wait for them."""
    i, pid = tl.arange(0, N), tl.program_id(0)
    slot = pid % HALF
    if (pid < HALF) == CONSUMERS_FIRST:
        dl.wait(flag + slot, 1, "gpu", "acquire")  # FAULT
        tl.store(out + slot * N + i, tl.load(buffer + slot * N + i))
    else:
        tl.store(buffer + slot * N + i, tl.zeros([N], tl.float32) + slot)
        dl.notify(flag + slot, dl.rank(), comm_scope="gpu")


@case("residency/producers-first", world=1, num_sms=4)
@case("residency/consumers-first", "residency", world=1, num_sms=4, how="consumers", twin="residency/producers-first",
      also=("deadlock", ), why="Four waiting programs hold all SMs, and their producers come later in the grid.")
def producers(rank, how):
    """Eight programs on four SMs: the producers have the lower program ids, so waiters never hold all SMs too early."""
    buffer, flag, out = filled(-1.0, 4 * N), flags(4), filled(-1.0, 4 * N)
    roles[(8, )](buffer, flag, out, CONSUMERS_FIRST=how == "consumers", HALF=4, N=N)
    meet()
    return pairs((out, torch.arange(4.0).repeat_interleave(N)))


@triton_dist.jit
def all_wait(flag, started, out):
    tl.atomic_add(started, 1, sem="release", scope="gpu")
    dl.wait(flag, 1, "gpu", "acquire")  # FAULT
    tl.store(out + tl.program_id(0), 1)


@triton_dist.jit
def signal_after(started, flag, count):
    dl.wait(started, 1, "gpu", "acquire", count, "ge")  # FAULT
    dl.notify(flag, dl.rank(), comm_scope="gpu")


@case("residency/room-for-the-signal", world=1, num_sms=4)
@case("residency/no-room-for-the-signal", "residency", world=1, num_sms=4, how="full", twin="residency/room-for-the-signal",
      also=("deadlock", ), why="The waiting kernel takes all SMs, and the signalling kernel needs one beside it (rule 14).")
def room(rank, how):
    """A kernel that spins leaves an SM free for the kernel of another stream that ends the spinning."""
    size = 4 if how else 3
    flag, started, out = flags(1), filled(0, 1, torch.int32), filled(-1, size, torch.int32)
    main, side = streams(2)
    with triton_dist.use_stream(main):
        all_wait[(size, )](flag, started, out)
    with triton_dist.use_stream(side):
        signal_after[(1, )](started, flag, size)
    meet()
    return pairs((out, 1))


# -- livelock ----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def poll_once_set(flag, out, STEP: tl.constexpr):
    """Rank 1 has polled once before rank 0 adds 4."""
    if dl.rank() == 0:
        dl.wait(flag + 1, 1, "sys", "acquire")
        dl.notify(flag, 1, 4, "add")
    else:
        tl.atomic_add(flag, STEP, sem="acquire", scope="sys")
        dl.notify(flag + 1, 0)
        while tl.atomic_add(flag, STEP, sem="acquire", scope="sys") != 4:  # FAULT
            pass
    tl.store(out, 1)


@case("progress/poll-adds-nothing")
@case("progress/poll-changes-what-it-polls", "livelock", how="adds", twin="progress/poll-adds-nothing", endless=True,
      why="Every poll adds 3, so the word never holds the value that the poll waits for.")
def poll(rank, how):
    """Rank 1 polls with an atomic add of zero."""
    flag, out = flags(2), filled(-1, 1, torch.int32)
    poll_once_set[(1, )](flag, out, STEP=3 if how else 0)
    meet()
    return pairs((out, 1))


@triton_dist.jit
def polite(words, out, HOW: tl.constexpr):
    """Both offer to go first in turn, until one has taken what the other offers."""
    mine, theirs = words + dl.rank(), dl.symm_at(words + 1 - dl.rank(), 1 - dl.rank())
    rounds = 0
    while (rounds < 3) | (HOW == "endless"):  # FAULT
        tl.atomic_xor(mine, 1, sem="acq_rel", scope="sys")  # FAULT
        tl.atomic_add(theirs, 0, sem="acquire", scope="sys")  # FAULT
        rounds += 1
    tl.store(out, 1)


@case("progress/bounded-retries")
@case("progress/retries-for-ever", "livelock", how="endless", twin="progress/bounded-retries", endless=True,
      why="The loop changes memory in every round and has no way out.")
def retries(rank, how):
    """A retry loop gives up after three rounds."""
    words, out = flags(2), filled(-1, 1, torch.int32)
    polite[(1, )](words, out, HOW=how)
    meet()
    return pairs((out, 1))
