# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Shared memory of a CTA: allocations, the views that kernels index, and the one place through which all accesses go.

Bytes are kept in logical order: swizzled layouts are not modelled, so a reinterpreted view shares bytes, not swizzles.
Memory starts as 0xff, which is NaN in every floating type.
"""
import itertools
import linecache
import math
import re
import sys
from typing import Any, Callable, Optional

import torch

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import MARK, Tup, fault, invalid, twin, unsupported
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import canonical, info
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.backends.emulator.values.tensors import Tensor

CAPACITY = 232448        # bytes a CTA can have on Hopper
_UNSUPPORTED = re.compile(r"gather|scatter|atomic_")
_count = itertools.count()


class Block:
    """What the partitions of one CTA have in common: its allocations and the loads of TMA and cp.async under way."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.loads: dict = {}                # insertion-ordered set of operations


def block() -> Block:
    """The CTA of the running actor."""
    actor = scheduler.active().current
    found = actor.__dict__.get("cta_block")
    if found is None:
        if actor.cta is None:
            raise invalid("shared memory outside a kernel")
        found = actor.cta_block = Block()
    return found


class SharedMemory:
    """Every access to shared memory and every hand-over through it, one method per kind.

    `observe` and the events that follow it change nothing here: a checker overrides them. proxy: 'generic' for loads
    and stores of threads, 'async' for TMA and wgmma. Events run as the actor that acts.
    """

    def observe(self, kind: str, proxy: str, view: "View", product: Any = None) -> None:
        """Called before each access. kind: 'load' or 'store'; the bytes are those of `view`; `product`: the wgmma."""

    def issued(self, product: Any) -> None:
        """The running actor has issued a wgmma, which reads its operands later."""

    def fence(self, kind: str) -> None:
        """A proxy fence of the running actor: 'shared' (fence_async_shared), 'global' (fence_proxy_async)."""

    def initialised(self, barrier: Any) -> None:
        """The running actor has initialised a barrier."""

    def arrived(self, barrier: Any) -> None:
        """The running actor arrives at a barrier, or a TMA load has delivered its bytes, or a cp.async has been written."""

    def passed(self, barrier: Any, parity: int) -> None:
        """The running actor has seen the phase of that parity completed."""

    def joined(self, operation: Any, written: bool) -> None:
        """The running actor knows that an asynchronous operation has read its operands, or also `written`."""

    def load(self, view: "View", proxy: str = "generic") -> torch.Tensor:
        """A copy of the elements."""
        self.observe("load", proxy, view)
        return view.d.clone(memory_format=torch.contiguous_format)

    def operand(self, view: "View", product: Any) -> torch.Tensor:
        """The elements in place, for a wgmma that reads them at once."""
        self.observe("load", "async", view, product)
        return view.d

    def store(self, view: "View", values: torch.Tensor, proxy: str = "generic") -> None:
        self.observe("store", proxy, view)
        view.d.copy_(values)

    def store_box(self, view: "View", inside: tuple, values: Optional[torch.Tensor], fill: float) -> None:
        """TMA's write of a clipped box: `values` inside, `fill` around them."""
        self.observe("store", "async", view)
        view.d.fill_(fill)
        if values is not None:
            view.d[inside] = values


_active = [SharedMemory()]


def active() -> SharedMemory:
    """The funnel of this process."""
    return _active[-1]


def activate(shared: SharedMemory) -> None:
    """Makes another SharedMemory the process's own (a checker's, for instance)."""
    _active[:] = [shared]


class Allocation:
    """Bytes of one gl.allocate_shared_memory. `number` orders allocations of a process; `barriers`: by byte offset."""

    def __init__(self, nbytes: int, name: str, owner: Block):
        self.nbytes, self.name, self.owner, self.number = nbytes, name, owner, next(_count)
        self.bytes = torch.full((nbytes, ), 0xFF, dtype=torch.uint8)
        self.barriers: dict = {}


class ViewType:
    """`.type` of a shared memory descriptor."""

    def __init__(self, view: "View"):
        self.element_ty, self.shape, self.layout, self.alloc_shape = view.ty, view.shape, view.layout, view.shape


class View:
    """gl.shared_memory_descriptor: a strided view of an allocation."""
    __slots__ = ("allocation", "d", "ty", "shape", "layout", "_made")

    def __init__(self, allocation: Allocation, d: torch.Tensor, ty: Any, layout: Any):
        self.allocation, self.d, self.ty, self.layout = allocation, d, ty, layout
        self.shape = Tup(d.shape)
        self._made: dict = {}

    dtype = property(lambda self: self.ty)
    type = property(ViewType)
    rank = property(lambda self: len(self.shape))
    numel = property(lambda self: math.prod(self.shape))
    nbytes = property(lambda self: self.numel * info(self.ty).size)
    nbytes_per_cta = nbytes
    offset = property(lambda self: self.d.storage_offset() * self.d.element_size())      # in bytes

    def _view(self, key: Any, make: Callable) -> "View":
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = View(self.allocation, make(self.d), self.ty, self.layout)
        return found

    def index(self, index: Any) -> "View":
        """Drops the first axis."""
        if not isinstance(index, (int, IntScalar)):
            raise invalid(f"index {index!r} of {self}: expected an int32 scalar")
        i = int(index)
        if not 0 <= i < self.shape[0]:
            raise fault(f"index {i} of {self}: its first axis has {self.shape[0]}")
        return self._view(i, lambda d: d[i])

    def slice(self, start: Any, length: Any, dim: Any = 0) -> "View":
        start, length, dim = (static(x, "slice") for x in (start, length, dim))
        if not 0 <= dim < self.rank or start < 0 or length < 1 or start + length > self.shape[dim]:
            raise invalid(f"slice [{start}, {start + length}) of axis {dim} of {self}")
        return self._view(("slice", start, length, dim), lambda d: d.narrow(dim, start, length))

    def permute(self, order: Any) -> "View":
        order = tuple(static(k, "permute") for k in order)
        if sorted(order) != list(range(self.rank)):
            raise invalid(f"permute{order} of {self}")
        return self._view(("permute", order), lambda d: d.permute(order))

    def reshape(self, shape: Any) -> "View":
        shape = tuple(static(n, "reshape") for n in shape)
        if math.prod(shape) != self.numel:
            raise invalid(f"reshape of {self} to {list(shape)}: the number of elements differs")
        try:
            return self._view(("reshape", shape), lambda d: d.view(shape))
        except RuntimeError:
            raise unsupported(f"reshape of {self} to {list(shape)}: it is not contiguous") from None

    def _reinterpret(self, dtype: Any, shape: Any, layout: Any) -> "View":
        """The bytes from this view's first on, as another type and shape; not more of them than it has."""
        ty, shape = canonical(dtype), tuple(static(n, "_reinterpret") for n in shape)
        known = info(ty)
        key = ("as", id(ty), shape, id(layout))
        found = self._made.get(key)
        if found is None:
            nbytes = math.prod(shape) * known.size
            if nbytes > self.nbytes or not self.d.is_contiguous():
                raise invalid(f"_reinterpret of {self} ({self.nbytes} bytes) as {ty} {list(shape)} ({nbytes} bytes): it "
                              "must be contiguous, and the result no larger")
            d = self.allocation.bytes[self.offset:self.offset + nbytes].view(known.torch).view(shape)
            found = self._made[key] = View(self.allocation, d, ty, layout)
        return found

    def reinterpret(self, dtype: Any = None, shape: Any = None, layout: Any = None) -> "View":
        """Triton 3.9's name."""
        return self._reinterpret(dtype or self.ty, shape or self.shape, layout or self.layout)

    def load(self, layout: Any = None) -> Tensor:
        scheduler.active().point()
        return Tensor(active().load(self), self.ty, self.shape)

    def store(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.shape != self.shape or value.ty is not self.ty:
            raise invalid(f"store of {value!r} into {self}: type and shape must be equal")
        scheduler.active().point()
        active().store(self, value.d)

    def _keep_alive(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if _UNSUPPORTED.match(name):
            raise unsupported(f"the emulator has no shared_memory_descriptor.{name}")
        raise AttributeError(f"a shared memory descriptor has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.allocation.name} <{'x'.join(map(str, self.shape))}x{self.ty}>"

    __repr__ = __str__


def static(x: Any, what: str) -> int:
    """A number known at compile time."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise invalid(f"{what} with {x!r}: it must be an integer known at compile time")
    return x


twin("gluon_core.shared_memory_descriptor")(View)


@twin("hopper_prims.reinterpret")
def reinterpret(buffer: View, dtype: Any, shape: Any, layout: Any) -> View:
    return buffer._reinterpret(dtype, shape, layout)


@twin("gluon_core.allocate_shared_memory")
def allocate_shared_memory(element_ty: Any, shape: Any, layout: Any, value: Any = None) -> View:
    ty, shape, owner = canonical(element_ty), [static(n, "allocate_shared_memory") for n in shape], block()
    nbytes = math.prod(shape) * info(ty).size
    owner.nbytes += nbytes
    if owner.nbytes > CAPACITY:
        raise invalid(f"{owner.nbytes} bytes of shared memory in a CTA: Hopper has {CAPACITY}")
    name, line = _variable()
    allocation = Allocation(nbytes, f"{name}:{line}", owner)
    made = View(allocation, allocation.bytes.view(info(ty).torch).view(shape), ty, layout)
    if value is not None:
        made.store(cast(value, ty))
    return made


def _variable() -> tuple:
    """Name and line of the variable that the running statement of the kernel assigns."""
    frame = sys._getframe(1)
    while frame is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return "memory", 0
    named = re.match(r"\s*([\w.]+)\s*(:[^=]*)?=[^=]", linecache.getline(frame.f_code.co_filename, frame.f_lineno))
    return named.group(1) if named else "memory", frame.f_lineno
