# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Python in kernels: what the rebuilt function does with statements, calls, constexprs and names."""
import os
import subprocess
import sys
import traceback
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, launch, start  # noqa: F401
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.language.extra import libdevice

from triton_dist.backends.emulator import frontend
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.rebuild import rebuild
from triton_dist.runtime.errors import DeviceFault, InvalidArgument, UnsupportedFeature

WIDTH = tl.constexpr(4)
PLAIN = 4


def ints(n=8):
    return torch.full((n, ), -1, dtype=torch.int32)


@triton.jit
def _double(x, by: tl.constexpr = 2):
    """Has a docstring and a default."""
    return x * by


@triton.jit
def _two(x, *, offset=1):
    return x + offset, x - offset


@triton.jit
def _early(x):
    if x > 3:
        return 100
    return x


@triton.jit
def _calls(out, n):
    a, b = _two(n, offset=3)
    tl.store(out, a)
    tl.store(out + 1, b)
    tl.store(out + 2, _double(n))
    tl.store(out + 3, _double(by=5, x=n))
    tl.store(out + 4, _early(n) + _early(2))
    tl.store(out + 5, _double(*(n, 7)))
    pair = _two(n)
    tl.store(out + 6, pair[0] * pair[1])
    tl.store(out + 7, len(pair) + WIDTH)


def test_calls_defaults_keywords_tuples_and_early_return():
    out = ints()
    launch(_calls, 1, out, 10)
    assert out.tolist() == [13, 7, 20, 50, 102, 70, 99, 6]


@triton.jit
def _flow(out, n, FLAG: tl.constexpr, NOTHING):
    i = 0
    while i * i < n:
        i += 1
    tl.store(out, i)
    total = 0
    for k in tl.range(0, n, 3, num_stages=2):
        total += k
    tl.store(out + 1, total)
    for k in range(n, 0, -4):
        total -= k
    tl.store(out + 2, total)
    for s in tl.static_range(3):
        STEP: tl.constexpr = s + 1
        if STEP % 2 == 1:
            total += STEP
    tl.store(out + 3, total)
    if FLAG and NOTHING is None:
        tl.store(out + 4, 1 if n > 5 else 2)
    elif n > 3 or undefined_anywhere:       # noqa: F821
        tl.store(out + 4, 3)
    tl.store(out + 5, (n if n < 5 else -n))
    ok = n > 1 and not n > 100
    tl.store(out + 6, ok)
    tl.store(out + 7, 0 < n <= 10)


def test_control_flow():
    out = ints()
    launch(_flow, 1, out, 10, True, None)
    assert out.tolist() == [4, 18, 0, 4, 1, -10, 1, 1]


@triton.jit
def _short_circuit(out, ptr, USE: tl.constexpr):
    if ptr is not None and tl.load(ptr) > 0:
        tl.store(out, 1)
    if USE or missing_name:      # noqa: F821
        tl.store(out + 1, 1)
    x = True and tl.load(out) < 0
    tl.store(out + 2, x)


def test_constexpr_conditions_short_circuit():
    out = ints(3)
    launch(_short_circuit, 1, out, None, True)
    assert out.tolist() == [-1, 1, 1]


@triton.jit
def _logical_of_int(out, n):
    if n and n > 0:
        tl.store(out, 1)


def test_and_of_integers_is_refused_as_by_the_compiler():
    with pytest.raises(InvalidArgument, match=r"`and` of a int32.*test_language_rebuild.py"):
        launch(_logical_of_int, 1, ints(), 3)


@triton.jit
def _runtime_to_constexpr(out, n):
    tl.store(out, _double(n, n))


@triton.jit
def _reads_plain_global(out):
    tl.store(out, PLAIN)


@triton.jit
def _calls_missing(out):
    tl.store(out, libdevice.cyl_bessel_i0(1.0))


@triton.jit
def _has_asm(out):
    tl.store(out, tl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1))


@pytest.mark.parametrize("kernel, args, error, text", [
    (_runtime_to_constexpr, (2, ), InvalidArgument, r"'by'.*_double"),
    (_reads_plain_global, (), InvalidArgument, r"'PLAIN' is not a constexpr"),
    (_calls_missing, (), UnsupportedFeature, r"cyl_bessel_i0.*test_language_rebuild.py:\d+ \(_calls_missing\)"),
    (_has_asm, (), UnsupportedFeature, r"laneid.*test_language_rebuild.py:\d+ \(_has_asm\)"),
])
def test_refusals_name_the_thing_and_the_place(kernel, args, error, text):
    with pytest.raises(error, match=text):
        launch(kernel, 1, ints(), *args)


@triton.jit
def _asserts(out, n, B: tl.constexpr):
    tl.static_assert(B > 1, f"B must be larger than {B}")
    assert n < 100, "n is too large"
    tl.device_assert(n != 7, "seven")
    tl.store(out, n)


def test_assertions():
    out = ints()
    launch(_asserts, 1, out, 5, 2)
    assert out[0] == 5
    with pytest.raises(CompileTimeAssertionFailure, match="larger than 1"):
        launch(_asserts, 1, out, 5, 1)
    with pytest.raises(DeviceFault, match="too large"):
        launch(_asserts, 1, out, 100, 2)
    with pytest.raises(DeviceFault, match="seven"):
        launch(_asserts, 1, out, 7, 2)


def test_tracebacks_show_the_kernels_own_lines():
    try:
        launch(_runtime_to_constexpr, 1, ints(), 2)
    except InvalidArgument as error:
        shown = "".join(traceback.format_exception(error))
    assert "tl.store(out, _double(n, n))" in shown and __file__ in shown


def test_closures_and_nested_kernels_are_found():
    scale: tl.constexpr = tl.constexpr(3)

    @triton.jit
    def inner(x):
        return x * scale

    @triton.jit
    def kernel(out):
        tl.store(out, inner(5))
    out = ints()
    launch(kernel, 1, out)
    assert out[0] == 15 and rebuild.build(kernel) is rebuild.build(kernel)


class Shape(NamedTuple):
    m: int
    ptr: object


@triton.jit
def _takes_tuples(out, shape, pair, fn: tl.constexpr):
    tl.store(out, shape.m + pair[0])
    tl.store(shape.ptr, fn(pair[1]))
    x = [pair[0], 4]
    tl.store(out + 1, x[1] + len(x + x))
    doubled = tl.tuple([v * 2 for v in pair])
    tl.store(out + 2, doubled[0])


def test_tuples_named_tuples_and_functions_as_arguments():
    out, other = ints(), ints()
    launch(_takes_tuples, 1, out, Shape(10, other), (5, 6), _double)
    assert out.tolist()[:3] == [15, 8, 10] and other[0] == 12


@triton.jit
def _methods(out, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])
    tl.store(out, x.sum(axis=0).max(0))
    tl.store(out + 1, x.T.shape[0] + x.numel + x.type.scalar.primitive_bitwidth)
    y = x.to(tl.float32).trans().reshape(64).expand_dims(0)
    tl.store(out + 2, y.shape[1])
    element: tl.constexpr = out.dtype.element_ty
    tl.static_assert(element == tl.int32)
    tl.store(out + 3, tl.full((), 3.7, tl.float32).to(element))
    if isinstance(x, tl.tensor) and isinstance(element, tl.constexpr):
        tl.store(out + 4, int(WIDTH) + max(2, 1) + WIDTH.value)


def test_methods_and_attributes_of_values():
    x = torch.randint(-9, 9, (8, 8), dtype=torch.int32)
    out = ints()
    launch(_methods, 1, out, x)
    assert out.tolist()[:5] == [x.sum(0).max().item(), 8 + 64 + 32, 64, 3, 10]


@triton.jit
def _unspecialised(out, a, b: tl.int64, c: "fp16", d):     # noqa: F722, F821
    tl.static_assert(b.dtype == tl.int64)
    tl.static_assert(c.dtype == tl.float16)
    tl.static_assert(d.dtype == tl.float32)
    tl.store(out, a)


def test_argument_types():
    out = ints()
    launch(_unspecialised, 1, out, 2**40 - 2**40 + 9, 1, 2.0, 1.5)
    assert out[0] == 9
    bound = frontend.bind(_unspecialised, lambda meta: (meta["a"], 2), (out, 3, 1, 2.0, 1.5),
                          dict(num_warps=8, num_stages=2))
    assert bound.grid == (3, 2, 1) and bound.num_warps == 8 and bound.name == "_unspecialised"
    with pytest.raises(InvalidArgument, match="'BLOCK'"):
        frontend.bind(_unspecialised, (1, ), (out, 3, 1, 2.0, 1.5), dict(BLOCK=2))
    with pytest.raises(InvalidArgument, match="missing"):
        frontend.bind(_unspecialised, (1, ), (out, ), {})
    with pytest.raises(InvalidArgument, match="grid"):
        frontend.bind(_unspecialised, (1, 1, 1, 1), (out, 3, 1, 2.0, 1.5), {})


@triton.jit
def _ids(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.num_programs(0)
    tl.store(out + x + n * (y + tl.num_programs(1) * z), x * 100 + y * 10 + z)


def test_program_ids():
    out = ints(12)
    launch(_ids, (2, 3, 2), out)
    assert out.tolist() == [x * 100 + y * 10 + z for z in range(2) for y in range(3) for x in range(2)]


_CHILD = """
import os; os.environ["TRITON_INTERPRET"] = "1"
import sys; sys.path.insert(0, {here!r})
import torch, triton, triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton_dist.backends.emulator.engine import scheduler
import language_helpers as h
exec(compile(open({kernel!r}).read(), {kernel!r}, "exec"))
assert isinstance(kernel, InterpretedFunction) and isinstance(tl.zeros, InterpretedFunction)
with scheduler.activated(scheduler.Scheduler()):
    out = torch.zeros(4); h.launch(kernel, 1, out, torch.arange(4.)); assert out.tolist() == [6.0] * 4, out
"""


def test_works_where_triton_itself_interprets(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text("@triton.jit\ndef kernel(out, x):\n    i = tl.arange(0, 4)\n"
                    "    s = tl.zeros([4], tl.float32) + tl.sum(tl.load(x + i), 0)\n    tl.store(out + i, s)\n")
    code = _CHILD.format(here=os.path.dirname(__file__), kernel=str(path))
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_launch_keeps_its_tensors_and_needs_a_kernel():
    out = ints()
    crew = start(_ids, (1, ), out)
    assert crew.bound.keep == [out]
    with pytest.raises(InvalidArgument, match="cannot launch a function"):
        frontend.bind(lambda: None, (1, ), (), {})
    assert scheduler.active().current.kind == "host"


@triton.jit
def _pick(a, CONST: tl.constexpr):
    if CONST:
        return -7
    return 8


@triton.jit
def _sign(x):
    if x < 0:
        return -7
    return 7


@triton.jit
def _returned_constants(out, n):
    tl.store(out, _pick(n, True) // 2)
    tl.store(out + 1, _sign(-n) // 2)
    if (m := n * 2) > 5:
        tl.store(out + 2, m)


def test_returned_constants_follow_the_installed_triton():
    out = ints(3)
    launch(_returned_constants, 1, out, 5)
    floor_or_truncated = -4 if hasattr(triton.compiler.code_generator.CodeGenerator, "decide_return_type") else -3
    assert out.tolist() == [floor_or_truncated, -3, 10]
