# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Less common functions of the language: libdevice's, dot_scaled, map_elementwise, block pointers that run backwards."""
import math

import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, launch  # noqa: F401
from triton.language.extra import libdevice

from triton_dist.backends.emulator.values.promotion import NEWER

N = 16


@triton.jit
def _floats(x_ptr, y_ptr, out, N: tl.constexpr):
    k = tl.arange(0, N)
    x, y = tl.load(x_ptr + k), tl.load(y_ptr + k)
    tl.store(out + k, libdevice.tgamma(x))
    tl.store(out + N + k, libdevice.round(x))
    tl.store(out + 2 * N + k, libdevice.exp10(x))
    tl.store(out + 3 * N + k, libdevice.sinpi(x) + 2 * libdevice.cospi(x))
    tl.store(out + 4 * N + k, libdevice.cbrt(x) * libdevice.rcbrt(y))
    tl.store(out + 5 * N + k, libdevice.normcdf(x))
    tl.store(out + 6 * N + k, libdevice.fdim(x, y))
    tl.store(out + 7 * N + k, libdevice.remainder(x, y))
    tl.store(out + 8 * N + k, libdevice.ldexp(x, 3))
    tl.store(out + 9 * N + k, libdevice.rhypot(x, y))
    tl.store(out + 10 * N + k, libdevice.add_rn(x, y) + libdevice.mul_rn(x, y) - libdevice.sub_rn(x, y))
    tl.store(out + 11 * N + k, libdevice.rcp_rn(x) + libdevice.norm3d(x, y, x))
    if x.dtype == tl.float32:
        tl.store(out + 12 * N + k, libdevice.saturatef(x) + libdevice.fast_powf(y, x))
    tl.store(out + 13 * N, libdevice.tgamma(tl.load(x_ptr)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats(dtype):
    x = torch.tensor([-2.5, 0.5, 1.5, -1.5, -0.5, 2.5, 3.0, -3.25, 0.25, 4.75, -0.75, 1.0, 0.49999997, 2.0, 5.5, -1.25],
                     dtype=dtype)
    y = torch.tensor([0.7, 1.3, 2.0, 0.5, 1.0, 3.0, 0.9, 2.2, 1.1, 0.3, 0.6, 4.0, 1.7, 2.5, 0.8, 1.9], dtype=dtype)
    out = torch.full((14 * N, ), float("nan"), dtype=dtype)
    launch(_floats, 1, x, y, out, N=N)
    a, b = x.tolist(), y.tolist()
    want = [[math.gamma(v) for v in a], [math.copysign(math.floor(abs(v) + 0.5) if abs(v) > 0.49999998 else 0, v) for v in a],
            [10**v for v in a], [math.sin(math.pi * v) + 2 * math.cos(math.pi * v) for v in a],
            [math.copysign(abs(v)**(1 / 3), v) / w**(1 / 3) for v, w in zip(a, b)],
            [0.5 * math.erfc(-v / math.sqrt(2)) for v in a], [max(v - w, 0) for v, w in zip(a, b)],
            [math.remainder(v, w) for v, w in zip(a, b)], [8 * v for v in a], [1 / math.hypot(v, w) for v, w in zip(a, b)],
            [2 * w + v * w for v, w in zip(a, b)], [1 / v + math.hypot(v, w, v) for v, w in zip(a, b)],
            [min(max(v, 0), 1) + w**v for v, w in zip(a, b)]]
    rows = 13 if dtype == torch.float32 else 12
    want = torch.tensor(want[:rows], dtype=torch.float64).to(dtype)
    torch.testing.assert_close(out.view(14, N)[:rows], want, rtol=2e-5, atol=2e-6)
    assert out[13 * N] == out[0]


@triton.jit
def _words(x_ptr, f_ptr, out, high, N: tl.constexpr):
    k = tl.arange(0, N)
    x, f = tl.load(x_ptr + k), tl.load(f_ptr + k)
    tl.store(out + k, libdevice.popc(x))
    tl.store(out + N + k, libdevice.clz(x))
    tl.store(out + 2 * N + k, libdevice.ffs(x))
    tl.store(high + k, libdevice.brev(x))
    tl.store(high + N + k, libdevice.mulhi(x, x))
    tl.store(out + 3 * N + k, libdevice.signbit(f) + 2 * libdevice.finitef(f))
    tl.store(out + 4 * N + k, libdevice.float2int_rn(f))
    tl.store(out + 5 * N + k, libdevice.float2int_rd(f) * 100 + libdevice.float2int_ru(f))
    tl.store(out + 6 * N + k, libdevice.float2uint_rz(f))
    tl.store(out + 7 * N + k, libdevice.float_as_int(f))
    tl.store(out + 8 * N + k, libdevice.llround(f))
    tl.store(out + 9 * N, libdevice.popc(tl.load(x_ptr)) + libdevice.clz(tl.load(x_ptr)))


@pytest.mark.parametrize("bits", [32, 64])
def test_words(bits):
    kind = torch.int32 if bits == 32 else torch.int64
    edges = torch.tensor([1, 0, -1, -2**(bits - 1), 2**(bits - 1) - 1, 12])
    x = torch.cat([edges, torch.randint(-2**31, 2**31, (N - 6, ))]).to(kind)
    f = torch.tensor([0.5, 1.5, -2.5, 3.7, -0.0, 7e9, -7e9, float("nan"), float("inf"), 2.5, -1.5, 3e9, 1.0, -0.4, 0.6, 8.0])
    out, high = torch.zeros(10 * N, dtype=torch.int32), torch.zeros(2 * N, dtype=kind)
    launch(_words, 1, x, f, out, high, N=N)
    got, words = out.view(10, N).tolist(), [v % 2**bits for v in x.tolist()]
    texts = [f"{w:0{bits}b}" for w in words]
    assert got[0] == [w.bit_count() for w in words] and got[1] == [bits - w.bit_length() for w in words]
    assert got[2] == [(w & -w).bit_length() for w in words] and got[9][0] == bits
    assert [v % 2**bits for v in high[:N].tolist()] == [int(t[::-1], 2) for t in texts]
    assert high[N:].tolist() == [v * v >> bits for v in x.tolist()]
    numbers = [v for v in f.tolist()]
    assert got[3] == [(math.copysign(1, v) < 0) + 2 * math.isfinite(v) for v in numbers]

    def cut(v, low, up):
        return 0 if v != v else int(min(max(v, low), up))
    assert got[4] == [cut(v if v in (math.inf, -math.inf) or v != v else round(v), -2**31, 2**31 - 1) for v in numbers]
    assert [g % 2**32 for g in got[6]] == [cut(v, 0, 2**32 - 1) for v in numbers]
    small = [i for i, v in enumerate(numbers) if abs(v) < 100]
    assert [got[5][i] for i in small] == [math.floor(numbers[i]) * 100 + math.ceil(numbers[i]) for i in small]
    assert out.view(10, N)[7].view(torch.float32).nan_to_num(-9).equal(f.nan_to_num(-9))
    assert [got[8][i] for i in small] == [int(math.copysign(math.floor(abs(numbers[i]) + 0.5), numbers[i])) for i in small]


def _fp4(code):
    size, sign = code & 7, -1 if code & 8 else 1
    return sign * (size & 1) * 0.5 if size < 2 else sign * (1 + (size & 1) / 2) * 2**((size >> 1) - 1)


def _operand(kind, rows, k):
    """(what the kernel takes, with K last; its numbers)."""
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, k), dtype=torch.uint8)
        return codes[:, ::2] | codes[:, 1::2] << 4, torch.tensor([[_fp4(c) for c in row] for row in codes.tolist()])
    values = torch.randn(rows, k).to({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}[kind])
    return (values if kind == "bf16" else values.view(torch.uint8)), values.float()


@triton.jit
def _scaled(a, a_scale, b, b_scale, out, LEFT: tl.constexpr, RIGHT: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr,
            G: tl.constexpr):
    i, ka, kb, g = tl.arange(0, 32), tl.arange(0, KA), tl.arange(0, KB), tl.arange(0, G)
    x, y = tl.load(a + i[:, None] * KA + ka[None, :]), tl.load(b + i[None, :] * KB + kb[:, None])
    scale = tl.load(a_scale + i[:, None] * G + g[None, :])
    if RIGHT == "bf16":
        r = tl.dot_scaled(x, scale, LEFT, y, None, RIGHT)
    else:
        scale_y = tl.load(b_scale + i[:, None] * G + g[None, :])
        r = tl.dot_scaled(x, scale, LEFT, y, scale_y, RIGHT, tl.full([32, 32], 1.0, tl.float32))
    tl.store(out + i[:, None] * 32 + i[None, :], r)


@pytest.mark.parametrize("left, right", [("e2m1", "e2m1"), ("e4m3", "e5m2"), ("e2m1", "bf16")])
def test_dot_scaled(left, right):
    (a, x), (b, y) = _operand(left, 32, 64), _operand(right, 32, 64)
    scales = torch.randint(120, 135, (2, 32, 2), dtype=torch.uint8)
    out = torch.zeros(32, 32)
    launch(_scaled, 1, a.contiguous(), scales[0], b.contiguous(), scales[1], out, LEFT=left, RIGHT=right, KA=a.shape[1],
           KB=b.shape[1], G=2)
    factors = [2.0**(s.double() - 127).repeat_interleave(32, 1) for s in scales]
    want = (x * factors[0]) @ (y.double() * (1 if right == "bf16" else factors[1])).T + (right != "bf16")
    torch.testing.assert_close(out, want.float(), rtol=1e-5, atol=1e-3)


@triton.jit
def _pick(a, b, x, y):
    if a > b:
        return a + x, b + y, 1, 0
    else:
        return a, b, 0, x


@triton.jit
def _mapped(x_ptr, y_ptr, out):
    k = tl.arange(0, 8)
    u, v = tl.map_elementwise(_pick, tl.load(x_ptr + k), tl.load(y_ptr + k), pack=2)
    tl.store(out + k, u)
    tl.store(out + 8 + k, v)


def test_map_elementwise_of_packs():
    x, y = torch.tensor([3, 1, 1, 3, 5, 5, 9, 2], dtype=torch.int32), torch.arange(8, dtype=torch.int32) * 10
    out = torch.zeros(16, dtype=torch.int32)
    launch(_mapped, 1, x, y, out)
    want = [], []
    for i in range(0, 8, 2):
        (a, b), (c, d) = x[i:i + 2].tolist(), y[i:i + 2].tolist()
        want[0].extend((a + c, b + d) if a > b else (a, b))
        want[1].extend((1, 0) if a > b else (0, c))
    assert out.tolist() == want[0] + want[1]


@triton.jit
def _backwards(x_ptr, out):
    block = tl.make_block_ptr(x_ptr + 15, (4, 4), (-4, -1), (0, 2), (4, 4), (1, 0))
    tl.store(out + tl.arange(0, 16), tl.reshape(tl.load(block, boundary_check=(1, ), padding_option="zero"), [16]))
    tl.store(block, tl.full([4, 4], 5.0, tl.float32), boundary_check=(1, ))


@pytest.mark.skipif(NEWER, reason="Triton 3.9 has no block pointers")
def test_block_pointers_that_run_backwards():
    x, out = torch.arange(16.), torch.zeros(16)
    launch(_backwards, 1, x, out)
    turned = torch.arange(16.).flip(0).view(4, 4)
    assert torch.equal(out.view(4, 4), torch.cat([turned[:, 2:], torch.zeros(4, 2)], 1))
    assert torch.equal(x.view(4, 4), torch.cat([torch.full((4, 2), 5.0), torch.arange(16.).view(4, 4)[:, 2:]], 1))
