# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of tl.load, tl.store and the atomics."""
import functools
from typing import Any, Callable, Optional

import numpy as np
import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import Tup, invalid, site, twin, unsupported
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.memory.descriptors import BlockPointer
from triton_dist.backends.emulator.memory.segments import bits, picked
from triton_dist.backends.emulator.rebuild import threads
from triton_dist.backends.emulator.values import elementwise
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I1, Info, canonical, info, pointer_to, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Pointer, Scalar, scalar
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor, broadcast_shape, carried, expand_box, filled

SEMANTICS = ("acquire", "release", "acq_rel", "relaxed")
SCOPES = ("cta", "gpu", "sys")


def element(pointer: Any) -> Any:
    """The element type of a pointer or a tensor of pointers."""
    if not isinstance(pointer, (Pointer, Tensor)) or not info(pointer.ty).pointer:
        raise invalid(f"expected a pointer, found {pointer!r}")
    return pointer.ty.element_ty


def element_info(pointer: Any) -> Info:
    return info(element(pointer))


def _clip(mask: Any, shape: Tup, steps: tuple, base: int) -> Any:
    """Of a strided access under a mask: (address, shape, slices) of what remains; None: empty; False: no box."""
    if mask is None:
        return base, shape, None
    if isinstance(mask, Tensor):
        if mask.box is None:
            return (base, shape, None) if bool(mask.d.all()) else False
        box = expand_box(mask.box, mask.shape, shape)
        offset, small, inside = _box_part(box, shape, steps)
        return (base + offset, small, inside) if small else None
    return (base, shape, None) if mask else None


@functools.lru_cache(4096)
def _box_part(box: tuple, shape: Tup, steps: tuple) -> tuple:
    """(byte offset, shape or None where empty, slices or None where whole) of a box."""
    if any(hi <= lo for lo, hi in box):
        return 0, None, None
    if all(lo == 0 and hi == n for (lo, hi), n in zip(box, shape)):
        return 0, shape, None
    return (sum(lo * step for (lo, _), step in zip(box, steps)), Tup(hi - lo for lo, hi in box),
            tuple(slice(lo, hi) for lo, hi in box))


def steps_of(pointer: Tensor, shape: Tup) -> tuple:
    """Byte steps of a formula pointer after broadcasting to `shape`."""
    return (0, ) * (len(shape) - len(pointer.shape)) + pointer.line[1]


def access_shape(pointer: Any, *others: Any) -> Tup:
    """The shape of an access: the pointer's, broadcast with mask and other."""
    shape = pointer.shape
    for x in others:
        if isinstance(x, Tensor):
            shape = broadcast_shape(shape, x.shape)
    return shape


def _padding(other: Any, shape: Tup, known: Info) -> torch.Tensor:
    """What masked-off elements read. With no `other` they are undefined; Triton's GPU backends give zero."""
    if isinstance(other, Tensor):
        return as_tensor(cast(other, known.ty), shape).d.clone(memory_format=torch.contiguous_format)
    fill = 0 if other is None else cast(other, known.ty).v
    return torch.full(shape, carried(fill, known), dtype=known.torch)


def _chosen(mask: Any, shape: Tup) -> np.ndarray:
    """The elements, in order, for which a mask is true."""
    return as_tensor(cast(mask, I1), shape).d.reshape(-1).numpy().nonzero()[0]


@twin("core.load")
def load(pointer: Any, mask: Any = None, other: Any = None, boundary_check: Any = (), padding_option: str = "",
         cache_modifier: str = "", eviction_policy: str = "", volatile: bool = False) -> Any:
    if isinstance(pointer, BlockPointer):
        if mask is not None or other is not None:
            raise invalid("mask and other cannot be used with a block pointer")
        return pointer.load(boundary_check, padding_option)
    known = element_info(pointer)
    running, mem = scheduler.active(), memory.active()
    running.point()
    if isinstance(pointer, Pointer):
        if isinstance(mask, Tensor) or isinstance(other, Tensor):
            raise invalid("a scalar load with a tensor as mask or other")
        if mask is not None and not mask:
            return scalar(0, known.ty) if other is None else cast(other, known.ty)
        if volatile:
            value = mem.load_word(pointer.v, known, "relaxed", "sys")
            if known.integer and known.bits in (32, 64):
                spin(pointer.v, known)
            return scalar(value, known.ty)
        return scalar(mem.load_word(pointer.v, known), known.ty)
    shape = access_shape(pointer, mask, other)
    if pointer.line is not None and min(pointer.line[1]) >= 0:
        steps = steps_of(pointer, shape)
        part = _clip(mask, shape, steps, pointer.line[0])
        if part is None:
            return Tensor(_padding(other, shape, known), known.ty, shape)
        if part:
            address, small, inside = part
            if inside is None:
                return Tensor(mem.load_tile(address, small, steps, known), known.ty, shape)
            out = _padding(other, shape, known)
            out[inside] = mem.tile("load", address, small, steps, known)
            return Tensor(out, known.ty, shape)
    addresses = as_tensor(pointer, shape).d.reshape(-1)
    if mask is None:
        return Tensor(mem.load_points(addresses, known).view(shape), known.ty, shape)
    chosen, out = _chosen(mask, shape), _padding(other, shape, known)
    if len(chosen):
        bits(out.view(-1))[chosen] = bits(mem.load_points(picked(addresses, chosen), known))
    return Tensor(out, known.ty, shape)


@twin("core.store")
def store(pointer: Any, value: Any, mask: Any = None, boundary_check: Any = (), cache_modifier: str = "",
          eviction_policy: str = "") -> None:
    if isinstance(pointer, BlockPointer):
        if mask is not None:
            raise invalid("mask cannot be used with a block pointer")
        return pointer.store(value, boundary_check)
    known = element_info(pointer)
    running, mem = scheduler.active(), memory.active()
    running.point()
    running.current.polled = None
    value = cast(value, known.ty)
    if isinstance(pointer, Pointer):
        if isinstance(mask, Tensor) or isinstance(value, Tensor):
            raise invalid("a block stored to a scalar pointer: make it a tensor of pointers")
        if mask is None or mask:
            mem.store_word(pointer.v, known, value.v)
        return
    shape = access_shape(pointer, mask, value)
    if pointer.line is not None:
        steps = steps_of(pointer, shape)
        if all(step > 0 or n == 1 for step, n in zip(steps, shape)):
            part = _clip(mask, shape, steps, pointer.line[0])
            if part is None:
                return
            if part:
                address, small, inside = part
                d = as_tensor(value, shape).d
                mem.store_tile(address, small, steps, known, d if inside is None else d[inside])
                return
    addresses, d = as_tensor(pointer, shape).d.reshape(-1), as_tensor(value, shape).d.reshape(-1)
    if mask is not None:
        chosen = _chosen(mask, shape)
        addresses, d = picked(addresses, chosen), picked(d, chosen)
    if addresses.numel():
        mem.store_points(addresses, known, d)


# -- atomics -----------------------------------------------------------------------------------------------------------
_BARRIERS = hasattr(core, "atomic_store")        # from Triton 3.9 on
_SPINS = 512           # reads of an unchanged word after which a program is taken to spin
_ENOUGH = 1 << 15      # the same where nothing else can run, so that it cannot be said whether its loop ends by itself
_OF_ALL = 2 * _ENOUGH  # what all programs that spin may read then, so that a hang of many is reported as soon


def allowed(actor: scheduler.Actor) -> int:
    """Reads of an unchanged word that a program may make before it sleeps."""
    return min(_ENOUGH, max(_SPINS, _OF_ALL // actor.encouraged)) if actor.encouraged else _SPINS


def spin(address: int, known: Info) -> None:
    """Called after a read that found a word as the last one left it: a spinning program sleeps until a word changes.

    All words it polls count, so a loop over several flags is woken by any. A loop that ends after _ENOUGH reads of the same
    value or more (fewer where many programs spin), and stores nothing meanwhile, is reported as a hang.
    """
    running, mem = scheduler.active(), memory.active()
    actor = running.current
    words = actor.__dict__.get("polled")
    if words is None:
        words, actor.encouraged = {}, 0
        actor.polled = words
    value = mem.peek(address, known.bits)
    count = words[address][1] + 1 if address in words and words[address][0] == value else 0
    words[address] = (value, count, known.bits)
    if count < allowed(actor):
        return

    def changed() -> bool:
        return any(mem.peek(a, bits) != v for a, (v, _, bits) in words.items())

    mem.watch(words)
    for a in words:
        mem.pollers.setdefault(a, []).append(actor)
    try:
        waiting = scheduler.Waiting("flag", address, value, "ne", lambda: mem.peek(address, known.bits), site())
        running.block(actor, lambda: changed() or count < allowed(actor), waiting)
    finally:
        mem.unwatch(words)
        for a in words:
            mem.pollers[a].remove(actor)
            if not mem.pollers[a]:
                del mem.pollers[a]
    if changed():
        actor.polled = None


def _check(sem: Optional[str], scope: Optional[str]) -> tuple:
    """Order and scope of an atomic. Triton 3.9 puts a CTA barrier before one that releases."""
    sem, scope = sem or "acq_rel", scope or "gpu"
    if sem not in SEMANTICS or scope not in SCOPES:
        raise invalid(
            f"sem={sem!r}, scope={scope!r}: expected one of {', '.join(SEMANTICS)} and of {', '.join(SCOPES)}")
    if _BARRIERS and sem in ("release", "acq_rel"):
        threads.barrier()
    return sem, scope


def _word_update(pointer: Pointer, known: Info, fn: Callable, sem: str, scope: str) -> Scalar:
    new: Any = None

    def apply(old: Any) -> Any:
        nonlocal new
        new = fn(old)
        return new

    return _updated(pointer, known, memory.active().update_word(pointer.v, known, apply, sem, scope), new)


def _updated(pointer: Pointer, known: Info, old: Any, new: Any) -> Scalar:
    """What an atomic on one word returns; a program that has changed nothing may be spinning."""
    if new != old:
        scheduler.active().current.polled = None
    elif known.bits in (32, 64) and known.integer:
        spin(pointer.v, known)
    return scalar(old, known.ty)


def _atomic(name: str, on_numbers: Callable, on_tensors: Callable) -> None:
    def op(pointer: Any, val: Any, mask: Any = None, sem: Optional[str] = None, scope: Optional[str] = None) -> Any:
        known = element_info(pointer)
        if known.bits < 16 or known.bits == 16 and (known.integer or name != "add"):
            raise invalid(f"atomic_{name} of {known.ty}")
        if known.kind == "float" and name in ("and", "or", "xor"):
            raise invalid(f"atomic_{name} of {known.ty}")
        sem, scope = _check(sem, scope)
        scheduler.active().point()
        val = cast(val, known.ty)
        if isinstance(pointer, Pointer):
            if isinstance(val, Tensor) or isinstance(mask, Tensor):
                raise invalid(f"atomic_{name} of a block on a scalar pointer")
            if mask is not None and not mask:
                return scalar(0, known.ty)
            v = val.v
            fn = (lambda old: wrap(on_numbers(old, v), known)) if known.integer else (lambda old: on_numbers(old, v))
            return _word_update(pointer, known, fn, sem, scope)
        return _block_update(pointer, known, lambda old, x: on_tensors(old, x, known), (val, ), mask, sem, scope)
    twin(f"core.atomic_{name}")(op)


def _block_update(pointer: Tensor, known: Info, fn: Callable, values: tuple, mask: Any, sem: str, scope: str) -> Tensor:
    shape = pointer.shape
    addresses = pointer.d.reshape(-1)
    operands = [as_tensor(v, shape).d.reshape(-1) for v in values]
    if mask is None:
        old = memory.active().update_points(addresses.contiguous(), known, fn, tuple(operands), sem, scope)
        return Tensor(old.view(shape), known.ty, shape)
    chosen = as_tensor(cast(mask, I1), shape).d.reshape(-1)
    out = torch.zeros(addresses.shape, dtype=known.torch)
    some = addresses[chosen]
    if some.numel():
        out[chosen] = memory.active().update_points(some, known, fn, tuple(v[chosen] for v in operands), sem, scope)
    return Tensor(out.view(shape), known.ty, shape)


def _extreme(name: str) -> Callable:
    def pick(old: torch.Tensor, x: torch.Tensor, known: Info) -> torch.Tensor:
        return torch.where(elementwise.apply(name, x, old, known, known.ty), x, old)
    return pick


_atomic("add", lambda old, v: old + v, lambda old, x, known: old + x)
_atomic("xchg", lambda old, v: v, lambda old, x, known: x)
_atomic("max", max, _extreme("gt"))
_atomic("min", min, _extreme("lt"))
_atomic("and", lambda old, v: old & v, lambda old, x, known: old & x)
_atomic("or", lambda old, v: old | v, lambda old, x, known: old | x)
_atomic("xor", lambda old, v: old ^ v, lambda old, x, known: old ^ x)


@twin("core.atomic_cas")
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Optional[str] = None, scope: Optional[str] = None) -> Any:
    known = element_info(pointer)
    if known.bits not in (16, 32, 64):
        raise invalid(f"atomic_cas of {known.ty}: only 16, 32 and 64 bits")
    if known.kind == "float":                # words are compared: -0.0 is not 0.0, and a NaN is itself
        word = canonical(getattr(core, f"int{known.bits}"))
        cmp, val = (cast(cast(v, known.ty), word, bitcast=True) for v in (cmp, val))
        return cast(atomic_cas(cast(pointer, pointer_to(word)), cmp, val, sem, scope), known.ty, bitcast=True)
    sem, scope = _check(sem, scope)
    scheduler.active().point()
    cmp, val = cast(cmp, known.ty), cast(val, known.ty)
    if isinstance(pointer, Pointer):
        old = memory.active().swap_word(pointer.v, known, cmp.v, val.v, sem, scope)
        return _updated(pointer, known, old, val.v if old == cmp.v else old)
    return _block_update(pointer, known, lambda old, c, v: torch.where(old == c, v, old), (cmp, val), None, sem, scope)


@twin("core.atomic_load")
def atomic_load(pointer: Any, mask: Any = None, sem: Optional[str] = None, scope: Optional[str] = None) -> Any:
    known = element_info(pointer)
    sem, scope = _check(sem or "acquire", scope)
    scheduler.active().point()
    if isinstance(pointer, Pointer):
        if mask is not None and not mask:
            return scalar(0, known.ty)
        value = memory.active().load_word(pointer.v, known, sem, scope)
        if known.integer and known.bits in (32, 64):
            spin(pointer.v, known)
        return scalar(value, known.ty)
    return _block_update(pointer, known, lambda old: old, (), mask, sem, scope)


@twin("core.atomic_store")
def atomic_store(pointer: Any, val: Any, mask: Any = None, sem: Optional[str] = None,
                 scope: Optional[str] = None) -> None:
    known = element_info(pointer)
    sem, scope = _check(sem or "release", scope)
    running = scheduler.active()
    running.point()
    val = cast(val, known.ty)
    running.current.polled = None
    if isinstance(pointer, Pointer):
        if mask is None or mask:
            memory.active().store_word(pointer.v, known, val.v, sem, scope)
    else:
        _block_update(pointer, known, lambda old, x: x, (val, ), mask, sem, scope)


@twin("core.atomic_poll")
def atomic_poll(pointer: Any, expected_value: Any, sem: Optional[str] = None, scope: Optional[str] = None,
                timeout_ns: Any = None) -> Any:
    """Waits until every word equals its value. A time limit is not emulated: time has no meaning here."""
    known = element_info(pointer)
    if timeout_ns is not None:
        raise unsupported("atomic_poll with timeout_ns: set TRITON_DIST_WAIT_TIMEOUT instead")
    if not known.integer or known.bits not in (32, 64):
        raise invalid(f"atomic_poll of {known.ty}: the emulator polls 32- and 64-bit integers")
    sem, scope = _check(sem or "acquire", scope)
    scheduler.active().point()
    addresses = pointer.d.reshape(-1).tolist() if isinstance(pointer, Tensor) else [pointer.v]
    wanted = as_tensor(cast(expected_value, known.ty), pointer.shape or (1, )).d.reshape(-1).tolist()
    for address, value in zip(addresses, wanted):
        await_flag(address, known.bits, "eq", lambda seen, value=value: seen == value, value, sem, scope)
    return filled(IntScalar(1, I1), pointer.shape) if isinstance(pointer, Tensor) else IntScalar(1, I1)


def await_flag(address: int, bits: int, cmp: str, met: Callable[[int], bool], wanted: Any, sem: str, scope: str,
               inner: bool = False) -> int:
    """Waits until a flag holds a value that is `met`, and acquires it; the value. inner: as a part of a barrier."""
    mem = memory.active()
    mem.find(address, bits // 8, "flag load")
    if not met(mem.peek(address, bits)):
        mem.flag_load(address, bits, sem, scope)
    while True:
        wait_word(address, bits, cmp, lambda: met(mem.peek(address, bits)), wanted)
        seen = mem.flag_pass(address, bits, "" if inner else cmp, met, sem, scope)
        if met(seen):                        # another process may have changed it meanwhile
            return seen


def wait_word(address: int, bits: int, cmp: str, reached: Callable, wanted: Any) -> None:
    """Sleeps until `reached()`; a hang report shows the flag."""
    if reached():
        return
    mem = memory.active()
    mem.watch((address, ))
    try:
        waiting = scheduler.Waiting("flag", address, wanted, cmp, lambda: mem.peek(address, bits), site())
        scheduler.active().block(address, reached, waiting)
    finally:
        mem.unwatch((address, ))
