# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The other six of the thirteen field bugs; see field.py."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.backend import backend

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


@triton_dist.jit
def split_sum(x, partial, ticket, out, HOW: tl.constexpr, N: tl.constexpr):
    """Split-K on one device: every program stores a partial sum, the last one by the ticket adds them up."""
    i, pid, size = tl.arange(0, N), tl.program_id(0), tl.num_programs(0)
    tl.store(partial + pid * N + i, tl.load(x + pid * N + i))  # FAULT
    if HOW != "no-barrier" and HOW != "both":
        tl.debug_barrier()
    if HOW == "relaxed" or HOW == "both":
        last = tl.atomic_add(ticket, 1, sem="relaxed", scope="gpu") == size - 1
    else:
        last = tl.atomic_add(ticket, 1, sem="acq_rel", scope="gpu") == size - 1
    if last:
        total = tl.zeros([N], tl.float32)
        for k in range(size):
            total += tl.load(partial + k * N + i)  # FAULT
        tl.store(out + i, total)


@case("field/08-split-sum", world=1, classes=("field", "ticket"))
@case("field/08-relaxed-ticket", "race", world=1, how="relaxed", twin="field/08-split-sum", classes=("field", "ticket"),
      why="The relaxed atomic orders no partial sum; eight L2 caches show it.")
@case("field/08-no-workgroup-barrier", "race", world=1, how="no-barrier", twin="field/08-split-sum", classes=("field", "ticket"),
      why="The ticket's thread does not order the other threads' stores.")
@case("field/08-relaxed-ticket-and-no-barrier", "race", world=1, how="both", twin="field/08-split-sum",
      classes=("field", "ticket"),
      why="As it was reported: a plain store, a relaxed atomic, no workgroup barrier.")
def split(rank, how):
    """Partial sums of four programs, added up by the last."""
    partial, ticket, out = filled(-1.0, 4 * N), torch.zeros(1, dtype=torch.int32), filled(-1.0)
    split_sum[(4, )](filled(2.0, 4 * N), partial, ticket, out, HOW=how, N=N)
    meet()
    return pairs((out, 8))


@triton_dist.jit
def exchange_and_reset(x, buffer, pad, out, epoch, half, HOW: tl.constexpr, N: tl.constexpr):
    """All ranks signal all; at fault the pad is cleared at the end of the kernel for the next call."""
    i, me, world = tl.arange(0, N), dl.rank(), dl.num_ranks()
    value = 1 if HOW == "reset" else epoch
    for hop in range(world):
        peer = (me + hop) % world
        tl.store(dl.symm_at(buffer, peer) + half + me * N + i, tl.load(x + i))  # FAULT
        dl.notify(pad + me, peer, value)  # FAULT
    dl.wait(pad, world, "sys", "acquire", value, "ge")  # FAULT
    for peer in range(world):
        tl.store(out + peer * N + i, tl.load(buffer + half + peer * N + i))  # FAULT
    if HOW == "reset":
        tl.debug_barrier()
        for peer in range(world):
            tl.store(dl.symm_at(pad + me, peer), 0)  # FAULT


@case("field/09-epochs-and-no-reset", world=3, classes=("field", "epoch"))
@case("field/09-reset-at-the-end-of-the-kernel", "race", world=3, how="reset", twin="field/09-epochs-and-no-reset",
      classes=("field", "epoch"), also=("deadlock", ),
      why="A fast rank clears its flag at a peer that still polls it.")
def reset(rank, how):
    """Three calls in which all signal all."""
    buffer, pad, out = symm(6 * N), flags(3), [filled(-1.0, 3 * N) for _ in range(3)]
    x = [filled(10.0 * epoch + rank) for epoch in (1, 2, 3)]
    for epoch in (1, 2, 3):
        exchange_and_reset[(1, )](x[epoch - 1], buffer, pad, out[epoch - 1], epoch, 3 * N * (epoch & 1), HOW=how, N=N)
    meet()
    return pairs(*((got, torch.arange(3.0).repeat_interleave(N) + 10 * epoch) for epoch, got in enumerate(out, 1)))


_EMPTY = tl.constexpr(-(2**31))        # the bits of -0.0: a word that has not arrived


@triton_dist.jit
def data_is_the_flag(x, box, out, HOW: tl.constexpr, N: tl.constexpr):
    """A word's arrival is seen by its value: -0.0 means that it is not there. So no datum may be -0.0."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    for k in range(N):
        value = tl.load(x + k)
        if HOW != "kept":
            value = tl.where(value == 0.0, 0.0, value)
        tl.atomic_xchg(dl.symm_at(box, peer) + k, value.to(tl.int32, bitcast=True), sem="relaxed", scope="sys")
    for k in range(N):
        word = tl.atomic_add(box + k, 0, sem="relaxed", scope="sys")
        while word == _EMPTY:
            word = tl.atomic_add(box + k, 0, sem="relaxed", scope="sys")  # FAULT
        tl.store(out + k, word.to(tl.float32, bitcast=True))


@case("field/10-no-datum-is-minus-zero", classes=("field", "packet"))
@case("field/10-a-datum-is-minus-zero", "deadlock", how="kept", twin="field/10-no-datum-is-minus-zero",
      classes=("field", "packet"),
      why="The value -0.0 is data and looks like a word that has not come.")
def minus_zero(rank, how):
    """Lamport words: data that is its own flag, with -0.0 for empty; the sender turns -0.0 into 0.0."""
    box, x, out = symm(4, dtype=torch.int32), torch.tensor([1.0, -0.0, 0.0, 2.0]), filled(-1.0, 4)
    box.fill_(-(2**31))
    meet()
    data_is_the_flag[(1, )](x, box, out, HOW=how, N=4)
    meet()
    return pairs((out, torch.tensor([1.0, 0.0, 0.0, 2.0])))


@triton_dist.jit
def block_of_flags(x, buffer, flag, out, HOW: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    """A block atomic sets a flag at every rank; each thread of it releases for itself."""
    i, peers = tl.arange(0, N), tl.arange(0, W)
    for peer in range(W):
        tl.store(dl.symm_at(buffer, peer) + dl.rank() * N + i, tl.load(x + i))  # FAULT
    if HOW != "bare":
        tl.debug_barrier()
    tl.atomic_xchg(dl.symm_at(flag + dl.rank(), peers), tl.zeros([W], tl.int32) + 1, sem="release", scope="sys")
    dl.wait(flag, W, "sys", "acquire")
    for peer in range(W):
        tl.store(out + peer * N + i, tl.load(buffer + peer * N + i))  # FAULT


@case("field/11-block-atomic-behind-a-barrier", world=4, classes=("field", "atomic"))
@case("field/11-block-atomic-bare", "race", world=4, how="bare", twin="field/11-block-atomic-behind-a-barrier",
      classes=("field", "atomic"), why="A block atomic has no CTA barrier of its own: a thread's release covers its own stores.")
def block_atomic(rank, how):
    """All ranks put to all; one block atomic sets the flags."""
    buffer, flag, out = symm(4 * N), flags(4), filled(-1.0, 4 * N)
    block_of_flags[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, W=4, N=N)
    meet()
    return pairs((out, torch.arange(4.0).repeat_interleave(N)))


@triton_dist.jit
def poll_and_fence(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))  # FAULT
    dl.notify(flag, peer)
    seen = tl.atomic_add(flag, 0, sem="relaxed", scope="sys")
    while seen != 1:
        if HOW == "inside":
            dl.fence("acquire", "sys")
        seen = tl.atomic_add(flag, 0, sem="relaxed", scope="sys")
    if HOW != "inside":
        dl.fence("acquire", "sys")
    tl.debug_barrier()
    tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("field/12-fence-behind-the-poll", classes=("field", "fence"))
@case("field/12-fence-misplaced", "race", how="inside", twin="field/12-fence-behind-the-poll", classes=("field", "fence"),
      why="The fence comes before the poll that sees the flag, not behind it.")
def misplaced(rank, how):
    """A relaxed poll loop and an acquire fence."""
    buffer, flag, out = symm(N), flags(1), filled(-1.0)
    poll_and_fence[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 1 - rank))


@triton_dist.jit
def all_programs_of_all_ranks(counter, out):
    """Every program signals every rank and waits for all programs of all ranks."""
    world, size = dl.num_ranks(), tl.num_programs(0)
    for peer in range(world):
        dl.notify(counter, peer, 1, "add")
    dl.wait(counter, 1, "sys", "acquire", world * size, "ge")  # FAULT
    tl.store(out + tl.program_id(0), 1)


@case("field/13-grid-from-the-device", classes=("field", "residency"), num_sms=6)
@case("field/13-grid-of-a-larger-device", "residency", how="fixed", twin="field/13-grid-from-the-device", also=("deadlock", ),
      classes=("field", "residency"), num_sms=6, why="The grid is written down for a device with more SMs than this one has.")
def cooperative(rank, how):
    """A grid whose programs all wait for each other, as large as the device."""
    size = 8 if how else backend().num_sms()
    counter, out = flags(1), filled(-1, size, torch.int32)
    all_programs_of_all_ranks[(size, )](counter, out)
    meet()
    return pairs((out, 1))
