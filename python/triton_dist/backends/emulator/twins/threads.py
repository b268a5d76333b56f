# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the functions of single threads: one for every row of language/threads_abi.py, under the same symbol.

In code that threads run apart a twin acts for the thread that calls it. Where the program's threads act together a load or a
store is one access, since all would do the same; an atomic is done by each of them.
"""
import time
from typing import Any, Callable

from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS, twin
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.rebuild import primitives, threads
from triton_dist.backends.emulator.twins.memory import _updated
from triton_dist.backends.emulator.values.promotion import I32, I64, info, pointer_to, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Pointer
from triton_dist.language.threads_abi import (FENCE_SEMANTICS, LIBRARY, LOAD_SEMANTICS, SCOPES, SHUFFLES, STORE_SEMANTICS,
                                              UPDATE_SEMANTICS, UPDATES, WIDTHS, WORDS)

_ZERO = IntScalar(0, I32)
_INTEGERS = {bits: getattr(core, f"int{bits}") for bits in WIDTHS}
_NEW = {"add": lambda old, v: old + v, "xchg": lambda old, v: v}


# -- who am I ----------------------------------------------------------------------------------------------------------
def _tid(axis: str) -> Callable:
    return lambda: threads.index() if axis == "x" else _ZERO


def _sm() -> Any:
    return TWINS["utils.smid"]()


def _clock() -> IntScalar:
    return IntScalar(time.perf_counter_ns(), I64)


@twin("threads.threads_per_warp")
def threads_per_warp() -> int:
    return threads.WARP


@twin("threads.num_warps")
def num_warps() -> int:
    return threads.count() // threads.WARP


@twin("threads.num_threads")
def num_threads() -> int:
    return threads.count()


# -- accesses ----------------------------------------------------------------------------------------------------------
def _pointer(address: Any, bits: int) -> Pointer:
    return Pointer(address.v, pointer_to(_INTEGERS[bits]))


def _ld(bits: int, sem: str, scope: str) -> Callable:
    return lambda address: TWINS["core.atomic_load"](_pointer(address, bits), sem=sem, scope=scope)


def _st(bits: int, sem: str, scope: str) -> Callable:
    known = info(_INTEGERS[bits])

    def st(address: Any, value: Any) -> IntScalar:
        _store(address.v, known, value, sem, scope)
        return _ZERO
    return st


def _store(address: int, known: Any, value: Any, sem: str, scope: str) -> None:
    scheduler.active().point()
    scheduler.active().current.polled = None
    memory.active().store_word(address, known, value.v, sem, scope)


def _update(op: str, bits: int, sem: str, scope: str) -> Callable:
    known, new = info(_INTEGERS[bits]), _NEW[op]

    def update(address: Any, value: Any) -> Any:
        def once() -> Any:
            scheduler.active().point()
            old = memory.active().update_word(address.v, known, lambda old: wrap(new(old, value.v), known), sem, scope)
            return _updated(_pointer(address, bits), known, old, wrap(new(old, value.v), known))
        return threads.each(once)
    return update


def _cas(bits: int, sem: str, scope: str) -> Callable:
    known = info(_INTEGERS[bits])

    def cas(address: Any, expected: Any, value: Any) -> Any:
        def once() -> Any:
            scheduler.active().point()
            old = memory.active().swap_word(address.v, known, expected.v, value.v, sem, scope)
            return _updated(_pointer(address, bits), known, old, value.v if old == expected.v else old)
        return threads.each(once)
    return cas


def _fence(sem: str, scope: str) -> Callable:
    def fence() -> IntScalar:
        scheduler.active().point()
        memory.active().fence("acq_rel", scope)
        return _ZERO
    return fence


def _st_v4(address: Any, *words: Any) -> IntScalar:
    for i, word in enumerate(words):
        _store(address.v + 4 * i, info(I32), word, "relaxed", "sys")
    return _ZERO


# -- warps -------------------------------------------------------------------------------------------------------------
def _warp(thread: int) -> range:
    return range(thread - thread % threads.WARP, thread - thread % threads.WARP + threads.WARP)


_SOURCES = {"idx": lambda lane, x: x, "up": lambda lane, x: lane - x, "down": lambda lane, x: lane + x,
            "xor": lambda lane, x: lane ^ x}


def _shuffle(how: str) -> Callable:
    source = _SOURCES[how]

    def shuffle(mask: Any, value: Any, other: Any) -> Any:
        me = threads.thread()
        if me is None:                       # all threads have the same value
            return value
        seen = scheduler.active().current.region.meet(_warp(me), me, value, f"a shuffle ({how})")
        lane = source(me % threads.WARP, other.v)
        if not 0 <= lane < threads.WARP:
            return value
        return seen.get(_warp(me)[lane], value)
    return shuffle


def _ballot(mask: Any, predicate: Any) -> IntScalar:
    me = threads.thread()
    if me is None:
        return IntScalar((1 << threads.WARP) - 1 if predicate.v else 0, I64)
    seen = scheduler.active().current.region.meet(_warp(me), me, predicate, "a ballot")
    return IntScalar(sum(1 << k % threads.WARP for k, x in seen.items() if x.v), I64)


def _lane() -> Any:
    return threads.index() % threads.WARP


_SYMBOLS = {**{f"tid_{axis}": _tid(axis) for axis in "xyz"}, "lane": _lane, "sm": _sm, "clock": _clock, "st_v4": _st_v4,
            "ballot": _ballot, **{f"shfl_{how}": _shuffle(how) for how in SHUFFLES}}
for _scope in SCOPES:
    _SYMBOLS.update({f"fence_{sem}_{_scope}": _fence(sem, _scope) for sem in FENCE_SEMANTICS})
    for _bits in WIDTHS:
        _SYMBOLS.update({f"ld_b{_bits}_{sem}_{_scope}": _ld(_bits, sem, _scope) for sem in LOAD_SEMANTICS})
        _SYMBOLS.update({f"st_b{_bits}_{sem}_{_scope}": _st(_bits, sem, _scope) for sem in STORE_SEMANTICS})
    for _bits in WORDS:
        for _sem in UPDATE_SEMANTICS:
            _SYMBOLS.update({f"{op}_b{_bits}_{_sem}_{_scope}": _update(op, _bits, _sem, _scope) for op in UPDATES})
            _SYMBOLS[f"cas_b{_bits}_{_sem}_{_scope}"] = _cas(_bits, _sem, _scope)
primitives.SYMBOLS.update({f"{LIBRARY}_{name}": fn for name, fn in _SYMBOLS.items()})
