# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Atomics on words that many share: counters, locks, slots, reductions."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


@triton_dist.jit
def count(word, out, HOW: tl.constexpr):
    there = dl.symm_at(word, 0)
    if HOW == "plain" and dl.rank() == 1:
        tl.store(there, tl.load(there) + 1)  # FAULT
    elif HOW == "gpu":
        tl.atomic_add(there, 1, sem="relaxed", scope="gpu")  # FAULT
    else:
        tl.atomic_add(there, 1, sem="relaxed", scope="sys")  # FAULT
    if HOW == "look":
        tl.store(out + tl.program_id(0), tl.load(there))  # FAULT
    if HOW == "atomic-look":
        tl.store(out + tl.program_id(0), tl.atomic_add(there, 0, sem="relaxed", scope="sys"))


@case("atomic/one-word-of-all", world=4)
@case("atomic/one-word-read-by-an-atomic", world=4, how="atomic-look")
@case("atomic/plain-among-atomics", "race", world=4, how="plain", twin="atomic/one-word-of-all",
      why="One rank updates the word by a load and a store.")
@case("atomic/gpu-scope-across-devices", "race", world=4, how="gpu", twin="atomic/one-word-of-all",
      why="Atomics at gpu scope are not atomic towards another device.")
@case("atomic/plain-look-at-the-counter", "race", world=4, how="look", twin="atomic/one-word-read-by-an-atomic",
      why="A plain load while others add.")
def one_word(rank, how):
    """All programs of all ranks add to one word of rank 0; nobody relies on any order."""
    word, out = flags(1), filled(0, 2, torch.int32)
    count[(2, )](word, out, HOW=how)
    meet()
    return pairs((word, 0 if rank else 8))


@triton_dist.jit
def different_ops(words, WIDE: tl.constexpr, HOW: tl.constexpr):
    """A 64-bit counter, added to by all. At fault: one rank adds to its low half as a word of 32 bits."""
    there = dl.symm_at(words, 0)
    if HOW == "mixed" and dl.rank() == 1:
        tl.atomic_add(there.to(tl.pointer_type(tl.int32)), 1, sem="relaxed", scope="sys")  # FAULT
    else:
        tl.atomic_add(there, 1, sem="relaxed", scope="sys")  # FAULT
    tl.atomic_max(there + 1, dl.rank() + 1, sem="relaxed", scope="sys")
    tl.atomic_xchg(there + 1, WIDE, sem="relaxed", scope="sys")


@case("atomic/different-operations", world=3)
@case("atomic/different-widths", "race", world=3, how="mixed", twin="atomic/different-operations",
      why="Atomics of 32 and of 64 bits on the same bytes are not atomic to each other.")
def operations(rank, how):
    """Adds on one word, max and exchange on another, by all ranks at once."""
    words = flags(2, dtype=torch.int64)
    different_ops[(1, )](words, WIDE=9, HOW=how)
    meet()
    return pairs((words[:1], 0 if rank else 3))


# -- a lock ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def locked_sum(lock, total, HOW: tl.constexpr, N: tl.constexpr):
    """Adds 1 to a block of rank 0 under a spin lock that lives there."""
    i = tl.arange(0, N)
    word, data = dl.symm_at(lock, 0), dl.symm_at(total, 0)
    if HOW == "lock-relaxed":
        while tl.atomic_cas(word, 0, 1, sem="relaxed", scope="sys") != 0:
            pass
    elif HOW != "no-lock":
        while tl.atomic_cas(word, 0, 1, sem="acquire", scope="sys") != 0:
            pass
    tl.store(data + i, tl.load(data + i) + 1)  # FAULT
    if HOW != "no-barrier":
        tl.debug_barrier()
    if HOW == "unlock-relaxed":
        tl.atomic_xchg(word, 0, sem="relaxed", scope="sys")
    elif HOW == "unlock-plain":
        tl.store(word, 0)  # FAULT
    elif HOW != "no-lock":
        tl.atomic_xchg(word, 0, sem="release", scope="sys")


@case("atomic/lock", world=3, classes=("atomic", "lock"))
@case("atomic/no-lock", "race", world=3, how="no-lock", twin="atomic/lock", classes=("atomic", "lock"),
      why="All ranks update the block with no lock.")
@case("atomic/lock-taken-relaxed", "race", world=3, how="lock-relaxed", twin="atomic/lock", classes=("atomic", "lock"),
      why="A relaxed compare-and-swap does not acquire what the last holder wrote.")
@case("atomic/lock-given-back-relaxed", "race", world=3, how="unlock-relaxed", twin="atomic/lock", classes=("atomic", "lock"),
      why="A relaxed exchange does not publish what this holder wrote.")
@case("atomic/lock-given-back-by-a-plain-store", "race", world=3, how="unlock-plain", twin="atomic/lock",
      classes=("atomic", "lock"),
      why="A plain store is no release and races with the others' compare-and-swap.")
@case("atomic/lock-without-cta-barrier", "race", world=3, how="no-barrier", twin="atomic/lock", classes=("atomic", "lock"),
      why="The unlock is of one thread; the other threads' stores are not ordered before it.")
def lock(rank, how):
    """All ranks add to a block of rank 0 under a spin lock."""
    word, total = flags(1), symm(N)
    locked_sum[(1, )](word, total, HOW=how, N=N)
    meet()
    return pairs((total, 0 if rank else 3))


# -- slots and reductions ----------------------------------------------------------------------------------------------
@triton_dist.jit
def claim_slot(counter, inbox, x, HOW: tl.constexpr, N: tl.constexpr):
    """Takes the next free slot of rank 0's inbox and puts a block there."""
    i = tl.arange(0, N)
    word = dl.symm_at(counter, 0)
    if HOW == "split":
        slot = tl.load(word)  # FAULT
        tl.store(word, slot + 1)  # FAULT
    else:
        slot = tl.atomic_add(word, 1, sem="relaxed", scope="sys")
    tl.store(dl.symm_at(inbox, 0) + slot * N + i, tl.load(x + i))  # FAULT


@case("atomic/slots", world=3)
@case("atomic/slots-by-load-and-store", "race", world=3, how="split", twin="atomic/slots",
      why="Two ranks may read the same slot number before either has stored the next.")
def slots(rank, how):
    """Every rank claims a slot with an atomic, and so no two write the same one."""
    counter, inbox = flags(1), symm(3 * N)
    claim_slot[(1, )](counter, inbox, filled(float(rank + 1)), HOW=how, N=N)
    meet()
    return pairs((inbox.sum().view(1), 0.0 if rank else 6.0 * N))


@triton_dist.jit
def reduce_by_atomics(total, x, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for peer in range(dl.num_ranks()):
        there = dl.symm_at(total, peer) + i
        if HOW == "plain":
            tl.store(there, tl.load(there) + tl.load(x + i))  # FAULT
        else:
            tl.atomic_add(there, tl.load(x + i), sem="relaxed", scope="sys")  # FAULT
    if HOW != "open":
        dl.barrier_all()
    tl.store(out + i, tl.load(total + i))  # FAULT open


@case("atomic/all-reduce", world=3)
@case("atomic/all-reduce-no-barrier", "race", world=3, how="open", twin="atomic/all-reduce",
      why="The sum is read while peers may still add to it.")
@case("atomic/all-reduce-plain", "race", world=3, how="plain", twin="atomic/all-reduce",
      why="Loads and stores instead of atomics: additions are lost.")
def all_reduce(rank, how):
    """Every rank adds its block to all ranks' sums by atomics; a barrier; then it reads its own."""
    total, out = symm(N), filled(-1.0)
    reduce_by_atomics[(1, )](total, filled(rank + 1.0), out, HOW=how, N=N)
    meet()
    return pairs((out, 6))


@triton_dist.jit
def flag_by_cas(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i, peer = tl.arange(0, N), 1 - dl.rank()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))  # FAULT
    tl.debug_barrier()
    if HOW == "acquire":
        tl.atomic_cas(dl.symm_at(flag, peer), 0, 1, sem="acquire", scope="sys")
    else:
        tl.atomic_cas(dl.symm_at(flag, peer), 0, 1, sem="acq_rel", scope="sys")
    while tl.atomic_cas(flag, 1, 1, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("atomic/flag-by-compare-and-swap")
@case("atomic/flag-by-acquire-only", "race", how="acquire", twin="atomic/flag-by-compare-and-swap",
      why="The compare-and-swap that sets the flag acquires, where it must release.")
def swap(rank, how):
    """A flag set by compare-and-swap with acq_rel, and polled by compare-and-swap."""
    buffer, flag, out = symm(N), flags(1), filled(-1.0)
    flag_by_cas[(1, )](filled(float(rank)), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 1 - rank))
