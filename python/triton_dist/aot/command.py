# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist aot`: compiles kernels into a C library. Needs no GPU."""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Sequence

from triton_dist.aot.kernels import compile_all, read_list, recorded
from triton_dist.aot.library import LIBRARY, check_folder, command_of, compile_library, write
from triton_dist.aot.targets import parse_targets
from triton_dist.backends.gpu.prebuilt import default_folder
from triton_dist.cli.status import status_of

EVERY_TARGET = "cuda:80,cuda:90,cuda:100,hip:gfx942"


def main(words: Sequence[str]) -> int:
    """Entry point: 0 where the library has been built, 1 where it could not be, 2 for words that make no sense."""
    args = _parser().parse_args(words)
    return status_of("aot", lambda: _build(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-dist aot",
        description="Compiles kernels, without a GPU, into a C library that "
        "needs neither Python nor a CUDA toolkit. docs/aot.md explains it.",
    )
    parser.add_argument(
        "kernels",
        nargs="+",
        metavar="KERNEL",
        help="module:name or path.py:name of a kernel with @aot_compile_spaces, @FILE with one a line, or @FILE.jsonl "
        "of recorded launches",
    )
    parser.add_argument(
        "--target", default=EVERY_TARGET, help=f"comma list of vendor:architecture (default {EVERY_TARGET})"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=default_folder(),
        help="folder of the library, which is written anew (default %(default)s, where USE_TRITON_DISTRIBUTED_AOT=1 looks)",
    )
    parser.add_argument(
        "--compiler", default=os.environ.get("CC") or "cc", help="C compiler; 'none' writes the sources only"
    )
    parser.add_argument(
        "--jobs", "-j", type=int, default=os.cpu_count() or 1, help="processes that compile (default %(default)s)"
    )
    return parser


def _build(args: argparse.Namespace) -> int:
    targets, kernels = parse_targets(args.target), []
    check_folder(args.out)  # before minutes of compiling
    if args.compiler != "none":
        command_of(args.compiler)
    for word in args.kernels:
        path = Path(word[1:])
        if word.startswith("@") and path.suffix == ".jsonl":
            kernels += recorded(path)
        else:
            kernels += read_list(path) if word.startswith("@") else [word]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TRITON_CACHE_DIR", cache)  # a build leaves nothing behind in the user's
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        built = compile_all(kernels, targets, args.jobs, lambda line: print(line, flush=True))
    compiled = time.perf_counter()
    variants = sum(len(found) for _, found in built.values())
    print(
        f"{args.out}: {len(built)} kernels, {variants} variants for {', '.join(map(str, targets))} in "
        f"{compiled - start:.0f} s",
        flush=True,
    )
    if args.compiler == "none":
        write(args.out, built)
        return 0
    write(args.out, built, lambda folder: compile_library(folder, args.compiler, jobs=args.jobs))
    made = args.out / LIBRARY
    print(f"{made}: {made.stat().st_size / 1e6:.1f} MB, compiled in {time.perf_counter() - compiled:.1f} s", flush=True)
    return 0
