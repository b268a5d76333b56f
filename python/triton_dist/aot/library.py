# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes a library's folder: generated sources, the runtime's sources, a manifest, and the files that build them."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Mapping, Sequence

import triton

import triton_dist
from triton_dist.aot import emit
from triton_dist.aot.build import Built
from triton_dist.runtime.errors import InvalidArgument, TritonDistError

RUNTIME = Path(__file__).parent / "c"
LIBRARY = "libtriton_dist_aot.so"
FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-pedantic",
    "-Werror=implicit-function-declaration",
)
MANIFEST = "manifest.json"


def write(folder: Path, built: Mapping[str, tuple[Any, Sequence[Built]]]) -> list[Path]:
    """Writes `folder` anew. built: (kernel, its variants) by C name. Returns the C sources, without those of the runtime.

    A folder that holds something else is left alone, with an error. What is there is replaced once all has been written.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise InvalidArgument(
            f"{folder}: expected a folder that is empty, or written by this tool before; name another with --out"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        sources = _write(fresh, built)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.chmod(0o755)
        os.replace(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return [folder / path.relative_to(fresh) for path in sources]


def _write(folder: Path, built: Mapping[str, tuple[Any, Sequence[Built]]]) -> list[Path]:
    kernels, runtime = folder / "kernels", folder / "runtime"
    kernels.mkdir()
    shutil.copytree(RUNTIME, runtime, ignore=shutil.ignore_patterns("*.py", "__pycache__", "CMakeLists.txt"))
    sources = []
    for name, (kernel, variants) in built.items():
        _refuse_twins(name, variants)
        for one in variants:
            stem = kernels / emit.variant_name(one)
            sources.append(stem.with_suffix(".c"))
            sources[-1].write_text(emit.variant_source(one))
            stem.with_suffix(".h").write_text(emit.variant_header(one))
        (kernels / f"{name}.h").write_text(emit.kernel_header(name, kernel, variants))
        sources.append(kernels / f"{name}.c")
        sources[-1].write_text(emit.kernel_source(name, kernel, variants))
    sources.append(kernels / "tdist_kernels.c")
    sources[-1].write_text(emit.registry(built))
    shutil.copy(RUNTIME / "CMakeLists.txt", folder / "CMakeLists.txt")
    (folder / MANIFEST).write_text(json.dumps(manifest(built), indent=1) + "\n")
    return sources


def _refuse_twins(name: str, variants: Sequence[Built]) -> None:
    """Variants that differ only in what C cannot ask for, such as a layout."""
    seen: dict = {}
    for one in variants:
        v = one.variant
        asked = (
            str(one.target),
            tuple(map(emit.type_code, v.types.values())),
            tuple(v.hints.items()),
            tuple(emit.selectable(one).items()),
            v.space,
        )
        if asked in seen and seen[asked] != one.key:
            raise InvalidArgument(
                f"{name}: two variants of {v.space} differ only in constexprs that C cannot name; drop one, or "
                "make them spaces of their own"
            )
        seen[asked] = one.key


def manifest(built: Mapping[str, tuple[Any, Sequence[Built]]]) -> dict:
    """What is in the library, for people and for the loader."""
    return {
        "triton_dist": triton_dist.__version__,
        "triton": triton.__version__,
        "variants": [
            {
                "kernel": name,
                "function": f"{kernel.fn.__module__}:{kernel.fn.__qualname__}",
                "space": one.variant.space,
                "target": str(one.target),
                "key": one.key,
                "bytes": len(one.binary),
                "block": one.block,
                "shared": one.shared,
                "types": list(one.variant.types.values()),
                "hints": one.variant.hints,
                "options": emit.selectable(one),
                "assembler": one.assembler,
            }
            for name, (kernel, variants) in built.items()
            for one in variants
        ],
    }


def compile_library(folder: Path, compiler: str = "cc", extra: Sequence[str] = (), jobs: int = 1) -> Path:
    """Compiles the sources of `folder` into a shared library there, and returns its path. Raises TritonDistError with the
    compiler's words where it fails."""
    objects, commands = folder / "objects", []
    objects.mkdir(exist_ok=True)
    for source in sorted([*(folder / "kernels").glob("*.c"), *(folder / "runtime").glob("*.c")]):
        made = objects / f"{source.stem}.o"
        commands.append(
            [
                compiler,
                *FLAGS,
                *extra,
                f"-I{folder / 'runtime'}",
                f"-I{folder / 'kernels'}",
                "-c",
                str(source),
                "-o",
                str(made),
            ]
        )
    waiting, running = list(commands), []
    while waiting or running:
        while waiting and len(running) < max(1, jobs):
            running.append(
                (waiting[0], subprocess.Popen(waiting.pop(0), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            )
        command, process = running.pop(0)
        words, _ = process.communicate()
        if process.returncode:
            for _, other in running:
                other.wait()
            raise TritonDistError(f"{' '.join(command)}: {words}")
    made = folder / LIBRARY
    link = [
        compiler,
        *extra,
        "-shared",
        "-Wl,-z,noexecstack",
        "-Wl,-Bsymbolic",  # of two libraries in a program, each keeps to its own runtime
        "-o",
        str(made),
        *(c[-1] for c in commands),
        "-lpthread",
        "-ldl",
    ]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TritonDistError(f"{' '.join(link)}: {done.stderr}")
    shutil.rmtree(objects)
    return made
