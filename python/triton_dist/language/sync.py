# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Signals between programs and between ranks: wait, notify, and the world barrier.

A flag is a 32- or 64-bit integer in memory that the waiter and the writer can both reach. Producer: data stores, then
notify (a release). Consumer: wait (an acquire), then consume_token, then loads.
"""
import triton.language as tl
from triton.language import core

from triton_dist.language._call import helper, primitive, provides
from triton_dist.language._check import choice, notify_each_flags, notify_scope, pointee_bits, scalar, word
from triton_dist.language.abi import BITS, COMPARISONS, DRAIN, SCOPES, SIGNAL_OPS, WAIT_SEMANTICS
from triton_dist.language.memory import fence, symm_at
from triton_dist.language.team import num_ranks, rank as world_rank

_PAD_RANKS = tl.constexpr(64)     # runtime.context.MAX_WORLD: flag words in the world-barrier pad
_PAD_FLAGS = tl.constexpr(16)     # word of the pad at which the flags begin, after the epoch
_PLAIN_RELEASE = tl.constexpr(hasattr(tl, "atomic_store"))     # Triton 3.9: barrier, fence and one store, no round trip
# Defaults of constexpr parameters: Triton wants them wrapped when they are strings.
_EQ, _SET, _INTER_NODE = tl.constexpr("eq"), tl.constexpr("set"), tl.constexpr("inter_node")


@primitive
def _true():
    return "tdist_true", ()


@primitive
def _wait(flags, count, value, scope, semantic, cmp):
    bits = pointee_bits("wait", flags, BITS)
    scalar("wait", "barrierPtrs", flags)
    scalar("wait", "numBarriers", count)
    word("wait", "waitValue", value, bits)
    choice("wait", "scope", scope, SCOPES)
    choice("wait", "semantic", semantic, WAIT_SEMANTICS)
    choice("wait", "cmp", cmp, COMPARISONS)
    return f"tdist_wait_{cmp}_b{bits}_{semantic}_{scope}", (flags, count, value)


@primitive
def _barrier_pad():
    return "tdist_barrier_pad", ()


@core.builtin
def _barrier_is_not_enough(_semantic=None):
    """Whether stores of other threads may still be under way after a program's barrier, so that a release misses them."""
    return core.constexpr(provides(_semantic, DRAIN))


@primitive
def _drain():
    return DRAIN, ()


@primitive
def _signal(flag, value, sig_op, scope):
    return f"tdist_signal_{sig_op}_b{pointee_bits('notify', flag, BITS)}_{scope}", (flag, value)


@primitive
def notify_warp(ptr, value, sig_op="set", scope="sys"):
    """Sends one signal from the calling warp: a warp barrier, then lane 0 releases `value` to the flag.

    Use it in Gluon partitions of one warp, where `notify` would deadlock in its CTA barrier. A partition of several warps
    sends one signal per warp, and each signal releases the stores of its own warp only. After TMA stores, first wait for
    their completion and fence the async proxy.

    Args:
        ptr: pointer to a 32- or 64-bit integer, which is already the peer's address (`symm_at`).
        value: integer to store or to add.
        sig_op: "set" or "add".
        scope: "gpu" if the waiter is on this device, else "sys".
    """
    bits = pointee_bits("notify_warp", ptr, BITS)
    scalar("notify_warp", "ptr", ptr)
    word("notify_warp", "value", value, bits)
    choice("notify_warp", "sig_op", sig_op, SIGNAL_OPS)
    choice("notify_warp", "scope", scope, SCOPES)
    return f"tdist_notify_warp_{sig_op}_b{bits}_{scope}", (ptr, value)


@helper
def wait(barrierPtrs, numBarriers, scope: tl.constexpr, semantic: tl.constexpr, waitValue=1, cmp: tl.constexpr = _EQ):
    """Spins until consecutive flags have reached a value.

    Every warp polls for itself, and there is no CTA barrier. So any program may call it in uniform control flow, in a
    pipelined loop, and in any Gluon partition. In a loop, pass the addresses of loads that must come after it through
    `consume_token`.

    Args:
        barrierPtrs: pointer to the first flag, a 32- or 64-bit integer.
        numBarriers: number of consecutive flags.
        scope: "gpu" if only this device writes the flags, else "sys".
        semantic: "acquire" orders later loads of the program after the writer's release. "relaxed" does not.
        waitValue: integer that each flag must reach.
        cmp: "eq" for equal, or "ge" for at least, by signed difference, so that epochs may wrap.

    Returns:
        An int32 token for `consume_token`.
    """
    # The branch lets Triton 3.6 predicate the call when it pipelines the loop around it; it is gone in the binary.
    token = 0
    if _true() != 0:
        token = _wait(barrierPtrs, numBarriers, waitValue, scope, semantic, cmp)
    return token


@helper
def notify(ptr, rank, signal=1, sig_op: tl.constexpr = _SET, comm_scope: tl.constexpr = _INTER_NODE):
    """Signals a rank that everything this program has stored is there: a CTA barrier, then one release.

    The whole program calls it in uniform control flow. In a Gluon partition use `notify_warp`. The release covers stores of
    other programs only where this program has acquired them.

    Args:
        ptr: pointer to a 32- or 64-bit flag in this rank's symmetric heap. The same flag of `rank` is written.
        rank: world rank to signal, an int32 scalar. `notify_each` signals several.
        signal: integer to store or to add.
        sig_op: "set" or "add".
        comm_scope: "gpu" if the waiter is on this device, else "intra_node" or "inter_node". These two are the same: both
            release to the system.
    """
    scope: tl.constexpr = notify_scope(ptr, rank, signal, sig_op, comm_scope)
    flag = symm_at(ptr, rank)
    if _barrier_is_not_enough():
        _drain()
        tl.debug_barrier()
        _signal(flag, signal, sig_op, scope)
    else:
        if not _PLAIN_RELEASE:
            tl.debug_barrier()    # Triton 3.6 orders other threads' stores before a release atomic only by this, 3.9 itself
        if sig_op == "add":
            tl.atomic_add(flag, signal, sem="release", scope=scope)
        elif _PLAIN_RELEASE:
            tl.atomic_store(flag, signal, sem="release", scope=scope)
        else:
            tl.atomic_xchg(flag, signal, sem="release", scope=scope)


@helper
def _set_flags(flags, values, mask):
    """Relaxed stores of system scope. An exchange would be summed over lanes of equal flags first, which takes longer."""
    tl.store(flags, values, mask=mask, cache_modifier=".wt")


@helper
def notify_each(flags, signal, mask):
    """Signals several ranks that everything this program has stored is there: a CTA barrier, then one release for all.

    It releases to the system. The whole program calls it in uniform control flow, not inside a Gluon partition.

    Args:
        flags: tensor of pointers to 32-bit flags, already the peers' addresses (symm_at).
        signal: int32 to store to each flag, a scalar or of the same shape.
        mask: bool of the same shape. Flags where it is false are not written.
    """
    notify_each_flags(flags, signal)
    values = tl.zeros_like(mask).to(tl.int32) + signal
    if _barrier_is_not_enough():
        _drain()
        tl.debug_barrier()
        fence("release", "sys")
        _set_flags(flags, values, mask)
    else:
        tl.debug_barrier()        # Triton 3.6 orders other threads' stores before a release only by this
        tl.atomic_xchg(flags, values, mask=mask, sem="release", scope="sys")


@helper
def barrier_all():
    """Barrier over all ranks of the world, by one program of each. Stores before it are visible after it, on every rank.

    The whole program calls it in uniform control flow, not inside a Gluon partition. Only one program of a rank may be
    inside it at a time, successive callers on one rank must be ordered, and every rank must be able to load from and store
    to every other.

    Algorithm: the pad holds this rank's epoch and one flag word for each world rank. The program advances the epoch,
    releases it (system scope) into its own word on every rank, and acquires its own row until each word has reached the
    epoch by signed difference. Nothing is reset, so the barrier may be called again, and in graphs.
    """
    pad = _barrier_pad().to(tl.pointer_type(tl.int32))
    epoch = tl.load(pad, volatile=True) + 1
    ranks = tl.arange(0, _PAD_RANKS)
    size = num_ranks()
    notify_each(symm_at(pad + _PAD_FLAGS + world_rank(), ranks), epoch, ranks < size)
    tl.store(pad, epoch)      # after the barrier of notify_each: every thread has read the epoch
    wait(pad + _PAD_FLAGS, size, "sys", "acquire", epoch, "ge")
    tl.debug_barrier()        # the pad may be used again only when all warps are out
