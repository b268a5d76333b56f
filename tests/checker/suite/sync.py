# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One hand-over from rank 0 to rank 1 through a flag, and all the ways to do it nearly right."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, streams, symm
from .registry import case


# -- notify and wait ---------------------------------------------------------------------------------------------------
@triton_dist.jit
def handover(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        if HOW == "signal-first":
            dl.notify(flag, 1)
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))  # FAULT race
        if HOW == "gpu-notify":
            dl.notify(flag, 1, comm_scope="gpu")
        elif HOW == "bare":
            tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="release", scope="sys")
        elif HOW == "manual":
            tl.debug_barrier()
            tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="release", scope="sys")
        elif HOW == "plain":
            tl.debug_barrier()
            tl.store(dl.symm_at(flag, 1), 1)  # FAULT plain
        elif HOW == "relaxed":
            tl.debug_barrier()
            tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="relaxed", scope="sys")
        elif HOW != "signal-first":
            dl.notify(flag, 1)
    else:
        if HOW == "early":
            early = tl.load(buffer + i)  # FAULT early
        if HOW == "relaxed-wait":
            dl.wait(flag, 1, "sys", "relaxed")
        elif HOW == "gpu-wait":
            dl.wait(flag, 1, "gpu", "acquire")
        elif HOW == "wrong-flag":
            dl.wait(flag + 1, 1, "sys", "acquire")  # FAULT wrong-flag
        elif HOW == "wrong-value":
            dl.wait(flag, 1, "sys", "acquire", 2)  # FAULT wrong-value
        elif HOW == "poll":
            while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 1:
                pass
        else:
            dl.wait(flag, 1, "sys", "acquire")  # FAULT plain
        if HOW == "early":
            tl.store(out + i, early)
        else:
            tl.store(out + i, tl.load(buffer + i))  # FAULT race


@case("sync/notify-wait")
@case("sync/release-by-hand", how="manual")
@case("sync/poll-by-atomic-add", how="poll")
@case("sync/signal-before-data", "race", how="signal-first", twin="sync/notify-wait",
      why="The flag is set before the data is stored.")
@case("sync/load-before-wait", "race", how="early", twin="sync/notify-wait",
      why="The load comes before the wait in program order.")
@case("sync/notify-gpu-scope", "race", how="gpu-notify", twin="sync/notify-wait",
      why="A release at gpu scope orders nothing for another device.")
@case("sync/wait-gpu-scope", "race", how="gpu-wait", twin="sync/notify-wait",
      why="An acquire at gpu scope of a flag that another device writes.")
@case("sync/wait-relaxed", "race", how="relaxed-wait", twin="sync/notify-wait",
      why="A relaxed poll orders no later load.")
@case("sync/flag-relaxed", "race", how="relaxed", twin="sync/release-by-hand",
      why="A relaxed flag store publishes nothing.")
@case("sync/flag-plain-store", "race", how="plain", twin="sync/release-by-hand",
      why="A plain store is no release, and itself races with the poll.")
@case("sync/release-without-cta-barrier", "race", how="bare", twin="sync/release-by-hand",
      why="The release is of one thread; the block was stored by all, and no CTA barrier is between.")
@case("sync/wait-wrong-flag", "deadlock", how="wrong-flag", twin="sync/notify-wait",
      why="The wait is for a word that nobody sets.")
@case("sync/wait-wrong-value", "deadlock", how="wrong-value", twin="sync/notify-wait",
      why="The flag gets 1, the wait is for exactly 2.")
def one_handover(rank, how):
    """Rank 0 puts a block into rank 1 and sets a flag there; rank 1 waits for the flag and loads the block."""
    buffer, flag, out = symm(N), flags(), filled(-1.0)
    handover[(1, )](filled(3.0), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


@triton_dist.jit
def scalar_handover(value, flag, out):
    if dl.rank() == 0:
        tl.store(dl.symm_at(value, 1), 42)
        tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="release", scope="sys")
    else:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out, tl.load(value))


@case("sync/scalar-store-and-release")
def scalar_and_release(rank):
    """A scalar and the flag behind it are stored by the same thread: rule 1 asks for no CTA barrier."""
    value, flag, out = flags(1), flags(), filled(-1, 1, torch.int32)
    scalar_handover[(1, )](value, flag, out)
    meet()
    return pairs((out, 42 if rank else -1))


@triton_dist.jit
def wide_handover(x, buffer, flag, out, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))
        dl.notify(flag, 1, 1 << 40)
    else:
        dl.wait(flag, 1, "sys", "acquire", 1 << 40, "ge")
        tl.store(out + i, tl.load(buffer + i))


@case("sync/64-bit-flag")
def wide_flag(rank):
    """The same with a flag of 64 bits."""
    buffer, flag, out = symm(N), flags(1, dtype=torch.int64), filled(-1.0)
    wide_handover[(1, )](filled(3.0), buffer, flag, out, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


@triton_dist.jit
def warp_handover(x, buffer, flag, out, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))  # FAULT
        if BARRIER:
            tl.debug_barrier()
        dl.notify_warp(dl.symm_at(flag, 1), 1)
    else:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("sync/notify-warp-in-a-program-of-one-warp", how="one")
@case("sync/notify-warp-behind-a-cta-barrier", how="barrier")
@case("sync/notify-warp-in-a-program-of-four-warps", "race", how="four", twin="sync/notify-warp-behind-a-cta-barrier",
      why="Each warp releases its own stores only, and the first signal is taken for all.")
def notify_warp(rank, how):
    """The signal is the warp-level form, which has no CTA barrier (rule 3)."""
    buffer, flag, out = symm(4 * N), flags(), filled(-1.0, 4 * N)
    warp_handover[(1, )](filled(3.0, 4 * N), buffer, flag, out, BARRIER=how == "barrier", N=4 * N,
                         num_warps=1 if how == "one" else 4)
    meet()
    return pairs((out, 3 if rank else -1))


# -- fences ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def fenced(x, buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))  # FAULT
        if HOW != "no-barrier":
            tl.debug_barrier()
        if HOW == "gpu-fence":
            dl.fence("release", "gpu")
        elif HOW == "acquire-fence":
            dl.fence("acquire", "sys")
        elif HOW != "fence-after":
            dl.fence("release", "sys")
        tl.atomic_xchg(dl.symm_at(flag, 1), 1, sem="relaxed", scope="gpu" if HOW == "gpu-flag" else "sys")
        if HOW == "fence-after":
            dl.fence("release", "sys")
    else:
        if HOW == "fence-before-poll":
            dl.fence("acquire", "sys")
        if HOW == "volatile":
            while tl.load(flag, volatile=True) != 1:
                pass
        else:
            dl.wait(flag, 1, "sys", "relaxed")
        if HOW == "gpu-acquire":
            dl.fence("acquire", "gpu")
        elif HOW != "fence-before-poll" and HOW != "no-acquire":
            dl.fence("acquire", "sys")
        tl.debug_barrier()
        tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("sync/fences", classes=("sync", "fence"))
@case("sync/fence-behind-volatile-poll", how="volatile", classes=("sync", "fence"))
@case("sync/fence-without-cta-barrier", "race", how="no-barrier", twin="sync/fences", classes=("sync", "fence"),
      why="The fence of the thread that sets the flag does not order the other threads' stores.")
@case("sync/fence-gpu-scope", "race", how="gpu-fence", twin="sync/fences", classes=("sync", "fence"),
      why="The producer's fence is for this device only.")
@case("sync/fence-of-the-wrong-kind", "race", how="acquire-fence", twin="sync/fences", classes=("sync", "fence"),
      why="An acquire fence before the flag store publishes nothing.")
@case("sync/fence-behind-the-flag", "race", how="fence-after", twin="sync/fences", classes=("sync", "fence"),
      why="The flag is stored before the fence.")
@case("sync/fence-gpu-flag", "race", how="gpu-flag", twin="sync/fences", classes=("sync", "fence"),
      why="The relaxed flag store has gpu scope, so the peer's fence pairs with nothing.")
@case("sync/fence-before-the-poll", "race", how="fence-before-poll", twin="sync/fences", classes=("sync", "fence"),
      why="The consumer's fence must come after the poll that sees the flag.")
@case("sync/fence-missing-at-the-consumer", "race", how="no-acquire", twin="sync/fences", classes=("sync", "fence"),
      why="A relaxed poll with no fence behind it.")
@case("sync/fence-gpu-scope-at-the-consumer", "race", how="gpu-acquire", twin="sync/fences", classes=("sync", "fence"),
      why="The consumer's fence is for this device only.")
def fences(rank, how):
    """The hand-over with relaxed accesses of the flag and fences around them (rule 5)."""
    buffer, flag, out = symm(N), flags(), filled(-1.0)
    fenced[(1, )](filled(3.0), buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


# -- kernel boundaries -------------------------------------------------------------------------------------------------
@triton_dist.jit
def put_block(x, buffer, to, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, to) + i, tl.load(x + i))  # FAULT


@triton_dist.jit
def set_relaxed(flag, to):
    tl.atomic_xchg(dl.symm_at(flag, to), 1, sem="relaxed", scope="sys")


@triton_dist.jit
def poll_relaxed(flag):
    dl.wait(flag, 1, "sys", "relaxed")


@triton_dist.jit
def take_block(buffer, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(buffer + i))  # FAULT


@case("sync/kernel-boundaries-as-fences", classes=("sync", "fence"))
@case("sync/kernel-boundary-of-another-stream", "race", how="stream", twin="sync/kernel-boundaries-as-fences",
      classes=("sync", "stream"), why="The flag kernel is on another stream, so the boundary does not order the data.")
def kernel_boundaries(rank, how):
    """Four kernels: data, then a relaxed flag on the sender; a relaxed poll, then the load on the receiver (rule 5)."""
    x, buffer, flag, out = filled(3.0), symm(N), flags(), filled(-1.0)
    side, other = streams(2)
    if rank == 0:
        with triton_dist.use_stream(side):
            put_block[(1, )](x, buffer, 1, N=N)
        with triton_dist.use_stream(other if how else side):
            set_relaxed[(1, )](flag, 1)
    else:
        poll_relaxed[(1, )](flag)
        take_block[(1, )](buffer, out, N=N)
    meet()
    return pairs((out, 3 if rank else -1))


# -- scopes on one device ----------------------------------------------------------------------------------------------
@triton_dist.jit
def on_one_device(x, data, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    if tl.program_id(0) == 0:
        tl.store(data + i, tl.load(x + i))  # FAULT
        if HOW == "cta":
            tl.debug_barrier()
            tl.atomic_xchg(flag, 1, sem="release", scope="cta")
        else:
            dl.notify(flag, dl.rank(), comm_scope="gpu")
    else:
        dl.wait(flag, 1, "gpu", "acquire")
        tl.store(out + i, tl.load(data + i))  # FAULT


@case("sync/gpu-scope-on-one-device")
@case("sync/cta-scope-between-programs", "race", how="cta", twin="sync/gpu-scope-on-one-device",
      why="A release at cta scope orders nothing for another program.")
def one_device(rank, how):
    """Two programs of one grid hand over a block at gpu scope, which is enough on one device (rule 3)."""
    data, flag, out = filled(-1.0), flags(), filled(-1.0)
    on_one_device[(2, )](filled(3.0), data, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, 3))
