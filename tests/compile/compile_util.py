# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Compiling kernels for GPUs that are not here, and reading what came out."""
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triton_dist.backends.device_runtime import library

CUDA = ("sm_80", "sm_90", "sm_100")
HIP = ("gfx942", "gfx950")
TARGETS = CUDA + HIP


def gpu_target(name: str) -> GPUTarget:
    """Triton's target for "sm_90", "gfx942", ..."""
    return GPUTarget("cuda", int(name[3:]), 32) if name.startswith("sm_") else GPUTarget("hip", name, 64)


def vendor(name: str) -> str:
    """Backend of a target's name."""
    return "nvidia" if name.startswith("sm_") else "amd"


def compile_kernel(fn, signature: dict, constexprs: dict, target: str, *, bounded: bool = False, aligned: bool = True,
                   runtime: bool = True, **options):
    """CompiledKernel of `fn` for `target`, with the device runtime linked in. Needs no GPU.

    Args:
        signature: type of every parameter by name, in Triton's words ("*bf16", "i32", "constexpr").
        constexprs: value of each constexpr parameter by name.
        target: one of TARGETS.
        bounded: link the bounded-wait variant.
        aligned: declare pointers 16-byte aligned and integers named in upper case divisible by 16, as at most launches.
        runtime: False leaves the device runtime out, as plain triton.jit does.
        options: compile options (num_warps, num_stages, ...).
    """
    attrs = {}
    if aligned:
        for i, (name, ty) in enumerate(signature.items()):
            if str(ty).startswith("*") or (ty in ("i32", "i64") and name.isupper()):
                attrs[(i,)] = [["tt.divisibility", 16]]
    if fn.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as source_class
    else:
        source_class = ASTSource
    if runtime:
        options["extern_libs"] = {**options.get("extern_libs", {}), "tdist": library(vendor(target), bounded)}
    source = source_class(fn, signature=dict(signature), constexprs=dict(constexprs), attrs=attrs)
    return triton.compile(source, target=gpu_target(target), options=options)


def code(kernel) -> str:
    """PTX or AMD assembly of a compiled kernel."""
    return kernel.asm["ptx"] if "ptx" in kernel.asm else kernel.asm["amdgcn"]


def instructions(kernel) -> list[str]:
    """The assembly's instructions in order, comments and directives gone."""
    lines = []
    for line in code(kernel).splitlines():
        line = re.sub(r"(//|;).*$", "", line).strip() if "amdgcn" in kernel.asm else line.split("//")[0].strip()
        if line and not line.startswith("."):
            lines.append(line)
    return lines


def position(lines: list[str], pattern: str, start: int = 0) -> int:
    """Index of the first line from `start` that matches `pattern`; AssertionError with the listing if there is none."""
    for i in range(start, len(lines)):
        if re.search(pattern, lines[i]):
            return i
    raise AssertionError(f"no {pattern!r} from line {start} of\n" + "\n".join(lines))
