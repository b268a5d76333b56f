# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is to be compiled ahead of time: spaces of a kernel, and the variants that a space stands for."""

import re
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from triton_dist.runtime.errors import InvalidArgument

_NAME = re.compile(r"%(\w+)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
HINTS = ("16", "1")
SCALARS = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "fp16", "bf16", "fp32", "fp64")


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel.

    space: the public C name, which fixes all types but those of constexprs.
    types: declared type of each parameter by name, in order, in Triton's words ("*bf16", "i32", "constexpr", "tensordesc<...>").
    hints: 16 (a multiple of it) or 1 (equal to it), by the name of the parameter.
    constexprs: value of each constexpr parameter by name.
    options: what the launch of a Triton kernel takes beside its parameters: num_warps, num_stages, launch_cooperative_grid, ...
    grid: three expressions (aot/grid.py), or None where the caller gives the grid.
    """

    space: str
    types: dict
    hints: dict
    constexprs: dict
    options: dict
    grid: tuple | None = None

    @property
    def signature(self) -> dict:
        """`types` with what is equal to 1 as a constexpr, which is how Triton has it."""
        return {name: "constexpr" if self.hints.get(name) == 1 else kind for name, kind in self.types.items()}

    @property
    def constants(self) -> dict:
        """`constexprs` and the parameters that are equal to 1."""
        return {**self.constexprs, **{name: 1 for name, hint in self.hints.items() if hint == 1}}


@dataclass(frozen=True)
class Space:
    """A public C name of a kernel: its signature, its grid, and a dict of constexprs and options for each variant.

    targets: words such as "cuda" or "cuda:90" that a target has to begin with; all targets where there are none.
    """

    name: str
    signature: Any
    grid: Sequence[str] | None
    infos: list = field(default_factory=list)
    targets: tuple = ()


def aot_compile_spaces(spaces: Mapping[str, Mapping], name: str | None = None) -> Callable[[Any], Any]:
    """Decorator that declares how a kernel is compiled ahead of time.

    It stands above `triton.jit`, `gluon.jit` or `triton_dist.jit`.

    The signature of a space has one entry for each parameter of the kernel, separated by commas. An entry is `%NAME` for a
    constexpr, or a type: `*fp16`, `i32`, `fp32`, `tensordesc<bf16[%M, %K]>`. `%NAME` inside of a type stands for the value of
    that constexpr. A hint may follow the type: `:16` for multiples of 16, `:1` for the value 1. With several hints, as in
    `:16|1|` (16, 1, or anything), a variant is built for each combination.

    Args:
        spaces: for each public C name a dict. Its "signature" is the string above, or a function of an info that returns one.
            Its "grid" has three expressions over the parameters and constexprs; without it the caller passes the grid. Its
            "triton_algo_infos" is a list of dicts, one for each variant, with a value for every constexpr, num_warps,
            num_stages and other launch options. A constexpr that is no number or string, such as a layout, has to follow from
            the others. "targets", in an info or beside the infos, is a list of words such as "cuda:90" or "hip": it is
            built for targets that begin with one of them.
        name: what C calls the kernel, under which all its spaces can be found; None: the name of its function.

    Returns:
        The kernel as it was.

    Raises:
        InvalidArgument: there is no jit function below, or a space cannot be compiled.

    Example:
        @aot_compile_spaces({"add_fp32": {
            "signature": "*fp32:16, *fp32:16, *fp32:16, i32, %BLOCK",
            "grid": ["(n + %BLOCK - 1) / %BLOCK", "1", "1"],
            "triton_algo_infos": [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 256, "num_warps": 2}]}})
        @triton.jit
        def add(x, y, out, n, BLOCK: tl.constexpr): ...
    """
    found = [_space(name, dict(given)) for name, given in spaces.items()]

    def declare(kernel: Any) -> Any:
        if not hasattr(kernel, "arg_names"):
            raise InvalidArgument(
                f"aot_compile_spaces: expected a jit function, found {kernel!r}; put it above the jit decorator"
            )
        for space in found:
            variants_of(kernel, space)  # refuses now what cannot be compiled later
        if name is not None:
            kernel.__dict__["_aot_name"] = name
        kernel.__dict__.setdefault("_aot_spaces", []).extend(found)
        return kernel

    return declare


def spaces_of(kernel: Any) -> list[Space]:
    """What `aot_compile_spaces` has declared of a kernel."""
    return list(getattr(kernel, "_aot_spaces", ()))


def name_of(kernel: Any) -> str:
    """What C calls a kernel."""
    return getattr(kernel, "_aot_name", kernel.fn.__name__)


def variants_of(kernel: Any, space: Space, target: str | None = None) -> list[Variant]:
    """The variants of a space of `kernel`, each once: those for `target`, or all.

    Raises InvalidArgument for a declaration that does not fit the kernel.
    """
    found: list[Variant] = []
    for given in space.infos:
        info = {key: value for key, value in given.items() if key != "targets"}
        words = given.get("targets", space.targets)
        if target is not None and words and not any(target.startswith(word) for word in words):
            continue
        for variant in _variants(kernel, space, info):
            if variant not in found:
                found.append(variant)
    return found


def _space(name: str, given: dict) -> Space:
    if not _IDENTIFIER.match(name):
        raise InvalidArgument(f"aot_compile_spaces: expected a C name, found {name!r}")
    unknown = set(given) - {"signature", "grid", "triton_algo_infos", "targets"}
    if unknown or "signature" not in given or not given.get("triton_algo_infos"):
        raise InvalidArgument(f"{name}: expected signature, triton_algo_infos and maybe grid, found {sorted(given)}")
    grid = given.get("grid")
    if grid is not None and len(grid) != 3:
        raise InvalidArgument(f"{name}: expected a grid of three expressions, found {grid!r}")
    return Space(
        name,
        given["signature"],
        None if grid is None else tuple(map(str, grid)),
        list(given["triton_algo_infos"]),
        tuple(given.get("targets", ())),
    )


def split(text: str) -> list[str]:
    """The entries of a signature: split at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _variants(kernel: Any, space: Space, info: Mapping) -> list[Variant]:
    text = space.signature(info) if callable(space.signature) else space.signature
    entries, names = split(text), list(kernel.arg_names)
    if len(entries) != len(names):
        raise InvalidArgument(
            f"{space.name}: expected {len(names)} entries, one for each of {', '.join(names)}; found {len(entries)}"
        )
    signature, constexprs, choices = {}, {}, {}
    for name, entry in zip(names, entries):
        kind, _, hint = _hinted(entry)
        if kind.startswith("%"):
            signature[name], constexprs[name] = "constexpr", _value(space, info, kind[1:])
            continue
        kind = _NAME.sub(lambda found: str(_value(space, info, found[1])), kind)
        if not (kind.startswith(("*", "tensordesc<")) or kind in SCALARS):
            raise InvalidArgument(
                f"{space.name}: {name}: expected a type such as *bf16, i32 or tensordesc<...>, found {kind!r}"
            )
        signature[name] = _with_layout(kernel, kind)
        choices[name] = [h.strip() for h in hint.split("|")]
        wrong = [h for h in choices[name] if h and (h not in HINTS or not (kind.startswith("*") or kind[1:].isdigit()))]
        if wrong or ("1" in choices[name] and kind.startswith("*")):
            raise InvalidArgument(f"{space.name}: {name}: expected a hint of 16, or 1 for an integer, found {entry!r}")
    used = {found for entry in entries for found in _NAME.findall(entry)}
    options = {name: value for name, value in info.items() if name not in used}
    if set(options) & set(names):
        raise InvalidArgument(
            f"{space.name}: {sorted(set(options) & set(names))} are parameters, but the signature has no %NAME for them"
        )
    grid = (
        None
        if space.grid is None
        else tuple(_NAME.sub(lambda found: str(_value(space, info, found[1])), e) for e in space.grid)
    )
    return [Variant(space.name, signature, hints, constexprs, options, grid) for hints in _combinations(choices)]


def _hinted(entry: str) -> tuple[str, str, str]:
    """(type, ":", hint) of an entry; a colon inside of brackets belongs to the type."""
    head, colon, tail = entry.rpartition(":")
    return (head.strip(), colon, tail) if colon and not set(tail) & set(">)]") else (entry, "", "")


def _combinations(choices: dict) -> list[dict]:
    found: list[dict] = [{}]
    for name, hints in choices.items():
        found = [{**one, **({name: int(hint)} if hint else {})} for hint in hints for one in found]
    return found


def _value(space: Space, info: Mapping, name: str) -> Any:
    if name not in info:
        raise InvalidArgument(f"{space.name}: triton_algo_infos: expected a value for {name}, found {sorted(info)}")
    return info[name]


def _with_layout(kernel: Any, kind: str) -> str:
    """A Gluon kernel's descriptor says how its box lies in shared memory; where a signature does not say it, as is usual."""
    found = re.fullmatch(r"tensordesc<(\w+)\[([^\]]*)\]>", kind.replace(" ", ""))
    if found is None or not kernel.is_gluon():
        return kind
    from triton.experimental.gluon import language as gl

    dtypes = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32, "i32": gl.int32, "i8": gl.int8, "u8": gl.uint8}
    block = [int(size) for size in found[2].split(",")]
    layout = gl.NVMMASharedLayout.get_default_for(block, dtypes[found[1]])
    return f"tensordesc<{found[1]}[{','.join(map(str, block))}],{layout!r}>"
