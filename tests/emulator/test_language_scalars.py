# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runtime scalars: the values that compiled code gives, stated as C semantics."""
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from language_helpers import engine, launch  # noqa: F401
from triton.language import core

from triton_dist.backends.emulator.rebuild.statements import value
from triton_dist.backends.emulator.values.promotion import pointer_to
from triton_dist.backends.emulator.values.scalars import FloatScalar, IntScalar, Pointer, scalar
from triton_dist.backends.emulator.values.tensors import filled, item
from triton_dist.runtime.errors import DeviceFault, InvalidArgument

I32, U32, I64, F32 = core.int32, core.uint32, core.int64, core.float32


def i(v, ty=I32):
    return scalar(v, ty)


def same(x, v, ty):
    assert type(x.v) in (int, float) and x.v == v and x.ty is ty, f"{x} is not {v}:{ty}"


def test_division_truncates_at_run_time():
    same(i(-7) // 2, -3, I32)
    same(i(-7) % 2, -1, I32)
    same(i(7) // i(-2), -3, I32)
    same(i(7) % i(-2), 1, I32)
    same(-7 // i(2), -3, I32)


def test_int32_wraps():
    same(i(2**31 - 1) + 1, -2**31, I32)
    same(i(65536) * 65536, 0, I32)
    same(i(46341) * i(46341), 46341**2 - 2**32, I32)
    same(-i(-2**31), -2**31, I32)
    same(i(-2**31) // -1, -2**31, I32)
    same(i(1) << 31, -2**31, I32)


def test_constants_take_the_type_of_the_value_but_must_fit():
    same(i(1, I64) + 1, 2, I64)
    with pytest.raises(InvalidArgument, match="fit"):
        i(1) + 2**40
    with pytest.raises(InvalidArgument, match="negative"):
        i(1, U32) + -1


def test_assignment_types():
    same(value(5), 5, I32)
    same(value(2**31), 2**31, U32)
    same(value(2**32), 2**32, I64)
    same(value(-2**31 - 1), -2**31 - 1, I64)
    same(value(2**63), 2**63, core.uint64)
    same(value(True), 1, core.int1)
    same(value(0.1), float(np.float32(0.1)), F32)
    same(value(1e300), 1e300, core.float64)


def test_usual_arithmetic_conversions():
    same(i(1) + i(1, I64), 2, I64)
    same(i(-1) + i(0, U32), 2**32 - 1, U32)          # int + unsigned of the same rank is unsigned
    same(i(-1, I64) + i(0, U32), -1, I64)
    same(i(-1, core.int8) + i(1, core.int16), 0, core.int16)
    assert not i(-1) < i(0, U32)                     # compared as unsigned
    assert i(2**32 - 1, U32) > i(0, U32)
    assert (i(5) < i(6)).ty is core.int1
    with pytest.raises(InvalidArgument, match="signedness"):
        i(5) // i(2, U32)


def test_shifts():
    same(i(-8) >> 1, -4, I32)                        # arithmetic
    same(i(2**32 - 8, U32) >> 1, 2**31 - 4, U32)     # logical
    same(i(3, U32) << 31, 2**31, U32)
    same(i(1, core.uint64) << 63, 2**63, core.uint64)


def test_bool_arithmetic():
    t, f = i(1, core.int1), i(0, core.int1)
    same(t + t, 0, core.int1)
    same(t & f, 0, core.int1)
    same(t + 1, 2, I32)
    same(~t, 0, core.int1)
    same((i(3) == 3) & (i(4) > 5), 0, core.int1)


def test_floats_round_after_every_operation():
    h = scalar(2048.0, core.float16)
    same(h + 1.0, 2048.0, core.float16)              # 2049 is halfway: to even
    same(h * 32.0, math.inf, core.float16)
    same(scalar(0.1, F32) + scalar(0.2, F32), float(np.float32(0.1) + np.float32(0.2)), F32)
    same(scalar(1.0, core.bfloat16) + scalar(2.0**-8, core.bfloat16), 1.0, core.bfloat16)
    same(scalar(1.0, core.bfloat16) + scalar(3 * 2.0**-8, core.bfloat16), 1.015625, core.bfloat16)
    same(scalar(3.0, core.float16) / 2, 1.5, F32)     # division of halves happens in fp32
    same(scalar(1.0, F32) / 0, math.inf, F32)
    same(scalar(-7.5, F32) % 2, -1.5, F32)
    assert math.isnan((scalar(0.0, F32) / 0.0).v)


def test_mixed_promotion():
    same(scalar(2.0, core.float16) + i(3), 5.0, core.float16)
    same(i(7) / i(2), 3.5, F32)
    same(i(1) + 0.5, 1.5, F32)
    same(i(2**24 + 1) / 1, float(2**24), F32)         # converted to fp32 first
    same(scalar(1.0, core.bfloat16) + scalar(1.0, core.float16), 2.0, core.float16)
    with pytest.raises(InvalidArgument):
        scalar(1.0, F32) & 1


def test_casts():
    same(i(300).to(core.int8), 44, core.int8)
    same(i(-1).to(U32), 2**32 - 1, U32)
    same(i(2**31, U32).to(I64), 2**31, I64)
    same(i(2).to(core.int1), 1, core.int1)
    same(scalar(-2.7, F32).to(I32), -2, I32)
    same(scalar(1e20, F32).to(I32), 2**31 - 1, I32)
    same(scalar(1.0, F32).to(I32, bitcast=True), 0x3F800000, I32)
    same(i(-1).to(F32), -1.0, F32)
    same(scalar(1.999, F32).to(core.bfloat16, fp_downcast_rounding="rtz"), 1.9921875, core.bfloat16)
    with pytest.raises(InvalidArgument, match="widths"):
        i(1).to(core.float16, bitcast=True)


def test_pointers_scale_by_element_and_wrap_offsets_first():
    p = Pointer(0x1000, pointer_to(F32))
    assert (p + 3).v == 0x100C and (p - 1).v == 0xFFC and (2 + p).v == 0x1008
    assert (p + i(65536) * 65536).v == 0x1000                          # the int32 product wraps before it is scaled
    assert (p + (i(2**31 - 1) + 1)).v == 0x1000 - 2**31 * 4            # and is sign-extended
    assert (p + i(2**32 - 1, U32)).v == 0x1000 + (2**32 - 1) * 4       # unsigned: zero-extended
    with pytest.raises(InvalidArgument):
        p + 1.5
    with pytest.raises(InvalidArgument, match="int64"):
        p == p


def test_integer_division_by_zero_faults():
    with pytest.raises(DeviceFault, match="division by zero"):
        i(1) // i(0)


integers = st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


def c_value(name, ty, x, y):
    """numpy in the type, with C's division: what the compiled operation gives."""
    info = np.iinfo(ty)
    with np.errstate(all="ignore"):
        a, b = np.array(x, ty), np.array(y, ty)
        if name in ("floordiv", "mod"):
            q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            r = q if name == "floordiv" else x - q * y
            return (r - info.min) % (int(info.max) - int(info.min) + 1) + int(info.min)
        fn = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
              "xor": np.bitwise_xor, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
              "gt": np.greater, "ge": np.greater_equal, "rshift": np.right_shift, "lshift": np.left_shift}[name]
        return int(fn(a, b))


@settings(max_examples=300)
@given(st.data())
def test_scalars_and_tensors_agree_with_c(data):
    name = data.draw(integers)
    ty, kind = getattr(core, name), getattr(np, name)
    info = np.iinfo(kind)
    numbers = st.one_of(st.integers(int(info.min), int(info.max)), st.sampled_from([0, 1,
                                                                                    int(info.min),
                                                                                    int(info.max)]))
    op = data.draw(st.sampled_from("add sub mul and or xor lt le eq ne gt ge floordiv mod lshift rshift".split()))
    x, y = data.draw(numbers), data.draw(numbers)
    if op in ("lshift", "rshift"):
        y = abs(y) % info.bits
    if op in ("floordiv", "mod") and y == 0:
        y = 1
    wanted = c_value(op, kind, x, y)
    a, b = scalar(x, ty), scalar(y, ty)
    method = f"__{op}__"
    assert getattr(a, method)(b).v == wanted
    ta, tb = filled(a, (2, )), filled(b, (2, ))
    ta, tb = type(ta)(ta.d, ty), type(tb)(tb.d, ty)          # elements, not a formula
    for left, right in ((ta, tb), (ta, b)):
        out = getattr(left, method)(right)
        assert item(type(out)(out.d[:1], out.ty)).v == wanted
    out = getattr(tb, f"__r{op}__")(a) if op not in ("lt", "le", "eq", "ne", "gt", "ge") else None
    assert out is None or item(type(out)(out.d[:1], out.ty)).v == wanted


@settings(max_examples=200)
@given(integers, integers, st.integers(-2**63, 2**64 - 1))
def test_integer_casts_agree_between_scalars_and_tensors(source, target, x):
    a = scalar(x, getattr(core, source))
    wanted = int(np.array(a.v, getattr(np, source)).astype(getattr(np, target)))
    same(a.to(getattr(core, target)), wanted, getattr(core, target))
    t = filled(a, (1, ))
    for variant in (t, type(t)(t.d, t.ty)):
        same(item(variant.to(getattr(core, target))), wanted, getattr(core, target))


@settings(max_examples=100)
@given(st.sampled_from(["float16", "bfloat16", "float32"]), st.sampled_from(["add", "sub", "mul"]),
       st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_float_scalars_agree_with_torch(name, op, x, y):
    ty, kind = getattr(core, name), getattr(torch, name)
    a, b = scalar(x, ty), scalar(y, ty)
    wanted = getattr(torch.tensor(x, dtype=kind), f"__{op}__")(torch.tensor(y, dtype=kind)).item()
    assert getattr(a, f"__{op}__")(b).v == wanted


@triton.jit
def _constexpr_and_runtime(out, n, ONE, C: tl.constexpr):
    tl.store(out, -7 // 2)                 # constexpr: floor
    x = -7
    tl.store(out + 1, x // 2)              # assigned: runtime, truncates
    tl.store(out + 2, (n - 9) // C)
    tl.store(out + 3, (ONE - 8) // 2)      # an argument that is 1 is a constexpr
    y: tl.constexpr = -7
    tl.store(out + 4, y // 2)
    big = 2147483647
    tl.store(out + 5, big + 1)
    tl.store(out + 6, (C - 9) % 4)
    tl.store(out + 7, (n - 9) % 4)


def test_constexpr_arithmetic_is_pythons_and_runtime_arithmetic_is_cs():
    out = torch.zeros(8, dtype=torch.int32)
    launch(_constexpr_and_runtime, 1, out, 2, 1, C=2)
    assert out.tolist() == [-4, -3, -3, -4, -4, -2**31, 1, -3]
    assert isinstance(FloatScalar(0.0, F32) + IntScalar(1, I32), FloatScalar)
