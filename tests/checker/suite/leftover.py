# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Signals that nobody takes: they lie in wait for the next kernel that uses the word."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import peer_tensor
from triton_dist.runtime.backend import backend

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


@triton_dist.jit
def signals(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))
    dl.notify(flag, peer)
    dl.wait(flag, 1, "sys", "acquire")
    tl.store(out + i, tl.load(buffer + i))
    if HOW == "late":
        dl.notify(flag + 1, peer)  # FAULT late
    if HOW == "acknowledged":
        dl.notify(flag + 1, peer)
        dl.wait(flag + 1, 1, "sys", "acquire")


@case("leftover/every-signal-taken", how="acknowledged")
@case("leftover/signal-that-nobody-waits-for", "left-signal", how="late", twin="leftover/every-signal-taken",
      why="Both ranks signal that they have read, and neither waits for it.")
def taken(rank, how):
    """An exchange, and signals that both have read."""
    buffer, flag, out = symm(N), flags(2), filled(-1.0)
    signals[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 1 - rank))


@triton_dist.jit
def to_third(flag, out, EXTRA: tl.constexpr):
    """Rank 0 signals rank 1; at fault it signals rank 2 as well, which waits for nothing."""
    if dl.rank() == 0:
        dl.notify(flag, 1)
        if EXTRA:
            dl.notify(flag, 2)  # FAULT
    elif dl.rank() == 1:
        dl.wait(flag, 1, "sys", "acquire")
    tl.store(out, 1)


@case("leftover/one-receiver", world=3)
@case("leftover/signal-to-the-wrong-rank-too", "left-signal", world=3, how="extra", twin="leftover/one-receiver",
      why="A rank that takes no part gets a signal and keeps it.")
def receivers(rank, how):
    """Rank 0 signals rank 1; rank 2 has nothing to do with it."""
    flag, out = flags(1), filled(-1, 1, torch.int32)
    to_third[(1, )](flag, out, EXTRA=how == "extra")
    meet()
    return pairs((out, 1))


@case("leftover/flag-of-a-copy-taken")
@case("leftover/flag-of-a-copy-left", "left-signal", how="two", twin="leftover/flag-of-a-copy-taken",
      why="The stream writes a second flag that no kernel waits for.")
def copy_flags(rank, how):
    """The copy engine pushes a block and a flag; a kernel of the peer waits for it."""
    x, buffer, flag, out = filled(float(rank)), symm(N), flags(2), filled(-1.0)
    side, = streams(1)
    backend().copy(peer_tensor(buffer, 1 - rank), x, side)
    backend().write_value32(peer_tensor(flag, 1 - rank), 0, 1, side)
    take[(1, )](buffer, flag, out, N=N)
    if how:
        backend().write_value32(peer_tensor(flag, 1 - rank), 1, 1, side)  # FAULT
    meet()
    return pairs((out, 1 - rank))


@triton_dist.jit
def take(buffer, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    dl.wait(flag, 1, "sys", "acquire")
    tl.store(out + i, tl.load(buffer + i))


@triton_dist.jit
def arrivals(counter, out, MORE: tl.constexpr):
    """Ranks 1 and 2 add to a counter of rank 0, which waits for two arrivals and tells them. At fault one adds again."""
    if dl.rank() == 0:
        dl.wait(counter, 1, "sys", "acquire", 2)
        for peer in range(1, 3):
            dl.notify(counter + 1, peer)
    else:
        dl.notify(counter, 0, 1, "add")
        dl.wait(counter + 1, 1, "sys", "acquire")
        if MORE and dl.rank() == 2:
            dl.notify(counter, 0, 1, "add")  # FAULT
    tl.store(out, 1)


@case("leftover/arrivals-all-counted", world=3)
@case("leftover/one-arrival-too-many", "left-signal", world=3, how="more", twin="leftover/arrivals-all-counted",
      why="The counter keeps an arrival that the next call would take for its own.")
def counted(rank, how):
    """As many arrivals as the counter's reader waits for."""
    counter, out = flags(2), filled(-1, 1, torch.int32)
    arrivals[(1, )](counter, out, MORE=how == "more")
    meet()
    return pairs((out, 1))


@triton_dist.jit
def last_epochs(flag, out, epoch, WAIT: tl.constexpr):
    dl.notify(flag, 1 - dl.rank(), epoch)  # FAULT
    if WAIT:
        dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
    tl.store(out, epoch)


@case("leftover/epoch-stays", classes=("leftover", "epoch"))
@case("leftover/last-epoch-not-taken", "left-signal", how="last", twin="leftover/epoch-stays", classes=("leftover", "epoch"),
      why="The last call signals and does not wait for its peer's signal.")
def epochs(rank, how):
    """A flag keeps the last epoch for ever; that is no signal left behind, since the epoch was waited for."""
    flag, out = flags(1), filled(-1, 1, torch.int32)
    for epoch in (1, 2, 3):
        last_epochs[(1, )](flag, out, epoch, WAIT=epoch < 3 or not how)
    meet()
    return pairs((out, 3))
