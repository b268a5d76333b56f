# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The SHMEM rows over rocSHMEM's device bitcode: two libraries that Triton links into kernels which call them.

The first has a function for each row that rocSHMEM has a C name for: it waits for the program's stores, meets the other waves,
lets the threads call rocSHMEM that must, and meets again. The second is rocSHMEM's own file for the architecture. It must have
been built with the same transports as the host library. Compiled against a stand-in for that file; never run.
"""
import functools
import hashlib
import os
import re
from pathlib import Path
from typing import Sequence

from triton_dist.backends.amd.rocshmem_functions import function_of, lacks, rows
from triton_dist.language import shmem_abi
from triton_dist.language._linked import Statement
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.files import cached

ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")
BITCODE = "shmem"                       # key of the second library: a part of each row's symbol, or Triton would not link it
STATE = "ROCSHMEM_CTX_DEFAULT"          # the global variable that rocshmem_hipmodule_init fills
TEAMS = ("ROCSHMEM_TEAM_WORLD", "ROCSHMEM_TEAM_SHARED")     # newer releases fill these too, and refuse modules without them
_TYPES = {"int32": "i32", "int64": "i64", "pointer": "ptr", "": "void"}
_NEEDED = ("rocshmem_my_pe", "rocshmem_putmem_signal_nbi_wg", "rocshmem_quiet", "rocshmem_uint64_wait_until")

_HEAD = """; Made by triton_dist from its table of SHMEM functions.
target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
"""
# The empty assembly keeps the teams in every module that calls a row.
_KEEP = """
define internal void @tdist_rocshmem_keep() alwaysinline nounwind {{
{kept}  ret void
}}
"""
_ALL = """
define {result} @{symbol}({parameters}) alwaysinline convergent nounwind {{
  call void @tdist_rocshmem_keep()
{body}}}
"""
# A barrier does not wait for the stores of the other waves, and LLVM 22 may leave out the wait after a write-back: both waits
# are assembly, as in device.ll. What the call has brought is loaded past stale caches.
_TOGETHER = """
define internal {result} @{raw}({parameters}) alwaysinline convergent nounwind {{
{body}}}
define i32 @{symbol}({parameters}) alwaysinline convergent nounwind {{
entry:
  call void @tdist_rocshmem_keep()
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{{memory}}"()
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %mine = icmp ult i32 %thread, {threads}
  br i1 %mine, label %act, label %done
act:
  fence release
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{{memory}}"()
  %r = call {result} @{raw}({arguments})
  br label %done
done:
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{{memory}}"()
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence acquire
  ret i32 0
}}
"""
# In kernels of threads: by whoever calls it, without barriers of the program.
_EACH = """
define i32 @{symbol}({parameters}) alwaysinline convergent nounwind {{
  call void @tdist_rocshmem_keep()
  fence release
  call void asm sideeffect "s_waitcnt vmcnt(0)", "~{{memory}}"()
  %r = call {result} @{raw}({arguments})
  fence acquire
  ret i32 0
}}
"""
_THREADS = {"thread": 1, "warp": 64, "block": 1024}
# rocSHMEM numbers comparisons EQ NE GT GE LT LE, the rows EQ NE GT LE LT GE. Its wait gives no value, so the flag is read again.
_WAIT = """  %p = inttoptr i64 %a0 to ptr
  %le = icmp eq i32 %a1, 3
  %ge = icmp eq i32 %a1, 5
  %one = select i1 %ge, i32 3, i32 %a1
  %cmp = select i1 %le, i32 5, i32 %one
  call void @rocshmem_uint64_wait_until(ptr %p, i32 %cmp, i64 %a2)
  %v = load atomic i64, ptr %p acquire, align 8
  ret i64 %v
"""
_SIGNAL = """  %p = inttoptr i64 %a0 to ptr
  %set = icmp eq i32 %a2, 9
  br i1 %set, label %store, label %add
store:
  call void @rocshmem_ulong_atomic_set(ptr %p, i64 %a1, i32 %a3)
  ret i32 0
add:
  call void @rocshmem_ulong_atomic_add(ptr %p, i64 %a1, i32 %a3)
  ret i32 0
"""
_SPECIAL = {"signal_wait_until": (_WAIT, {"rocshmem_uint64_wait_until": ("void", "ptr, i32, i64")}),
            "signal_op": (_SIGNAL, {f"rocshmem_ulong_atomic_{name}": ("void", "ptr, i64, i32") for name in ("set", "add")})}


def _body(row) -> tuple[str, dict]:
    """(LLVM IR that takes a row's arguments and calls rocSHMEM's function, {function: (result, parameters)} that it calls)."""
    if row.stem in _SPECIAL:
        return _SPECIAL[row.stem]
    lines, values = [], []
    for i, (name, ty) in enumerate(zip(row.params, row.args)):
        kind, value, ty = shmem_abi.PARAMETERS[name][0], f"%a{i}", _TYPES[ty]
        if name == "size":
            lines.append(f"%n{i} = mul i64 {values[-1][1]}, {value}")
            values[-1] = "i64", f"%n{i}"
            continue
        if kind in ("pointer", "flag"):
            lines.append(f"%p{i} = inttoptr i64 {value} to ptr")
            ty, value = "ptr", f"%p{i}"
        elif kind == "signal_op":                       # 9 and 10 mean set and add in the rows, 0 and 1 in rocSHMEM
            lines.append(f"%s{i} = sub i32 {value}, 9")
            value = f"%s{i}"
        values.append((ty, value))
    result = _TYPES[row.c_result]
    function = function_of(row)
    call = f"call {result} @{function}({', '.join(map(' '.join, values))})"
    lines.append(call if result == "void" else f"%r = {call}")
    if result == "ptr":
        lines += ["%i = ptrtoint ptr %r to i64", "ret i64 %i"]
    else:
        lines.append("ret i32 0" if result == "void" else f"ret {result} %r")
    return "".join(f"  {line}\n" for line in lines), {function: (result, ", ".join(ty for ty, _ in values))}


def text(teams: Sequence[str] = ()) -> str:
    """LLVM IR of all rows. Its first line names those that rocSHMEM has no function for. teams: those of TEAMS that it has."""
    called: dict = {}
    bodies = []
    for row in rows():
        body, functions = _body(row)
        called.update(functions)
        types = [_TYPES[ty] for ty in row.args]
        parameters = ", ".join(f"{ty} %a{i}" for i, ty in enumerate(types))
        words = dict(raw=row.symbol.replace(shmem_abi.LIBRARY, "tdist_rocshmem", 1), result=_TYPES[row.result],
                     parameters=parameters, arguments=parameters, body=body, threads=_THREADS.get(row.caller))
        bodies.append((_ALL if row.caller in ("all", "each") else _TOGETHER).format(symbol=row.symbol, **words))
        if row.caller in shmem_abi.EACH_MAY:
            bodies.append(_EACH.format(symbol=row.symbol + shmem_abi.EACH, **words))
    globals_ = "".join(f"@{name} = external addrspace(1) global i64\n" for name in teams)
    keep = _KEEP.format(kept="".join(f'  call void asm sideeffect "", "s"(ptr addrspace(1) @{name})\n' for name in teams))
    declared = "".join(f"declare {result} @{name}({types})\n" for name, (result, types) in sorted(called.items()))
    return f"{Statement('amd', lacks()).line()}\n{_HEAD}{globals_}{declared}{keep}{''.join(bodies)}"


def teams_of(bitcode: Path) -> tuple:
    """Those of TEAMS that a file of rocSHMEM's has under their C names: a C++ name has its length before it."""
    raw = bitcode.read_bytes()
    return tuple(name for name in TEAMS if re.search(rf"(?<!{len(name)}){name}".encode(), raw))


def find_bitcode(architecture: str) -> Path:
    """rocSHMEM's device bitcode for `architecture` ("gfx942"): lib/librocshmem_device_<architecture>.bc under ROCSHMEM_HOME,
    ROCM_PATH or /opt/rocm. Raises UnsupportedFeature where there is none, or it is not rocSHMEM's."""
    if architecture not in ARCHITECTURES:
        raise UnsupportedFeature(f"SHMEM calls on {architecture}: expected one of {', '.join(ARCHITECTURES)}")
    folders = [Path(os.environ[name]) for name in ("ROCSHMEM_HOME", "ROCM_PATH") if os.environ.get(name)] or [Path("/opt/rocm")]
    for folder in folders:
        path = folder / "lib" / f"librocshmem_device_{architecture}.bc"
        if path.is_file():
            raw = path.read_bytes()
            missing = [name for name in (*_NEEDED, STATE) if name.encode() not in raw]
            if missing:
                raise UnsupportedFeature(f"{path}: expected rocSHMEM's device bitcode with C names, found none of "
                                         f"{', '.join(missing)}; build a newer rocSHMEM (its target rocshmem_device_bitcode)")
            return path
    raise UnsupportedFeature(f"rocSHMEM's device bitcode: found no lib/librocshmem_device_{architecture}.bc in "
                             f"{', '.join(map(str, folders))}; build its target rocshmem_device_bitcode, or set ROCSHMEM_HOME")


@functools.cache
def rows_library(teams: tuple) -> str:
    """Path of the library of rows. teams: as of `teams_of`."""
    made = text(teams)
    return cached(cache_dir() / "device", f"tdist_shmem_amd_{hashlib.sha256(made.encode()).hexdigest()[:16]}.ll", made)


def libraries(architecture: str) -> dict[str, str]:
    """What a kernel links to call libshmem_device: {key of extern_libs: path}, in this order."""
    bitcode = find_bitcode(architecture)
    return {shmem_abi.LIBRARY: rows_library(teams_of(bitcode)), BITCODE: str(bitcode)}
