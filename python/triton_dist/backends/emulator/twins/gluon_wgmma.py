# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""wgmma: asynchronous matrix products in the order of issue.

A product reads its operands at issue or as late as a wait allows, by the scheduler's mode; its result cannot be read
before a wait has retired it.
"""
from typing import Any, Optional

import torch

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import Tup, fault, invalid, site, twin
from triton_dist.backends.emulator.memory import gluon_smem
from triton_dist.backends.emulator.memory.gluon_smem import View
from triton_dist.backends.emulator.twins.gluon_mbarrier import enabled
from triton_dist.backends.emulator.values.promotion import F32, I32, info
from triton_dist.backends.emulator.values.tensors import Tensor

_EARLY = 0.5             # random mode: how often products are computed at issue
_ROWS, _COLUMNS, _DEPTH = 64, 8, 32      # granularity: rows and columns of the result, bytes of K


class _InFlight:
    """Stands for the elements of a result that may not be read yet."""

    def __init__(self, product: "Product"):
        self.product = product

    def __iter__(self) -> None:
        raise fault(f"accumulator read while its wgmma, issued at {self.product.issued_at}, is in flight: wait for it "
                    "with warpgroup_mma_wait", "race")

    def __getitem__(self, _: Any) -> None:
        iter(self)


class Product:
    """One wgmma: acc + a @ b."""

    def __init__(self, a: Any, b: View, acc: Tensor, use_acc: bool):
        self.a, self.b, self.acc, self.use_acc, self.issued_at = a, b, acc, use_acc, site()
        self.before: Optional[Product] = acc.box.product if isinstance(acc.box, _InFlight) else None
        self.value: Optional[torch.Tensor] = None
        self.result = Tensor(None, acc.ty, acc.shape, box=_InFlight(self))

    def compute(self) -> None:
        wide = torch.float64 if self.acc.ty is I32 else torch.float32
        a, b = (x.d if isinstance(x, Tensor) else gluon_smem.active().operand(x, self)
                for x in (self.a, self.b))
        a, b = a.to(wide), b.to(wide)
        if self.use_acc:
            acc = self.before.value if self.before is not None else self.acc.d
            value = torch.addmm(acc.to(wide), a, b)
        else:
            value = a @ b
        self.value = value.to(info(self.acc.ty).torch)
        self.acc = self.before = None

    def retire(self) -> None:
        """The result becomes an ordinary tensor."""
        if self.value is None:
            self.compute()
        self.result._d, self.result.box = self.value, None
        gluon_smem.active().joined(self, True)


def products_of(actor: Any) -> list:
    """The actor's products in flight, oldest first."""
    found = actor.__dict__.get("wgmma")
    if found is None:
        found = actor.wgmma = []
    return found


def _check(a: Any, b: Any, acc: Any) -> None:
    if not isinstance(a, (Tensor, View)) or not isinstance(b, View) or not isinstance(acc, Tensor):
        raise invalid(f"warpgroup_mma of {a!r}, {b!r}, {acc!r}: expected a tensor or shared memory, shared memory, a "
                      "tensor")
    if len(a.shape) != 2 or len(b.shape) != 2 or acc.shape != Tup((a.shape[0], b.shape[1])) or a.shape[1] != b.shape[0]:
        raise invalid(f"warpgroup_mma of shapes {tuple(a.shape)}, {tuple(b.shape)} into {tuple(acc.shape)}")
    left, right, out = info(a.ty), info(b.ty), info(acc.ty)
    if a.ty is not b.ty and not left.size == right.size == 1:
        raise invalid(f"warpgroup_mma of {a.ty} and {b.ty}: types differ")
    if acc.ty is not (I32 if left.integer else F32) and not (out.bits == 16 and left.bits == 16 and a.ty is acc.ty):
        raise invalid(f"warpgroup_mma of {a.ty} accumulates in {I32 if left.integer else F32}, found {acc.ty}")
    if acc.shape[0] % _ROWS or acc.shape[1] % _COLUMNS or a.shape[1] * left.size % _DEPTH:
        raise invalid(f"warpgroup_mma of {tuple(a.shape)} and {tuple(b.shape)} {a.ty}: expected multiples of {_ROWS} "
                      f"rows, {_COLUMNS} columns and {_DEPTH} bytes of K")
    warps = scheduler.active().current.cta.num_warps
    if warps % 4:
        raise invalid(f"warpgroup_mma in {warps} warps: expected a multiple of four")


@twin("hopper.warpgroup_mma")
def warpgroup_mma(a: Any, b: Any, acc: Any, *, use_acc: Any = True, precision: Any = None,
                  max_num_imprecise_acc: Any = None, is_async: Any = False) -> Tensor:
    _check(a, b, acc)
    running = scheduler.active()
    running.point()
    product = Product(a, b, acc, enabled(use_acc))
    gluon_smem.active().issued(product)
    in_flight = products_of(running.current)
    in_flight.append(product)
    if running.mode == "eager" or running.mode == "random" and running.rng.random() < _EARLY:
        for each in in_flight:
            if each.value is None:
                each.compute()
    if not is_async:
        return warpgroup_mma_wait(0, (product.result, ))
    return product.result


@twin("hopper.warpgroup_mma_wait")
def warpgroup_mma_wait(num_outstanding: Any = 0, deps: Any = None) -> Any:
    if not deps:
        raise invalid("warpgroup_mma_wait without deps: name the accumulators it waits for")
    scheduler.active().point()
    in_flight = products_of(scheduler.active().current)
    while len(in_flight) > gluon_smem.static(num_outstanding, "warpgroup_mma_wait"):
        in_flight.pop(0).retire()
    return deps[0] if len(deps) == 1 else Tup(deps)


@twin("hopper.warpgroup_mma_init")
def warpgroup_mma_init(value: Any) -> Any:
    return value


def leave(actor: Any) -> None:
    """The actor's part of the kernel is over: nothing may be in flight."""
    for product in actor.__dict__.get("wgmma", ()):
        raise fault(f"{actor.name} ends before warpgroup_mma_wait of the wgmma issued at {product.issued_at}", "race")
