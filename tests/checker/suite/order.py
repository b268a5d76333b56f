# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Hand-overs among more than two: chains, several flags, counters, tickets, barriers."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


@triton_dist.jit
def chain(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 2) + i, tl.load(x + i))  # FAULT
        dl.notify(flag, 1)
    elif dl.rank() == 1:
        if HOW == "relaxed":
            dl.wait(flag, 1, "sys", "relaxed")
        elif HOW != "no-wait":
            dl.wait(flag, 1, "sys", "acquire")
        dl.notify(flag, 2)
        if HOW == "no-wait":
            dl.wait(flag, 1, "sys", "acquire")
    elif dl.rank() == 2:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("order/chain-of-three", world=3)
@case("order/chain-broken", "race", world=3, how="no-wait", twin="order/chain-of-three",
      why="The middle rank passes the signal on before it has got it.")
@case("order/chain-relaxed-link", "race", world=3, how="relaxed", twin="order/chain-of-three",
      why="The middle rank's relaxed wait carries nothing on.")
def chain_of_three(rank, how):
    """Rank 0 puts into rank 2 and tells rank 1, which tells rank 2: order is transitive."""
    buffer, flag, out = symm(N), flags(), filled(-1.0)
    chain[(1, )](filled(3.0), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 3 if rank == 2 else -1))


@triton_dist.jit
def gather(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    for hop in range(world):
        peer = (me + hop) % world
        tl.store(dl.symm_at(buffer, peer) + me * N + i, tl.load(x + i))  # FAULT
        dl.notify(flag + me, peer)
    dl.wait(flag, world - 1 if HOW == "one-short" else world, "sys", "acquire")
    total = tl.zeros([N], tl.float32)
    for peer in range(world):
        total += tl.load(buffer + peer * N + i)  # FAULT
    tl.store(out + i, total)
    if HOW == "one-short":
        dl.wait(flag, world, "sys", "acquire")


@case("order/flag-of-each-rank", world=3)
@case("order/one-flag-short", "race", world=3, how="one-short", twin="order/flag-of-each-rank",
      why="The wait covers one flag less than there are ranks.")
def gather_by_flags(rank, how):
    """Every rank puts its block into all and sets a flag of its own there; all flags are waited for."""
    buffer, flag, out = symm(3 * N), flags(), filled(-1.0)
    gather[(1, )](filled(rank + 1.0), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 6))


@triton_dist.jit
def neighbour(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Both neighbours put a block; words 0 and 1 of `flag` are for those from the left and from the right."""
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    right = (me + 1) % world
    left = (me + world - 1) % world
    tl.store(dl.symm_at(buffer, right) + i, tl.load(x + i))  # FAULT
    dl.notify(flag, right)
    tl.store(dl.symm_at(buffer, left) + N + i, tl.load(x + i))
    dl.notify(flag + 1, left)
    if HOW == "swapped":
        dl.wait(flag + 1, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))  # FAULT
        dl.wait(flag, 1, "sys", "acquire")
    else:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))
        dl.wait(flag + 1, 1, "sys", "acquire")
    tl.store(out + N + i, tl.load(buffer + N + i))


@case("order/two-neighbours", world=3)
@case("order/flag-of-the-other-neighbour", "race", world=3, how="swapped", twin="order/two-neighbours",
      why="The block from the left is read behind the flag of the rank on the right.")
def two_neighbours(rank, how):
    """Halo exchange in a ring: a block and a flag from either side."""
    buffer, flag, out = symm(2 * N), flags(), filled(-1.0, 2 * N)
    neighbour[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, torch.tensor([(rank + 2) % 3, (rank + 1) % 3]).float().repeat_interleave(N)))


@triton_dist.jit
def counted(x, buffer, counter, out, HOW: tl.constexpr, N: tl.constexpr):
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    tl.store(dl.symm_at(buffer, 0) + me * N + i, tl.load(x + i))  # FAULT
    tl.debug_barrier()
    if HOW == "relaxed":
        tl.atomic_add(dl.symm_at(counter, 0), 1, sem="relaxed", scope="sys")
    elif HOW == "gpu":
        tl.atomic_add(dl.symm_at(counter, 0), 1, sem="release", scope="gpu")  # FAULT
    else:
        tl.atomic_add(dl.symm_at(counter, 0), 1, sem="release", scope="sys")
    if me == 0:
        dl.wait(counter, 1, "sys", "acquire", world - 1 if HOW == "one-less" else world, "ge")  # FAULT gpu
        for peer in range(world):
            tl.store(out + peer * N + i, tl.load(buffer + peer * N + i))  # FAULT
        if HOW == "one-less":
            dl.wait(counter, 1, "sys", "acquire", world, "ge")


@case("order/arrivals-counted", world=3, classes=("order", "atomic"))
@case("order/arrivals-counted-relaxed", "race", world=3, how="relaxed", twin="order/arrivals-counted",
      classes=("order", "atomic"),
      why="Relaxed arrivals publish no data.")
@case("order/arrivals-counted-gpu-scope", "race", world=3, how="gpu", twin="order/arrivals-counted", classes=("order", "atomic"),
      why="Arrivals at gpu scope from other devices.")
@case("order/arrivals-one-less", "race", world=3, how="one-less", twin="order/arrivals-counted", classes=("order", "atomic"),
      why="The wait passes when one arrival is still missing.")
def arrivals(rank, how):
    """One call's arrivals are counted in one word; the reader acquires all of them (release sequence)."""
    buffer, counter, out = symm(3 * N), flags(1), filled(-1.0, 3 * N)
    counted[(1, )](filled(rank + 1.0), buffer, counter, out, HOW=how, N=N)
    meet()
    return pairs((out, -1 if rank else torch.arange(1.0, 4.0).repeat_interleave(N)))


@triton_dist.jit
def last_out(x, buffer, flag, ticket, out, HOW: tl.constexpr, N: tl.constexpr):
    i, pid = tl.arange(0, N), tl.program_id(0)
    peer = 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + pid * N + i, tl.load(x + i))  # FAULT
    if HOW == "first":
        if pid == 0:
            dl.notify(flag, peer)
    else:
        if HOW != "no-barrier":
            tl.debug_barrier()
        if HOW == "relaxed":
            last = tl.atomic_add(ticket, 1, sem="relaxed", scope="gpu") == tl.num_programs(0) - 1
        else:
            last = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1
        if last:
            dl.notify(flag, peer)
    if HOW == "one-waits":
        if pid == 0:
            dl.wait(flag, 1, "sys", "acquire")
    else:
        dl.wait(flag, 1, "sys", "acquire")
    tl.store(out + pid * N + i, tl.load(buffer + (pid + 1) % 3 * N + i))  # FAULT


@case("order/last-program-notifies", classes=("order", "ticket"))
@case("order/first-program-notifies", "race", how="first", twin="order/last-program-notifies", classes=("order", "ticket"),
      why="Program 0 signals for all, whether or not the others have stored.")
@case("order/ticket-relaxed", "race", how="relaxed", twin="order/last-program-notifies", classes=("order", "ticket"),
      why="A relaxed ticket does not make the other programs' stores known to the last one.")
@case("order/ticket-without-cta-barrier", "race", how="no-barrier", twin="order/last-program-notifies",
      classes=("order", "ticket"),
      why="The ticket is taken by one thread with no CTA barrier behind the block's stores.")
@case("order/one-program-waits-for-all", "race", how="one-waits", twin="order/last-program-notifies", classes=("order", "ticket"),
      why="Only program 0 waits; the others read with no order.")
def last_program(rank, how):
    """The programs of a grid put blocks; the last one out, by a ticket, signals for all. All wait before they read."""
    buffer, flag, ticket, out = symm(3 * N), flags(), torch.zeros(1, dtype=torch.int32), filled(-1.0, 3 * N)
    last_out[(3, )](filled(3.0 + rank), buffer, flag, ticket, out, HOW=how, N=N)
    meet()
    return pairs((out, 4 - rank))


# -- barriers ----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def barrier_between(x, buffer, out, HOW: tl.constexpr, N: tl.constexpr):
    i, peer = tl.arange(0, N), (dl.rank() + 1) % dl.num_ranks()
    if HOW == "before":
        dl.barrier_all()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))  # FAULT before
    if HOW != "before":
        dl.barrier_all()
    tl.store(out + i, tl.load(buffer + i))  # FAULT
    if HOW != "once":
        dl.barrier_all()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i) + 1)  # FAULT once
    dl.barrier_all()
    tl.store(out + N + i, tl.load(buffer + i))


@case("order/barriers", world=3)
@case("order/barrier-before-the-put", "race", world=3, how="before", twin="order/barriers",
      why="The barrier stands before the put, not between it and the load.")
@case("order/barrier-missing-before-reuse", "race", world=3, how="once", twin="order/barriers",
      why="The buffer is put into again while its owner may still read it.")
def barriers(rank, how):
    """Two rounds of puts into the next rank with barrier_all around every use."""
    buffer, out = symm(N), filled(-1.0, 2 * N)
    barrier_between[(1, )](filled(float(rank)), buffer, out, HOW=how, N=N)
    meet()
    before = float((rank + 2) % 3)
    return pairs((out, torch.tensor([before, before + 1]).repeat_interleave(N)))


@triton_dist.jit
def put_next(x, buffer, N: tl.constexpr):
    i, peer = tl.arange(0, N), (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))  # FAULT


@triton_dist.jit
def take(buffer, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("order/host-barrier")
@case("order/host-barrier-unsynchronised", "race", how="no-sync", twin="order/host-barrier", classes=("order", "stream"),
      why="The host barrier does not wait for the side stream's kernel.")
@case("order/host-synchronised-without-barrier", "race", how="no-barrier", twin="order/host-barrier",
      why="Own work is done, but nobody has asked whether the peer's is.")
def host_barrier(rank, how):
    """A put on a side stream, synchronize and a barrier of the hosts, then a kernel that reads."""
    x, buffer, out = filled(float(rank)), symm(N), filled(-1.0)
    side, = streams(1)
    with triton_dist.use_stream(side):
        put_next[(1, )](x, buffer, N=N)
    if how != "no-sync":
        triton_dist.synchronize()
    if how != "no-barrier":
        resolve().barrier()
    take[(1, )](buffer, out, N=N)
    meet()
    return pairs((out, 1 - rank))
