# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Launches with bound arguments: cuLaunchKernelEx on a parameter block that is kept; a call rewrites what changed.

Triton's launcher encodes a tensor map for each descriptor, and asks the driver about each pointer, at every call. Here a
tensor map is encoded once for an address. What a parameter block holds is read off the compiled kernel's signature, once.
"""
import ctypes
from array import array
from typing import Any

from torch import Tensor

from triton_dist.backends.nvidia.driver import CudaDriver
from triton_dist.runtime.errors import UnsupportedFeature

_INTEGERS = {f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32)} | {"i1", "i64"}
_COOPERATIVE, _OVERLAPPING = 2, 6           # CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION
_L2_PROMOTION_128B = 2
_HOST_TYPE = {8: 10, 9: 8, 10: 9}           # the metadata's element types, in the order of CUtensorMapDataType
_MAX_MAPS = 256                     # of a shape; and shapes of a parameter


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("num_attributes", ctypes.c_uint)]


class _Boxes:
    """A parameter that is a descriptor: what its tensor maps have in common."""

    def __init__(self, driver: CudaDriver, kind: str, meta: dict | None):
        if meta is None or meta.get("fp4_padded") or meta.get("is_im2col"):
            raise UnsupportedFeature(f"descriptor {kind}")
        self.driver, self.rank, self.elem_size = driver, len(meta["block_size"]), meta["elem_size"]
        self.words, sizes = ctypes.c_uint64 * self.rank, ctypes.c_uint32 * self.rank
        self.before = ctypes.c_int(_HOST_TYPE.get(meta["elem_type"], meta["elem_type"])), ctypes.c_uint32(self.rank)
        self.after = (sizes(*reversed(meta["block_size"])), sizes(*[1] * self.rank), ctypes.c_int(0),
                      ctypes.c_int(meta["swizzle"]), ctypes.c_int(_L2_PROMOTION_128B))
        self._known: dict = {}

    def maps(self, descriptor: Any) -> "TensorMaps":
        """Those of tensors like that of `descriptor`. Launches share them: plans for many numbers of rows have one weight."""
        key = tuple(descriptor.shape), tuple(descriptor.strides), descriptor.padding
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_MAPS:
                self._known.clear()                 # launches keep theirs
            found = self._known[key] = TensorMaps(self, *key)
        return found


class TensorMaps(dict):
    """Where CUtensorMaps of a parameter lie in host memory, by the address that they describe: tensors of one shape and type."""

    def __init__(self, boxes: _Boxes, shape: tuple, strides: tuple, padding: str):
        dims = boxes.words(*shape[::-1])
        steps = boxes.words(*[boxes.elem_size * step for step in strides[-2::-1]])
        self._encode, self._before = boxes.driver.call, boxes.before
        self._after = dims, steps, *boxes.after, ctypes.c_int(padding == "nan")

    def __missing__(self, address: int) -> "_Map":
        if len(self) >= _MAX_MAPS:
            self.clear()
        made = _room()
        self._encode("cuTensorMapEncodeTiled", ctypes.c_void_p(made), *self._before, ctypes.c_void_p(address), *self._after)
        self[address] = made
        return made


class _Map(int):
    """The address of a CUtensorMap, which lives as long as this."""

    memory: array


def _room() -> _Map:
    """Room for a CUtensorMap."""
    memory = array("B", bytes(128 + 64))
    made = _Map(-(-memory.buffer_info()[0] // 64) * 64)
    made.memory = memory
    return made


class Parameters:
    """What the launches of a compiled kernel have in common.

    positions: of the arguments that a call gives. pointers, integers: (position among the arguments, index in the parameter
    block) of each, and of those that vary. descriptors: (position, index, its _Boxes, whether it varies). size: of the block, in
    words of eight bytes: a kernel reads the low ones of a short parameter.
    Raises UnsupportedFeature for kernels that need more: scratch memory, clusters, other argument types.
    """

    def __init__(self, driver: CudaDriver, compiled: Any, positions: tuple):
        meta = compiled.metadata
        if meta.num_ctas != 1 or meta.launch_pdl or meta.global_scratch_size or meta.profile_scratch_size:
            raise UnsupportedFeature("clusters, dependent launches or scratch memory")
        self.driver, self.positions, self.function = driver, positions, compiled.function
        self.pointers, self.integers, self.descriptors, index = [], [], [], 0
        metas = iter(getattr(meta, "tensordesc_meta", None) or ())
        for position, kind in enumerate(compiled.src.signature.values()):
            if kind.startswith("tensordesc"):
                boxes = _Boxes(driver, kind, next(metas, None))
                self.descriptors.append((position, index, boxes, position in positions))
                index += 2 * boxes.rank
            elif kind.startswith("*"):
                self.pointers.append((position, index))
            elif kind in _INTEGERS:
                self.integers.append((position, index))
            elif kind == "constexpr":
                continue
            else:
                raise UnsupportedFeature(f"argument type {kind}")
            index += 1
        self.varying_pointers, self.varying_integers = ([entry for entry in entries if entry[0] in positions]
                                                        for entries in (self.pointers, self.integers))
        self.size = index + 2                               # null scratch pointers come last
        self.launch = driver.bound("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        self.block, self.shared = (32 * meta.num_warps, 1, 1), meta.shared
        cooperative = bool(meta.launch_cooperative_grid)
        self.attributes = int(cooperative or "griddepcontrol.wait" in compiled.asm["ptx"])      # or waits by itself for its turn
        self.attribute = ctypes.pointer(_Attribute(_COOPERATIVE if cooperative else _OVERLAPPING, b"", (1,)))


class BoundLaunch:
    """A compiled kernel with its grid and arguments.

    A call gives those of the kernel's positional arguments that are at the positions of `common`. Tensors and descriptors among
    them may have other addresses, and integers other values. All other arguments stay as they are. A call may pass the tensor in
    place of its descriptor.
    """

    def __init__(self, common: Parameters, grid: tuple, args: tuple):
        self._driver, self._launch = common.driver, common.launch
        self._pointers, self._integers, self._maps = common.varying_pointers, common.varying_integers, []
        self._cells = cells = array("q", bytes(8 * common.size))
        first = cells.buffer_info()[0]
        self._params = params = array("q", range(first, first + 8 * common.size, 8))
        for position, index in common.pointers:
            cells[index] = args[position].data_ptr()
        for position, index in common.integers:
            cells[index] = args[position]
        self._kept = [arg for i, arg in enumerate(args) if i not in common.positions]       # whose memory the kernel uses
        for position, index, boxes, varies in common.descriptors:
            of_address = boxes.maps(args[position])
            for at, number in enumerate((*args[position].shape, *args[position].strides), index + 1):
                cells[at] = number
            if varies:
                self._maps.append((position, index, of_address))
            else:
                params[index] = where = of_address[_address(args[position])]
                self._kept.append(where)
        self._config = _Config((*grid, 1, 1)[:3], common.block, common.shared, None, common.attribute, common.attributes)
        self._where = ctypes.addressof(self._config), common.function, params.buffer_info()[0], None
        self._stream: int | None = None

    def __call__(self, stream: int, args: tuple) -> None:
        cells, params = self._cells, self._params
        for position, index in self._pointers:
            cells[index] = args[position].data_ptr()
        for position, index in self._integers:
            cells[index] = args[position]
        for position, index, of_address in self._maps:
            params[index] = of_address[_address(args[position])]
        if stream != self._stream:
            self._config.stream = self._stream = stream
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
