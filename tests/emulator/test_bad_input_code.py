# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Code that Triton refuses, refused with the kernel's line before the emulator runs it; and what the emulator lacks."""
import torch
import triton.language as tl
from bad_input import refused, small_heap, table  # noqa: F401
from triton.compiler.errors import CompilationError
from triton.experimental.gluon import language as gl
from triton.language.extra import libdevice

from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.jit import gluon_jit, jit

COUNT = 3                      # a global that is no constexpr


@jit
def changes_type(out, n):
    total = 0
    for i in range(n):
        total = total + 0.5
    tl.store(out, total)


@jit
def changes_shape(out, n):
    total = tl.zeros((4,), tl.float32)
    while n > 0:
        total = tl.zeros((8,), tl.float32)
        n -= 1
    tl.store(out, tl.sum(total, 0))


@jit
def breaks(out, n):
    for i in range(n):
        if i == 2:
            break
    tl.store(out, 1)


@jit
def continues(out, n):
    for i in range(n):
        if i == 2:
            continue
        tl.store(out, i)


@jit
def named_in_one_branch(out, n):
    if n > 3:
        value = 1
    tl.store(out, value)


@jit
def two_types_of_branches(out, n):
    if n > 3:
        value = tl.zeros((4,), tl.float32)
    else:
        value = 1
    tl.store(out, value)


@jit
def returns_in_a_loop(out, n):
    for i in range(n):
        if i > 2:
            return
    tl.store(out, 1)


@jit
def no_such_method(out, n):
    tl.store(out, tl.load(out).float())


@jit
def no_such_function(out, n):
    tl.store(out, tl.mean(tl.arange(0, 8), 0))


@jit
def reads_a_global(out, n):
    tl.store(out, COUNT)


@jit
def shapes_that_do_not_broadcast(out, n):
    tl.store(out, tl.sum(tl.arange(0, 8) + tl.arange(0, 16), 0))


@jit
def range_of_a_runtime_value(out, n):
    tl.store(out, tl.sum(tl.arange(0, n), 0))


@jit
def catches(out, n):
    try:
        tl.store(out, 1)
    except ValueError:
        pass


@jit
def nested(out, n):
    def inner():
        return 1
    tl.store(out, inner())


@jit
def dot_of_small(out, n):
    a = tl.zeros((16, 16), tl.float32)
    b = tl.zeros((32, 16), tl.float32)
    tl.store(out, tl.sum(tl.sum(tl.dot(a, b), 0), 0))


@jit
def store_wide_mask(out, n):
    tl.store(out + tl.arange(0, 4), 1, mask=tl.arange(0, 8) < 4)


@jit
def static_fails(out, n):
    tl.static_assert(COUNT_LIMIT > 8, "a limit above eight")
    tl.store(out, 1)


COUNT_LIMIT = tl.constexpr(4)


@gluon_jit
def gluon_layouts_differ(out, n):
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    two: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    x = gl.arange(0, 128, layout=one) + gl.arange(0, 128, layout=two)
    gl.store(out + x, 1)


@gluon_jit
def gluon_breaks(out, n):
    for i in range(n):
        break
    gl.store(out, 1)


@jit
def vendors_function(out, n):
    tl.store(out, libdevice.cyl_bessel_i0(1.0))


@jit
def assembly(out, n):
    x = tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [tl.arange(0, 4)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + tl.arange(0, 4), x)


REFUSED = [  # kernel, the name or line in question, what was found, what is said of it
    (changes_type, "total", "int32", "re-assigned to fp32"),
    (changes_shape, "total", "initial type", "stays consistent"),
    (breaks, "break", "Break", "unsupported"),
    (continues, "continue", "Continue", "unsupported"),
    (named_in_one_branch, "value", "tl.store(out, value)", "not defined"),
    (two_types_of_branches, "value", "type", "branch"),
    (returns_in_a_loop, "return", "if i > 2", "loop"),
    (no_such_method, "float", "tl.load(out).float()", "no attribute"),
    (no_such_function, "mean", "tl.mean", "no attribute"),
    (reads_a_global, "COUNT", "global variable", "constexpr"),
    (shapes_that_do_not_broadcast, "tl.arange(0, 8)", "8", "incompatible dimensions"),
    (range_of_a_runtime_value, "arange", "tl.arange(0, n)", "constexpr"),
    (catches, "try", "Try", "unsupported"),
    (dot_of_small, "dot", "16", "equal reduction dimensions"),
    (store_wide_mask, "mask", "4 and 8", "incompatible dimensions"),
    (static_fails, "COUNT_LIMIT", "static_assert", "a limit above eight"),
    (gluon_layouts_differ, "one", "BlockedLayout", "layout"),
    (gluon_breaks, "break", "Break", "unsupported"),
]
ROWS = [(kernel.__name__, lambda kernel=kernel: kernel[(1,)](torch.zeros(64), 5), names, found, says, CompilationError)
        for kernel, names, found, says in REFUSED]
LACKING = [(kernel.__name__, lambda kernel=kernel: kernel[(1,)](torch.zeros(64), 5), name, found, says, UnsupportedFeature)
           for kernel, name, found, says in ((vendors_function, "cyl_bessel_i0", "the emulator has no twin", "code.py:"),
                                             (assembly, "inline assembly", "mov.u32", "make it a triton_dist primitive"),
                                             (nested, "inner", "nested function", "Triton has none"))]


@table(ROWS + LACKING)
def test_refused_on_all_ranks(row):
    assert refused(row) == row.world
