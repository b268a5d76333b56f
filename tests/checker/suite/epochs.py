# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What flags are compared with and who writes them: the wrap of the count, resets, shared flags; packets with their own flag."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


# -- the wrap ----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def wrapping(x, buffer, flag, out, control, half, HOW: tl.constexpr, N: tl.constexpr):
    """An exchange whose epoch comes from memory and passes the wrap; the compare is by hand where it is wrong."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    epoch = tl.load(control) + 1
    tl.store(dl.symm_at(buffer, peer) + half + i, tl.load(x + i))  # FAULT
    dl.notify(flag, peer, epoch)
    if HOW == "unsigned":
        wanted = epoch.to(tl.uint32, bitcast=True)
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys").to(tl.uint32, bitcast=True) < wanted:  # FAULT unsigned
            pass
    elif HOW == "signed":
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") < epoch:  # FAULT signed
            pass
    elif HOW == "difference":
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - epoch < 0:
            pass
    else:
        dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
    tl.store(out + i, tl.load(buffer + half + i))  # FAULT
    tl.debug_barrier()
    tl.store(control, epoch)


@case("epoch/wrap")
@case("epoch/wrap-by-hand", how="difference")
@case("epoch/unsigned-compare-at-the-wrap", "race", how="unsigned", twin="epoch/wrap-by-hand", also=("deadlock", ),
      why="When the epoch passes from 2^32 - 1 to 0, the old flag compares as larger (rule 8).")
@case("epoch/signed-compare-at-the-wrap", "race", how="signed", twin="epoch/wrap-by-hand", also=("deadlock", ),
      why="When the epoch passes from 2^31 - 1 to -2^31, the old flag compares as larger (rule 8).")
def wrap(rank, how):
    """Four calls around the place where the count wraps; epochs compare by signed difference."""
    start = -3 if how == "unsigned" else 2**31 - 3
    buffer, flag, out = symm(2 * N), flags(1), [filled(-1.0) for _ in range(4)]
    flag.fill_(start)
    control = filled(start, 1, torch.int32)
    x = [filled(10.0 * call + rank) for call in range(4)]
    meet()
    for call in range(4):
        wrapping[(1, )](x[call], buffer, flag, out[call], control, N * (call & 1), HOW=how, N=N)
    meet()
    return pairs(*((got, 10 * call + 1 - rank) for call, got in enumerate(out)))


# -- resets ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def resetting(x, buffer, flag, out, half, HOW: tl.constexpr, N: tl.constexpr):
    """The flag is always 1 and is reset by its reader after use; a barrier makes that right."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + half + i, tl.load(x + i))
    dl.notify(flag, peer, 1)  # FAULT
    dl.wait(flag, 1, "sys", "acquire", 1)  # FAULT
    tl.store(out + i, tl.load(buffer + half + i))
    tl.debug_barrier()
    tl.store(flag, 0)  # FAULT
    if HOW == "":
        dl.barrier_all()


@case("epoch/reset-behind-a-barrier")
@case("epoch/reset-without-a-barrier", "race", how="open", twin="epoch/reset-behind-a-barrier", also=("deadlock", ),
      why="A late reset wipes out the signal of the peer's next call.")
def reset(rank, how):
    """Three calls with one flag that is reset after use, and a barrier before the next call may set it."""
    buffer, flag, out = symm(2 * N), flags(1), [filled(-1.0) for _ in range(3)]
    x = [filled(10.0 * call + rank) for call in range(3)]
    for call in range(3):
        resetting[(1, )](x[call], buffer, flag, out[call], N * (call & 1), HOW=how, N=N)
    meet()
    return pairs(*((got, 10 * call + 1 - rank) for call, got in enumerate(out)))


# -- one flag, two writers ---------------------------------------------------------------------------------------------
@triton_dist.jit
def two_senders(x, buffer, flag, out, epoch, HOW: tl.constexpr, N: tl.constexpr):
    i, me = tl.arange(0, N), dl.rank()
    word = flag if HOW == "shared" else flag + me
    tl.store(dl.symm_at(buffer, 0) + me * N + i, tl.load(x + i))  # FAULT
    dl.notify(word, 0, epoch)
    if me == 0:
        if HOW == "shared":
            dl.wait(flag, 1, "sys", "acquire", epoch, "ge")
        else:
            dl.wait(flag, 3, "sys", "acquire", epoch, "ge")
        for peer in range(3):
            tl.store(out + peer * N + i, tl.load(buffer + peer * N + i))  # FAULT
    dl.barrier_all()


@case("epoch/flag-of-each-writer", world=3)
@case("epoch/flag-of-two-writers", "race", world=3, how="shared", twin="epoch/flag-of-each-writer",
      why="Whoever comes first sets the flag for all; the others' data is not there yet (rule 7).")
def writers(rank, how):
    """All ranks put into rank 0 in each of two calls, each with a flag of its own there; barriers between calls."""
    buffer, flag, out = symm(3 * N), flags(), [filled(-1.0, 3 * N) for _ in range(2)]
    x = [filled(10.0 * call + rank) for call in (1, 2)]
    for call in (1, 2):
        two_senders[(1, )](x[call - 1], buffer, flag, out[call - 1], call, HOW=how, N=N)
    meet()
    return pairs(*((got, -1 if rank else torch.arange(3.0).repeat_interleave(N) + 10 * call) for call, got in enumerate(out, 1)))


# -- packets -----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def packets(x, box, out, epoch, half, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    dl.ll_store(dl.symm_at(box, peer) + half + i, tl.load(x + i), epoch)  # FAULT
    tl.store(out + i, dl.ll_load(box + half + i, epoch))  # FAULT


@case("epoch/packets", classes=("epoch", "packet"))
@case("epoch/packets-with-a-constant-flag", "race", how="constant", twin="epoch/packets", classes=("epoch", "packet"),
      why="A packet of an earlier call matches, so the load does not follow this call's store (rule 5).")
@case("epoch/packets-with-flag-zero", "race", how="zero", twin="epoch/packets", classes=("epoch", "packet"),
      why="Fresh memory is full of packets with flag 0 (rule 8).")
@case("epoch/packets-in-one-half", "race", how="single", twin="epoch/packets", classes=("epoch", "packet"), also=("deadlock", ),
      why="The next call's packet replaces one that the peer may not have read.")
def low_latency(rank, how):
    """Packets that carry the epoch as their flag, in two halves: the exchange itself tells that the peer has begun."""
    box, out = symm(2 * N, dtype=torch.int64), [filled(-1, N, torch.int32) for _ in range(4)]
    x = [filled(10 * epoch + rank, N, torch.int32) for epoch in range(1, 5)]
    for epoch in range(1, 5):
        flag = {"constant": 1, "zero": 0}.get(how, epoch)
        half = 0 if how == "single" else N * (epoch & 1)
        packets[(1, )](x[epoch - 1], box, out[epoch - 1], flag, half, N=N)
    meet()
    return pairs(*((got, 10 * epoch + 1 - rank) for epoch, got in enumerate(out, 1)))
