# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A stand-in for rocSHMEM's device bitcode: the C names that the rows call, with the published parameters, and bodies that only
leave a mark in the assembly."""
from pathlib import Path

_HEAD = """target triple = "amdgcn-amd-amdhsa"
@ROCSHMEM_CTX_DEFAULT = addrspace(1) externally_initialized global [16 x i8] zeroinitializer, align 16
"""
_TEAM = "@{name} = addrspace(1) externally_initialized global i64 0, align 8\n"
TEAMS = {"C": ("ROCSHMEM_TEAM_WORLD", "ROCSHMEM_TEAM_SHARED"),
         "C++": ("_ZN8rocshmem19ROCSHMEM_TEAM_WORLDE", "_ZN8rocshmem20ROCSHMEM_TEAM_SHAREDE")}
_BODY = """
define {result} @{name}({parameters}) convergent alwaysinline {{
  %state = load volatile i64, ptr addrspace(1) @ROCSHMEM_CTX_DEFAULT
  call void asm sideeffect "; MARK {name} {places}", "v{constraints}"(i64 %state{values})
  ret {result}{value}
}}
"""
_SCOPED = {"": "", "_wave": "", "_wg": ""}
_MOVE, _SIGNAL = "ptr ptr i64 i32", "ptr ptr i64 ptr i64 i32 i32"
# Of rocshmem.h and rocshmem_RMA.hpp, rocshmem_SIG_OP.hpp: dest, source, bytes[, sig_addr, signal, sig_op], pe.
PUBLISHED = {
    "rocshmem_my_pe": ("i32", ""), "rocshmem_n_pes": ("i32", ""), "rocshmem_ptr": ("ptr", "ptr i32"),
    "rocshmem_quiet": ("void", ""), "rocshmem_fence": ("void", ""), "rocshmem_int_p": ("void", "ptr i32 i32"),
    "rocshmem_ulong_put_signal": ("void", _SIGNAL), "rocshmem_ulong_atomic_set": ("void", "ptr i64 i32"),
    "rocshmem_ulong_atomic_add": ("void", "ptr i64 i32"), "rocshmem_uint64_wait_until": ("void", "ptr i32 i64"),
    **{f"rocshmem_{name}{suffix}": ("void", "") for name in ("barrier_all", "sync_all") for suffix in _SCOPED},
    **{f"rocshmem_{name}{suffix}": ("void", _MOVE) for name in ("getmem", "getmem_nbi", "putmem", "putmem_nbi")
       for suffix in _SCOPED},
    **{f"rocshmem_{name}{suffix}": ("void", _SIGNAL) for name in ("putmem_signal", "putmem_signal_nbi") for suffix in _SCOPED},
}


def write(home: Path, architectures=("gfx90a", "gfx942", "gfx950"), without="", teams="C") -> None:
    """Writes home/lib/librocshmem_device_<architecture>.bc with all functions but `without`. teams: how TEAMS are named."""
    text = _HEAD + "".join(_TEAM.format(name=name) for name in TEAMS.get(teams, ()))
    for name, (result, types) in PUBLISHED.items():
        types = types.split()
        if name != without:
            text += _BODY.format(
                result=result, name=name, parameters=", ".join(f"{ty} %{i}" for i, ty in enumerate(types)),
                places=" ".join(f"${i + 1}" for i in range(len(types))), constraints=",v" * len(types),
                values="".join(f", {ty} %{i}" for i, ty in enumerate(types)),
                value={"void": "", "i32": " 41", "ptr": " inttoptr (i64 4096 to ptr)"}[result])
    (home / "lib").mkdir(parents=True, exist_ok=True)
    for architecture in architectures:
        (home / "lib" / f"librocshmem_device_{architecture}.bc").write_text(text)
