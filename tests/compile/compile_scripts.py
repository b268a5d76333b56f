# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Compiles a kernel of tests/published for sm_90 and prints its PTX: python compile_scripts.py SCRIPT KERNEL SIGNATURE.

Run by published/test_code.py in a process of its own, since it prepares that process as the launcher's --published does.
SIGNATURE is JSON: a type for each parameter, or the value of a constexpr. NVSHMEM_HOME holds the SHMEM library.
"""
import importlib.util
import json
import sys
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triton_dist.backends.gpu import device_runtime, thread_functions
from triton_dist.backends.nvidia import nvshmem_library
from triton_dist.dropin import packages, run
from triton_dist.language import shmem_abi, threads_abi
from triton_dist.language.kernels_of_threads import of_threads


def load(name: str):
    """The module of a script, whose main is not run."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "published" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    script, name, text = sys.argv[1:]
    run.install()
    packages.of_cuda_python()
    packages.of_nvshmem()
    kernel = getattr(load(script), name)
    given = json.loads(text)
    signature = {p: value if isinstance(value, str) else "constexpr" for p, value in given.items()}
    constexprs = {p: value for p, value in given.items() if not isinstance(value, str)}
    linked = {"tdist": device_runtime.library("nvidia"), shmem_abi.LIBRARY: nvshmem_library.library(90)[0]}
    if of_threads(kernel):
        linked[threads_abi.LIBRARY] = thread_functions.library("nvidia")
    attrs = {(i,): [["tt.divisibility", 16]] for i, ty in enumerate(signature.values()) if ty.startswith("*")}
    source = ASTSource(kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(extern_libs=linked)).asm["ptx"])


if __name__ == "__main__":
    main()
