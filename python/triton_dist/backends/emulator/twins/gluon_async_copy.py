# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""cp.async: copies from global to shared memory by threads, which go on while the copies are under way.

Each thread of a partition copies its part, and arrives at a mbarrier once its copies so far have been written. Here all threads
do so together. What they write is of the generic proxy: wgmma reads it after a proxy fence.
"""
from typing import Any

import torch

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import invalid, twin, unsupported
from triton_dist.backends.emulator.memory import gluon_smem, memory
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.twins.gluon_mbarrier import Barrier
from triton_dist.backends.emulator.twins.gluon_mbarrier import barrier as barrier_of
from triton_dist.backends.emulator.twins.gluon_tma import Copy
from triton_dist.backends.emulator.twins.memory import access_shape, element_info
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I1
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor

_BYTES = (4, 8, 16)     # that one instruction can copy


class CopyOfThreads(Copy):
    """A copy of all threads under way. arrivals: what is done once it has been written."""

    by_threads = True

    def __init__(self) -> None:
        super().__init__("cp.async")
        self.arrivals: list = []


def _copies(actor: Any) -> list:
    """Copies of a partition that no arrival has been asked for yet, or that are not written yet."""
    found = actor.__dict__.get("cp_async")
    if found is None:
        found = actor.cp_async = []
    return found


@twin("async_copy.async_copy_global_to_shared", "async_copy.async_load")
def copy(smem: Any, pointer: Any, mask: Any = None, cache_modifier: Any = None, eviction_policy: Any = None,
         volatile: Any = False, cache_policy: Any = None) -> None:
    """What is masked off becomes zeros."""
    if not isinstance(smem, View) or not isinstance(pointer, Tensor):
        raise invalid(f"async copy of {pointer!r} to {smem!r}: expected a tensor of pointers and shared memory")
    known = element_info(pointer)
    if smem.shape != pointer.shape or smem.ty is not known.ty or access_shape(pointer, mask) != pointer.shape:
        raise invalid(f"async copy of {pointer!r} to {smem}: type and shape must be equal")
    if smem.d.stride(-1) != 1 or smem.shape[-1] * known.size % min(_BYTES):
        raise invalid(f"async copy to {smem}: rows must be contiguous and a multiple of {min(_BYTES)} bytes")
    scheduler.active().point()
    addresses = as_tensor(pointer, pointer.shape).d.reshape(-1)
    chosen = None if mask is None else as_tensor(cast(mask, I1), pointer.shape).d.reshape(-1)
    owner, operation, got = gluon_smem.block(), CopyOfThreads(), torch.zeros(addresses.shape, dtype=known.torch)

    def read() -> None:
        if chosen is None:
            got.copy_(memory.active().load_points(addresses, known))
        elif chosen.any():
            got[chosen] = memory.active().load_points(addresses[chosen], known)

    def write() -> None:
        gluon_smem.active().store(smem, got.view(smem.shape))
        owner.loads.pop(operation, None)
        for arrive in operation.arrivals:
            arrive()

    owner.loads[operation] = None
    _copies(scheduler.active().current).append(operation)
    scheduler.active().issue(operation, operation.guarded(read), operation.guarded(write))


@twin("async_copy.mbarrier_arrive")
def mbarrier_arrive(mbarrier: Any, increment_count: Any = True) -> None:
    """Arrives once for each thread of the partition, after all its copies so far."""
    if increment_count:
        raise unsupported("async_copy.mbarrier_arrive(increment_count=True): initialise the mbarrier with an arrival for each "
                          "thread, and pass False")
    running = scheduler.active()
    running.point()
    actor, found = running.current, barrier_of(mbarrier)
    copies, threads = _copies(actor), 32 * actor.cta.num_warps
    missing = [operation for operation in copies if not operation.done]

    def told() -> None:
        """The running copy has been written."""
        gluon_smem.active().arrived(found)
        missing.remove(running.current)
        if not missing:
            found.arrive(threads)

    for operation in copies:
        if operation.done:
            _acting_as(operation, found)
        else:
            operation.serves += (found, )
            operation.arrivals.append(told)
    if not missing:
        found.arrive(threads)
    actor.cp_async = list(missing)


def _acting_as(operation: CopyOfThreads, found: Barrier) -> None:
    """An earlier copy is among what the barrier stands for."""
    running = scheduler.active()
    caller, running.current = running.current, operation
    try:
        gluon_smem.active().arrived(found)
    finally:
        running.current = caller
