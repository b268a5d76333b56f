# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The declarations of c/tdist_driver.h beside the vendors' headers."""

import re
from pathlib import Path

import pytest
from aot_mock import HERE, HIP_INCLUDE, INCLUDE, WARNINGS, compile_c

from triton_dist.aot.layout import SIZES
from triton_dist.aot.library import RUNTIME
from triton_dist.runtime.context import SIZE

CUDA_HEADERS = [INCLUDE, *(path for path in [Path("/usr/local/cuda/include")] if (path / "cuda.h").exists())]


@pytest.mark.parametrize("include", CUDA_HEADERS, ids=str)
def test_structs_and_numbers_are_those_of_cuda(include, tmp_path):
    compile_c(
        tmp_path / "abi.o",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{include}",
        f"-I{RUNTIME}",
        "-c",
        HERE / "abi_cuda.c",
    )


def test_structs_and_numbers_are_those_of_hip(tmp_path):
    compile_c(
        tmp_path / "abi.o",
        "-std=gnu11",
        "-w",
        "-Werror=implicit-function-declaration",
        f"-I{HIP_INCLUDE}",
        f"-I{RUNTIME}",
        "-c",
        HERE / "abi_hip.c",
    )


def passed(parameter: str) -> str:
    """How a call passes a parameter: a pointer or handle and any word of 8 bytes alike, or 4 bytes."""
    parameter = re.sub(r"\bconst\b|__dparm\([^)]*\)", "", parameter).strip()
    if "*" in parameter or "[" in parameter:
        return "8"
    eight = (
        r"\b(size_t|tdist_cu_address|CUdeviceptr|hipDeviceptr_t|unsigned long long|cuuint64_t|"
        r"CU(context|module|function|stream|event)|"
        r"hip(Module|Function|Stream|Ctx)_t|CUmemGenericAllocationHandle|uint64_t)\b"
    )
    return "8" if re.search(eight, parameter) else "4"


def ours(header: str, table: str) -> dict:
    text = re.search(rf"#define {table}\(X\)(.*?)\n(?!.*\\)", header.replace("\\\n", " ") + "\n\n", re.S)[1]
    found = re.findall(r"X\(\w+, (\w+), \(((?:[^()]|\([^()]*\))*)\)\)", text)
    return {name: [] if words == "void" else [passed(word) for word in words.split(",")] for name, words in found}


def theirs(text: str, pattern: str, name: str) -> list:
    found = re.search(pattern.format(name=name), text)
    assert found, f"{name} is not in the header"
    return [passed(word) for word in found[1].split(",") if word.strip() not in ("", "void")]


@pytest.mark.parametrize("include", CUDA_HEADERS, ids=str)
def test_functions_take_what_cuda_takes(include):
    header, text = (RUNTIME / "tdist_driver.h").read_text(), (include / "cuda.h").read_text()
    declared = {**ours(header, "TDIST_CUDA_CORE"), **ours(header, "TDIST_CUDA_HOST")}
    assert len(declared) > 40
    for name, words in declared.items():
        plain = name.removesuffix("_v2")
        assert words == theirs(text, r"CUresult CUDAAPI {name}\s*\(([^)]*)\);", plain), name


def test_functions_take_what_hip_takes():
    header, text = (RUNTIME / "tdist_driver.h").read_text(), (HIP_INCLUDE / "hip" / "hip_runtime_api.h").read_text()
    text = re.sub(r"__dparm\([^)]*\)", "", text)
    declared = ours(header, "TDIST_HIP_CORE")
    assert len(declared) > 15
    for name, words in declared.items():
        assert words == theirs(text, r"hipError_t {name}\s*\(([^)]*)\)", name.removesuffix("R0600")), name


def test_kinds_of_parameters_have_the_same_names_and_order():
    header = (RUNTIME / "tdist_internal.h").read_text()
    listed = re.findall(r"TDIST_PARAM_(\w+)", re.search(r"typedef enum tdist_param_kind \{(.*?)\}", header, re.S)[1])
    assert listed == list(SIZES)


def test_the_context_is_as_large_as_pythons():
    header = (RUNTIME / "tdist_internal.h").read_text()
    assert int(re.search(r"TDIST_CONTEXT_BYTES (\d+)", header)[1]) == SIZE


def test_public_headers_are_those_of_c_and_of_cplusplus(tmp_path):
    import shutil

    source = tmp_path / "one.c"
    source.write_text('#include "tdist_aot.h"\nint tdist_nothing(void);\nint tdist_nothing(void) { return TDIST_OK; }\n')
    compile_c(tmp_path / "c.o", "-std=c99", *WARNINGS, f"-I{RUNTIME}", "-c", source)
    if shutil.which("c++"):
        compile_c(tmp_path / "cc.o", "-x", "c++", "-std=c++11", *WARNINGS, f"-I{RUNTIME}", "-c", source)
