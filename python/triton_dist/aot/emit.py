# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The text of generated C: a source and a header for each variant and for each kernel, and the list of kernels."""

import re
import struct
from typing import Any, Iterable, Sequence

from triton_dist.aot.build import Built
from triton_dist.aot.grid import to_c
from triton_dist.runtime.errors import InvalidArgument

_HEAD = """/* SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
   SPDX-License-Identifier: MIT

   Written by `triton-dist aot`: {what} */
"""
_ELEMENTS = {
    "i1": "I1",
    "i8": "I8",
    "u8": "U8",
    "i16": "I16",
    "u16": "U16",
    "i32": "I32",
    "u32": "U32",
    "i64": "I64",
    "u64": "U64",
    "fp16": "FP16",
    "bf16": "BF16",
    "fp32": "FP32",
    "fp64": "FP64",
    "fp8e4nv": "FP8E4M3",
    "fp8e5": "FP8E5M2",
}
_C_TYPES = {
    "i1": "int32_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "i16": "int16_t",
    "u16": "uint16_t",
    "i32": "int32_t",
    "u32": "uint32_t",
    "i64": "int64_t",
    "u64": "uint64_t",
    "fp16": "double",
    "bf16": "double",
    "fp32": "double",
    "fp64": "double",
}


# Names of parameters that C, C++, their compilers, or the functions written here have for something else.
_TAKEN = {
    "stream",
    "grid",
    "options",
    "values",
    "asked",
    *(
        "auto break case char const continue default do double else enum extern float for goto if inline int long register "
        "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof "
        "alignas alignof and and_eq bitand bitor bool catch char8_t char16_t char32_t class compl concept consteval constexpr "
        "constinit const_cast co_await co_return co_yield decltype delete dynamic_cast explicit export false friend mutable "
        "namespace new noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires "
        "static_assert static_cast template this thread_local throw true try typeid typename using virtual wchar_t xor xor_eq "
        "linux unix"
    ).split(),
}


def variant_name(built: Built) -> str:
    """The C name of a variant: its space, architecture, and the beginning of its key."""
    return f"{built.variant.space}__{built.target.vendor}{built.target.arch}_{built.key[:12]}"


def variant_header(built: Built) -> str:
    """Declares a variant."""
    name = variant_name(built)
    guard = f"TDIST_{name.upper()}_H"
    return (
        _HEAD.format(what=f"{built.symbol} for {built.target}.")
        + f'#ifndef {guard}\n#define {guard}\n\n#include "tdist_internal.h"\n\nextern const tdist_variant {name};\n\n#endif\n'
    )


def variant_source(built: Built) -> str:
    """Defines a variant: its binary, its parameters, and what a launch of it needs."""
    name, v = variant_name(built), built.variant
    options = {"space": v.space, **selectable(built)}
    lines = [
        _HEAD.format(what=f"{built.symbol} for {built.target}, {len(built.binary)} bytes, {built.assembler}."),
        f'#include "{name}.h"\n',
    ]
    lines.append(_array("static const uint64_t", "image", _words(built.binary), 4))
    lines.append(_array("static const uint32_t", "types", [type_code(kind) for kind in v.types.values()], 4))
    lines.append(_array("static const uint8_t", "hints", [str(v.hints.get(n, 0)) for n in v.types], 24))
    lines.append(
        _array(
            "static const tdist_param",
            "params",
            [
                f"{{TDIST_PARAM_{p.kind}, {p.source}, {_map_index(built, i) if p.kind == 'MAP' else p.index}}}"
                for i, p in enumerate(built.parameters)
            ],
            4,
        )
    )
    if options:
        lines.append(_array("static const tdist_option", "options", [_option(n, x) for n, x in options.items()], 3))
    if built.maps:
        lines.append(
            _array(
                "static const tdist_map",
                "maps",
                [
                    f"{{{m.type}, {m.element_bytes}, {m.swizzle}, {len(m.box)}, {{{', '.join(map(str, m.box))}}}}}"
                    for m in built.maps
                ],
                2,
            )
        )
    lines.append(_grid(built))
    fields = dict(
        key=f'"{built.key}"',
        name=f'"{name}"',
        symbol=f'"{built.symbol}"',
        vendor=f"TDIST_{built.target.vendor.upper()}",
        arch=f"{built.target.number:#x}" if built.target.vendor == "hip" else str(built.target.number),
        image="image",
        image_bytes=len(built.binary),
        types="types",
        hints="hints",
        options="options" if options else "NULL",
        params="params",
        maps="maps" if built.maps else "NULL",
        type_count=len(v.types),
        option_count=len(options),
        param_count=len(built.parameters),
        map_count=len(built.maps),
        hint_count=len(v.hints),
        block=built.block,
        shared=built.shared,
        clusters=built.clusters,
        scratch_bytes=built.scratch[0],
        scratch_align=built.scratch[1],
        profile_bytes=built.profile_scratch[0],
        profile_align=built.profile_scratch[1],
        cooperative=int(built.cooperative),
        overlaps=int(built.overlaps),
        uses_world=int(built.context),
        uses_nvshmem=int(built.nvshmem),
        grid="grid" if v.grid else "NULL",
        state="&state",
    )
    lines.append("static tdist_state state;\n")
    lines.append(
        f"const tdist_variant {name} = {{\n" + "".join(f"    .{key} = {value},\n" for key, value in fields.items()) + "};\n"
    )
    return "\n".join(line for line in lines if line)


def kernel_header(name: str, kernel: Any, built: Sequence[Built]) -> str:
    """Declares a kernel and, for each of its spaces, functions that launch it."""
    guard = f"TDIST_KERNEL_{name.upper()}_H"
    lines = [
        _HEAD.format(what=f"{kernel.fn.__name__}."),
        f'#ifndef {guard}\n#define {guard}\n\n#include "tdist_aot.h"\n',
        '#ifdef __cplusplus\nextern "C" {\n#endif\n',
        f"extern TDIST_API const tdist_kernel {name}_kernel;\n",
    ]
    for space, first in _spaces(built).items():
        fields = [
            f"    {'const char *' if isinstance(x, str) else 'double '}{_field(n)};" for n, x in selectable(first).items()
        ]
        lines.append(
            f"/* Which variant of {space}. */\ntypedef struct {space}_options {{\n"
            + "\n".join(fields or ["    int none;"])
            + f"\n}} {space}_options;\n"
        )
        lines.append(
            f"/* Launches {space}: the first variant whose alignments fit, or with `options` the one that was built with\n"
            "   them. Else TDIST_ERR_NOT_BUILT or TDIST_ERR_WRONG_ARCH. */"
        )
        lines.append(f"TDIST_API int {space}({_prototype(first)});")
        lines.append(f"TDIST_API int {space}_ex({_prototype(first)}, const {space}_options *options);\n")
    return "\n".join([*lines, "#ifdef __cplusplus\n}\n#endif\n#endif\n"])


def kernel_source(name: str, kernel: Any, built: Sequence[Built]) -> str:
    """Defines a kernel: its variants, in the order in which they were declared."""
    names = [variant_name(b) for b in built]
    lines = [
        _HEAD.format(what=f"{kernel.fn.__name__}, {len(names)} variants."),
        f'#include "{name}.h"\n',
        "\n".join(f'#include "{n}.h"' for n in names) + "\n",
    ]
    lines.append(_array("static const char *const", "parameters", [f'"{n}"' for n in kernel.arg_names], 8))
    lines.append(_array("static const tdist_variant *const", "variants", [f"&{n}" for n in names], 1))
    lines.append(
        f'const tdist_kernel {name}_kernel = {{"{name}", parameters, {len(kernel.arg_names)}, variants, {len(names)}}};\n'
    )
    for space, first in _spaces(built).items():
        lines.append(_functions(name, space, first))
    return "\n".join(lines)


def registry(names: Iterable[str]) -> str:
    """Lists all kernels."""
    names = list(names)
    return "\n".join(
        [
            _HEAD.format(what="all kernels of the library."),
            '#include "tdist_internal.h"\n',
            *(f'#include "{n}.h"' for n in names),
            "",
            _array("const tdist_kernel *const", "tdist_kernels", [f"&{n}_kernel" for n in names], 1),
            f"const size_t tdist_kernels_count = {len(names)};\n",
        ]
    )


def type_code(kind: str) -> str:
    """The C expression of a parameter's type."""
    if kind == "constexpr":
        return "TDIST_CONSTEXPR"
    if kind.startswith("tensordesc<"):
        element = kind.removeprefix("tensordesc<").partition("[")[0]
        return f"TDIST_TENSOR | TDIST_{_element(element)}"
    if kind.startswith("*"):
        return f"TDIST_POINTER | TDIST_{_element(kind[1:].removeprefix('k'))}"
    return f"TDIST_{_element(kind)}"


def _element(kind: str) -> str:
    if kind not in _ELEMENTS:
        raise InvalidArgument(f"type: expected one of {', '.join(_ELEMENTS)}, found {kind!r}")
    return _ELEMENTS[kind]


def selectable(built: Built) -> dict:
    """What a variant can be chosen by, by name: constexprs and options that C can write."""
    given = {**built.variant.constexprs, **built.variant.options}
    return {name: value for name, value in given.items() if isinstance(value, (bool, int, float, str))}


def _option(name: str, value: Any) -> str:
    return f'{{"{name}", "{value}", 0}}' if isinstance(value, str) else f'{{"{name}", NULL, {float(value)!r}}}'


def _words(binary: bytes) -> list[str]:
    """Words of eight bytes take a compiler an eighth of the time that bytes do."""
    padded = binary + bytes(-len(binary) % 8)
    return [f"{word:#x}u" if word < 2**32 else f"{word:#x}ull" for (word,) in struct.iter_unpack("<Q", padded)]


def _array(kind: str, name: str, items: Sequence[str], each: int) -> str:
    rows = [", ".join(items[i : i + each]) + "," for i in range(0, len(items), each)]
    align = "_Alignas(16) " if name == "image" else ""
    kind = kind.replace("static const uint64_t", f"static {align}const uint64_t")
    return f"{kind} {name}[] = {{\n" + "\n".join(f"    {row}" for row in rows) + "\n};\n"


def _map_index(built: Built, at: int) -> int:
    return sum(p.kind == "MAP" for p in built.parameters[:at])


def _grid(built: Built) -> str:
    v = built.variant
    if v.grid is None:
        return ""
    integers = {n: i for i, (n, kind) in enumerate(v.types.items()) if kind[1:].isdigit() and kind[0] in "iu"}
    texts, divisors = zip(*(to_c(expression, integers) for expression in v.grid))
    unique = dict.fromkeys(d for some in divisors for d in some if not re.fullmatch(r"INT64_C\([1-9]\d*\)", d))
    check = f"    if ({' || '.join(f'{d} == 0' for d in unique)})\n        return 1;\n" if unique else ""
    return (
        "static int grid(const tdist_value *values, int64_t sms, int64_t *grid) {\n    (void)values;\n    (void)sms;\n"
        + check
        + "".join(f"    grid[{d}] = {text};\n" for d, text in enumerate(texts))
        + "    return 0;\n}\n"
    )


def _spaces(built: Sequence[Built]) -> dict:
    found: dict = {}
    for one in built:
        found.setdefault(one.variant.space, one)
    return found


def _parameters(first: Built) -> list[tuple[int, str, str]]:
    """(position, C name, type) of the parameters that are no constexprs."""
    return [
        (i, f"{n}_" if n in _TAKEN else n, kind)
        for i, (n, kind) in enumerate(first.variant.types.items())
        if kind != "constexpr"
    ]


def _field(name: str) -> str:
    return f"{name}_" if name in _TAKEN else name


def _prototype(first: Built) -> str:
    words = ["tdist_stream stream"] + ([] if first.variant.grid else ["const uint32_t grid[3]"])
    for _, name, kind in _parameters(first):
        if kind.startswith("tensordesc<"):
            words.append(f"const tdist_tensor *{name}")
        elif kind.startswith("*"):
            words.append(f"const void *{name}")
        else:
            words.append(f"{_C_TYPES[kind]} {name}")
    return ", ".join(words)


def _functions(kernel: str, space: str, first: Built) -> str:
    values = [
        f"    values[{i}].type = TDIST_CONSTEXPR;"
        for i, kind in enumerate(first.variant.types.values())
        if kind == "constexpr"
    ]
    for i, name, kind in _parameters(first):
        member, value = "integer", name
        if kind.startswith("tensordesc<"):
            member = "tensor"
        elif kind.startswith("*"):
            member, value = "pointer", f"(void *)(uintptr_t){name}"
        elif "fp" in kind or kind == "bf16":
            member = "real"
        elif kind == "u64":
            value = f"(int64_t){name}"
        values.append(f"    values[{i}].type = {type_code(kind)};\n    values[{i}].as.{member} = {value};")
    options, count = selectable(first), len(first.variant.types)
    fields = "".join(
        f"    asked[{i}].{'text' if isinstance(x, str) else 'value'} = options->{_field(n)};\n"
        for i, (n, x) in enumerate(options.items(), 1)
    )
    table = ", ".join([f'{{"space", "{space}", 0}}', *(f'{{"{n}", NULL, 0}}' for n in options)])
    names = ["stream"] + ([] if first.variant.grid else ["grid"]) + [n for _, n, _ in _parameters(first)]
    launch = (
        f"tdist_launch_kernel(&{kernel}_kernel, stream, {'NULL' if first.variant.grid else 'grid'}, values, {count}, asked"
    )
    return (
        f"int {space}_ex({_prototype(first)}, const {space}_options *options) {{\n"
        f"    tdist_value values[{count}];\n    tdist_option asked[] = {{{table}}};\n"
        + "\n".join(values)
        + f"\n    if (options == NULL)\n        return {launch}, 1);\n"
        + fields
        + f"    return {launch}, {len(options) + 1});\n}}\n\n"
        f"int {space}({_prototype(first)}) {{\n    return {space}_ex({', '.join(names)}, NULL);\n}}\n"
    )
