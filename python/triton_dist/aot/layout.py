# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a compiled kernel's parameter block holds, in order, and how its tensor maps are encoded."""

import re
from dataclasses import dataclass
from typing import Any

from triton_dist.aot.spaces import Variant
from triton_dist.runtime.errors import TritonDistError

# Bytes of a parameter by kind. The kinds are those of enum tdist_param_kind in c/tdist_aot.h.
SIZES = {
    "POINTER": 8,
    "BITS8": 1,
    "BITS16": 2,
    "BITS32": 4,
    "BITS64": 8,
    "HALF": 2,
    "BFLOAT": 2,
    "FLOAT": 4,
    "DOUBLE": 8,
    "MAP": 128,
    "BASE": 8,
    "SHAPE32": 4,
    "SHAPE64": 8,
    "STRIDE": 8,
    "PADDING": 1,
    "ZERO8": 1,
    "SCRATCH": 8,
    "PROFILE": 8,
}
_SCALARS = {
    "i1": "BITS8",
    "i8": "BITS8",
    "u8": "BITS8",
    "i16": "BITS16",
    "u16": "BITS16",
    "i32": "BITS32",
    "u32": "BITS32",
    "i64": "BITS64",
    "u64": "BITS64",
    "fp16": "HALF",
    "bf16": "BFLOAT",
    "fp32": "FLOAT",
    "fp64": "DOUBLE",
}
# The metadata's element types, where they are not numbered as CUtensorMapDataType is.
_HOST_TYPE = {8: 10, 9: 8, 10: 9}


@dataclass(frozen=True)
class Parameter:
    """One parameter of the binary. source: position of the kernel's parameter that it comes from. index: of the dimension."""

    kind: str
    source: int = 0
    index: int = 0


@dataclass(frozen=True)
class TensorMap:
    """What is fixed of a CUtensorMap: element type, bytes of an element, swizzle, and the box, outermost dimension first."""

    type: int
    element_bytes: int
    swizzle: int
    box: tuple


def parameters_of(variant: Variant, meta: Any) -> tuple[Parameter, ...]:
    """Parameters of the compiled kernel whose metadata is `meta`."""
    found, maps = [], list(getattr(meta, "tensordesc_meta", None) or ())
    for position, kind in enumerate(variant.signature.values()):
        if kind == "constexpr":
            continue
        if kind.startswith("tensordesc<"):
            found += _descriptor(position, kind, bool(maps), meta)
        elif kind.startswith("*"):
            found.append(Parameter("POINTER", position))
        else:
            found.append(Parameter(_SCALARS[kind], position))
    return (*found, Parameter("SCRATCH"), Parameter("PROFILE"))


def _descriptor(position: int, kind: str, has_map: bool, meta: Any) -> list[Parameter]:
    dims = range(rank_of(kind))
    shape32, strides = [Parameter("SHAPE32", position, d) for d in dims], [Parameter("STRIDE", position, d) for d in dims]
    if has_map:
        return [Parameter("MAP", position), *shape32, *strides]
    rounding = [] if tuple(map(int, meta.triton_version.split(".")[:2])) < (3, 7) else [Parameter("ZERO8", position)]
    return [
        Parameter("BASE", position),
        *(Parameter("SHAPE64", position, d) for d in dims),
        *strides,
        Parameter("PADDING", position),
        *rounding,
        *shape32,
        *strides,
    ]


def rank_of(kind: str) -> int:
    """Dimensions of a type "tensordesc<bf16[128,64],...>"."""
    return re.match(r"tensordesc<\w+\[([^\]]*)\]", kind)[1].count(",") + 1


def tensor_maps_of(meta: Any) -> tuple[TensorMap, ...]:
    """The tensor maps among the parameters, in order."""
    found = []
    for entry in getattr(meta, "tensordesc_meta", None) or ():
        if entry.get("fp4_padded") or entry.get("is_im2col"):
            raise TritonDistError(f"{meta.name}: descriptors of padded fp4, or by im2col, cannot be built ahead of time")
        kind = _HOST_TYPE.get(entry["elem_type"], entry["elem_type"])
        found.append(TensorMap(kind, entry["elem_size"], entry["swizzle"], tuple(entry["block_size"])))
    return tuple(found)


def check_against_gcn(name: str, parameters: tuple[Parameter, ...], text: str) -> None:
    """The same for AMD's assembly, whose metadata has a size for each argument. Those that begin with hidden_ are not ours."""
    head = re.search(r"\.args:(.*?)\n\s+\.group_segment_fixed_size", text, re.S)
    found = re.findall(r"\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)", head[1] if head else "")
    declared = [int(size) for size, kind in found if not kind.startswith("hidden_")]
    expected = [SIZES[parameter.kind] for parameter in parameters]
    if declared != expected:
        raise TritonDistError(f"{name}: expected parameters of {expected} bytes, its assembly declares {declared}")


def check_against_ptx(name: str, parameters: tuple[Parameter, ...], text: str) -> None:
    """Raises TritonDistError where the assembly declares other parameters: of another Triton, say."""
    head = re.search(r"\.entry " + re.escape(name) + r"\((.*?)\)", text, re.S)[1]
    declared = [
        int(size or 0) or int(bits) // 8
        for bits, size in re.findall(r"\.param [^,]*?\.[busf](\d+)[^,\[]*(?:\[(\d+)\])?", head)
    ]
    expected = [SIZES[parameter.kind] for parameter in parameters]
    if declared != expected:
        raise TritonDistError(f"{name}: expected parameters of {expected} bytes, its assembly declares {declared}")
