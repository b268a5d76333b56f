# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The few driver calls that torch has no name for, through ctypes: module globals and stream memory operations."""
import ctypes
import functools
from abc import ABC, abstractmethod
from typing import Any, Callable, Sequence

import torch

from triton_dist.runtime.backend import Transfer
from triton_dist.runtime.errors import TritonDistError, UnsupportedFeature

# The two vendors number these alike.
_INVALID_CONTEXT = 201
_NOT_FOUND = 500


class GpuDriver(ABC):
    """A vendor's driver library. Loaded on first use; every call acts on the calling thread's current device."""

    # Names under which the library exports each call.
    module_get_global: str
    copy_to_device_async: str
    copy_async: str
    stream_write_value32: str

    @abstractmethod
    def _load(self) -> ctypes.CDLL:
        """The library. Raises OSError where there is none."""

    @abstractmethod
    def error_text(self, code: int) -> str:
        """The driver's words for a status code."""

    @abstractmethod
    def attribute(self, device: int, attribute: int) -> int:
        """Value of a device attribute."""

    @property
    @abstractmethod
    def _copy(self) -> Callable[[int, int, int, int], int]:
        """Enqueues a copy (to, from, bytes, stream) between addresses of any device or of pinned host memory; a status."""

    @functools.cached_property
    def _write(self) -> Callable[[int, int, int, int], int]:
        return self.bound(self.stream_write_value32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)

    def bound(self, function: str, *types: Any) -> Callable:
        """`function` with its argument types declared, so that a call converts plain integers without objects."""
        found = getattr(self.library, function)
        found.argtypes, found.restype = types, ctypes.c_int
        return found

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Enqueues a copy between two addresses of any device or of pinned host memory."""
        self._check(self.copy_async, self._retried(self._copy, dst, src, nbytes, stream))

    def push(self, base: int, transfers: Sequence[Transfer], value: int, stream: int) -> None:
        """Enqueues every transfer: its bytes, then the value to its flag."""
        copy, write, word = self._copy, self._write, value & 0xFFFFFFFF
        for to, offset, nbytes, flag in transfers:
            if copy(to, base + offset, nbytes, stream) or write(stream, flag, word, 0):
                self._check(self.copy_async, self._retried(copy, to, base + offset, nbytes, stream))
                self._check(self.stream_write_value32, self._retried(write, stream, flag, word, 0))

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        try:
            return self._load()
        except OSError as error:
            raise UnsupportedFeature(f"cannot load the GPU driver library ({error}); is the driver installed, and "
                                     "visible in this container?") from error

    def has(self, function: str) -> bool:
        """True when the library exports `function`."""
        return hasattr(self.library, function)

    def call(self, function: str, *args) -> None:
        """Calls `function`, whose arguments are ctypes values; raises TritonDistError unless it returns 0."""
        self._check(function, self._status(function, *args))

    def _check(self, function: str, code: int) -> None:
        if code:
            raise TritonDistError(f"{function} failed with {code}: {self.error_text(code)}")

    def _status(self, function: str, *args) -> int:
        return self._retried(getattr(self.library, function), *args)

    def _retried(self, function: Callable, *args) -> int:
        """Status of a call. A thread that has not yet used the device is bound to its context first."""
        code = function(*args)
        if code == _INVALID_CONTEXT:
            torch.cuda.set_device(torch.cuda.current_device())
            code = function(*args)
        return code

    def module_global(self, module: int, name: str) -> tuple[int, int] | None:
        """(address, bytes) of a module's global variable; None if the module has none of that name."""
        address, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        code = self._status(self.module_get_global, ctypes.byref(address), ctypes.byref(nbytes),
                            ctypes.c_void_p(module), ctypes.c_char_p(name.encode()))
        if code == _NOT_FOUND:
            return None
        if code:
            raise TritonDistError(f"{self.module_get_global}({name}) failed with {code}: {self.error_text(code)}")
        return address.value, nbytes.value

    def copy_to_device(self, address: int, raw: bytes, stream: int) -> None:
        """Enqueues a copy of `raw` to a device address. The caller synchronises the stream before `raw` goes away."""
        self.call(self.copy_to_device_async, ctypes.c_uint64(address), ctypes.c_char_p(raw),
                  ctypes.c_size_t(len(raw)), ctypes.c_void_p(stream))

    def write_value32(self, address: int, value: int, stream: int) -> None:
        """Enqueues a 4-byte store behind everything on `stream`, with a system-scope fence before it."""
        self._check(self.stream_write_value32, self._retried(self._write, stream, address, value & 0xFFFFFFFF, 0))
