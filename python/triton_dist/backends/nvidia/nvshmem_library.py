# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The SHMEM rows over NVSHMEM: its device bitcode cut down to what the rows call, as text that Triton links.

NVSHMEM ships some 30 MB of bitcode, which costs seconds in every kernel's compilation. Triton's own LLVM links it once into
a module of one `tdist_nvshmem_*` function a row, optimises, and prints what is left (about 100 KB). Behind that stand the
`tdist_shmem_*` functions: a CTA barrier, the threads that must call, a CTA barrier. The file's first line names the rows that
it has not: NVSHMEM has no such function, or its code needs a newer GPU.
"""
import functools
import hashlib
import importlib.util
import os
import re
import tempfile
from pathlib import Path

import triton

from triton_dist.backends.nvidia import nvshmem_functions
from triton_dist.backends.nvidia.nvshmem_functions import function_of, rows
from triton_dist.language import _linked, abi, shmem_abi
from triton_dist.runtime.environment import cache_dir
from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.files import cached

_TYPES = {"int32": "i32", "int64": "i64", "pointer": "!llvm.ptr", "": "()"}
_TRIPLE = "nvptx64-nvidia-cuda"
_VERSION = re.compile(r"@nvshmemi_device_lib_version_d = .*\{ i32 (\d+), i32 (\d+), i32 (\d+) \}")
_MULTICAST = 90             # from this capability on GPUs have multimem instructions
_TOO_OLD = "this NVSHMEM's code of it needs multicast instructions, which the GPU has not (sm_90 is the first that has)"
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_THREAD = "llvm.nvvm.read.ptx.sreg.tid.x"

# The empty assembly keeps the version in every module that calls a row: the host looks for it there, no code does.
_ALL = """
define {result} @{symbol}({parameters}) alwaysinline convergent nounwind {{
  call void asm sideeffect "", "l"(ptr addrspacecast (ptr addrspace(4) @nvshmemi_device_lib_version_d to ptr))
  %r = call {result} @{raw}({parameters})
  ret {result} %r
}}
"""
_TOGETHER = """
define i32 @{symbol}({parameters}) alwaysinline convergent nounwind {{
entry:
  call void asm sideeffect "", "l"(ptr addrspacecast (ptr addrspace(4) @nvshmemi_device_lib_version_d to ptr))
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %thread = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %mine = icmp ult i32 %thread, {threads}
  br i1 %mine, label %act, label %done
act:
  %r = call {result} @{raw}({parameters})
  br label %done
done:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret i32 0
}}
"""
_THREADS = {"thread": 1, "warp": 32, "block": 1024}


def _raw(row) -> str:
    return row.symbol.replace(shmem_abi.LIBRARY, "tdist_nvshmem", 1)


def _root(row) -> str:
    """MLIR of a function that takes a row's arguments and calls NVSHMEM's: pointers made, sizes multiplied."""
    lines, types, values = [], [], []
    for i, (name, ty) in enumerate(zip(row.params, row.args)):
        kind, value = shmem_abi.PARAMETERS[name][0], f"%a{i}"
        if name == "size":
            lines.append(f"%n{i} = llvm.mul {values[-1]}, {value} : i64")
            values[-1] = f"%n{i}"
            continue
        if kind in ("pointer", "flag"):
            lines.append(f"%p{i} = llvm.inttoptr {value} : i64 to !llvm.ptr")
            value, ty = f"%p{i}", "pointer"
        types.append(_TYPES[ty])
        values.append(value)
    c_result, result = _TYPES[row.c_result], _TYPES[row.result]
    bind = "%r = " if row.c_result else ""
    lines.append(f"{bind}llvm.call @{function_of(row)}({', '.join(values)}) : ({', '.join(types)}) -> {c_result}")
    if row.c_result == "pointer":
        lines += ["%i = llvm.ptrtoint %r : !llvm.ptr to i64", "llvm.return %i : i64"]
    elif row.c_result:
        lines.append(f"llvm.return %r : {result}")
    else:
        lines += ["%z = llvm.mlir.constant(0 : i32) : i32", "llvm.return %z : i32"]
    parameters = ", ".join(f"%a{i}: {_TYPES[ty]}" for i, ty in enumerate(row.args))
    declared = f"  llvm.func @{function_of(row)}({', '.join(types)}){f' -> {c_result}' if row.c_result else ''}\n"
    return (f"{declared}  llvm.func @{_raw(row)}({parameters}) -> {result} attributes {{passthrough = [\"convergent\", "
            f"\"alwaysinline\"]}} {{\n    " + "\n    ".join(lines) + "\n  }\n")


def _guarded(row) -> str:
    """LLVM IR of a row: its raw function, called by the threads that must."""
    parameters = ", ".join(f"{_TYPES[ty]} %a{i}" for i, ty in enumerate(row.args))
    template = _ALL if row.caller in ("all", "each") else _TOGETHER
    words = dict(raw=_raw(row), parameters=parameters, result=_TYPES[row.result], threads=_THREADS.get(row.caller))
    each = _ALL.format(symbol=row.symbol + shmem_abi.EACH, **words) if row.caller in shmem_abi.EACH_MAY else ""
    return template.format(symbol=row.symbol, **words) + each


def slim(bitcode: str, capability: int) -> tuple[str, str]:
    """(text, version): the library of all rows over a file of NVSHMEM's device bitcode, and that file's version.

    Raises UnsupportedFeature where Triton's LLVM cannot read the file or the file lacks a row's function."""
    from triton_dist.compat.nvidia import compiler, ir, llvm, nvidia
    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write("module {\n" + "".join(_root(row) for row in rows()) + "}\n")
        file.flush()
        roots = ir.parse_mlir_module(file.name, context)
    llvm.init_targets()
    lived = llvm.context()
    module = llvm.to_module(roots, lived)
    flags = []                                       # pointers into shared and constant memory have 32 bits, as in kernels:
    if hasattr(nvidia, "set_short_ptr"):
        nvidia.set_short_ptr()                       # Triton 3.6
    else:
        flags.append(compiler.get_llvm_flags())      # Triton 3.9
    llvm.attach_datalayout(module, _TRIPLE, f"sm_{capability}", "", *flags)
    try:
        llvm.link_extern_libs(module, [bitcode])
    except (RuntimeError, ValueError) as error:
        raise UnsupportedFeature(f"{bitcode}: Triton {triton.__version__} cannot read it ({error}), it was made by a newer "
                                 "compiler; install an NVSHMEM that this Triton reads (docs/shmem.md)") from error
    llvm.optimize_module(module, llvm.OPTIMIZE_O3)
    text = str(module)
    del module, lived
    missing = [function_of(row) for row in rows() if re.search(rf"^declare [^\n]*@{function_of(row)}\(", text, re.M)]
    found = _VERSION.search(text)
    if missing or found is None:
        raise UnsupportedFeature(f"{bitcode}: expected NVSHMEM's device library, found none of its "
                                 f"{'version' if found is None else ', '.join(missing)}; NVSHMEM 3.3 or newer is needed")
    # What this list names would go into every kernel; the rows above name what they need.
    text = re.sub(r"^@llvm\.compiler\.used = .*\n", "", text, flags=re.M)
    intrinsics = {_BARRIER: f"void @{_BARRIER}(i32) convergent", _THREAD: f"i32 @{_THREAD}()"}
    declared = [f"declare {line}\n" for name, line in intrinsics.items() if f" @{name}(" not in text]
    lacking = _with_multicast(text) if capability < _MULTICAST else set()
    refused = {**nvshmem_functions.lacks(), _TOO_OLD: sorted(row.symbol for row in rows() if _raw(row) in lacking)}
    bodies = "".join(_guarded(row) for row in rows() if _raw(row) not in lacking)
    return f"{_linked.Statement('nvidia', refused).line()}\n{text}{''.join(declared)}{bodies}", ".".join(found.groups())


def _with_multicast(text: str) -> set:
    """Names of the functions in LLVM IR that have multimem instructions, or call such a function."""
    bodies = dict(re.findall(r"^define [^\n]*?@([\w.$]+)\((.*?)^}", text, re.M | re.S))
    callers: dict = {}
    for name, body in bodies.items():
        for callee in re.findall(r"call [^\n]*?@([\w.$]+)\(", body):
            callers.setdefault(callee, set()).add(name)
    found, waiting = set(), [name for name, body in bodies.items() if "multimem." in body]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += callers.get(name, ())
    return found


def find_bitcode(capability: int) -> Path:
    """NVSHMEM's device bitcode for GPUs of `capability` (90 = sm_90): under NVSHMEM_HOME, or in the pip wheel.

    One file for all up to 3.6; from 3.7 one for each architecture; the newest that the GPU can run is taken.
    Raises UnsupportedFeature where there is none."""
    folders = [Path(os.environ["NVSHMEM_HOME"])] if os.environ.get("NVSHMEM_HOME") else _wheels()
    for folder in folders:
        lib, by_arch = folder / "lib", {}
        if (lib / "libnvshmem_device.bc").is_file():
            return lib / "libnvshmem_device.bc"
        for path in lib.glob("libnvshmem_device_sm_*.bc"):
            by_arch[int(path.stem.rsplit("_", 1)[1])] = path
        fitting = [arch for arch in by_arch if arch <= capability]
        if fitting:
            return by_arch[max(fitting)]
    where = ", ".join(map(str, folders)) or "any package"
    raise UnsupportedFeature(f"NVSHMEM's device bitcode for sm_{capability}: found none in {where}; install the extra "
                             "nvshmem-cu12 or nvshmem-cu13, or set NVSHMEM_HOME")


def _wheels() -> list:
    try:
        spec = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        spec = None
    return [Path(folder) for folder in spec.submodule_search_locations] if spec else []


@functools.cache
def library(capability: int) -> tuple[str, str]:
    """(path, version) of the library for GPUs of `capability`, made unless the cache has it.

    Cached by the bitcode's content, the architecture, the rows, and the Triton that wrote it."""
    bitcode = find_bitcode(capability)
    key = hashlib.sha256(bitcode.read_bytes())
    for source in (__file__, nvshmem_functions.__file__, _linked.__file__, abi.__file__, shmem_abi.__file__):
        key.update(Path(source).read_bytes())
    key.update(f"{capability} {triton.__version__}".encode())
    folder, tail = cache_dir() / "device", f"_sm{capability}_{key.hexdigest()[:16]}.ll"
    for path in folder.glob(f"tdist_shmem_*{tail}"):
        return str(path), path.name.removesuffix(tail).removeprefix("tdist_shmem_")
    text, version = slim(str(bitcode), capability)
    return cached(folder, f"tdist_shmem_{version}{tail}", text), version
