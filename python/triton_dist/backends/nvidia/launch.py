# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Launches with bound arguments: cuLaunchKernelEx on a parameter block that is kept; a call rewrites what changed.

Triton's launcher encodes a tensor map for each descriptor, and asks the driver about each pointer, at every call. Here a
tensor map is encoded once for an address. What a parameter block holds is read off the compiled kernel's signature, once.
"""
import ctypes
import struct
from array import array
from typing import Any

from torch import Tensor

from triton_dist.backends.nvidia.driver import CudaDriver
from triton_dist.runtime.errors import UnsupportedFeature

_INTEGERS = {f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32)} | {"i1", "i64"}
_COOPERATIVE, _OVERLAPPING = 2, 6           # CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION
_L2_PROMOTION_128B = 2
_HOST_TYPE = {8: 10, 9: 8, 10: 9}           # the metadata's element types, in the order of CUtensorMapDataType
_MAX_MAPS = 256                     # of a shape


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("num_attributes", ctypes.c_uint)]
_STREAM, _CONFIG = _Config.stream.offset // 8, ctypes.sizeof(_Config) // 8       # words of eight bytes
_GRID = struct.Struct("3I")


class _Boxes:
    """A parameter that is a descriptor: what its tensor maps have in common."""

    def __init__(self, driver: CudaDriver, kind: str, meta: dict | None):
        if meta is None or meta.get("fp4_padded") or meta.get("is_im2col"):
            raise UnsupportedFeature(f"descriptor {kind}")
        self.encode, self.rank, self.elem_size = driver.encode_tensor_map, len(meta["block_size"]), meta["elem_size"]
        self._sizes = array("I", [*reversed(meta["block_size"]), *[1] * self.rank])          # of a box, and steps inside
        sizes = self._sizes.buffer_info()[0]
        self.before = _HOST_TYPE.get(meta["elem_type"], meta["elem_type"]), self.rank
        self.after = sizes, sizes + 4 * self.rank, 0, meta["swizzle"], _L2_PROMOTION_128B


class TensorMaps(dict):
    """Where CUtensorMaps of a parameter lie in host memory, by the address that they describe: tensors like that of a descriptor.

    words: shape and strides, as the kernel gets them.
    """

    def __init__(self, boxes: _Boxes, descriptor: Any):
        shape, strides = descriptor.shape, descriptor.strides
        self._boxes, self.words = boxes, array("q", (*shape, *strides))
        self._sizes = array("Q", [*shape[::-1], *[boxes.elem_size * step for step in strides[-2::-1]]])
        sizes = self._sizes.buffer_info()[0]
        self._after = sizes, sizes + 8 * boxes.rank, *boxes.after, descriptor.padding == "nan"

    def __missing__(self, address: int) -> "_Map":
        if len(self) >= _MAX_MAPS:
            self.clear()
        memory = array("Q", bytes(128 + 64))
        made = _Map(-(-memory.buffer_info()[0] // 64) * 64)
        made.memory = memory
        self._boxes.encode(made, *self._boxes.before, address, *self._after)
        self[address] = made
        return made


class _Map(int):
    """The address of a CUtensorMap, which lives as long as this."""

    memory: array


class Parameters:
    """What the launches of a compiled kernel have in common.

    A launch has one block of memory, which consists of words of eight bytes. It begins with the configuration. At `params` the
    addresses of the parameters begin, and at `cells` the parameters. Of a smaller parameter a kernel reads the low bytes.
    blank: the block without a grid and arguments.
    varying: positions of the arguments that a call gives. varying_pointers, varying_integers: (position, word) of these.
    scalars: {position: (word, whether it is a pointer)} of others. descriptors: {position: (word of the address of its tensor
    map, word and end of its shape and strides, its _Boxes)}.
    Raises UnsupportedFeature for kernels that need more: scratch memory, clusters, other argument types.
    """

    def __init__(self, driver: CudaDriver, compiled: Any, positions: tuple):
        meta = compiled.metadata
        if meta.num_ctas != 1 or meta.launch_pdl or meta.global_scratch_size or meta.profile_scratch_size:
            raise UnsupportedFeature("clusters, dependent launches or scratch memory")
        self.driver, self.varying, self.function = driver, positions, compiled.function
        pointers, integers, descriptors, size = [], [], [], 0
        metas = iter(getattr(meta, "tensordesc_meta", None) or ())
        for position, kind in enumerate(compiled.src.signature.values()):
            if kind.startswith("tensordesc"):
                boxes = _Boxes(driver, kind, next(metas, None))
                descriptors.append((position, size, boxes))
                size += 2 * boxes.rank
            elif kind.startswith("*"):
                pointers.append((position, size))
            elif kind in _INTEGERS:
                integers.append((position, size))
            elif kind == "constexpr":
                continue
            else:
                raise UnsupportedFeature(f"argument type {kind}")
            size += 1
        size += 2                                           # null scratch pointers come last
        self.params, self.cells = _CONFIG, _CONFIG + size
        self.varying_pointers, self.varying_integers = [
            [(position, self.cells + index) for position, index in entries if position in positions]
            for entries in (pointers, integers)]
        self.scalars = {position: (self.cells + index, entries is pointers) for entries in (pointers, integers)
                        for position, index in entries if position not in positions}
        self.descriptors = {
            position: (self.params + index, self.cells + index + 1, self.cells + index + 1 + 2 * boxes.rank, boxes)
            for position, index, boxes in descriptors}
        self.launch = driver.bound("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        cooperative = bool(meta.launch_cooperative_grid)
        attributes = int(cooperative or "griddepcontrol.wait" in compiled.asm["ptx"])       # or waits by itself for its turn
        self._attribute = ctypes.pointer(_Attribute(_COOPERATIVE if cooperative else _OVERLAPPING, b"", (1,)))
        config = _Config((0, 0, 0), (32 * meta.num_warps, 1, 1), meta.shared, None, self._attribute, attributes)
        self.blank = bytes(config) + bytes(16 * size)


class BoundLaunch:
    """A compiled kernel with its grid and arguments.

    A call gives those of the kernel's positional arguments that vary. Tensors and descriptors among them may have other
    addresses, and integers other values. All other arguments stay as they are; whoever keeps the launch keeps them. A call may
    pass the tensor in place of its descriptor.
    """

    def __init__(self, common: Parameters, grid: tuple, args: tuple):
        self._common, self._driver, self._launch = common, common.driver, common.launch
        self._pointers, self._integers = common.varying_pointers, common.varying_integers
        self._maps, self._kept = (), {}                     # tensor maps that vary, and {word: one} that stay
        self._write(array("q", common.blank), grid, dict(enumerate(args)))

    def on(self, grid: tuple, changed: dict) -> "BoundLaunch":
        """The same on another grid and with other arguments, {position: argument}. Both share the tensor maps of the others."""
        made = object.__new__(BoundLaunch)
        vars(made).update(vars(self))
        made._write(array("q", self._block), grid, changed)
        return made

    def _write(self, block: array, grid: tuple, args: dict) -> None:
        common, start, maps = self._common, block.buffer_info()[0], {entry[0]: entry for entry in self._maps}
        _GRID.pack_into(block, 0, *(*grid, 1, 1)[:3])
        block[common.params:common.cells] = array("q", range(start + 8 * common.cells, start + 8 * len(block), 8))
        for position, arg in args.items():
            if position in common.scalars:
                word, is_pointer = common.scalars[position]
                block[word] = arg.data_ptr() if is_pointer else arg
            elif position in common.descriptors:
                param, word, end, boxes = common.descriptors[position]
                of_address = TensorMaps(boxes, arg)
                block[word:end] = of_address.words
                if position in common.varying:
                    maps[position] = position, param, of_address
                else:
                    self._kept = {**self._kept, param: of_address[_address(arg)]}
        for param, where in self._kept.items():
            block[param] = where
        self._block, self._maps, self._stream = block, [*maps.values()], None
        self._where = start, common.function, start + 8 * common.params, None

    def __call__(self, stream: int, args: tuple) -> None:
        block = self._block
        for position, word in self._pointers:
            block[word] = args[position].data_ptr()
        for position, word in self._integers:
            block[word] = args[position]
        for position, param, of_address in self._maps:
            block[param] = of_address[_address(args[position])]
        if stream != self._stream:
            block[_STREAM] = self._stream = stream
        code = self._launch(*self._where)
        if code:
            self._driver.check("cuLaunchKernelEx", code)

    def again(self) -> None:
        """Launches as the call just before it did: the least host time that a launch takes."""
        code = self._launch(*self._where)
        if code:
            self._driver.check("cuLaunchKernelEx", code)


def _address(arg: Any) -> int:
    """Of a tensor, or of the one under a descriptor."""
    return arg.data_ptr() if isinstance(arg, Tensor) else arg.base.data_ptr()
