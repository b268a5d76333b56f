# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the device runtime: one Python function for every row of language/abi.py, under the same symbol."""
import math
from typing import Any, Callable

import numpy as np
import torch
from triton.language import core

from triton_dist.backends.emulator.engine import registry, scheduler
from triton_dist.backends.emulator.engine.registry import fault, invalid, twin
from triton_dist.backends.emulator.memory import memory, unreachable
from triton_dist.backends.emulator.memory.segments import bits, of_bits, picked
from triton_dist.backends.emulator.rebuild import primitives, rebuild, threads
from triton_dist.backends.emulator.twins.memory import await_flag, wait_word
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I32, I64, Info, info, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Pointer, Scalar
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, broadcast_shape, filled
from triton_dist.language import memory as device_memory
from triton_dist.language.abi import BITS, COMPARISONS, FENCE_SEMANTICS, SCOPES, SIGNAL_OPS, WAIT_SEMANTICS

TWINS = primitives.SYMBOLS
_ZERO = IntScalar(0, I32)


def _context() -> Any:
    running = scheduler.active()
    return running.context_of(running.current.rank)


def _scalars(symbol: str, *args: Any) -> None:
    for x in args:
        if isinstance(x, Tensor):
            raise invalid(f"{symbol} takes scalars, not a block")


# -- identity ----------------------------------------------------------------------------------------------------------
def true() -> IntScalar:
    return IntScalar(1, I32)


def zero_after(token: Any) -> Any:
    return _ZERO if isinstance(token, Scalar) else filled(_ZERO, token.shape)


def rank() -> IntScalar:
    return IntScalar(_context().rank, I32)


def num_ranks() -> IntScalar:
    return IntScalar(_context().world_size, I32)


def symm_delta(peer: Any) -> Any:
    """A rank that does not exist or is not reachable has no base: the address faults when it is used, not before."""
    context = _context()
    bases, mine = context.bases, context.bases[context.rank]

    def delta(to: int) -> int:
        reached = bases[to] if 0 <= to < len(bases) else 0
        return (reached or unreachable.base(to)) - mine
    if isinstance(peer, Scalar):
        return IntScalar(delta(peer.v), I64)
    return Tensor(torch.tensor([delta(to) for to in peer.d.reshape(-1).tolist()]).view(peer.shape), I64)


@twin("memory.symm_at")
def symm_at(ptr: Any, peer: Any) -> Any:
    """dl.symm_at, which a GPU lets shift any address: to look at memory of this rank's heap alone is what it is for."""
    running = scheduler.active()
    me = running.context_of(running.current.rank).rank
    if isinstance(ptr, Pointer) and running.machine is not None and (not isinstance(peer, IntScalar) or peer.v != me):
        owner = running.machine.locate(ptr.v)
        if owner is None or owner[0] != me:
            where = "in no symmetric heap" if owner is None else f"of rank {owner[0]}'s heap"
            raise fault(f"symm_at: the pointer is {where}, expected one into this rank's own; pass a tensor "
                        "of create_symm_tensor", "out-of-bounds")
    return rebuild.build(device_memory.symm_at)(ptr, peer)


def barrier_pad() -> IntScalar:
    return IntScalar(_context().barrier_pad, I64)


# -- flags -------------------------------------------------------------------------------------------------------------
def reached(cmp: str, bits: int, seen: int, wanted: int) -> bool:
    """eq, or ge by signed difference, so that counters may wrap."""
    return seen == wanted if cmp == "eq" else (seen - wanted) & (1 << bits - 1) == 0


def _wait(cmp: str, bits: int, sem: str, scope: str) -> Callable:
    word = info(core.int32 if bits == 32 else I64)

    def wait(flags: Any, n: Any, value: Any) -> IntScalar:
        threads.refuse("dl.wait")
        _scalars("wait", flags, n, value)
        running = scheduler.active()
        running.point()
        wanted = wrap(value.v, word)
        for i in range(n.v):
            address = flags.v + i * bits // 8
            await_flag(address, bits, cmp, lambda seen: reached(cmp, bits, seen, wanted), wanted, sem, scope)
        token = IntScalar(0, I32)
        running.observer.waited(token)
        return token
    return wait


def _notify_warp(op: str, bits: int, scope: str) -> Callable:
    def notify(flag: Any, value: Any) -> IntScalar:
        threads.refuse("dl.notify_warp")
        _scalars("notify_warp", flag, value)
        running, mem = scheduler.active(), memory.active()
        running.point()
        running.current.polled = None
        if op == "set":
            running.observer.warp_barrier(False)
            mem.flag_store(flag.v, value.v, bits, "release", scope)
        else:                                # lane 0 of every warp that runs the call
            warps = running.current.cta.num_warps if running.current.cta else 1
            for warp in range(warps):
                if warp:                     # who waits for fewer than all may go on now
                    running.pause()
                running.observer.warp_barrier(warp == warps - 1)
                mem.flag_add(flag.v, value.v, bits, "release", scope)
        return _ZERO
    return notify


@twin("sync._barrier_is_not_enough")
def barrier_is_not_enough() -> bool:
    """Whether `notify` takes the way of GPUs whose barriers leave stores under way."""
    return scheduler.active().observer.barriers_leave_stores


@twin("sync._set_flags")
def set_flags(flags: Any, values: Any, mask: Any) -> None:
    """On a GPU stores past all caches, which are relaxed accesses of flags, not of data."""
    registry.TWINS["core.atomic_xchg"](flags, values, mask=mask, sem="relaxed", scope="sys")


def drain() -> IntScalar:
    scheduler.active().point()
    scheduler.active().observer.drained()
    return _ZERO


def _signal(op: str, bits: int, scope: str) -> Callable:
    def signal(flag: Any, value: Any) -> IntScalar:
        _scalars("notify", flag, value)
        scheduler.active().point()
        scheduler.active().current.polled = None
        change = memory.active().flag_store if op == "set" else memory.active().flag_add
        change(flag.v, value.v, bits, "release", scope)
        return _ZERO
    return signal


def _fence(sem: str, scope: str) -> Callable:
    def fence() -> IntScalar:
        scheduler.active().point()
        memory.active().fence(sem, scope)
        return _ZERO
    return fence


# -- overlapping launches ----------------------------------------------------------------------------------------------
# Kernels of one stream run one after another here; a checker treats them as if they did not.
@twin("gdc.gdc_wait")
def gdc_wait() -> IntScalar:
    scheduler.active().observer.caught_up()
    return _ZERO


@twin("gdc.gdc_launch_dependents")
def gdc_launch_dependents() -> IntScalar:
    scheduler.active().observer.let_in()
    return _ZERO


# -- packets -----------------------------------------------------------------------------------------------------------
def lanes(pred: Any, address: Any, *args: Any, ty: Any = I64) -> tuple:
    """(shape, chosen, flat tensors) of element-wise operands. The tensors have only the lanes where `pred` is true.

    chosen: the lanes that are on, in order; None where all are, which costs less. Addresses are int64, the others of type `ty`.
    """
    shape = ()
    for x in (pred, address, *args):
        if isinstance(x, Tensor):
            shape = broadcast_shape(shape, x.shape) if shape else x.shape
    parts = [_flat(address, shape, I64), *[_flat(x, shape, ty) for x in args]]
    if not isinstance(pred, Tensor) and pred.v:
        return shape, None, parts
    on = _flat(pred, shape, pred.ty).numpy().nonzero()[0]
    return (shape, None, parts) if len(on) == math.prod(shape) else (shape, on, [picked(part, on) for part in parts])


def _flat(x: Any, shape: tuple, ty: Any) -> torch.Tensor:
    x = cast(x, ty)
    if not isinstance(x, Tensor):
        return torch.full((math.prod(shape), ), x.v, dtype=info(ty).torch)
    return as_tensor(x, shape).d.reshape(-1).contiguous()


def spread(words: np.ndarray, chosen: Any, shape: tuple, known: Info) -> Any:
    """A result, int32 words [lane that is on, word], with zeros for the lanes that are off."""
    if chosen is not None:
        of_some, words = words, np.zeros((math.prod(shape), words.shape[1]), np.int32)
        words[chosen] = of_some
    found = of_bits(words.reshape(-1), known.torch)
    return Tensor(found.view(shape), known.ty) if shape else IntScalar(wrap(int(found[0]), known), known.ty)


_PACKET = info(I64)


def prefetch(address: Any, pred: Any) -> Any:
    shape, _, _ = lanes(pred, address)
    return filled(_ZERO, shape) if shape else _ZERO


def _ll_store(packets: int) -> Callable:
    def ll_store(address: Any, data: Any, flag: Any, pred: Any) -> Any:
        shape, _, (at, words, high) = lanes(pred, address, data, flag)
        running, high = scheduler.active(), high << 32
        for i in range(packets):             # of a pair, one may be seen before the other
            running.point()
            running.current.polled = None
            if at.numel():
                packet = (words >> 32 * i & 0xFFFFFFFF) | high
                memory.active().store_points(at + 8 * i, _PACKET, packet, "packet", "sys")
        return filled(_ZERO, shape) if shape else _ZERO
    return ll_store


def _ll_load(packets: int) -> Callable:
    known = info(I32 if packets == 1 else I64)

    def ll_load(address: Any, flag: Any, pred: Any) -> Any:
        shape, chosen, (at, want) = lanes(pred, address, flag, ty=I32)
        running, mem = scheduler.active(), memory.active()
        words = np.empty((at.numel(), packets), np.int32)
        for i in range(packets):
            running.point()
            if at.numel():
                late = at + (8 * i + 4)      # flags lie in the packets' upper halves
                if not np.array_equal(mem.glance(late), want.numpy()):
                    for address, flag in zip(late.tolist(), want.tolist()):
                        wait_word(address, 32, "eq", lambda: mem.peek(address, 32) == flag, flag)
                words[:, i] = bits(mem.load_points(at + 8 * i, _PACKET, "packet", "sys")).view(np.int32)[::2]
        return spread(words, chosen, shape, known)
    return ll_load


TWINS.update({"tdist_true": true, "tdist_drain": drain, "tdist_gdc_wait": gdc_wait,
              "tdist_gdc_launch_dependents": gdc_launch_dependents,
              "tdist_zero_after": zero_after, "tdist_rank": rank, "tdist_num_ranks": num_ranks,
              "tdist_symm_delta": symm_delta, "tdist_barrier_pad": barrier_pad, "tdist_prefetch": prefetch,
              "tdist_ll_store": _ll_store(1),
              "tdist_ll_load": _ll_load(1), "tdist_ll_store_pair": _ll_store(2), "tdist_ll_load_pair": _ll_load(2)})
primitives.LISTENERS["tdist_zero_after"] = lambda token: scheduler.active().observer.consumed(token)
for _scope in SCOPES:
    for _sem in FENCE_SEMANTICS:
        TWINS[f"tdist_fence_{_sem}_{_scope}"] = _fence(_sem, _scope)
    for _width in BITS:
        for _op in SIGNAL_OPS:
            TWINS[f"tdist_signal_{_op}_b{_width}_{_scope}"] = _signal(_op, _width, _scope)
            TWINS[f"tdist_notify_warp_{_op}_b{_width}_{_scope}"] = _notify_warp(_op, _width, _scope)
        for _cmp in COMPARISONS:
            for _sem in WAIT_SEMANTICS:
                TWINS[f"tdist_wait_{_cmp}_b{_width}_{_sem}_{_scope}"] = _wait(_cmp, _width, _sem, _scope)
