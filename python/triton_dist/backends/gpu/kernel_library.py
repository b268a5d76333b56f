# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Libraries of kernels that were compiled ahead of time, from Python. Kernels are launched by the library's own C code."""

import ctypes
import json
import weakref
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from triton_dist.runtime.errors import InvalidArgument, TritonDistError, UnsupportedFeature

LIBRARY, MANIFEST = "libtriton_dist_aot.so", "manifest.json"
VERSION = 1  # TDIST_VERSION of c/tdist_aot.h
NOT_BUILT, WRONG_ARCH = 2, 3  # TDIST_ERR_NOT_BUILT, TDIST_ERR_WRONG_ARCH
_MAX_RANK = 5
_CONSTEXPR, _POINTER, _TENSOR = 0x40, 0x100, 0x200
_ELEMENTS = {
    name: 1 + i
    for i, name in enumerate(
        ("i1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5")
    )
}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("pad_with_nan", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _MAX_RANK),
        ("strides", ctypes.c_int64 * _MAX_RANK),
    ]


class _As(ctypes.Union):
    _fields_ = [
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("pointer", ctypes.c_void_p),
        ("tensor", ctypes.POINTER(_Tensor)),
    ]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("as_", _As)]


class _Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("text", ctypes.c_char_p), ("value", ctypes.c_double)]


class LibraryError(TritonDistError):
    """A call of a library of kernels failed. code: the tdist_status, see docs/aot.md."""

    def __init__(self, code: int, words: str):
        super().__init__(words)
        self.code = code


class KernelLibrary:
    """A library that `triton-dist aot` has built.

    Args:
        folder: where it is.

    Raises UnsupportedFeature where there is none, or one of another version.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        try:
            self.manifest = json.loads((self.folder / MANIFEST).read_text())
            self._library = ctypes.CDLL(str(self.folder / LIBRARY))
        except (OSError, ValueError) as error:
            raise UnsupportedFeature(f"{self.folder}: no library of kernels: {error}") from error
        self._library.tdist_last_error.restype = self._library.tdist_status_name.restype = ctypes.c_char_p
        for name in ("tdist_find_variant", "tdist_find_kernel"):
            getattr(self._library, name).restype = ctypes.c_void_p
        if self._library.tdist_version() != VERSION:
            raise UnsupportedFeature(
                f"{self.folder}: version {self._library.tdist_version()}, this package has {VERSION}; build it again"
            )
        self._by_key = {entry["key"]: entry for entry in self.manifest["variants"]}
        self._by_space: dict = {}
        for entry in self.manifest["variants"]:
            self._by_space.setdefault(entry["space"], entry)

    def has(self, key: str) -> bool:
        """Whether it has the variant of this identity (`prebuilt.identity`)."""
        return key in self._by_key

    def entry(self, key: str) -> dict:
        """What the manifest says of a variant."""
        return self._by_key[key]

    def launch(
        self, space: str, stream: int, args: Sequence, grid: Sequence[int] | None = None, options: Mapping | None = None
    ) -> None:
        """Launches a kernel as its C function does.

        Args:
            space: the public C name.
            stream: the driver's handle.
            args: a value for each parameter that is no constexpr: tensors, addresses, numbers.
            grid: three numbers, or None where the kernel was declared with a grid.
            options: constexprs and launch options that the variant must have; the others may be any.

        Raises LibraryError with the library's status.
        """
        if space not in self._by_space:
            raise InvalidArgument(f"{space}: {self.folder} has {', '.join(self._by_space)}")
        entry = self._by_space[space]
        values, kept = _values(entry["types"], _with_gaps(entry["types"], args))
        given = [("space", space), *(options or {}).items()]
        asked = (_Option * len(given))(
            *[
                _Option(
                    name.encode(),
                    value.encode() if isinstance(value, str) else None,
                    0.0 if isinstance(value, str) else value,
                )
                for name, value in given
            ]
        )
        kernel = ctypes.c_void_p(self._library.tdist_find_kernel(entry["kernel"].encode()))
        self.check(
            self._library.tdist_launch_kernel(
                kernel,
                ctypes.c_void_p(stream),
                _grid(grid),
                values,
                ctypes.c_size_t(len(values)),
                asked,
                ctypes.c_size_t(len(given)),
            )
        )
        del kept

    def prepare(self, key: str, grid: Sequence[int], args: Sequence, positions: Sequence[int]) -> Callable[[int, tuple], None]:
        """A launch that is kept, of the variant `key`: call it with a stream and arguments in the places of `args`.

        Those at `positions` are taken. They may be other tensors of the same shape and alignment, and other integers;
        floating-point numbers stay.
        """
        types = self._by_key[key]["types"]
        filled = [*args, *[None] * (len(types) - len(args))]
        values, kept = _values(types, filled)
        variant = ctypes.c_void_p(self._library.tdist_find_variant(key.encode()))
        made = ctypes.c_void_p()
        self.check(
            self._library.tdist_launch_create(
                variant, _grid(grid), values, ctypes.c_size_t(len(values)), ctypes.byref(made)
            )
        )
        return LibraryLaunch(self, self._library, made, args, positions, kept)

    def set_world(self, context: bytes) -> None:
        """Makes `context` (runtime.context.Context.pack) that of all its modules in the current driver context."""
        self.check(self._library.tdist_set_world(ctypes.c_char_p(context), ctypes.c_size_t(len(context))))

    def check(self, code: int) -> None:
        """Raises LibraryError unless `code` is 0."""
        if code:
            name = self._library.tdist_status_name(code).decode()
            raise LibraryError(code, f"{name}: {self._library.tdist_last_error().decode(errors='replace')}")


class LibraryLaunch:
    """A launch of a library's kernel with arguments of which some vary."""

    def __init__(self, library: KernelLibrary, functions: Any, handle: ctypes.c_void_p, args: Sequence, positions: Sequence[int],
                 kept: Any):
        self._library, self._handle, self._positions = library, handle.value, positions
        self._kept = kept, [arg for i, arg in enumerate(args) if i not in positions]
        # As addresses and integers: the types of ctypes cost more than the launch.
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_size_t)(
            ctypes.cast(functions.tdist_launch_run_with, ctypes.c_void_p).value
        )
        # The library takes the first arguments up to the last that varies.
        self._count = max(positions, default=-1) + 1
        self._cells = (ctypes.c_int64 * max(1, self._count))(*map(_value, args[:self._count]))
        self._where = ctypes.addressof(self._cells)
        weakref.finalize(self, functions.tdist_launch_destroy, ctypes.c_void_p(self._handle)).atexit = False

    def __call__(self, stream: int, args: tuple) -> None:
        cells = self._cells
        for i in self._positions:
            arg = args[i]
            cells[i] = arg if type(arg) is int else _value(arg)
        code = self._run(self._handle, stream, self._where, self._count)
        if code:
            self._library.check(code)

    def again(self) -> None:
        """Launches on the legacy default stream as the last call did: the least host time that a launch takes."""
        code = self._run(self._handle, None, self._where, 0)
        if code:
            self._library.check(code)


def _value(arg: Any) -> int:
    """An integer, or the address of a tensor or of what a descriptor is over."""
    data_ptr = getattr(arg, "data_ptr", None)
    if data_ptr is not None:
        return data_ptr()
    base = getattr(arg, "base", None)
    return base.data_ptr() if base is not None else int(arg)


def _grid(grid: Sequence[int] | None) -> Any:
    return None if grid is None else (ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3])


def _with_gaps(types: Sequence[str], args: Sequence) -> list:
    """`args` with None for each constexpr."""
    rest, wanted = list(args), sum(kind != "constexpr" for kind in types)
    if len(rest) != wanted:
        raise InvalidArgument(f"args: expected {wanted}, one for each parameter that is no constexpr, found {len(rest)}")
    return [None if kind == "constexpr" else rest.pop(0) for kind in types]


def _values(types: Sequence[str], args: Sequence) -> tuple[Any, list]:
    """(tdist_value array, what has to live as long as it is used)."""
    values, kept = (_Value * len(types))(), []
    for value, kind, arg in zip(values, types, args):
        value.type = _code(kind)
        if value.type & _TENSOR:
            kept.append(_tensor(arg))
            value.as_.tensor = ctypes.pointer(kept[-1])
        elif value.type & _POINTER:
            value.as_.pointer = _value(arg)
        elif kind in ("fp16", "bf16", "fp32", "fp64"):
            value.as_.real = float(arg)
        elif kind != "constexpr":
            value.as_.integer = int(arg)
    return values, kept


def _code(kind: str) -> int:
    if kind == "constexpr":
        return _CONSTEXPR
    if kind.startswith("tensordesc<"):
        return _TENSOR | _ELEMENTS[kind.removeprefix("tensordesc<").partition("[")[0]]
    if kind.startswith("*"):
        return _POINTER | _ELEMENTS[kind[1:].removeprefix("k")]
    return _ELEMENTS[kind]


def _tensor(arg: Any) -> _Tensor:
    """Of a tensor, or of a descriptor over one."""
    shape, strides = (arg.shape, arg.strides) if hasattr(arg, "base") else (tuple(arg.shape), arg.stride())
    made = _Tensor(_value(arg), len(shape), int(getattr(arg, "padding", "zero") == "nan"))
    made.shape[: len(shape)], made.strides[: len(shape)] = list(shape), list(strides)
    return made
