# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kinds of fault that an independent test of the checker found missing, and right kernels that it found accused."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.groups import resolve

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


# -- what comes after a send is not sent with it -----------------------------------------------------------------------
@triton_dist.jit
def send(word, block, flag, out, WAY: tl.constexpr, LATE: tl.constexpr):
    if dl.rank() == 0:
        if not LATE:
            tl.store(dl.symm_at(word, 1), 42)
            shmem.fence()
        if WAY == "signal_op":
            shmem.fence()
            shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_SET, 1)
        elif WAY == "put_signal":
            shmem.putmem_signal_block(block, block, 64, flag, 1, shmem.NVSHMEM_SIGNAL_SET, 1)
        elif WAY == "put_signal_nbi":
            shmem.putmem_signal_nbi_block(block, block, 64, flag, 1, shmem.NVSHMEM_SIGNAL_SET, 1)
        elif WAY == "notify":
            dl.notify(flag, 1)
        elif WAY == "notify_warp":
            dl.notify_warp(dl.symm_at(flag, 1), 1, "set", "sys")
        elif WAY == "notify_warp_add":
            dl.notify_warp(dl.symm_at(flag, 1), 1, "add", "sys")
        elif WAY == "barrier":
            shmem.barrier_all()
        if LATE:
            tl.store(dl.symm_at(word, 1), 42)  # FAULT
    else:
        if WAY == "barrier":
            shmem.barrier_all()
        elif WAY == "notify_warp_add":
            dl.wait(flag, 1, "sys", "acquire", 4, "ge")
        else:
            dl.wait(flag, 1, "sys", "acquire")
        tl.store(out, tl.load(word))  # FAULT


def send_and_store(rank, how):
    """Rank 0 stores one word into rank 1 and sends it a signal, which rank 1 waits for before it loads the word."""
    word, block, flag, out = flags(1, "word"), symm(N), flags(dtype=torch.int64), filled(-1, 1, torch.int32)
    way, _, late = how.partition("-")
    send[(1,)](word, block, flag, out, WAY=way, LATE=bool(late))
    meet()
    return pairs((out, 42 if rank else -1))


for _way in ("signal_op", "put_signal", "put_signal_nbi", "notify", "notify_warp", "notify_warp_add", "barrier"):
    case(f"send/{_way}", how=_way)(send_and_store)
    case(f"send/store-after-{_way}", "race", how=f"{_way}-late", twin=f"send/{_way}",
         why="The word is stored after the signal is sent.")(send_and_store)


@triton_dist.jit
def send_block(x, inbox, flag, out, WANT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(inbox, 1) + i, tl.load(x + i))  # FAULT
        dl.notify_warp(dl.symm_at(flag, 1), 1, "add", "sys")
    else:
        dl.wait(flag, 1, "sys", "acquire", WANT, "ge")
        tl.store(out + i, tl.load(inbox + i))  # FAULT


@case("send/every-warp-adds")
@case("send/waits-for-one-of-four-warps", "race", how="one", twin="send/every-warp-adds",
      why="Each of four warps adds once, and one addition says nothing of the other warps' stores.")
def warps(rank, how):
    """The warps of a program each add to a flag once the program has stored a block; the reader waits for all of them."""
    inbox, flag, out = symm(N), flags(), filled(-1.0)
    send_block[(1,)](filled(3.0), inbox, flag, out, WANT=1 if how else 4, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


# -- counters with many adders -----------------------------------------------------------------------------------------
@triton_dist.jit
def count_up(x, counter, out, ADDERS: tl.constexpr, WANT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    program = tl.program_id(0)
    if program < ADDERS:
        tl.store(x + program * N + i, 1.0 + tl.zeros((N,), tl.float32))  # FAULT
        dl.notify(counter, dl.rank(), 1, "add", "gpu")
    else:
        dl.wait(counter, 1, "gpu", "acquire", WANT, "ge")
        total = tl.zeros((N,), tl.float32)
        for part in range(ADDERS):
            total += tl.load(x + part * N + i)  # FAULT
        tl.store(out + i, total)


def count(rank, how):
    """Programs store a block each and add to a counter; another one waits for all of them and sums the blocks."""
    adders = int(how.split("-")[0])
    out = filled(-1.0, 16)
    count_up[(adders + 1,)](symm(16 * adders), flags(1), out, ADDERS=adders, WANT=adders - ("-" in how), N=16)
    meet()
    return pairs((out, adders)) if "-" not in how else []


for _adders in (9, 20, 40):
    case(f"counter/{_adders}-adders", how=f"{_adders}", num_sms=64)(count)
    case(f"counter/{_adders}-adders-one-short", "race", how=f"{_adders}-short", twin=f"counter/{_adders}-adders", num_sms=64,
         why="The wait is for one adder fewer than there are.")(count)


# -- tokens ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def loop(data, ready, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        for c in range(3):
            tl.store(dl.symm_at(data, 1) + c * N + i, 1.0 + tl.zeros((N,), tl.float32))
            dl.notify(ready + c, 1)
    else:
        if HOW == "shmem-outer":
            first = shmem.signal_wait_until(ready, shmem.NVSHMEM_CMP_EQ, 1)
        else:
            first = dl.wait(ready, 1, "sys", "acquire")
        nothing = 0
        total = tl.zeros((N,), tl.float32)
        for c in range(3):
            own = dl.wait(ready + c, 1, "sys", "acquire")
            token = own
            if HOW == "outer" or HOW == "shmem-outer":
                token = first
            elif HOW == "sum":
                token = first + own
            if HOW == "zero":
                total += tl.load(dl.consume_token(data, 0) + c * N + i)  # FAULT
            elif HOW == "constant":
                total += tl.load(dl.consume_token(data, nothing * 2 + c) - c + c * N + i)  # FAULT
            else:
                total += tl.load(dl.consume_token(data, token) + c * N + i)  # FAULT
        tl.store(out + i, total)


@case("token/of-its-own-wait")
@case("token/computed-from-its-wait", how="sum")
@case("token/of-a-wait-before-the-loop", "race", how="outer", twin="token/of-its-own-wait",
      why="The load depends on the token of a wait before the loop.")
@case("token/of-a-shmem-wait-before-the-loop", "race", how="shmem-outer", twin="token/of-its-own-wait",
      why="The load depends on the token of a wait of SHMEM before the loop.")
@case("token/zero", "race", how="zero", twin="token/of-its-own-wait",
      why="A constant stands in for the token.")
@case("token/no-wait-in-it", "race", how="constant", twin="token/of-its-own-wait",
      why="What stands in for the token is computed from no wait.")
def tokens(rank, how):
    """A loop waits for a block, ties the load's pointer to the wait, and sums."""
    out = filled(-1.0, 16)
    loop[(1,)](symm(48), flags(dtype=torch.int64), out, HOW=how, N=16)
    meet()
    return pairs((out, 3 if rank else -1))


# -- out of a tensor, into its neighbour -------------------------------------------------------------------------------
@triton_dist.jit
def past_the_end(x, at, N: tl.constexpr, WAY: tl.constexpr):
    i = tl.arange(0, N)
    if WAY == "put":
        if dl.rank() == 0:
            shmem.putmem_block(x + at, x, 4 * N, 1)  # FAULT put-out
            shmem.quiet()
    else:
        tl.store(dl.symm_at(x, 1 - dl.rank()) + at + i, 1.0 + tl.zeros((N,), tl.float32))  # FAULT store-out, far-out


@case("memory/neighbours-untouched", how="store")
@case("memory/put-beside-a-neighbour", how="put")
@case("memory/store-into-the-neighbour", "out-of-bounds", how="store-out", twin="memory/neighbours-untouched",
      why="The block begins where the tensor ends, and the next symmetric tensor could begin there.")
@case("memory/store-a-block-past-the-end", "out-of-bounds", how="far-out", twin="memory/neighbours-untouched",
      why="The block begins one block past the end of the tensor.")
@case("memory/put-into-the-neighbour", "out-of-bounds", how="put-out", twin="memory/put-beside-a-neighbour",
      why="The put begins where the tensor ends.")
def neighbours(rank, how):
    """Two symmetric tensors, allocated one after the other; a kernel writes the last block of the first."""
    first, second = symm(4 * N, name="first"), symm(4 * N, name="second")
    at = {"store-out": 4 * N, "far-out": 5 * N, "put-out": 4 * N}.get(how, 3 * N)
    past_the_end[(1,)](first, at, N=N, WAY=how.split("-")[0] if how.startswith("put") else "store")
    meet()
    return pairs((second, 0))


# -- waits for one exact value -----------------------------------------------------------------------------------------
@triton_dist.jit
def turn(flag, answer, value, CMP: tl.constexpr, ANSWERED: tl.constexpr):
    dl.notify(flag, 1 - dl.rank(), value)  # FAULT
    dl.wait(flag, 1, "sys", "acquire", value, CMP)  # FAULT
    if ANSWERED:
        dl.notify(answer, 1 - dl.rank(), value)
        dl.wait(answer, 1, "sys", "acquire", value, "ge")


@case("epoch/exact-value-answered", how="answered")
@case("epoch/at-least-the-value", how="ge")
@case("epoch/exact-value-lost", "race", how="eq", twin="epoch/exact-value-answered", also=("deadlock",),
      why="The next call's value may replace this one before the wait for exactly it has looked.")
def turns(rank, how):
    """Two calls, each of which stores its number in the peer's flag and waits for its own."""
    flag, answer = flags(1), flags(1, "answer")
    for value in (1, 2):
        turn[(1,)](flag, answer, value, CMP="ge" if how == "ge" else "eq", ANSWERED=how == "answered")
    meet()
    return pairs((flag, 2))


# -- compare-and-swap --------------------------------------------------------------------------------------------------
@triton_dist.jit
def swap(x, inbox, flag, out, EXPECTED: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        dl.notify(flag, 1, 1)
        tl.store(dl.symm_at(inbox, 1) + i, tl.load(x + i))  # FAULT
        tl.debug_barrier()
        tl.atomic_cas(dl.symm_at(flag, 1), EXPECTED, 2, sem="release", scope="sys")
    else:
        dl.wait(flag, 1, "sys", "acquire", 2 if EXPECTED == 1 else 1, "ge")
        tl.store(out + i, tl.load(inbox + i))  # FAULT


@case("atomic/swap-releases")
@case("atomic/failed-swap-releases-nothing", "race", how="fails", twin="atomic/swap-releases",
      why="The compare-and-swap expects another value than the flag has, so it stores and releases nothing.")
def swaps(rank, how):
    """The second value of a flag is stored by a compare-and-swap, which releases a block; the reader waits for it."""
    out = filled(-1.0)
    swap[(1,)](filled(3.0), symm(N), flags(), out, EXPECTED=7 if how else 1, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


# -- between two barriers ----------------------------------------------------------------------------------------------
@triton_dist.jit
def between(x, inbox, AT: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    shmem.barrier_all()
    if dl.rank() == 0:
        shmem.putmem_block(inbox, x, 4 * N, 1)  # FAULT
    else:
        tl.store(inbox + AT + i, 5.0 + tl.zeros((N,), tl.float32))  # FAULT
    shmem.barrier_all()


@case("order/put-and-store-apart")
@case("order/put-against-store", "race", how="same", twin="order/put-and-store-apart",
      why="Between the same two barriers one rank puts where the other one stores.")
def barriers(rank, how):
    """Between two barriers of SHMEM rank 0 puts into rank 1's first block, and rank 1 stores into its second one."""
    inbox = symm(2 * N)
    between[(1,)](symm(N), inbox, AT=0 if how else N, N=N)
    meet()
    return pairs((inbox[N:], 5 if rank else 0)) if not how else []


# -- waits that an older value ends ------------------------------------------------------------------------------------
@triton_dist.jit
def call(x, inbox, flag, out, value, want, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(inbox, 1) + i, tl.load(x + i))  # FAULT
        dl.notify(flag, 1, value)
    else:
        dl.wait(flag, 1, "sys", "acquire", want, "ge")
        tl.store(out + i, tl.load(inbox + i))  # FAULT


@case("epoch/waits-for-its-call")
@case("epoch/waits-for-any-call", "race", how="any", twin="epoch/waits-for-its-call", also=("left-signal",),
      why="The second call waits for a value that the first one has left there.")
def calls(rank, how):
    """Two calls with a barrier of all ranks between them; the second one's wait is for the second one's value."""
    inbox, flag, out = symm(N), flags(), filled(-1.0)
    for value in (1, 2):
        call[(1,)](filled(float(value)), inbox, flag, out, value, 1 if how else value, N=N)
        meet()
    return pairs((out, 2 if rank else -1))


# -- groups ------------------------------------------------------------------------------------------------------------
@case("group/same-ranks-same-order")
@case("group/same-ranks-other-order", "collective-mismatch", how="crossed", twin="group/same-ranks-same-order",
      also=("deadlock",), why="The two ranks use two groups of the same ranks in opposite order.")
def crossed(rank, how):
    """Two groups of the same ranks; all ranks call ops on them in the same order."""
    groups = [resolve().new_group([0, 1]) for _ in range(2)]
    x = filled(1.0)
    for group in groups:
        ops.all_reduce(x, group=group)
    results = [ops.all_reduce(x * (1 + groups.index(group)), group=group)  # FAULT
               for group in (groups if rank == 0 or not how else groups[::-1])]
    meet()
    return pairs((results[0], 2), (results[1], 4)) if not how else []


@case("group/in-one-order", world=3)
@case("group/in-a-circle", "collective-mismatch", how="circle", twin="group/in-one-order", world=3, also=("deadlock",),
      why="Each rank waits in a group with its right neighbour before it joins the one with its left neighbour.")
def circle(rank, how):
    """Three ranks, three groups of two; all ranks go through their groups in the same order."""
    groups = [resolve().new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank] if how else (0, 1, 2)
    for number in order:
        if groups[number] is not None:
            groups[number].barrier()  # FAULT
    return []
