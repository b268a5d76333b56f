# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""TMA: copies between boxes of global memory and shared memory, by an engine that acts later than it is asked.

A copy has two steps, read and write, and the scheduler's mode decides when each happens: half of the copies read at
issue, all write late. Byte counts are those of the whole box, also where it is clipped.
"""
from typing import Any, Callable

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, invalid, site, twin, unsupported
from triton_dist.backends.emulator.memory import descriptors, gluon_smem, memory
from triton_dist.backends.emulator.memory.descriptors import Descriptor
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.twins.gluon_mbarrier import barrier as barrier_of
from triton_dist.backends.emulator.twins.gluon_mbarrier import enabled
from triton_dist.backends.emulator.values.promotion import I32
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.runtime.errors import DeviceFault


class Copy(scheduler.Actor):
    """A TMA copy under way."""

    def __init__(self, what: str, serves: tuple = ()):
        issuer = scheduler.active().current
        super().__init__(f"{what} of {issuer.name}", issuer.rank, "copy", issuer.cta, serves=serves)
        self.what, self.issuer, self.issued_at = what, issuer, site()
        self.has_read = self.awaited = False

    def guarded(self, step: Callable[[], None]) -> Callable[[], None]:
        """The step; its faults name the kernel's line."""
        def run() -> None:
            try:
                step()
            except DeviceFault as error:
                raise DeviceFault(f"{error}; in a {self.what} issued at {self.issued_at}") from None
        return run


def stores_of(actor: Any) -> list:
    """The actor's TMA stores, one commit group each, in order; leading ones that are over and waited for have moved on."""
    found = actor.__dict__.get("tma_stores")
    if found is None:
        found, actor.tma_unflushed = [], []      # the second: those known to have read, but not to have written
        actor.tma_stores = found
    return found


def _box(what: str, desc: Any, coord: Any, view: Any) -> tuple:
    if not isinstance(desc, Descriptor) or not isinstance(view, View):
        raise invalid(f"{what} with {desc!r} and {view!r}: expected a tensor descriptor and shared memory")
    if view.shape != desc.block_shape or view.ty is not desc.ty:
        raise invalid(f"{what}: the descriptor's box is {desc.ty} {list(desc.block_shape)}, the shared memory {view}")
    if view.offset % 16 or not view.d.is_contiguous():
        raise invalid(f"{what}: shared memory {view} must be contiguous and aligned to 16 bytes")
    return desc.window(desc._offsets(coord), desc._all)


def async_load(tensor_desc: Any, coord: Any, barrier: Any, result: Any, pred: Any = True, multicast: Any = False,
               cache_policy: Any = None) -> None:
    if multicast:
        raise unsupported("TMA multicast: the emulator has no clusters")
    if not enabled(pred):
        return
    scheduler.active().point()
    address, shape, inside = _box("TMA load", tensor_desc, coord, result)
    bar, owner, desc = barrier_of(barrier), gluon_smem.block(), tensor_desc
    operation = Copy("TMA load", serves=(bar, ))
    whole, some = shape == list(desc.block_shape), 0 not in shape
    got: list = []

    def read() -> None:
        got.append(memory.active().load_tile(address, shape, desc.steps, desc.known) if some else None)

    def write() -> None:
        if whole:
            gluon_smem.active().store(result, got[0], "async")
        else:
            gluon_smem.active().store_box(result, inside, got[0], desc._fill)
        owner.loads.pop(operation, None)
        bar.deliver(result.nbytes)

    owner.loads[operation] = None
    scheduler.active().issue(operation, operation.guarded(read), operation.guarded(write))


def async_store(tensor_desc: Any, coord: Any, src: Any, cache_policy: Any = None) -> None:
    running = scheduler.active()
    running.point()
    running.current.polled = None
    address, shape, inside = _box("TMA store", tensor_desc, coord, src)
    operation, desc = Copy("TMA store"), tensor_desc
    whole, some = shape == list(desc.block_shape), 0 not in shape
    got: list = []

    def read() -> None:
        got.append(gluon_smem.active().load(src, "async"))
        operation.has_read = True

    def write() -> None:
        if some:
            memory.active().store_tile(address, shape, desc.steps, desc.known, got[0] if whole else got[0][inside])

    stores_of(running.current).append(operation)
    running.issue(operation, operation.guarded(read), operation.guarded(write))


twin("tma.async_load", "tma.async_copy_global_to_shared")(async_load)
twin("tma.async_store", "tma.async_copy_shared_to_global")(async_store)


def _await(stores: list, written: bool) -> None:
    running = scheduler.active()
    for operation in stores:
        if not (operation.done if written else operation.has_read or operation.done):
            reached = (lambda op=operation: op.done) if written else (lambda op=operation: op.has_read)
            verb = "write" if written else "read"
            running.block(operation, reached, scheduler.Waiting(
                "TMA store", site=site(), text=f"the TMA store issued at {operation.issued_at} to {verb}"))
        operation.awaited = True
        gluon_smem.active().joined(operation, written)


@twin("tma.store_wait")
def store_wait(pendings: Any, read_only: Any = True) -> None:
    """cp.async.bulk.wait_group.read (3.6 has only this form), or wait_group where read_only is false."""
    scheduler.active().point()
    stores = stores_of(scheduler.active().current)
    _await(stores[:max(0, len(stores) - gluon_smem.static(pendings, "store_wait"))], not read_only)
    unflushed = scheduler.active().current.tma_unflushed
    while stores and stores[0].done and stores[0].awaited:
        unflushed.append(stores.pop(0))


@twin("hopper_prims.flush_tma_stores")
def flush_tma_stores() -> IntScalar:
    """wait_group 0 and a proxy fence."""
    scheduler.active().point()
    stores, unflushed = stores_of(scheduler.active().current), scheduler.active().current.tma_unflushed
    _await([*unflushed, *stores], True)
    stores.clear()
    unflushed.clear()
    gluon_smem.active().fence("global")
    return IntScalar(0, I32)


@twin("hopper_prims.pause")
def pause(cycles: Any) -> IntScalar:
    scheduler.active().point()
    return IntScalar(0, I32)


@twin("hopper_prims.fence_proxy_async")
def fence_proxy_async(token: Any) -> Any:
    gluon_smem.active().fence("global")
    return token


@twin("hopper.fence_async_shared")
def fence_async_shared(cluster: Any = False) -> None:
    if cluster:
        raise unsupported("fence_async_shared(cluster=True): the emulator has no clusters")
    gluon_smem.active().fence("shared")


@twin("tma.make_tensor_descriptor")
def make_tensor_descriptor(base: Any, shape: Any, strides: Any, block_shape: Any, layout: Any,
                           padding_option: str = "zero") -> Descriptor:
    made = descriptors.make_tensor_descriptor(base, shape, strides, block_shape, padding_option)
    made.layout = layout
    return made


def leave(actor: Any) -> None:
    """The actor's part of the kernel is over: its stores must have been waited for."""
    for operation in actor.__dict__.get("tma_stores", ()):
        if not operation.awaited:
            raise fault(f"{actor.name} ends before tma.store_wait: the TMA store issued at {operation.issued_at} may "
                        "still read shared memory", "race")
