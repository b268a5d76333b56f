# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton-dist dump`: what a kernel is compiled to, at any stage and for any target. Needs no GPU."""

import argparse
import ast
import importlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from triton_dist.aot.build import compile_variant
from triton_dist.aot.kernels import load
from triton_dist.aot.spaces import Variant, aot_compile_spaces, spaces_of, variants_of
from triton_dist.aot.targets import Target, parse_targets
from triton_dist.cli.status import check_folder, status_of
from triton_dist.runtime.errors import InvalidArgument, TritonDistError

OURS = ("triton_dist.aot.ours", "triton_dist.aot.samples")
EVERY_TARGET = "sm_80,sm_90,sm_100,gfx942,gfx950"
STAGES = {
    "cuda": ("ttir", "ttgir", "llir", "ptx", "cubin", "sass"),
    "hip": ("ttir", "ttgir", "llir", "amdgcn", "hsaco"),
}
_ALIKE = {"hip": {"ptx": "amdgcn", "cubin": "hsaco"}, "cuda": {"amdgcn": "ptx", "hsaco": "cubin"}}
_BINARY = ("cubin", "hsaco")

_HELP = """Prints what a kernel is compiled to. Needs no GPU.

KERNEL is one of ours (--list), or module:name or path.py:name of any jit function. A kernel that is not declared by
@aot_compile_spaces needs a --signature: a type for each parameter, in order, with :16 for what is a multiple of 16 and %NAME
for a constexpr:

    triton-dist dump mine.py:add --signature "*fp32:16, *fp32:16, *fp32:16, i32, %BLOCK" BLOCK=1024 num_warps=8 --stage ptx

NAME=VALUE sets constexprs and options of the launch (num_warps, num_stages, ...).
"""


@dataclass(frozen=True)
class Dump:
    """A kernel at one stage for one target. `code` is text, or the bytes of a binary."""

    kernel: str
    target: Target
    stage: str
    code: Any

    @property
    def file(self) -> str:
        return f"{self.kernel}.{self.target.code}.{self.stage}"


def main(words: Sequence[str]) -> int:
    """Entry point: 0, 1 where a kernel does not compile, 2 for words that make no sense."""
    args = _parser().parse_intermixed_args(words)
    return status_of("dump", lambda: _list() if args.list else _dump(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triton-dist dump", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help="see above")
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="constexprs and options")
    parser.add_argument("--list", action="store_true", help="list our kernels, and end")
    parser.add_argument(
        "--stage", default="all", help=f"one or several of {', '.join(STAGES['cuda'])}, amdgcn, hsaco, or all; where the target "
        "has another name for it (ptx, cubin: amdgcn, hsaco), that is taken (default %(default)s)"
    )
    parser.add_argument("--target", default=EVERY_TARGET, help="comma list of sm_90, gfx942 and the like (default %(default)s)")
    parser.add_argument("--signature", help="types of the parameters, see above")
    parser.add_argument(
        "--out", type=Path, help="folder for files KERNEL.TARGET.STAGE; without it one stage is printed, of one target"
    )
    parser.add_argument("--no-lines", action="store_true", help="leave out line numbers of the source")
    return parser


def _list() -> int:
    for name, kernel in ours().items():
        targets = sorted({word for space in spaces_of(kernel) for info in space.infos
                          for word in info.get("targets", space.targets)}) or ["all"]
        print(f"{name:28}{kernel.fn.__module__}:{kernel.fn.__name__}  ({', '.join(targets)})")
    return 0


def ours() -> dict[str, Any]:
    """Our kernels, by the name that the command takes."""
    found: dict = {}
    for module in OURS:
        for name, value in vars(importlib.import_module(module)).items():
            if spaces_of(value) and not any(value is known for known in found.values()):
                found[name] = value
    return dict(sorted(found.items()))


def _dump(args: argparse.Namespace) -> int:
    if args.kernel is None:
        raise InvalidArgument("expected a kernel, or --list")
    if args.out is not None:
        check_folder(args.out)
    kernel, targets = _kernel(args.kernel), parse_targets(args.target)
    if args.out is None and (len(targets) > 1 or args.stage == "all" or "," in args.stage):
        raise InvalidArgument("several stages or targets need --out FOLDER; or name one of each: --stage ttgir --target sm_90")
    given = dict(_value(word) for word in args.values)
    name = args.kernel.rpartition(":")[2]
    wanted = [(target, _stages(args.stage, target)) for target in targets]      # before anything is compiled
    for target, stages in wanted:
        for found in dump(kernel, name, target, stages, given, args.signature, lines=not args.no_lines):
            _give(found, args.out)
    return 0


def dump(kernel: Any, name: str, target: Target, stages: Sequence[str], given: dict, signature: str | None = None,
         lines: bool = True) -> list[Dump]:
    """`kernel` at `stages` for `target`.

    Args:
        given: constexprs and options, by name, in place of those that are declared.
        signature: types of the parameters; None: what is declared of the kernel.
        lines: whether the code says which line of the source it comes from.

    Raises InvalidArgument where `given` does not fit the kernel, TritonDistError where it does not compile.
    """
    variant = _variant(kernel, name, target, given, signature)
    with tempfile.TemporaryDirectory() as cache:
        try:
            compiled = compile_variant(kernel, variant, target, lines=lines, cache=cache)
        except Exception as error:      # of a compiler anything may come
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            because = "" if cause is error else f"\nbecause: {cause}"
            raise TritonDistError(f"{name} for {target.code} does not compile: {error}{because}") from error
        missing = [stage for stage in stages if stage not in (*compiled.asm, "sass")]
        if missing and len(stages) == 1:
            raise InvalidArgument(f"{name}: a Gluon kernel has no {missing[0]}; its first stage is ttgir")
        return [Dump(name, target, stage, compiled.asm[stage]) for stage in stages if stage not in missing]


def _kernel(word: str) -> Any:
    if ":" in word:
        return load(word)
    if word not in ours():
        raise InvalidArgument(f"kernel: expected module:name, path.py:name or one of {', '.join(ours())}; found {word!r}")
    return ours()[word]


def _variant(kernel: Any, name: str, target: Target, given: dict, signature: str | None) -> Variant:
    if signature is not None:
        own = type(kernel)(kernel.fn)       # beside what may be declared of the original
        space = f"dump_{name}"
        aot_compile_spaces({space: {"signature": signature, "triton_algo_infos": [dict(given)]}})(own)
        return variants_of(own, spaces_of(own)[0])[0]
    if not spaces_of(kernel):
        raise InvalidArgument(f"{name}: it needs a --signature: a type for each of {', '.join(kernel.arg_names)}")
    for space in spaces_of(kernel):
        found = variants_of(kernel, space, str(target))
        if found:
            wrong = sorted(key for key in given if key in kernel.arg_names and key not in found[0].constexprs)
            if wrong:
                raise InvalidArgument(f"{name}: {', '.join(wrong)}: no constexpr of it; those are {sorted(found[0].constexprs)}")
            constants = {key: given.get(key, value) for key, value in found[0].constexprs.items()}
            options = {**found[0].options, **{key: value for key, value in given.items() if key not in kernel.arg_names}}
            return Variant(found[0].space, found[0].types, found[0].hints, constants, options)
    raise InvalidArgument(f"{name}: it is not made for {target.code}; see triton-dist dump --list")


def _stages(text: str, target: Target) -> list[str]:
    there = STAGES[target.vendor]
    if text == "all":
        return [stage for stage in there if stage != "sass"]
    found = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        stage = _ALIKE[target.vendor].get(word, word)
        if stage not in there:
            raise InvalidArgument(f"stage: expected one of {', '.join(there)} for {target.code}, found {word!r}")
        found.append(stage)
    return found


def _value(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not name.isidentifier() or not equals:
        raise InvalidArgument(f"expected NAME=VALUE, found {word!r}")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text


def _give(found: Dump, folder: Path | None) -> None:
    binary = found.stage in _BINARY
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / found.file).write_bytes(found.code if binary else found.code.encode())
        print(folder / found.file)
    elif not binary:
        print(found.code)
    elif sys.stdout.isatty():
        raise InvalidArgument(f"{found.stage} is a binary: give --out FOLDER, or send it to a file by >")
    else:
        with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
            out.write(found.code)
