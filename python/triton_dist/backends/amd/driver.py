# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""libamdhip64.so, the copy that torch has loaded. Written to HIP's headers; not yet run on an AMD machine."""
import ctypes
import functools
from typing import Callable

from triton_dist.backends.gpu.driver import GpuDriver

_DEVICE_TO_DEVICE_NO_CU = 1024           # hipMemcpyDeviceToDeviceNoCU: a DMA engine, no compute units


class HipDriver(GpuDriver):
    """The HIP runtime API."""

    module_get_global = "hipModuleGetGlobal"
    copy_to_device_async = "hipMemcpyHtoDAsync"
    copy_async = "hipMemcpyAsync"
    stream_write_value32 = "hipStreamWriteValue32"
    stream_memory_ops = 10013      # hipDeviceAttributeCanUseStreamWaitValue, hip_runtime_api.h

    def _load(self) -> ctypes.CDLL:
        # Two copies of the runtime in one process do not know each other's modules, so ask for the one Triton uses.
        from triton_dist.compat.amd import hip_runtime
        try:
            return ctypes.CDLL(hip_runtime())
        except RuntimeError as error:
            raise OSError(str(error)) from error

    def error_text(self, code: int) -> str:
        self.library.hipGetErrorName.restype = ctypes.c_char_p
        self.library.hipGetErrorString.restype = ctypes.c_char_p
        name, text = self.library.hipGetErrorName(code), self.library.hipGetErrorString(code)
        return f"{(name or b'unknown').decode()}, {(text or b'').decode()}"

    def attribute(self, device: int, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("hipDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), ctypes.c_int(device))
        return value.value

    @functools.cached_property
    def _copy(self) -> Callable[[int, int, int, int], int]:
        memcpy = self.bound(self.copy_async, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        return lambda to, source, nbytes, stream: memcpy(to, source, nbytes, _DEVICE_TO_DEVICE_NO_CU, stream)
