# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon's forms of tl builtins that take a layout or a cache policy. Values do not depend on either.

What is checked of a layout is its number of warps: it must be that of the partition.
"""
import math
from typing import Any

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS, invalid, twin
from triton_dist.backends.emulator.twins import core, memory
from triton_dist.backends.emulator.values.tensors import Tensor


def check(layout: Any) -> None:
    """Refuses a distributed layout of another number of warps than the running partition has."""
    while getattr(layout, "parent", None) is not None:
        layout = layout.parent
    warps = getattr(layout, "warps_per_cta", None)
    if warps is not None and scheduler.active().current.cta is not None:
        here = scheduler.active().current.cta.num_warps
        if math.prod(warps) != here:
            raise invalid(f"layout {layout} of {math.prod(warps)} warps in a partition of {here}")


@twin("gluon_core.arange")
def arange(start: Any, end: Any, layout: Any = None) -> Tensor:
    check(layout)
    return core.arange(start, end)


@twin("gluon_core.full")
def full(shape: Any, value: Any, dtype: Any, layout: Any = None) -> Any:
    check(layout)
    return core.full(shape, value, dtype)


@twin("gluon_standard.zeros")
def zeros(shape: Any, dtype: Any, layout: Any = None) -> Any:
    return full(shape, 0, dtype, layout)


@twin("gluon_standard.full_like")
def full_like(input: Any, value: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Any:
    return full(input.shape if shape is None else shape, value, input.dtype if dtype is None else dtype, layout)


@twin("gluon_standard.zeros_like")
def zeros_like(input: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Any:
    return full_like(input, 0, shape, dtype, layout)


@twin("gluon_core.convert_layout", "gluon_core.set_auto_layout")
def convert_layout(value: Any, layout: Any, assert_trivial: bool = False) -> Any:
    check(layout)
    return value


@twin("gluon_core.histogram")
def histogram(input: Any, num_bins: Any, mask: Any = None, layout: Any = None) -> Any:
    return TWINS["core.histogram"](input, num_bins, mask)


@twin("gluon_core.dot_fma")
def dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return core.dot(a, b, acc, out_dtype=acc.ty)


@twin("ampere.mma_v2")
def mma_v2(a: Tensor, b: Tensor, acc: Tensor, input_precision: Any = None) -> Tensor:
    return core.dot(a, b, acc)


@twin("gluon_core.load")
def load(pointer: Any, mask: Any = None, other: Any = None, *, volatile: bool = False, **_: Any) -> Any:
    """Triton 3.9's, with cache_policy."""
    return memory.load(pointer, mask, other, volatile=volatile)


@twin("gluon_core.store")
def store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
    memory.store(pointer, value, mask)
