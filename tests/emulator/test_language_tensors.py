# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Blocks: formulas against elements, broadcasting, promotion, shapes, reductions, scans, sorting, mathematics."""
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from language_helpers import engine, launch  # noqa: F401
from triton.language import core
from triton.language.extra import libdevice

from triton_dist.backends.emulator import frontend  # noqa: F401  (registers the twins)
from triton_dist.backends.emulator.engine.registry import TWINS
from triton_dist.backends.emulator.values import tensors
from triton_dist.backends.emulator.values.scalars import scalar
from triton_dist.runtime.errors import InvalidArgument

I32 = core.int32


def elements(x):
    """The same values without the formula."""
    return tensors.Tensor(x.d.clone(), x.ty)


class Pair:
    """A value kept twice: with its formula, and as elements only."""

    def __init__(self, formula, plain):
        self.formula, self.plain = formula, plain

    def check(self):
        if isinstance(self.formula, tensors.Tensor):
            assert self.formula.ty is self.plain.ty and tuple(self.formula.shape) == tuple(self.plain.shape)
            assert torch.equal(tensors.Tensor(None, self.formula.ty, self.formula.shape, self.formula.line,
                                              self.formula.box).d if self.formula._d is None else self.formula.d,
                               self.plain.d.expand(self.formula.shape))


@settings(max_examples=150)
@given(st.data())
def test_formulas_equal_elements(data):
    n, m = data.draw(st.sampled_from([1, 4, 16])), data.draw(st.sampled_from([2, 8]))
    ty = data.draw(st.sampled_from([core.int32, core.int64, core.uint32]))
    row = TWINS["core.arange"](0, n)[:, None].to(ty)
    column = TWINS["core.arange"](0, m)[None, :].to(ty)
    values = [Pair(row, elements(row)), Pair(column, elements(column))]
    for _ in range(data.draw(st.integers(1, 5))):
        op = data.draw(st.sampled_from("add sub mul mod lt le gt ge and".split()))
        a = data.draw(st.sampled_from(values))
        if op == "and":
            masks = [v for v in values if v.formula.ty is core.int1]
            if not masks:
                continue
            a, b = masks[0], masks[-1]
        else:
            if a.formula.ty is core.int1:
                continue
            choice = data.draw(st.integers(0, 2))
            number = data.draw(st.one_of(st.integers(1, 40), st.integers(2**27, 2**31 - 1)))
            b = data.draw(st.sampled_from(values)) if choice == 0 and op != "mod" else Pair(number, number) \
                if choice == 1 else Pair(scalar(number, ty), scalar(number, ty))
            if isinstance(b.formula, tensors.Tensor) and b.formula.ty is core.int1:
                continue
        method = f"__{op}__"
        out = Pair(getattr(a.formula, method)(b.formula), getattr(a.plain, method)(b.plain))
        out.check()
        values.append(out)


def test_formulas_drop_to_elements_when_they_wrap():
    x = TWINS["core.arange"](0, 8)
    y = x * 2**29
    assert y.line is None and y.d.tolist() == [(k << 29) - (2**32 if (k << 29) & 2**31 else 0) - (k << 29 >> 32 << 32)
                                               for k in range(8)]
    assert (x + 5).line == (5, (1, )) and ((x + 5) % 16).line is not None and ((x + 5) % 8).line is None
    mask = (x[:, None] < 3) & (x[None, :] >= 2)
    assert mask.box == ((0, 3), (2, 8)) and int(mask.d.sum()) == 18


@triton.jit
def _promotion(out, h_ptr, f_ptr, b_ptr, i_ptr, u_ptr):
    k = tl.arange(0, 8)
    h, f, b = tl.load(h_ptr + k), tl.load(f_ptr + k), tl.load(b_ptr + k)
    i, u = tl.load(i_ptr + k), tl.load(u_ptr + k)
    tl.static_assert((h + 1.5).dtype == tl.float16)
    tl.static_assert((h + f).dtype == tl.float32)
    tl.static_assert((h + i).dtype == tl.float16)
    tl.static_assert((h + b).dtype == tl.float16)
    tl.static_assert((b + f).dtype == tl.float32)
    tl.static_assert((i + 1.5).dtype == tl.float32)
    tl.static_assert((i / 2).dtype == tl.float32)
    tl.static_assert((h / 2).dtype == tl.float32)
    tl.static_assert((i + u).dtype == tl.uint32)
    tl.static_assert((i < u).dtype == tl.int1)
    tl.static_assert(((i > 0) + 1).dtype == tl.int32)
    tl.store(out + k, (i > u).to(tl.int32) * 10 + (u > 2147483648).to(tl.int32))
    tl.store(out + 8 + k, (u // 3).to(tl.int32, bitcast=True))
    tl.store(out + 16 + k, (i // 3) + i % 3 * 100)
    tl.store(out + 24 + k, (u >> 4).to(tl.int32) + (i >> 4))
    tl.store(out + 32 + k, tl.maximum(u, 7).to(tl.int64) & 0xFFFF)


def test_promotion_and_unsigned_arithmetic():
    i = torch.tensor([-9, -1, 0, 1, 5, 100, -100, 2**31 - 1], dtype=torch.int32)
    u = torch.tensor([1, 2, 3, 2**32 - 1, 2**31, 2**31 + 1, 7, 0], dtype=torch.int64)
    out = torch.zeros(40, dtype=torch.int32)
    f = torch.ones(8)
    launch(_promotion, 1, out, f.half(), f, f.bfloat16(), i, u.to(torch.uint32))
    iu = [x % 2**32 for x in i.tolist()]
    trunc = lambda a, b: int(a / b)      # noqa: E731
    assert out[:8].tolist() == [(a > b) * 10 + (b > 2**31) for a, b in zip(iu, u.tolist())]
    assert out[8:16].tolist() == [x // 3 for x in u.tolist()]
    assert out[16:24].tolist() == [trunc(x, 3) + (x - trunc(x, 3) * 3) * 100 for x in i.tolist()]
    assert out[24:32].tolist() == [(x >> 4) + (y >> 4) for x, y in zip(u.tolist(), i.tolist())]
    assert out[32:].tolist() == [max(x, 7) & 0xFFFF for x in u.tolist()]


@triton.jit
def _low_precision(out, a_ptr, b_ptr, N: tl.constexpr):
    k = tl.arange(0, N)
    a, b = tl.load(a_ptr + k), tl.load(b_ptr + k)
    tl.store(out + k, a + b)
    tl.store(out + N + k, a * b)
    tl.store(out + 2 * N + k, a * 0.1)
    tl.store(out + 3 * N + k, tl.where(a > b, a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_elementwise_rounds_in_the_type(dtype):
    a, b = torch.randn(64).to(dtype), torch.randn(64).to(dtype)
    out = torch.full((4, 64), float("nan"), dtype=dtype)
    launch(_low_precision, 1, out, a, b, N=64)
    tenth = torch.tensor(0.1, dtype=dtype)
    assert torch.equal(out, torch.stack([a + b, a * b, a * tenth, torch.maximum(a, b)]))


@triton.jit
def _casts(out, x_ptr, N: tl.constexpr):
    k = tl.arange(0, N)
    x = tl.load(x_ptr + k)
    tl.store(out + k, x.to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32))
    tl.store(out + N + k, x.to(tl.float8e4nv).to(tl.float32))
    tl.store(out + 2 * N + k, x.to(tl.int32).to(tl.float32))
    tl.store(out + 3 * N + k, (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True))


def test_casts_of_blocks():
    x = torch.randn(32) * 10
    out = torch.zeros(4, 32)
    launch(_casts, 1, out, x, N=32)
    truncated = (x.view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert torch.equal(out, torch.stack([truncated, x.to(torch.float8_e4m3fn).float(), x.trunc(), x.abs()]))


@triton.jit
def _shapes(out, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 32))
    m = tl.reshape(x, (4, 8))
    a, b = tl.split(tl.reshape(x, (16, 2)))
    j = tl.join(a, b)
    tl.store(out + tl.arange(0, 32), tl.interleave(a, b) - tl.ravel(j))
    t = tl.trans(m)
    tl.store(out + 32 + tl.arange(0, 32), tl.reshape(t, (32, )))
    c = tl.permute(tl.reshape(x, (2, 4, 4)), (2, 0, 1))
    tl.store(out + 64 + tl.arange(0, 32), c.reshape(32))
    s = tl.broadcast_to(tl.sum(m, axis=1)[:, None], (4, 8))
    tl.store(out + 96 + tl.arange(0, 32), tl.view(s, [32]))
    tl.store(out + 128 + tl.arange(0, 32), tl.flip(m, 1).reshape(32))
    g = tl.gather(m, tl.broadcast_to(7 - tl.arange(0, 8)[None, :], (4, 8)), axis=1)
    tl.store(out + 160 + tl.arange(0, 32), g.reshape(32))
    lo, hi = tl.split(tl.arange(0, 2))
    tl.store(out + 192, lo + hi)
    tl.store(out + 193 + tl.arange(0, 2), tl.join(hi, lo))


def test_shape_manipulation():
    x = torch.arange(32, dtype=torch.int32)
    out = torch.full((195, ), -1, dtype=torch.int32)
    launch(_shapes, 1, out, x)
    m = x.view(4, 8)
    want = [torch.zeros(32), m.t().reshape(-1), x.view(2, 4, 4).permute(2, 0, 1).reshape(-1),
            m.sum(1, keepdim=True).expand(4, 8).reshape(-1), m.flip(1).reshape(-1), m.flip(1).reshape(-1)]
    assert torch.equal(out[:192], torch.cat([w.to(torch.int32) for w in want])) and out[192:].tolist() == [1, 1, 0]


@triton.jit
def _custom_max(a, ia, b, ib):
    take = a > b
    return tl.where(take, a, b), tl.where(take, ia, ib)


@triton.jit
def _affine(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def _reductions(out, index, x_ptr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    tl.store(out + r, tl.sum(x, 1))
    tl.store(out + M + r, tl.max(x, axis=1))
    tl.store(out + 2 * M + r, tl.min(x, axis=-1))
    tl.store(index + r, tl.argmax(x, 1))
    tl.store(index + M + r, tl.argmin(x, axis=1))
    best, where = tl.reduce((x, tl.broadcast_to(c[None, :], (M, N))), 1, _custom_max)
    tl.store(out + 3 * M + r, best)
    tl.store(index + 2 * M + r, where)
    tl.store(index + 3 * M, tl.xor_sum(r, 0))
    tl.store(out + 4 * M, tl.sum(x))
    kept = tl.sum(x, axis=1, keep_dims=True)
    tl.static_assert(kept.shape[0] == M and kept.shape[1] == 1)


def test_reductions():
    x = torch.randn(16, 32)
    out, index = torch.zeros(5, 16), torch.zeros(4, 16, dtype=torch.int32)
    launch(_reductions, 1, out, index, x, M=16, N=32)
    torch.testing.assert_close(out[0], x.sum(1))
    assert torch.equal(out[1], x.amax(1)) and torch.equal(out[2], x.amin(1)) and torch.equal(out[3], x.amax(1))
    assert torch.equal(index[0], x.argmax(1).int()) and torch.equal(index[1], x.argmin(1).int())
    assert torch.equal(index[2], x.argmax(1).int()) and index[3, 0] == 0
    torch.testing.assert_close(out[4, 0], x.sum())


@triton.jit
def _edge_reductions(out, h_ptr, i8_ptr):
    k = tl.arange(0, 4)
    h = tl.load(h_ptr + k)
    tl.store(out, tl.max(h, 0))
    tl.store(out + 1, tl.sum(tl.load(i8_ptr + k), 0))
    tl.static_assert(tl.sum(h, 0).dtype == tl.float16)
    tl.static_assert(tl.max(h, 0).dtype == tl.float32)
    tl.store(out + 2, tl.argmax(tl.full((4, ), 1.0, tl.float32), 0))
    tl.store(out + 3, tl.sum(tl.full((4, ), 2048.0, tl.float16) + (k // 3).to(tl.float16), 0).to(tl.float32))


def test_reductions_of_narrow_types_ties_and_nan():
    out = torch.zeros(4)
    launch(_edge_reductions, 1, out, torch.tensor([1.0, float("nan"), 3.0, 2.0]).half(),
           torch.full((4, ), 127, dtype=torch.int8))
    assert out.tolist() == [3.0, 508.0, 0.0, 8192.0]


@triton.jit
def _scans(out, x_ptr, N: tl.constexpr):
    k = tl.arange(0, N)
    x = tl.load(x_ptr + k)
    tl.store(out + k, tl.cumsum(x, 0))
    tl.store(out + N + k, tl.cumsum(x, 0, reverse=True))
    tl.store(out + 2 * N + k, tl.cumprod(x, 0))
    a, b = tl.associative_scan((x, x * 0.5), 0, _affine)
    tl.store(out + 3 * N + k, b)


def test_scans():
    x = torch.rand(16) + 0.5
    out = torch.zeros(4, 16)
    launch(_scans, 1, out, x, N=16)
    h, want = 0.0, []
    for v in x.tolist():
        h = h * v + v * 0.5
        want.append(h)
    torch.testing.assert_close(
        out, torch.stack([x.cumsum(0), x.flip(0).cumsum(0).flip(0),
                          x.cumprod(0), torch.tensor(want)]))


@triton.jit
def _sorts(out, x_ptr, N: tl.constexpr):
    k = tl.arange(0, N)
    x = tl.load(x_ptr + k)
    tl.store(out + k, tl.sort(x))
    tl.store(out + N + k, tl.sort(x, descending=True))
    tl.store(out + 2 * N + tl.arange(0, 4), tl.topk(x, 4))
    h = tl.histogram(tl.abs(x).to(tl.int32), 8)
    tl.store(out + 2 * N + 8 + tl.arange(0, 8), h.to(tl.float32))


def test_sort_topk_histogram():
    x = torch.randn(32) * 2
    out = torch.zeros(3, 32)
    launch(_sorts, 1, out, x, N=32)
    assert torch.equal(out[0], x.sort().values) and torch.equal(out[1], x.sort(descending=True).values)
    assert torch.equal(out[2, :4], x.topk(4).values)
    assert torch.equal(out[2, 8:16], torch.bincount(x.abs().int(), minlength=8)[:8].float())


@triton.jit
def _mathematics(out, x_ptr, N: tl.constexpr):
    k = tl.arange(0, N)
    x = tl.load(x_ptr + k)
    r = 0
    tl.store(out + k, tl.exp(x))
    tl.store(out + N + k, tl.exp2(x) + tl.log(x) + tl.log2(x))
    tl.store(out + 2 * N + k, tl.sin(x) + tl.cos(x))
    tl.store(out + 3 * N + k, tl.sqrt(x) + tl.rsqrt(x) + tl.sqrt_rn(x))
    tl.store(out + 4 * N + k, tl.floor(x) + tl.ceil(x) + tl.abs(-x))
    tl.store(out + 5 * N + k, tl.erf(x) + tl.sigmoid(x))
    tl.store(out + 6 * N + k, tl.fma(x, x, 1.0) + tl.math.div_rn(x, 3.0) + tl.fdiv(x, x))
    tl.store(out + 7 * N + k, tl.softmax(x))
    tl.store(out + 8 * N + k, tl.clamp(x, 0.5, 1.0) + tl.minimum(x, 0.7) + tl.maximum(x, 0.7))
    tl.store(out + 9 * N + k, libdevice.tanh(x) + libdevice.pow(x, 2.0))
    r += tl.umulhi(tl.full((), 0x7FFFFFFF, tl.int32), 1 << 16)
    tl.store(out + 10 * N, r)


def test_mathematics():
    x = torch.rand(16) * 2 + 0.1
    out = torch.zeros(11, 16)
    launch(_mathematics, 1, out, x, N=16)
    want = [x.exp(), x.exp2() + x.log() + x.log2(), x.sin() + x.cos(), 2 * x.sqrt() + x.rsqrt(),
            x.floor() + x.ceil() + x, x.erf() + x.sigmoid(), x * x + 1 + x / 3 + 1, x.softmax(0),
            x.clamp(0.5, 1) + x.clamp(max=0.7) + x.clamp(min=0.7), x.tanh() + x**2]
    torch.testing.assert_close(out[:10], torch.stack(want))
    assert out[10, 0] == 0x7FFF


@triton.jit
def _wrong_math(out):
    tl.store(out, tl.exp(tl.full((), 1.0, tl.float16)))


def test_what_the_compiler_refuses_is_refused():
    with pytest.raises(InvalidArgument, match="exp of fp16.*_wrong_math"):
        launch(_wrong_math, 1, torch.zeros(1))
    x = TWINS["core.arange"](0, 8)
    for bad in (lambda: x + TWINS["core.arange"](0, 4), lambda: TWINS["core.arange"](0, 3), lambda: bool(x),
                lambda: x.to(core.float32) & 1, lambda: TWINS["core.reshape"](x, (3, 3)), lambda: x[0],
                lambda: TWINS["core.full"]((4, 6), 0, I32)):
        with pytest.raises(InvalidArgument):
            bad()


@triton.jit
def _random(out, ints, seed, N: tl.constexpr):
    k = tl.arange(0, N)
    tl.store(out + k, tl.rand(seed, k))
    tl.store(ints + k, tl.randint(seed, k))


def test_philox():
    out, ints = torch.zeros(1024), torch.zeros(1024, dtype=torch.int32)
    launch(_random, 1, out, ints, 42, N=1024)
    assert 0.45 < out.mean() < 0.55 and out.min() >= 0 and out.max() < 1
    # Random123's philox4x32-10 for key (42, 0) and counter (0, 0, 0, 0), computed independently
    c, key = [0, 0, 0, 0], [42, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    assert ints[0].item() & 0xFFFFFFFF == c[0]
