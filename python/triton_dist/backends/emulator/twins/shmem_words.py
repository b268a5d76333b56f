# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of SHMEM's functions on single words, strided copies and reductions: the rest of language/shmem_abi.py.

An atomic that gives nothing back is a transfer, which lands later; one that fetches is there at once. Both reach other nodes.
"""
from typing import Any, Callable

import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.memory import memory, wire
from triton_dist.backends.emulator.memory.shmem_transfers import at, channel, check, delivery, landed
from triton_dist.backends.emulator.rebuild import primitives, threads
from triton_dist.backends.emulator.twins.memory import await_flag, spin
from triton_dist.backends.emulator.twins.shmem import COMPARE, Round, together
from triton_dist.backends.emulator.values.promotion import I32, canonical, info, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.language.abi import ROWS
from triton_dist.language.shmem_abi import LIBRARY, REDUCED, REDUCTIONS, SCOPES, WORDS

_TYPES = {bits: canonical(getattr(core, f"int{bits}")) for bits in (8, 16, 32, 64)}
_ELEMENTS = dict(zip(REDUCED, ("int32", "int64", "float32", "float64", "float16", "bfloat16")))
_COMBINE = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}


def _symbol(stem: str, scope: str = "") -> str:
    return f"{LIBRARY}_{stem}{scope}"


# -- atomics -----------------------------------------------------------------------------------------------------------
def _target(name: str, parameter: str, address: int, pe: int, bits: int) -> int:
    to = at(name, parameter, address, pe)
    check(name, parameter, to, bits // 8)
    return to


def _sent(name: str, op: str, bits: int, value: Any = None) -> Callable:
    """An atomic that gives nothing back; `value`: its operand where it takes none."""
    def act(dest: int, *rest: int) -> None:
        pe, operand = rest[-1], rest[0] if value is None else value
        to, way = _target(name, "dest", dest, pe, bits), channel()
        way.fenced = False
        way.send(name, pe, lambda: wire.update(to, op, operand, 0, bits))
    return act


def _fetched(name: str, op: str, bits: int, value: Any = None, parameter: str = "dest") -> Callable:
    """An atomic that gives the old word to each thread that calls it; a pure read is one for all."""
    def act(dest: Any, *rest: Any) -> Any:
        def once() -> IntScalar:
            running = scheduler.active()
            running.point()
            running.current.polled = None
            operands = [x.v for x in rest[:-1]]
            expected = operands.pop(0) if op == "cas" else 0
            to = _target(name, parameter, dest.v, rest[-1].v, bits)
            old = wire.update(to, op, value if value is not None else operands[0], expected, bits)
            if op in ("fetch", "cas") and not wire.place(to):
                spin(to, info(_TYPES[bits]))
            return IntScalar(wrap(old, info(_TYPES[bits])), _TYPES[bits])
        return once() if op == "fetch" else threads.each(once)
    return act


def _put_word(bits: int) -> Callable:
    def act(dest: int, value: int, pe: int) -> None:
        to, way = _target("p", "dest", dest, pe, bits), channel()
        way.fenced = False
        way.send("p", pe, lambda: wire.store_word(to, info(_TYPES[bits]), wrap(value, info(_TYPES[bits]))))
    return act


def _get_word(bits: int) -> Callable:
    def act(source: Any, pe: Any) -> IntScalar:
        scheduler.active().point()
        return IntScalar(wire.load(_target("g", "source", source.v, pe.v, bits), info(_TYPES[bits])), _TYPES[bits])
    return act


# -- strided copies ----------------------------------------------------------------------------------------------------
def _strided(name: str, size: int) -> Callable:
    def act(dest: int, source: int, dst: int, sst: int, count: int, pe: int) -> None:
        puts, way = name == "iput", channel()
        there = at(name, "dest" if puts else "source", dest if puts else source, pe)
        to, origin = (there, source) if puts else (dest, there)
        for parameter, start, step in (("dest", to, dst), ("source", origin, sst)):
            check(name, parameter, start, ((count - 1) * step + 1) * size if count else 0)
        for i in range(count):
            target, place = to + i * dst * size, origin + i * sst * size
            if puts:
                way.fenced = False
                way.send(name, pe, *delivery(target, place, size))
            else:
                landed(way.get(name, pe, lambda target=target, place=place: wire.copy(target, place, size)))
    return act


# -- waits -------------------------------------------------------------------------------------------------------------
def _wait_until(bits: int) -> Callable:
    def act(ivar: Any, cmp: Any, word: Any) -> IntScalar:
        running = scheduler.active()
        running.point()
        name, compare = COMPARE[cmp.v]
        token = IntScalar(await_flag(ivar.v, bits, name, lambda seen: compare(seen, word.v), word.v, "acquire", "sys"),
                          _TYPES[bits])
        running.observer.waited(token)
        return token
    return act


def _test(bits: int) -> Callable:
    def act(ivar: Any, cmp: Any, word: Any) -> IntScalar:
        scheduler.active().point()
        seen = memory.active().flag_load(ivar.v, bits, "acquire", "sys")
        met = COMPARE[cmp.v][1](seen, word.v)
        if not met:
            spin(ivar.v, info(_TYPES[bits]))
        return IntScalar(int(met), I32)
    return act


# -- reductions --------------------------------------------------------------------------------------------------------
def _reduce(name: str, op: str) -> Callable:
    def act(team: int, dest: int, source: int, count: int, code: int) -> None:
        """Every member reads all sources between two barriers of the team, then writes its own dest after the second."""
        dtype = getattr(torch, _ELEMENTS[REDUCED[code]])
        nbytes, total = count * dtype.itemsize, None
        check(name, "dest", dest, nbytes)
        here = Round(name, team)
        for member in here.members:
            here.tell(member)
        here.hear(*here.members)
        for member in here.members:
            data = wire.read(at(name, "source", source, member), nbytes).view(dtype)
            wide = data if not dtype.is_floating_point or dtype is torch.float64 else data.float()
            total = wide if total is None else _COMBINE[op](total, wide)
        again = Round(name, team)
        for member in again.members:
            again.tell(member)
        again.hear(*again.members)
        if count:
            wire.store(dest, total.to(dtype).contiguous().view(torch.int8))
    return act


_ATOMICS = {f"atomic_{op}": op for op in ("set", "add", "and", "or", "xor")}
_FETCHES = {f"atomic_fetch_{op}": op for op in ("add", "and", "or", "xor")} | {"atomic_swap": "set", "atomic_compare_swap": "cas"}
for _bits in WORDS:
    for _name, _op in _ATOMICS.items():
        _s = _symbol(f"{_name}_b{_bits}")
        primitives.SYMBOLS[_s] = together(_sent(_name, _op, _bits), ROWS[_s])
    for _name, _op in _FETCHES.items():
        primitives.SYMBOLS[_symbol(f"{_name}_b{_bits}")] = _fetched(_name, _op, _bits)
    primitives.SYMBOLS.update({
        _symbol(f"atomic_inc_b{_bits}"): together(_sent("atomic_inc", "add", _bits, 1), ROWS[_symbol(f"atomic_inc_b{_bits}")]),
        _symbol(f"atomic_fetch_inc_b{_bits}"): _fetched("atomic_fetch_inc", "add", _bits, 1),
        _symbol(f"atomic_fetch_b{_bits}"): _fetched("atomic_fetch", "fetch", _bits, 0, "source"),
        _symbol(f"p_b{_bits}"): together(_put_word(_bits), ROWS[_symbol(f"p_b{_bits}")]),
        _symbol(f"g_b{_bits}"): _get_word(_bits), _symbol(f"wait_until_b{_bits}"): _wait_until(_bits),
        _symbol(f"test_b{_bits}"): _test(_bits)})
for _bits in _TYPES:
    for _name in ("iput", "iget"):
        _s = _symbol(f"{_name}_b{_bits}")
        primitives.SYMBOLS[_s] = together(_strided(_name, _bits // 8), ROWS[_s])
for _op in REDUCTIONS:
    for _scope in SCOPES:
        _s = _symbol(f"{_op}_reduce", _scope)
        primitives.SYMBOLS[_s] = together(_reduce(f"{_op}_reduce{_scope}", _op), ROWS[_s])
