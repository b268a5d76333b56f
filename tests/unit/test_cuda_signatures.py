# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What we call of CUDA's driver, with which arguments and structs, against cuda.h (Triton brings one) and cuda.bindings.

cuda.bindings (pip install cuda-bindings) imports without a driver. Its structs are read through our declarations of them; without
it that test is skipped, and the C compiler alone compares.
"""
import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton

from triton_dist.backends.nvidia import launch
from triton_dist.backends.nvidia.driver import _RELAXED, CudaDriver

INCLUDE = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
COMPILER = os.environ.get("CC") or next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
pytestmark = pytest.mark.skipif(COMPILER is None or not (INCLUDE / "cuda.h").exists(), reason="no C compiler, or no cuda.h")

STRUCTS = {                                 # ours: (theirs, {our field: their field})
    launch._Config: ("CUlaunchConfig", {"grid": "gridDimX", "block": "blockDimX", "shared": "sharedMemBytes", "stream": "hStream",
                                        "attributes": "attrs", "num_attributes": "numAttrs"}),
    launch._Attribute: ("CUlaunchAttribute", {"id": "id", "pad": "pad", "value": "value"}),
}
NUMBERS = {
    "CU_LAUNCH_ATTRIBUTE_COOPERATIVE": launch._COOPERATIVE,
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": launch._OVERLAPPING,
    "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": launch._L2_PROMOTION_128B,
    "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA": 1,
    "CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS": CudaDriver.stream_memory_ops,
    "CU_STREAM_CAPTURE_MODE_RELAXED": _RELAXED,
    "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_NOT_FOUND": 500,
}


def compiles(lines: list, folder: Path) -> str:
    """What the compiler says of a file with these lines after cuda.h."""
    source = folder / "check.c"
    source.write_text("#include <stddef.h>\n#include <cuda.h>\n" + "\n".join(lines) + "\n")
    command = [COMPILER, "-std=c11", "-w", f"-I{INCLUDE}", "-fsyntax-only", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr


def same(expression: str, value: int) -> str:
    return f'_Static_assert(({expression}) == {value}, "{expression} is not {value}");'


def test_structs_and_numbers(tmp_path):
    lines = [same(name, value) for name, value in NUMBERS.items()]
    for ours, (theirs, fields) in STRUCTS.items():
        assert {name for name, _ in ours._fields_} == set(fields)
        lines.append(same(f"sizeof({theirs})", ctypes.sizeof(ours)))
        lines += [same(f"offsetof({theirs}, {field})", getattr(ours, name).offset) for name, field in fields.items()]
    lines += [same("sizeof(CUtensorMap)", 128), same("_Alignof(CUtensorMap)", 64)]
    assert compiles(lines, tmp_path) == ""
    wrong = [same("sizeof(CUlaunchConfig)", ctypes.sizeof(launch._Config) + 8)]
    assert "is not" in compiles(wrong, tmp_path), "the compiler would tell"


class Function:
    """Remembers the types it was called with."""

    def __init__(self):
        self.argtypes = self.restype = self.types = self.gives = None

    def __call__(self, *args):
        self.types = list(self.argtypes or (type(arg) for arg in args))
        assert len(self.types) == len(args)
        if self.gives is not None:
            args[-1]._obj.value = self.gives
        return 0


class Library:
    def __getattr__(self, name):
        self.__dict__[name] = Function()
        return self.__dict__[name]


@pytest.fixture
def called():
    """{function: types of its arguments} after everything that the driver and a bound launch do."""
    driver, library = CudaDriver(), Library()
    driver.__dict__["library"] = library
    library.cuStreamEndCapture.gives = 1        # a graph, which is destroyed
    driver.module_global(1, "tdist_ctx")
    driver.copy_to_device(1, b"abc", 0)
    driver.attribute(0, CudaDriver.stream_memory_ops)
    driver.copy(1, 2, 3, 0)
    driver.write_value32(1, 2, 0)
    driver.bind_thread(0)
    driver.can_capture_flags(1, 0)
    driver.error_text(1)
    meta = dict(swizzle=3, elem_size=2, elem_type=10, block_size=[16, 16], fp4_padded=False)
    facts = dict(num_ctas=1, launch_pdl=False, global_scratch_size=0, profile_scratch_size=0, num_warps=4, shared=0,
                 launch_cooperative_grid=False, tensordesc_meta=[meta])
    compiled = SimpleNamespace(metadata=SimpleNamespace(**facts), function=1, asm={"ptx": ""},
                               src=SimpleNamespace(signature={"d": "tensordesc<bf16[16, 16],layout>"}))
    view = SimpleNamespace(base=torch.zeros(16, 16), shape=[16, 16], strides=[16, 1], padding="zero")
    launch.BoundLaunch(launch.Parameters(driver, compiled, (0,)), (1,), (view,))(0, (view,))
    return {name: function.types for name, function in vars(library).items()}


def passed(ty: type) -> int:
    """Bytes of an argument as ctypes passes it: a plain number as a C int, arrays and references as pointers."""
    if ty is int:
        return ctypes.sizeof(ctypes.c_int)
    return ctypes.sizeof(ty if hasattr(ty, "_type_") and not hasattr(ty, "_length_") else ctypes.c_void_p)


def test_every_call_has_the_arguments_that_are_declared(called, tmp_path):
    header = re.sub(r"\s+", " ", (INCLUDE / "cuda.h").read_text())
    assert len(called) == 15, sorted(called)
    lines = []
    for name, types in called.items():
        found = re.search(rf"CUresult CUDAAPI {name.removesuffix('_v2')}\(([^;]*?)\);", header)
        assert found, f"cuda.h declares no {name}"
        parameters = [part.strip() for part in found[1].split(",")]
        assert len(parameters) == len(types), f"{name}({found[1]}): called with {types}"
        for parameter, ty in zip(parameters, types):
            pointer = re.search(r"[*\[]", parameter)
            theirs = "void *" if pointer else re.sub(r"\w+$", "", re.sub(r"\b(const|__dparm\([^)]*\))", "", parameter)).strip()
            lines.append(same(f"sizeof({theirs})", passed(ty)))
        if name.endswith("_v2"):            # the name that the header's plain one stands for
            assert re.search(rf"#define {name.removesuffix('_v2')} (__CUDA_API_PTSZ\()?{name}", header), name
    assert compiles(lines, tmp_path) == ""


def test_structs_of_cuda_bindings_are_read_through_ours():
    cuda = pytest.importorskip("cuda.bindings.driver")
    config, attribute = cuda.CUlaunchConfig(), cuda.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY, config.blockDimZ = 2, 3, 5, 7, 11, 13
    config.sharedMemBytes, config.hStream, config.numAttrs = 17, cuda.CUstream(19), 23
    ours = launch._Config.from_address(int(config.getPtr()))
    found = tuple(ours.grid), tuple(ours.block), ours.shared, ours.stream, ours.num_attributes
    assert found == ((2, 3, 5), (7, 11, 13), 17, 19, 23)
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 29
    ours = launch._Attribute.from_address(int(attribute.getPtr()))
    assert (ours.id, ours.value[0]) == (launch._COOPERATIVE, 29)
    serial = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert serial.value == launch._OVERLAPPING
    assert cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16.value == launch._HOST_TYPE[10]
    assert cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT64.value == launch._HOST_TYPE[9]
    assert cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ.value == launch._HOST_TYPE[8]
