# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Repeated calls on one workspace: epochs, halves and the closing rule, and the ways to break each."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, symm
from .registry import case

CALLS = 4


# -- an exchange, call after call ----------------------------------------------------------------------------------------
@triton_dist.jit
def exchange(x, buffer, flag, out, epoch, half, HOW: tl.constexpr, N: tl.constexpr):
    """Puts x into the peer's half, releases the epoch, waits for the peer's, reads."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    if HOW == "constant":
        tl.store(dl.symm_at(buffer, peer) + half + i, tl.load(x + i))  # FAULT
        dl.notify(flag, peer, 1)
        dl.wait(flag, 1, "sys", "acquire", 1, "ge")
    else:
        tl.store(dl.symm_at(buffer, peer) + half + i, tl.load(x + i))  # FAULT
        dl.notify(flag, peer, epoch)
        if HOW == "old":
            dl.wait(flag, 1, "sys", "acquire", epoch - 1, "ge")
        else:
            dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
    tl.store(out + i, tl.load(buffer + half + i))  # FAULT


@case("protocol/exchange")
@case("protocol/flag-value-constant", "race", how="constant", twin="protocol/exchange", classes=("protocol", "epoch"),
      why="The flag still has the value of the first call, so later waits pass at once (rule 7).")
@case("protocol/waits-for-the-last-epoch", "race", how="old", twin="protocol/exchange", classes=("protocol", "epoch"),
      why="The wait is one epoch behind and passes on what the call before has set.")
@case("protocol/one-buffer", "race", how="single", twin="protocol/exchange", classes=("protocol", "halves"),
      why="The next call's data lands where the peer may still read this call's (rule 10).")
def calls(rank, how):
    """Two ranks exchange blocks, call after call: one flag that gets the epoch, two halves, each call hears from the peer."""
    buffer, flag, out = symm(2 * N), flags(), [filled(-1.0) for _ in range(CALLS)]
    x = [filled(10.0 * epoch + rank) for epoch in range(1, CALLS + 1)]
    for epoch in range(1, CALLS + 1):
        half = 0 if how == "single" else N * (epoch & 1)
        exchange[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, half, HOW=how, N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out, 1)))


@case("protocol/halves-of-fixed-capacity", classes=("protocol", "halves"))
@case("protocol/halves-by-the-shape-of-the-call", "race", how="shape", twin="protocol/halves-of-fixed-capacity",
      classes=("protocol", "halves"),
      why="The half lies where this call's shape puts it, over the half of the call before (rule 10).")
def halves(rank, how):
    """Calls of 64 and of 32 elements; the second half begins at the capacity, whatever the shape."""
    buffer, flag, sizes = symm(2 * N), flags(), (N, N // 2, N // 2, N, N)
    out = [filled(-1.0, n) for n in sizes]
    x = [filled(10.0 * epoch + rank, n) for epoch, n in enumerate(sizes)]
    for epoch, n in enumerate(sizes, 1):
        half = (n if how else N) * (epoch & 1)
        exchange[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, half, HOW="", N=n)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out)))


# -- the closing rule --------------------------------------------------------------------------------------------------
@triton_dist.jit
def one_way(x, buffer, flag, out, epoch, half, HOW: tl.constexpr, N: tl.constexpr):
    """Rank 0 puts, rank 1 reads. Both signal, and both wait, also the one that needs no data."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + half + i, tl.load(x + i))  # FAULT
    if HOW != "open" or dl.rank() == 0:
        dl.notify(flag, peer, epoch)
    if HOW != "open" or dl.rank() == 1:
        dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
    if dl.rank() == 1:
        tl.store(out + i, tl.load(buffer + half + i))  # FAULT


@case("protocol/closed-calls", classes=("protocol", "closing"))
@case("protocol/no-closing-wait", "race", how="open", twin="protocol/closed-calls", classes=("protocol", "closing"),
      why="The sender never hears from the reader and runs two calls ahead (rule 11).")
def closing(rank, how):
    """Data goes one way only; the sender still waits for the reader's epoch, so it is never two calls ahead."""
    buffer, flag, out = symm(2 * N), flags(), [filled(-1.0) for _ in range(CALLS)]
    x = [filled(float(epoch)) for epoch in range(1, CALLS + 1)]
    for epoch in range(1, CALLS + 1):
        one_way[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, N * (epoch & 1), HOW=how, N=N)
    meet()
    return pairs(*((got, epoch if rank else -1) for epoch, got in enumerate(out, 1)))


@triton_dist.jit
def ring_call(x, buffer, flag, out, epoch, half, HOW: tl.constexpr, N: tl.constexpr):
    """A sum travels round the ring: W - 1 hops, a slot and a flag for each, so a chain from every rank reaches all."""
    i, world = tl.arange(0, N), dl.num_ranks()
    successor = (dl.rank() + 1) % world
    total = tl.load(x + i)
    hops = 1 if HOW == "short" else world - 1
    for hop in range(hops):
        tl.store(dl.symm_at(buffer, successor) + half + hop * N + i, total)  # FAULT
        dl.notify(flag + hop, successor, epoch)
        token = dl.wait(flag + hop, 1, "sys", "acquire", epoch, "ge")
        total += tl.load(dl.consume_token(buffer, token) + half + hop * N + i)  # FAULT
    tl.store(out + i, total)


@case("protocol/ring-closes-itself", world=4, classes=("protocol", "closing"))
@case("protocol/ring-too-short-to-close", "race", world=4, how="short", twin="protocol/ring-closes-itself",
      classes=("protocol", "closing"),
      why="With one hop a rank knows that its predecessor has begun, not that its successor has read (rule 11).")
def ring(rank, how):
    """A ring of four over double buffers, call after call, with no barrier: the chain through all ranks is the closing rule."""
    buffer, flag, out = symm(6 * N), flags(), [filled(-1.0) for _ in range(CALLS)]
    x = [filled(1.0) for _ in range(CALLS)]
    for epoch in range(1, CALLS + 1):
        ring_call[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, 3 * N * (epoch & 1), HOW=how, N=N)
    meet()
    return pairs(*((got, 8) for got in out))


# -- counters ----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def tiles_call(x, buffer, flag, out, epoch, half, tiles, HOW: tl.constexpr, N: tl.constexpr):
    """Puts `tiles` blocks, a flag for each; at fault, one word that every tile adds 1 to."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    for tile in range(tiles):
        tl.store(dl.symm_at(buffer, peer) + half + tile * N + i, tl.load(x + i))  # FAULT race
        if HOW == "added":
            dl.notify(flag, peer, 1, "add")
        else:
            dl.notify(flag + tile, peer, epoch)
    for tile in range(tiles):
        if HOW == "added":
            token = dl.wait(flag, 1, "sys", "acquire", epoch * tiles, "ge")  # FAULT added
        else:
            token = dl.wait(flag + tile, 1, "sys", "acquire", epoch, "ge")
        tl.store(out + tile * N + i, tl.load(dl.consume_token(buffer, token) + half + tile * N + i))  # FAULT race


@case("protocol/flags-of-tiles", classes=("protocol", "epoch"))
@case("protocol/counter-added-to", "deadlock", how="added", twin="protocol/flags-of-tiles", classes=("protocol", "epoch"),
      why="Arrivals are counted from the first call on, and a call with more tiles waits for more than there were (rule 7).")
@case("protocol/counter-added-to-shrinking", "race", how="shrink",
      twin="protocol/flags-of-tiles",
      classes=("protocol", "epoch"), why="After calls with more tiles the count is ahead, and the wait passes at once (rule 7).")
def tiles(rank, how):
    """Calls of one and of three tiles on the same flags."""
    buffer, flag, counts = symm(6 * N), flags(), {"added": (1, 3, 1), "shrink": (3, 1, 1)}.get(how, (3, 1, 3, 1))
    out = [filled(-1.0, n * N) for n in counts]
    x = [filled(10.0 * epoch + rank) for epoch in range(len(counts))]
    for epoch, n in enumerate(counts, 1):
        tiles_call[(1, )](x[epoch - 1], buffer, flag, out[epoch - 1], epoch, 3 * N * (epoch & 1), n, HOW="added" if how else "",
                         N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out)))


@triton_dist.jit
def grid_call(x, buffer, flag, out, control, half, tiles, HOW: tl.constexpr, N: tl.constexpr):
    """A persistent grid over tiles; the epoch is in control[0], or at fault a program's own in control[2 + pid]."""
    i, pid, peer = tl.arange(0, N), tl.program_id(0), 1 - dl.rank()
    own = control + 2 + pid
    epoch = tl.load(own if HOW == "own" else control) + 1  # FAULT early
    for tile in range(pid, tiles, tl.num_programs(0)):
        tl.store(dl.symm_at(buffer, peer) + half + tile * N + i, tl.load(x + i))  # FAULT own
        dl.notify(flag + tile, peer, epoch)
    for tile in range(pid, tiles, tl.num_programs(0)):
        token = dl.wait(flag + tile, 1, "sys", "acquire", epoch, "ge")  # FAULT own, early
        tl.store(out + tile * N + i, tl.load(dl.consume_token(buffer, token) + half + tile * N + i))  # FAULT own
    tl.debug_barrier()
    if HOW == "own":
        tl.store(own, epoch)
    elif HOW == "early":
        if pid == 0:
            tl.store(control, epoch)  # FAULT early
    elif tl.atomic_add(control + 1, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(control + 1, 0)
        tl.store(control, epoch)


@case("protocol/last-program-advances-the-epoch", classes=("protocol", "epoch", "ticket"))
@case("protocol/epoch-of-each-program", "race", how="own", twin="protocol/last-program-advances-the-epoch",
      classes=("protocol", "epoch"), also=("deadlock", ),
      why="When the grid changes, a program's own count falls behind and matches flags of an earlier call (rule 9).")
@case("protocol/first-program-advances-the-epoch", "race", how="early", twin="protocol/last-program-advances-the-epoch",
      classes=("protocol", "epoch", "ticket"), also=("deadlock", ),
      why="Program 0 stores the next epoch while other programs of the grid have yet to read this one.")
def grids(rank, how):
    """Calls on grids of 2, 1, 2, ... programs over two tiles; the last program out advances the epoch."""
    buffer, flag, control = symm(4 * N), flags(), torch.zeros(4, dtype=torch.int32)
    grids_of_calls = (2, 1, 1, 2, 2)
    out = [filled(-1.0, 2 * N) for _ in grids_of_calls]
    x = [filled(10.0 * epoch + rank) for epoch in range(len(grids_of_calls))]
    for epoch, grid in enumerate(grids_of_calls, 1):
        grid_call[(grid, )](x[epoch - 1], buffer, flag, out[epoch - 1], control, 2 * N * (epoch & 1), 2, HOW=how, N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out)))
