# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The few driver calls that torch has no name for, through ctypes: module globals and stream memory operations."""
import ctypes
import functools
from abc import ABC, abstractmethod
from typing import Any, Callable, Sequence

import torch

from triton_dist.runtime.device import Transfer
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
    stream_memory_ops: int         # device attribute that says whether streams can write flags

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

    # -- calling the library -------------------------------------------------------------------------------
    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library. Raises UnsupportedFeature where there is none."""
        try:
            return self._load()
        except OSError as error:
            raise UnsupportedFeature(f"cannot load the GPU driver library ({error}); is the driver installed, and "
                                     "visible in this container?") from error

    def has(self, function: str) -> bool:
        """True when the library exports `function`."""
        return hasattr(self.library, function)

    def _function(self, function: str) -> Any:
        try:
            return getattr(self.library, function)
        except AttributeError:
            raise UnsupportedFeature(f"the GPU driver has no {function}: install a newer one") from None

    def bound(self, function: str, *types: Any) -> Callable:
        """`function` with its argument types declared, so that a call converts plain integers without objects."""
        found = self._function(function)
        found.argtypes, found.restype = types, ctypes.c_int
        return found

    def call(self, function: str, *args) -> None:
        """Calls `function`, whose arguments are ctypes values; raises TritonDistError unless it returns 0."""
        self.check(function, self._retried(self._function(function), *args))

    def check(self, what: str, code: int) -> None:
        """Raises TritonDistError unless the status of the call `what` is 0."""
        if code:
            raise TritonDistError(f"{what} failed with {code}: {self.error_text(code)}")

    def _retried(self, function: Callable, *args) -> int:
        """Status of a call. A thread that has not yet used the device is bound to its context first."""
        code = function(*args)
        if code == _INVALID_CONTEXT:
            self.bind_thread(torch.cuda.current_device())           # torch leaves the thread as it is: that is its device already
            code = function(*args)
        return code

    def bind_thread(self, device: int) -> None:
        """Makes the context of `device` that of the calling thread, where the driver has contexts."""

    # -- what the backend needs ----------------------------------------------------------------------------
    def module_global(self, module: int, name: str) -> tuple[int, int] | None:
        """(address, bytes) of a module's global variable; None if the module has none of that name."""
        address, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        code = self._retried(self._function(self.module_get_global), ctypes.byref(address), ctypes.byref(nbytes),
                             ctypes.c_void_p(module), ctypes.c_char_p(name.encode()))
        if code == _NOT_FOUND:
            return None
        self.check(f"{self.module_get_global}({name})", code)
        return address.value, nbytes.value

    def can_write_flags(self, device: int) -> bool:
        """Whether `push` and `write_value32` work on the device's streams."""
        return self.has(self.stream_write_value32) and bool(self.attribute(device, self.stream_memory_ops))

    def copy_to_device(self, address: int, raw: bytes, stream: int) -> None:
        """Enqueues a copy of `raw` to a device address. The caller synchronises the stream before `raw` goes away."""
        self.call(self.copy_to_device_async, ctypes.c_uint64(address), ctypes.c_char_p(raw),
                  ctypes.c_size_t(len(raw)), ctypes.c_void_p(stream))

    def copy(self, dst: int, src: int, nbytes: int, stream: int) -> None:
        """Enqueues a copy between two addresses of any device or of pinned host memory."""
        self.check(self.copy_async, self._retried(self._copy, dst, src, nbytes, stream))

    def write_value32(self, address: int, value: int, stream: int) -> None:
        """Enqueues a 4-byte store after everything on `stream`, with a system-scope fence before it."""
        self.check(self.stream_write_value32, self._retried(self._write, stream, address, value & 0xFFFFFFFF, 0))

    def push(self, base: int, transfers: Sequence[Transfer], value: int, stream: int) -> None:
        """Enqueues every transfer: its bytes, then the value to its flag."""
        copy, write, word = self._copy, self._write, value & 0xFFFFFFFF
        for to, offset, nbytes, flag in transfers:
            if copy(to, base + offset, nbytes, stream) or write(stream, flag, word, 0):
                self.copy(to, base + offset, nbytes, stream)          # again, with a retry and the driver's words
                self.write_value32(flag, value, stream)

    @functools.cached_property
    def _write(self) -> Callable[[int, int, int, int], int]:
        return self.bound(self.stream_write_value32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
