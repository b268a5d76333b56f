# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes a library's folder: generated sources, the runtime's sources, a manifest, and the files that build them."""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import triton

import triton_dist
from triton_dist.aot import emit
from triton_dist.aot.build import Built
from triton_dist.cli.status import check_folder as check_writable
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


def check_folder(folder: Path) -> None:
    """Raises InvalidArgument where `folder` holds something that `write` has not written: it is left alone."""
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise InvalidArgument(
            f"{folder}: expected a folder that is empty, or written by this tool before; name another with --out"
        )


def write(
    folder: Path, built: Mapping[str, tuple[Any, Sequence[Built]]], finish: Callable[[Path], Any] = lambda fresh: None
) -> None:
    """Writes `folder` anew. What is there is replaced once all has been made, and stays where something fails.

    Args:
        folder: see `check_folder`.
        built: (kernel, its variants) by C name.
        finish: makes more of the written folder, which has another name until then.
    """
    check_folder(folder)
    folder = folder.resolve()  # a link stays one
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)) for _ in range(2))
    try:
        _write(fresh, built)
        finish(fresh)
        fresh.chmod(0o755)
        if folder.exists():
            os.replace(folder, old)
        os.replace(fresh, folder)
    finally:
        if (old / MANIFEST).exists() and not folder.exists():
            os.replace(old, folder)  # the fresh one has not taken its place
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)


def _write(folder: Path, built: Mapping[str, tuple[Any, Sequence[Built]]]) -> None:
    kernels, runtime = folder / "kernels", folder / "runtime"
    kernels.mkdir()
    shutil.copytree(RUNTIME, runtime, ignore=shutil.ignore_patterns("*.py", "__pycache__", "CMakeLists.txt"))
    for name, (kernel, variants) in built.items():
        _refuse_twins(name, variants)
        for one in variants:
            stem = kernels / emit.variant_name(one)
            stem.with_suffix(".c").write_text(emit.variant_source(one))
            stem.with_suffix(".h").write_text(emit.variant_header(one))
        (kernels / f"{name}.h").write_text(emit.kernel_header(name, kernel, variants))
        (kernels / f"{name}.c").write_text(emit.kernel_source(name, kernel, variants))
    (kernels / "tdist_kernels.c").write_text(emit.registry(built))
    shutil.copy(RUNTIME / "CMakeLists.txt", folder / "CMakeLists.txt")
    (folder / MANIFEST).write_text(json.dumps(manifest(built), indent=1) + "\n")


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


def command_of(compiler: str) -> list[str]:
    """The words of a C compiler such as "ccache gcc". Raises InvalidArgument where there is none."""
    words = shlex.split(compiler)
    if not words or shutil.which(words[0]) is None:
        raise InvalidArgument(f"--compiler (CC): found no {compiler!r}; install one, name another, or 'none' for sources")
    return words


def compile_library(folder: Path, compiler: str = "cc", extra: Sequence[str] = (), jobs: int = 1) -> Path:
    """Compiles the sources of `folder` into a shared library there, and returns its path. Raises TritonDistError with the
    compiler's words where it fails."""
    objects, commands, words = folder / "objects", [], command_of(compiler)
    objects.mkdir(exist_ok=True)
    for source in sorted([*(folder / "kernels").glob("*.c"), *(folder / "runtime").glob("*.c")]):
        made = objects / f"{source.stem}.o"
        commands.append(
            [
                *words,
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
        said, _ = process.communicate()
        if process.returncode:
            for _, other in running:
                other.communicate()  # one that is only waited for may wait for its words to be read
            raise TritonDistError(f"{' '.join(command)}: {said}")
    made = folder / LIBRARY
    link = [
        *words,
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
