# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tensor descriptors, host made and device made, and block pointers: clipped boxes of a strided tensor."""
from typing import Any, Callable, Optional

import torch
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS, Tup, fault, invalid, twin
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.values.casts import cast
from triton_dist.backends.emulator.values.promotion import I32, canonical, from_torch, info, pointer_to, wrap
from triton_dist.backends.emulator.values.scalars import IntScalar, Pointer
from triton_dist.backends.emulator.values.tensors import Tensor, as_tensor


class Box:
    """A strided tensor in global memory: base address, shape and strides in elements, element type."""

    def __init__(self, base: int, shape: Any, strides: Any, block_shape: Any, ty: Any):
        self.base, self.ty, self.known = base, canonical(ty), info(canonical(ty))
        self.extent, self.steps = [int(n) for n in shape], [int(s) * self.known.size for s in strides]
        self.block_shape = Tup(int(n) for n in block_shape)

    dtype = property(lambda self: self.ty)

    def window(self, offsets: Any, checked: Any) -> tuple:
        """Of the block at `offsets`: (address, shape, slices inside the block); shape has a zero where all is outside.

        Only the axes in `checked` are clipped.
        """
        address, shape, inside = self.base, [], []
        for k, (x, n, step, block) in enumerate(zip(offsets, self.extent, self.steps, self.block_shape)):
            lo, hi = (max(x, 0), min(x + block, n)) if k in checked else (x, x + block)
            shape.append(max(0, hi - lo))
            inside.append(slice(lo - x, lo - x + shape[-1]))
            address += lo * step
        return address, shape, tuple(inside)

    def _pointers(self, address: int, shape: Any) -> Tensor:
        return Tensor(None, pointer_to(self.ty), Tup(shape), (address, tuple(self.steps)))

    def read(self, offsets: Any, checked: Any, fill: Any) -> Tensor:
        scheduler.active().point()
        address, shape, inside = self.window(offsets, checked)
        if min(self.steps) < 0 and 0 not in shape:
            out = torch.full(self.block_shape, fill, dtype=self.known.torch)
            out[inside] = TWINS["core.load"](self._pointers(address, shape)).d
            return Tensor(out, self.ty, self.block_shape)
        if tuple(shape) == tuple(self.block_shape):
            return Tensor(memory.active().load_tile(address, shape, self.steps, self.known), self.ty, self.block_shape)
        out = torch.full(self.block_shape, fill, dtype=self.known.torch)
        if 0 not in shape:
            out[inside] = memory.active().tile("load", address, shape, self.steps, self.known)
        return Tensor(out, self.ty, self.block_shape)

    def write(self, offsets: Any, checked: Any, value: Any) -> None:
        running = scheduler.active()
        running.point()
        running.current.polled = None
        if not isinstance(value, Tensor) or value.shape != self.block_shape:
            raise invalid(f"store of {value!r} into a block of {self.block_shape}")
        address, shape, inside = self.window(offsets, checked)
        if min(self.steps) < 0 and 0 not in shape:
            TWINS["core.store"](self._pointers(address, shape), Tensor(cast(value, self.ty).d[inside], self.ty))
        elif 0 not in shape:
            memory.active().store_tile(address, shape, self.steps, self.known, cast(value, self.ty).d[inside])


def integers(values: Any, what: str = "offset") -> list:
    """Runtime or constexpr integers as Python ints, each an int32."""
    values = values if isinstance(values, (tuple, list)) else [values]
    for v in values:
        if not isinstance(v, (int, IntScalar)):
            raise invalid(f"{what} {v!r}: expected a scalar integer")
        if isinstance(v, IntScalar) and info(v.ty).bits == 64:
            raise invalid(f"{what} of 64 bits: cast it with .to(tl.int32)")
    return [int(v) for v in values]


class Descriptor(Box):
    """tl.tensor_descriptor. `layout`: that of its boxes in shared memory, in Gluon."""
    layout: Any = None

    def __init__(self, base: int, shape: Any, strides: Any, block_shape: Any, ty: Any, padding: str = "zero"):
        super().__init__(base, shape, strides, block_shape, ty)
        self.shape, self.strides, self.padding = Tup(shape), Tup(strides), padding
        if base % 16:
            raise fault(f"tensor descriptor of a base at {base:#x}: it must be aligned to 16 bytes")
        if self.steps[-1] != self.known.size:
            raise invalid(f"tensor descriptor whose last stride is {strides[-1]}: it must be 1")
        if any(step % 16 for step in self.steps[:-1]):
            raise fault(
                f"tensor descriptor with strides {[int(s) for s in strides]} of {self.ty}: all but the last must be "
                "multiples of 16 bytes")
        if self.block_shape[-1] * self.known.size < 16:
            raise invalid(
                f"tensor descriptor block {tuple(self.block_shape)}: the last axis must have 16 bytes or more")
        self._fill = float("nan") if padding == "nan" else 0
        self._all = range(len(self.block_shape))

    @property
    def type(self) -> Any:
        return core.block_type(self.ty, list(self.block_shape))

    block_type = type

    def _offsets(self, offsets: Any) -> list:
        found = integers(offsets)
        if len(found) != len(self.block_shape):
            raise invalid(f"{len(found)} offsets for a descriptor of {len(self.block_shape)} axes")
        return found

    def load(self, offsets: Any) -> Tensor:
        return self.read(self._offsets(offsets), self._all, self._fill)

    def store(self, offsets: Any, value: Any) -> None:
        self.write(self._offsets(offsets), self._all, value)

    def gather(self, x_offsets: Any, y_offset: Any) -> Tensor:
        """Rows `x_offsets` (a 1-d tensor), columns from `y_offset`."""
        y = int(y_offset)
        rows = [self.read([int(x), y], self._all, self._fill).d for x in x_offsets.d.tolist()]
        return Tensor(torch.cat(rows), self.ty)

    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        y, d = int(y_offset), cast(value, self.ty).d
        for i, x in enumerate(x_offsets.d.tolist()):
            self.write([int(x), y], self._all, Tensor(d[i:i + 1], self.ty))

    def _update(self, name: str, offsets: Any, value: Any) -> None:
        address, shape, inside = self.window(self._offsets(offsets), self._all)
        if 0 not in shape:
            part = Tensor(as_tensor(cast(value, self.ty), self.block_shape).d[inside], self.ty)
            TWINS[f"core.atomic_{name}"](self._pointers(address, shape), part, sem="relaxed", scope="gpu")


def _reducer(name: str) -> Callable:
    def method(self: Descriptor, offsets: Any, value: Any) -> None:
        self._update(name, offsets, value)
    return method


for _name in ("add", "min", "max", "and", "or", "xor"):
    setattr(Descriptor, f"atomic_{_name}", _reducer(_name))


def from_host(descriptor: Any) -> Descriptor:
    """The device's view of a triton.tools.tensor_descriptor.TensorDescriptor."""
    base = descriptor.base
    sizes = [IntScalar(wrap(int(n), info(I32)), I32) for n in descriptor.shape]
    made = Descriptor(base.data_ptr(), sizes, [int(s) for s in descriptor.strides], descriptor.block_shape,
                      from_torch(base.dtype), getattr(descriptor, "padding", "zero"))
    made.layout = getattr(descriptor, "layout", None)
    return made


@twin("core.make_tensor_descriptor")
def make_tensor_descriptor(base: Any, shape: Any, strides: Any, block_shape: Any,
                           padding_option: str = "zero") -> Descriptor:
    if not isinstance(base, Pointer):
        raise invalid(f"tensor descriptor of {base!r}: expected a scalar pointer")
    if not len(shape) == len(strides) == len(block_shape) or not 1 <= len(shape) <= 5:
        raise invalid("shape, strides and block_shape of a tensor descriptor must have the same length, 1 to 5")
    return Descriptor(base.v, Tup(cast(n, I32) for n in shape), strides, block_shape, base.ty.element_ty,
                      padding_option)


@twin("core.load_tensor_descriptor")
def load_tensor_descriptor(desc: Descriptor, offsets: Any) -> Tensor:
    return desc.load(offsets)


@twin("core.store_tensor_descriptor")
def store_tensor_descriptor(desc: Descriptor, offsets: Any, value: Any) -> None:
    desc.store(offsets, value)


# -- block pointers ----------------------------------------------------------------------------------------------------
class BlockPointer(Box):
    """tl.make_block_ptr: a box with its own offsets."""

    def __init__(self, base: int, shape: Any, strides: Any, offsets: list, block_shape: Any, ty: Any):
        super().__init__(base, shape, strides, block_shape, ty)
        self.offsets = offsets

    @property
    def type(self) -> Any:
        return core.pointer_type(core.block_type(self.ty, list(self.block_shape)))

    dtype = type

    def load(self, boundary_check: Any, padding_option: Optional[str]) -> Tensor:
        if padding_option == "nan" and self.known.integer:
            raise invalid("padding_option='nan' of integers")
        return self.read(self.offsets, _axes(boundary_check), float("nan") if padding_option == "nan" else 0)

    def store(self, value: Any, boundary_check: Any) -> None:
        if not isinstance(value, Tensor):
            value = as_tensor(value, self.block_shape)
        self.write(self.offsets, _axes(boundary_check), value)

    def advance(self, offsets: Any) -> "BlockPointer":
        moved = BlockPointer.__new__(BlockPointer)
        moved.__dict__.update(self.__dict__,
                              offsets=[wrap(x + y, info(I32)) for x, y in zip(self.offsets, integers(offsets))])
        return moved


def _axes(boundary_check: Any) -> tuple:
    axes = boundary_check if isinstance(boundary_check, (tuple, list)) else (boundary_check, )
    return tuple(int(k) for k in axes)


@twin("core.make_block_ptr")
def make_block_ptr(base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any) -> BlockPointer:
    if not isinstance(base, Pointer):
        raise invalid(f"block pointer of {base!r}: expected a scalar pointer")
    shape, strides, block_shape = (x if isinstance(x, (tuple, list)) else (x, ) for x in (shape, strides, block_shape))
    return BlockPointer(base.v, shape, strides, integers(offsets), block_shape, base.ty.element_ty)


@twin("core.advance")
def advance(base: BlockPointer, offsets: Any) -> BlockPointer:
    return base.advance(offsets)
