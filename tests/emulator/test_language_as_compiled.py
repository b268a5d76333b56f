# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels give the values in the emulator that the installed Triton compiles to, where torch or Python would differ."""
import inspect
import struct

import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, launch  # noqa: F401
from triton.language import core, math

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import TWINS
from triton_dist.backends.emulator.rebuild import rebuild
from triton_dist.backends.emulator.values.promotion import NEWER
from triton_dist.runtime.errors import InvalidArgument


@triton.jit
def _compare(out, small, word, half):
    k = tl.arange(0, 4)
    tl.store(out + k, tl.load(small + k) < 300)
    tl.store(out + 4, tl.load(small) < 300)
    tl.store(out + 5 + k, tl.load(word + k) == -1)
    tl.store(out + 9, tl.load(word) == -1)
    tl.store(out + 10 + k, tl.load(half + k) >= 0.1)
    tl.store(out + 14, tl.load(half) >= 0.1)


@triton.jit
def _compare_halves(out, half):
    tl.store(out + tl.arange(0, 4), tl.load(half + tl.arange(0, 4)) >= 0.1)
    tl.store(out + 4, tl.load(half) >= 0.1)


def test_a_number_in_a_comparison():
    half = torch.full((4, ), 0.1, dtype=torch.float16)          # 0.09998
    if NEWER:                                                   # the number takes the other operand's type
        out = torch.zeros(5, dtype=torch.int32)
        launch(_compare_halves, 1, out, half)
        assert out.tolist() == [1] * 5
        with pytest.raises(InvalidArgument, match="300 does not fit int8"):
            launch(_compare, 1, out, torch.zeros(4, dtype=torch.int8), out, half)
    else:                                                       # it has its own: int32 or fp32
        out = torch.zeros(15, dtype=torch.int32)
        launch(_compare, 1, out, torch.tensor([127, 0, -128, 1], dtype=torch.int8),
               torch.tensor([-1, 1, 2, 3], dtype=torch.int32).view(torch.uint32), half)
        assert out.tolist() == [1] * 5 + [1, 0, 0, 0, 1] + [0] * 5


@triton.jit
def _round(x_ptr, out, KIND: tl.constexpr, N: tl.constexpr):
    k = tl.arange(0, N)
    tl.store(out + k, tl.load(x_ptr + k).to(KIND).to(tl.float32))
    tl.store(out + N, tl.load(x_ptr).to(KIND).to(tl.float32))


@triton.jit
def _add(x_ptr, out):
    x = tl.load(x_ptr + tl.arange(0, 4)).to(tl.float8e4nv)
    tl.store(out + tl.arange(0, 4), (x + x).to(tl.float32))


@pytest.mark.parametrize("kind, dtype", [(tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2)])
def test_float8_saturates(kind, dtype):
    x, most = torch.tensor([1e6, -1e6, float("inf"), float("nan"), 0.3, -7.2, 1e-9, 100.0]), torch.finfo(dtype).max
    out = torch.zeros(9)
    launch(_round, 1, x, out, KIND=kind, N=8)
    want = torch.cat([torch.tensor([most, -most, most]), x[3:].to(dtype).float()])
    assert torch.equal(out[:8].nan_to_num(-1), want.nan_to_num(-1)) and out[8] == most


def test_float8_has_no_arithmetic():
    with pytest.raises(InvalidArgument, match=r"add of fp8e4nv: GPUs do not compute in fp8.*_add"):
        launch(_add, 1, torch.ones(4), torch.zeros(4))


@triton.jit
def _integers(out, signed, unsigned, flags):
    k = tl.arange(0, 8)
    x, y, f = tl.load(signed + k), tl.load(unsigned + k), tl.load(flags + k)
    tl.store(out + k, tl.umulhi(x, x))
    tl.store(out + 8 + k, (200 >> (y & 3)).to(tl.int64))
    tl.store(out + 16 + k, (tl.load(flags) // f).to(tl.int64))
    tl.store(out + 24 + k, f.logical_and(x < 0) + 2 * f.logical_or(x < 0).to(tl.int64))
    tl.store(out + 32 + k, tl.histogram(f, 8))


def test_integers_as_compiled():
    x = torch.tensor([-1, -2**31, 7, -5, 2**31 - 1, 0, 1, -3], dtype=torch.int32)
    y, f = torch.tensor([0, 1, 2, 3, 4, 5, 6, 255], dtype=torch.uint8), torch.tensor([1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    out = torch.zeros(40, dtype=torch.int64)
    launch(_integers, 1, out, x, y, f)
    high, shifted, divided, logical, bins = out.view(5, 8).tolist()
    high_bits = [(v % 2**32)**2 >> 32 for v in x.tolist()]
    assert [h % 2**32 for h in high] == high_bits
    assert shifted == [200 >> (v & 3) for v in y.tolist()]
    assert [d for d, v in zip(divided, f.tolist()) if v] == [1] * 4                 # by zero it is anything
    assert logical == [(v and w) + 2 * (v or w) for v, w in zip(f.tolist(), (x < 0).tolist())]
    assert bins == [4, 4] + [0] * 6


@triton.jit
def _divide(x_ptr, out):
    tl.store(out + tl.arange(0, 64), 7 / tl.load(x_ptr + tl.arange(0, 64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quotient_is_rounded_once(dtype):
    x, out = torch.arange(1, 65).to(dtype), torch.zeros(64, dtype=dtype)
    launch(_divide, 1, x, out)
    assert torch.equal(out, torch.full_like(x, 7).div(x))


@triton.jit
def _back(x_ptr, out, by):
    k = tl.arange(0, 4)
    tl.store(out + k, tl.load(x_ptr + 8 - (k + by)))
    tl.store(out + 4 + k, tl.load(x_ptr + 8 + k - by))


@triton.jit
def _back_unsigned(x_ptr, out):
    tl.store(out + tl.arange(0, 4), tl.load(x_ptr + 8 - tl.arange(0, 4).to(tl.uint32)))


def test_a_pointer_minus_an_offset():
    x, out = torch.arange(16.), torch.zeros(8)
    launch(_back, 1, x, out, 3)
    assert out.tolist() == [5, 4, 3, 2, 5, 6, 7, 8]
    with pytest.raises(Exception, match="_back_unsigned"):       # 0 - 1 is 2**32 - 1 there, as on a GPU
        launch(_back_unsigned, 1, x, out)


@triton.jit
def _swap(x_ptr, out, NEW: tl.constexpr):
    k = tl.arange(0, 4)
    nan = tl.load(x_ptr + 3)
    tl.store(out + k, tl.atomic_cas(x_ptr + k, tl.where(k == 3, nan, 0.0), NEW + k.to(tl.float32)))
    tl.store(out + 4, tl.atomic_cas(x_ptr + 4, nan, 9.0))


def test_compare_and_swap_compares_words():
    x, out = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("nan")]), torch.zeros(5)
    launch(_swap, 1, x, out, NEW=5.0)
    assert x.tolist() == [5.0, -0.0, 1.0, 8.0, 9.0]
    assert [struct.pack("<f", v) for v in out.tolist()[:3]] == [struct.pack("<f", v) for v in (0.0, -0.0, 1.0)]
    assert out[3:].isnan().all()


def test_twins_take_the_names_of_tritons_parameters():
    lacking = []
    for module in (core, math):
        for name, builtin in vars(module).items():
            twin = TWINS.get(rebuild.key_of(builtin)) if inspect.isfunction(builtin) else None
            if twin is None or name in ("static_print", "static_assert", "inline_asm_elementwise"):     # no keywords; refused
                continue
            taken = inspect.signature(twin).parameters
            lacking += [f"{name}({p})" for p in inspect.signature(builtin).parameters
                        if not p.startswith("_") and p not in taken and not p == "args"]
    assert not lacking
    assert len(TWINS) > 100 and scheduler.is_active()


@triton.jit
def _printed(x_ptr, F: tl.constexpr):
    x, k = tl.load(x_ptr + tl.arange(0, 2)), tl.arange(0, 2)
    tl.device_print("bytes", x, tl.load(x_ptr), k < 1)
    tl.device_print("hex", k[:, None] - 1, 255, hex=True)
    print("floats", tl.full([2], F, tl.float32), F)


def test_printed_numbers(capsys):
    launch(_printed, 1, torch.tensor([200, 3], dtype=torch.uint8), F=0.5)
    lines = [line.split(") ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["bytes [200, 3] 200 [1, 0]", "hex [[0xffffffff], [0x0]] 0xff", "floats [0.5, 0.5] 0.5"]
