# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What we call of HIP, and with which arguments, against the declarations in hip-python (pip install rocm-bindings-hip).

It imports without ROCm. Not among the packages of the environment, since it takes 19 MB: without it these tests are skipped.
"""
import ctypes
import re

import pytest

from triton_dist.backends.amd import driver as amd_driver
from triton_dist.backends.amd import ipc
from triton_dist.backends.amd.driver import HipDriver

hip = pytest.importorskip("rocm.bindings.hip")

_OUTPUT = type(ctypes.byref(ctypes.c_int()))
_SCALARS = {"size_t": ctypes.c_size_t, "unsigned int": ctypes.c_uint, "uint32_t": ctypes.c_uint, "int": ctypes.c_int}


class Function:
    """Remembers the types that it was called with, outputs aside."""

    def __init__(self):
        self.argtypes, self.restype, self.types = None, None, None

    def __call__(self, *args):
        types = self.argtypes or [type(arg) for arg in args]
        assert len(types) == len(args)
        self.types = [ty for ty, arg in zip(types, args) if not isinstance(arg, _OUTPUT)]
        return 0


class Library:
    def __getattr__(self, name):
        self.__dict__[name] = Function()
        return self.__dict__[name]


class OneRank:
    rank, size = 0, 2

    def all_gather_object(self, value):
        return [value, value]


@pytest.fixture(scope="module")
def called():
    """{function: types of its inputs} after everything that the driver and the IPC arena do."""
    driver, library = HipDriver(), Library()
    driver.__dict__["library"] = library
    driver.module_global(1, "tdist_ctx")
    driver.copy_to_device(1, b"abc", 0)
    driver.attribute(0, HipDriver.stream_memory_ops)
    driver.copy(1, 2, 3, 0)
    driver.write_value32(1, 2, 0)
    arena = ipc.IpcArena(driver, 512, OneRank(), lambda address, nbytes: None)
    arena._held = [1, 2]
    arena.close()
    return {name: function.types for name, function in vars(library).items()}


def test_every_call_has_the_arguments_that_are_declared(called):
    assert len(called) == 10, sorted(called)
    for name, types in called.items():
        declared = getattr(hip, name).__doc__.partition(")")[0]
        inputs = [part.strip() for part in declared.partition("(")[2].split(",")]
        assert len(inputs) == len(types), f"{declared}): called with {types}"
        for text, ty in zip(inputs, types):
            kind = re.match(r"(unsigned int|\w+) \w+$", text)
            if kind:
                assert ty is _SCALARS[kind.group(1)], f"{declared}): {text} is passed as {ty}"


def test_constants_are_those_that_are_declared():
    assert hip.hipMemcpyKind.hipMemcpyDeviceToDeviceNoCU.value == amd_driver._DEVICE_TO_DEVICE_NO_CU
    assert hip.hipDeviceAttribute_t.hipDeviceAttributeCanUseStreamWaitValue.value == HipDriver.stream_memory_ops
    assert hip.hipDeviceMallocFinegrained == ipc._FINE_GRAINED
    assert hip.hipIpcMemLazyEnablePeerAccess == ipc._LAZY_PEER_ACCESS
