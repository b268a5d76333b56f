# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""mbarriers: a phase, arrivals still missing in it, and bytes that TMA still owes.

A phase ends when both are zero. wait(parity) passes while the phase under way has the other parity: it may be lapped,
so the test is repeated whenever the waiter gets the turn.
"""
from typing import Any

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import fault, invalid, site, twin, unsupported
from triton_dist.backends.emulator.memory import gluon_smem
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.values.promotion import I64
from triton_dist.backends.emulator.values.scalars import IntScalar, Scalar
from triton_dist.backends.emulator.values.tensors import Tensor


class Barrier:
    """One mbarrier. `phase` counts completed phases; wake key of those who wait for it."""
    __slots__ = ("name", "count", "missing", "bytes", "phase", "valid")

    def __init__(self, name: str, count: int):
        self.name, self.count, self.missing, self.bytes, self.phase, self.valid = name, count, count, 0, 0, True

    def arrive(self, count: int, nbytes: int = 0) -> None:
        """`count` arrivals that announce `nbytes`."""
        gluon_smem.active().arrived(self)
        self.missing -= count
        self.bytes += nbytes
        if self.missing < 0:
            raise fault(f"mbarrier {self.name}: {self.count - self.missing} arrivals in one phase, expected "
                        f"{self.count}", "barrier-misuse")
        self._settle()

    def deliver(self, nbytes: int) -> None:
        """TMA has written `nbytes`."""
        if not self.valid:
            raise fault(f"mbarrier {self.name}: TMA delivers to it after it was invalidated", "barrier-misuse")
        gluon_smem.active().arrived(self)
        self.bytes -= nbytes
        self._settle()

    def _settle(self) -> None:
        if not self.missing and not self.bytes:
            self.phase += 1
            self.missing = self.count
            scheduler.active().wake(self)

    def __str__(self) -> str:
        missing = f"{self.missing} of {self.count} arrivals and {self.bytes} bytes"
        return f"{self.name} (phase {self.phase}, missing {missing})"


def _place(memory: Any) -> int:
    """Byte offset of the barrier word in its allocation."""
    if not isinstance(memory, View) or memory.ty is not I64 or memory.numel != 1:
        raise invalid(f"mbarrier {memory!r}: expected shared memory of one int64")
    return memory.offset


def barrier(memory: Any) -> Barrier:
    """The initialised barrier at a shared memory descriptor."""
    found = memory.allocation.barriers.get(_place(memory))
    if found is None:
        raise fault(f"mbarrier {memory.allocation.name} at byte {memory.offset} used before mbarrier.init", "barrier-misuse")
    return found


def enabled(pred: Any) -> bool:
    if isinstance(pred, Tensor):
        raise invalid(f"pred {pred!r}: expected a scalar")
    return bool(pred)


def _one_cta(**options: Any) -> None:
    for name, value in options.items():
        if value not in (None, False):
            raise unsupported(f"{name}={value!r}: the emulator has no clusters")


@twin("mbarrier.init")
def init(mbarrier: Any, count: Any) -> None:
    at, n = _place(mbarrier), gluon_smem.static(count, "mbarrier.init")
    if n < 1:
        raise invalid(f"mbarrier.init with count {n}: expected at least 1")
    barriers, index = mbarrier.allocation.barriers, at // 8
    if at in barriers:
        raise fault(f"mbarrier {barriers[at].name} initialised twice: invalidate it first", "barrier-misuse")
    found = barriers[at] = Barrier(f"{mbarrier.allocation.name.split(':')[0]}[{index}]", n)
    gluon_smem.active().initialised(found)


@twin("mbarrier.invalidate")
def invalidate(mbarrier: Any) -> None:
    scheduler.active().point()
    barrier(mbarrier).valid = False
    del mbarrier.allocation.barriers[mbarrier.offset]


@twin("mbarrier.expect")
def expect(mbarrier: Any, bytes: Any = None, pred: Any = True, *, bytes_per_cta: Any = None,
           from_cta: Any = None) -> None:
    """One arrival that announces bytes."""
    _one_cta(from_cta=from_cta)
    nbytes = gluon_smem.static(bytes if bytes is not None else bytes_per_cta, "mbarrier.expect")
    if enabled(pred):
        scheduler.active().point()
        barrier(mbarrier).arrive(1, nbytes)


@twin("mbarrier.arrive")
def arrive(mbarrier: Any, *, count: Any = 1, pred: Any = True, from_cta: Any = None) -> None:
    """`count` arrivals, whatever the number of warps of the partition: one thread of it arrives."""
    _one_cta(from_cta=from_cta)
    n = gluon_smem.static(count, "mbarrier.arrive")
    if enabled(pred):
        scheduler.active().point()
        barrier(mbarrier).arrive(n)


@twin("mbarrier.wait")
def wait(mbarrier: Any, phase: Any, pred: Any = True, deps: Any = ()) -> None:
    if not isinstance(phase, (int, IntScalar)) or isinstance(pred, Scalar) and pred.shape:
        raise invalid(f"mbarrier.wait with phase {phase!r}: expected a scalar integer")
    if not enabled(pred):
        return
    parity = int(phase)
    if parity not in (0, 1):
        raise invalid(f"mbarrier.wait with phase {parity}: expected 0 or 1")
    running, found = scheduler.active(), barrier(mbarrier)
    running.point()
    if found.phase & 1 == parity:
        running.block(found, lambda: found.phase & 1 != parity,
                      scheduler.Waiting("mbarrier", site=site(), text=lambda: f"parity {parity} of mbarrier {found}"))
    gluon_smem.active().passed(found, parity)
