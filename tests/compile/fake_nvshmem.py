# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A stand-in for NVSHMEM's device bitcode: the same symbols, bodies that only leave a mark in the assembly."""
from pathlib import Path

from triton_dist.backends.nvidia.nvshmem_functions import function_of, rows
from triton_dist.language.shmem_abi import PARAMETERS

_TYPES = {"int32": "i32", "int64": "i64", "pointer": "ptr", "": "void"}
_HEAD = """target triple = "nvptx64-nvidia-cuda"
@nvshmemi_device_state_d = addrspace(4) externally_initialized global [64 x i8] zeroinitializer, align 8
%version = type {{ i32, i32, i32 }}
@nvshmemi_device_lib_version_d = addrspace(4) externally_initialized global %version {{ i32 {0}, i32 {1}, i32 {2} }}, align 4
@llvm.compiler.used = appending global [1 x ptr] [ptr addrspacecast (ptr addrspace(4) @nvshmemi_device_lib_version_d to ptr)]
"""
_NEWER = """
define internal void @newer() noinline {
  call void asm sideeffect "multimem.st.relaxed.sys.global.u32 [$0], $1;", "l,r"(i64 4096, i32 0)
  ret void
}
"""
_BODY = """
define {result} @{name}({parameters}) convergent {{
  %state = addrspacecast ptr addrspace(4) @nvshmemi_device_state_d to ptr
  call void asm sideeffect "// MARK {name} {places}", "l{constraints}"(ptr %state{values})
{end}
}}
"""


def _function(row, multicast: bool = False) -> str:
    types = []
    for name, ty in zip(row.params, row.args):
        if name != "size":
            types.append("ptr" if PARAMETERS[name][0] in ("pointer", "flag") else _TYPES[ty])
    result = _TYPES[row.c_result]
    value = {"void": "", "i32": " 41", "i64": " 41", "ptr": " inttoptr (i64 4096 to ptr)"}[result]
    return _BODY.format(
        result=result, name=function_of(row), parameters=", ".join(f"{ty} %{i}" for i, ty in enumerate(types)),
        places=" ".join(f"${i + 1}" for i in range(len(types))),
        constraints="".join(",r" if ty == "i32" else ",l" for ty in types),
        values="".join(f", {ty} %{i}" for i, ty in enumerate(types)),
        end=f"{'  call void @newer()' * multicast}\n  ret {result}{value}")


def write(home: Path, name: str = "libnvshmem_device.bc", version: tuple = (3, 4, 5), without: str = "",
          multicast: str = "") -> Path:
    """Writes home/lib/name with every function that a row needs, but `without`; `multicast` calls one with multimem."""
    path = home / "lib" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    functions = [_function(row, function_of(row) == multicast) for row in rows() if function_of(row) != without]
    path.write_text(_HEAD.format(*version) + _NEWER + "".join(functions))
    return path
