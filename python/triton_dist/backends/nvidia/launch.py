# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Launches with bound arguments: cuLaunchKernelEx on a parameter block that is kept; a call rewrites what changed.

Triton's launcher encodes a tensor map for each descriptor, and asks the driver about each pointer, at every call. Here a
tensor map is encoded once for an address. What a parameter block holds is read off the compiled kernel's signature.
"""
import ctypes
from typing import Any

from torch import Tensor

from triton_dist.backends.nvidia.driver import CudaDriver
from triton_dist.runtime.errors import UnsupportedFeature

_INTEGERS = {f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64)} | {"i1"}
_COOPERATIVE, _OVERLAPPING = 2, 6           # CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION
_L2_PROMOTION_128B = 2
_HOST_TYPE = {8: 10, 9: 8, 10: 9}           # the metadata's element types, in the order of CUtensorMapDataType
_MAX_MAPS = 256


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("num_attributes", ctypes.c_uint)]


class TensorMaps(dict):
    """Where CUtensorMaps of a parameter lie in host memory, by the address that they describe: tensors of one shape and type."""

    def __init__(self, driver: CudaDriver, descriptor: Any, meta: dict):
        self._driver, self._kept = driver, []
        rank, size = len(meta["block_size"]), meta["elem_size"]
        kind = _HOST_TYPE.get(meta["elem_type"], meta["elem_type"])
        dims = (ctypes.c_uint64 * rank)(*reversed(descriptor.shape))
        strides = (ctypes.c_uint64 * rank)(*[size * s for s in reversed(descriptor.strides[:-1])], 0)
        box = (ctypes.c_uint32 * rank)(*reversed(meta["block_size"]))
        ones = (ctypes.c_uint32 * rank)(*[1] * rank)
        self._before = ctypes.c_int(kind), ctypes.c_uint32(rank)
        self._after = (dims, strides, box, ones, ctypes.c_int(0), ctypes.c_int(meta["swizzle"]),
                       ctypes.c_int(_L2_PROMOTION_128B), ctypes.c_int(descriptor.padding == "nan"))

    def __missing__(self, address: int) -> int:
        if len(self) >= _MAX_MAPS:
            self.clear()
            self._kept.clear()
        memory = ctypes.create_string_buffer(128 + 64)
        where = -(-ctypes.addressof(memory) // 64) * 64
        self._driver.call("cuTensorMapEncodeTiled", ctypes.c_void_p(where), *self._before, ctypes.c_void_p(address), *self._after)
        self._kept.append(memory)
        self[address] = where
        return where


def _waits_its_turn(compiled: Any) -> bool:
    """Whether the kernel waits by itself for the kernel ahead of it. Kept with it: its text is long, and plans are many."""
    found = vars(compiled).get("_tdist_waits_its_turn")
    if found is None:
        found = compiled._tdist_waits_its_turn = "griddepcontrol.wait" in compiled.asm["ptx"]
    return found


class BoundLaunch:
    """A compiled kernel with its grid and arguments.

    A call gives those of the kernel's positional arguments that are at `positions`. Tensors and descriptors among them may have
    other addresses, and integers other values. All other arguments stay as they are. A call may pass the tensor in place of its
    descriptor. Raises UnsupportedFeature for kernels that need more: scratch memory, clusters, other argument types.
    """

    def __init__(self, driver: CudaDriver, compiled: Any, grid: tuple, args: tuple, positions: tuple):
        meta = compiled.metadata
        if meta.num_ctas != 1 or meta.launch_pdl or meta.global_scratch_size or meta.profile_scratch_size:
            raise UnsupportedFeature("clusters, dependent launches or scratch memory")
        self._driver = driver
        self._launch = driver.bound("cuLaunchKernelEx", *[ctypes.c_void_p] * 4)
        values: list = []                   # of parameters in order, eight bytes each: a kernel reads the low ones of a short one
        pointers, integers, maps = [], [], []       # (position among the arguments, index of the parameter)
        metas = iter(getattr(meta, "tensordesc_meta", None) or ())
        for position, (arg, kind) in enumerate(zip(args, compiled.src.signature.values())):
            if kind.startswith("tensordesc"):
                maps.append((position, len(values), self._maps_of(arg, kind, next(metas, None))))
                values += [0, *arg.shape, *arg.strides]
            elif kind.startswith("*"):
                pointers.append((position, len(values)))
                values.append(arg.data_ptr())
            elif kind in _INTEGERS:
                integers.append((position, len(values)))
                values.append(arg)
            elif kind != "constexpr":
                raise UnsupportedFeature(f"argument type {kind}")
        self._cells = (ctypes.c_uint64 * (len(values) + 2))(*values)                # null scratch pointers come last
        first = ctypes.addressof(self._cells)
        self._params = (ctypes.c_void_p * len(self._cells))(*range(first, first + ctypes.sizeof(self._cells), 8))
        for position, index, of_address in maps:
            self._params[index] = of_address[_address(args[position])]
        self._pointers, self._integers = ([(position, ctypes.c_uint64.from_buffer(self._cells, 8 * index))
                                           for position, index in entries if position in positions]
                                          for entries in (pointers, integers))
        self._maps = [entry for entry in maps if entry[0] in positions]
        self._kept = [arg for i, arg in enumerate(args) if i not in positions], maps        # the memory of what stays
        cooperative, overlapping = bool(meta.launch_cooperative_grid), _waits_its_turn(compiled)
        self._attribute = _Attribute(_COOPERATIVE if cooperative else _OVERLAPPING, b"", (1,))
        self._config = _Config((*grid, 1, 1)[:3], (32 * meta.num_warps, 1, 1), meta.shared, None,
                               ctypes.pointer(self._attribute), int(cooperative or overlapping))
        self._where = ctypes.addressof(self._config), compiled.function, ctypes.addressof(self._params), None
        self._stream: int | None = None

    def _maps_of(self, descriptor: Any, kind: str, meta: dict | None) -> TensorMaps:
        if meta is None or meta.get("fp4_padded") or meta.get("is_im2col"):
            raise UnsupportedFeature(f"descriptor {kind}")
        return TensorMaps(self._driver, descriptor, meta)

    def __call__(self, stream: int, args: tuple) -> None:
        for position, cell in self._pointers:
            cell.value = args[position].data_ptr()
        for position, cell in self._integers:
            cell.value = args[position]
        for position, index, of_address in self._maps:
            self._params[index] = of_address[_address(args[position])]
        if stream != self._stream:
            self._config.stream = self._stream = stream
        code = self._launch(*self._where)
        if code:
            self._driver.check("cuLaunchKernelEx", code)

    def again(self) -> None:
        """Launches as the last call did: the least host time that a launch takes."""
        code = self._launch(*self._where)
        if code:
            self._driver.check("cuLaunchKernelEx", code)


def _address(arg: Any) -> int:
    """Of a tensor, or of the one under a descriptor."""
    return arg.data_ptr() if isinstance(arg, Tensor) else arg.base.data_ptr()
