# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Compiling kernels for GPUs that are not here, and reading what came out."""
import re
import struct

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from triton_dist.backends.amd import machines
from triton_dist.backends.gpu.device_runtime import library

CUDA = ("sm_80", "sm_90", "sm_100")
HIP = ("gfx90a", "gfx942", "gfx950")
TARGETS = CUDA + HIP
# test_amd_kernels.py compiles kernels for the other two.
ONE_HIP = [*CUDA, "gfx942", *(pytest.param(target, marks=pytest.mark.full) for target in HIP if target != "gfx942")]
PAIR = r"\.volatile\.global\.(v4\.b32|v2\.b64)"        # 16 bytes, both halves whole
PLAIN_RELEASE = hasattr(tl, "atomic_store")     # Triton 3.9: notify is a fence and a store, before that an exchange


def gpu_target(name: str) -> GPUTarget:
    """Triton's target for "sm_90", "gfx942", ..."""
    return GPUTarget("cuda", int(name[3:]), 32) if name.startswith("sm_") else GPUTarget("hip", name, 64)


def vendor(name: str) -> str:
    """Backend of a target's name."""
    return "nvidia" if name.startswith("sm_") else "amd"


def compile_kernel(fn, signature: dict, constexprs: dict, target: str, *, bounded: bool = False,
                   divisible: tuple | None = None, runtime: bool = True, **options):
    """CompiledKernel of `fn` for `target`, with the device runtime linked in. Needs no GPU.

    Args:
        signature: type of every parameter by name, in Triton's words ("*bf16", "i32", "constexpr").
        constexprs: value of each constexpr parameter by name.
        target: one of TARGETS.
        bounded: link the bounded-wait variant.
        divisible: names of the parameters that are multiples of 16, as they are at most launches; the pointers if None.
        runtime: False leaves the device runtime out, as plain triton.jit does.
        options: compile options (num_warps, num_stages, ...).
    """
    if divisible is None:
        divisible = [name for name, ty in signature.items() if ty.startswith("*")]
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(signature) if name in divisible}
    if fn.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as source_class
    else:
        source_class = ASTSource
    if target in HIP:
        options = amd_options(constexprs, options)
    if runtime:
        options["extern_libs"] = {**options.get("extern_libs", {}), "tdist": library(vendor(target), bounded)}
    source = source_class(fn, signature=dict(signature), constexprs=dict(constexprs), attrs=attrs)
    return triton.compile(source, target=gpu_target(target), options=options)


def amd_options(constexprs: dict, options: dict) -> dict:
    """What the AMD backend makes of a launch's `options` for a kernel with these constexprs."""
    return {name: value for name, value in machines.options({**constexprs, **options}).items() if name not in constexprs}


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


def dynamic_symbols(hsaco: bytes) -> dict[str, bool]:
    """Names in a code object's dynamic symbol table, and whether it defines them."""
    (section_offset,) = struct.unpack_from("<Q", hsaco, 0x28)
    entry_size, count = struct.unpack_from("<HH", hsaco, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", hsaco, section_offset + i * entry_size) for i in range(count)]
    symbols = {}
    for section in sections:
        if section[1] != 11:                             # SHT_DYNSYM
            continue
        names = sections[section[6]][4]                  # offset of the linked string table
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, index, _, _ = struct.unpack_from("<IBBHQQ", hsaco, at)
            text = hsaco[names + name:hsaco.index(b"\0", names + name)].decode()
            symbols[text] = index != 0
    return symbols


def position(lines: list[str], pattern: str, start: int = 0) -> int:
    """Index of the first line from `start` that matches `pattern`; AssertionError with the listing if there is none."""
    for i in range(start, len(lines)):
        if re.search(pattern, lines[i]):
            return i
    raise AssertionError(f"no {pattern!r} from line {start} of\n" + "\n".join(lines))


def released_behind_a_barrier(lines: list[str]) -> None:
    """Asserts of PTX: a barrier of all threads stands between the last wide store of rows and the first release of a flag."""
    flags = [i for i, line in enumerate(lines) if re.search(r"atom\.\S*release\.sys\S*exch|atom\.\S*sys\.release\S*exch", line)]
    assert flags, "no release of a flag"
    barriers = [i for i, line in enumerate(lines) if "bar.sync" in line]
    rows = [i for i, line in enumerate(lines) if re.search(r"st\.global\S*\.v4\.b32", line) and i < flags[0]]
    assert rows and any(rows[-1] < barrier < flags[0] for barrier in barriers)
