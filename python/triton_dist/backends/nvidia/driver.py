# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""libcuda.so.1: the part that every machine with an NVIDIA driver has. No CUDA toolkit, no bindings package."""
import ctypes
import functools
from typing import Callable

from triton_dist.backends.gpu.driver import GpuDriver


_RELAXED = 2                        # CU_STREAM_CAPTURE_MODE_RELAXED: other calls of this thread stay possible


class CudaDriver(GpuDriver):
    """The CUDA driver API."""

    module_get_global = "cuModuleGetGlobal_v2"
    copy_to_device_async = "cuMemcpyHtoDAsync_v2"
    copy_async = "cuMemcpyAsync"
    stream_write_value32 = "cuStreamWriteValue32_v2"      # since CUDA 11.7
    # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, cuda.h
    stream_memory_ops = 122

    def _load(self) -> ctypes.CDLL:
        return ctypes.CDLL("libcuda.so.1")

    def error_text(self, code: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        self.library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(name.value or b'unknown').decode()}, {(text.value or b'').decode()}"

    def attribute(self, device: int, attribute: int) -> int:
        handle, value = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), handle)
        return value.value

    def bind_thread(self, device: int) -> None:
        self.call("cuCtxSetCurrent", self._primary(device))

    @functools.cache
    def _primary(self, device: int) -> ctypes.c_void_p:
        """The context of `device` that the CUDA runtime uses as well. It is kept for as long as the process lives."""
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        return context

    def can_capture_flags(self, address: int, stream: int) -> bool:
        """Whether graphs can hold `write_value32`: tries it on `stream`, which is idle, with the word at `address`.

        The graph is not run, so nothing is written.
        """
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_RELAXED))
        written = self._write(stream, address, 0, 0)
        ended = self.library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
        if graph:
            self.call("cuGraphDestroy", graph)
        return not written and not ended

    @functools.cached_property
    def _copy(self) -> Callable[[int, int, int, int], int]:
        return self.bound(self.copy_async, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)

    def encode_tensor_map(self, *args: int) -> None:
        """cuTensorMapEncodeTiled, with addresses of what it takes by pointers."""
        self.check("cuTensorMapEncodeTiled", self._retried(self._encode, *args))

    @functools.cached_property
    def _encode(self) -> Callable[..., int]:
        pointer, number = ctypes.c_void_p, ctypes.c_int
        return self.bound("cuTensorMapEncodeTiled", pointer, number, ctypes.c_uint32, *[pointer] * 5, *[number] * 4)
