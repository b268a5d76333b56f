# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The kernel for bias, residual and norm of rows against float64: what it is given, where it writes, and how rows lie."""
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from quant_scenarios import assert_quantized
from scenarios import BF16, F16, F32

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops.norm_rows import launch
from triton_dist.ops.norm_rows.launch import NormRows, threads_of
from triton_dist.testing import assert_matches, poisoned, random_tensor

EPS = 1e-3
SHAPES = [(1, 64), (9, 41), (3, 700), (2, 1), (5, 2056)]
QUANTS = {"tensor": "fp8_tensor", "row": "fp8_row", "group": "fp8_1x128"}


def norm_float64(total, weight, weight_bias, center, shift):
    """Of rows that are what they are, by its definition."""
    total = total.double()
    if center:
        total = total - total.mean(-1, keepdim=True)
    norm = total / (total.square().mean(-1, keepdim=True) + EPS).sqrt() * (weight.double() + weight_bias)
    return norm if shift is None else norm + shift.double()


class Case:
    """One launch. residual: None, "apart", "strided" or "in place" of the sum. into: where the sum and the norm go: "apart"; the
    sum into "x"; or the norm into x, "out into x"."""

    def __init__(self, m, n, dtype=BF16, bias=False, residual=None, norm=True, center=False, quant="", more=0.0, keep=True,
                 into="apart", skip=0):
        vars(self).update(locals())

    def __call__(self, seed=0):
        m, n, dtype = self.m, self.n, self.dtype

        def of(*shape, salt):
            flat = random_tensor(self.skip + torch.Size(shape).numel(), dtype=dtype, seed=100 * seed + salt)
            return flat[self.skip:].view(shape)
        x = of(m, n, salt=1) if self.into != "apart" or self.skip else of(m, n + 8, salt=1)[:, :n]
        weight = of(n, salt=2) if self.norm else None
        bias = of(n, salt=3) if self.bias else None
        shift = of(n, salt=4) if self.center else None
        residual = None if self.residual is None else of(m, n, salt=5)
        if self.residual == "strided":
            residual = of(m, 3 * n, salt=5)[:, n:2 * n]
        adds = bias is not None or residual is not None
        summed = x.double() + (0 if bias is None else bias.double()) + (0 if residual is None else residual.double())
        total = residual if self.residual == "in place" else x if self.into == "x" else poisoned(m, n, dtype=dtype)
        out = None if not self.norm or not self.keep else x if self.into == "out into x" else poisoned(m, n, dtype=dtype)
        scale = torch.tensor([0.02]) if self.quant == "tensor" else None
        quantised = torch.full((m, n), 0x7f, dtype=torch.int8) if self.quant else None
        scales = {"row": poisoned(m, 1, dtype=F32), "group": poisoned(m, -(-n // 128), dtype=F32)}.get(self.quant)
        before = x.clone()
        call = NormRows(m, n, dtype, EPS, self.more, self.center, self.quant)
        given = (x, weight, bias, residual, out, total, shift, scale, quantised, scales)
        call.compile(*given)
        call.launch(*given)
        triton_dist.synchronize()
        if adds:
            assert_matches(total, summed, k=1)
        else:
            assert torch.equal(total, before)
        if self.norm:
            expected = norm_float64(total, weight, self.more, self.center, shift)
            if out is not None:
                assert_matches(out, expected, k=n, roundings=3)
            if self.quant:
                q = quantised.view(torch.float8_e4m3fn)
                assert_quantized(q, scale if scales is None else scales, expected, QUANTS[self.quant], 8 * torch.finfo(dtype).eps)
        if self.into == "apart" and self.residual != "in place":
            assert torch.equal(x, before)
        return [t.clone() for t in (total, out, quantised, scales) if t is not None]


@pytest.mark.every("shape", "dtype")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_shapes_and_dtypes_give_the_same_bits_again(shape, dtype):
    """Rows of no whole words, of fewer words than threads, and of more than a program has threads."""
    def script():
        for options in (dict(residual="apart"), dict(), dict(bias=True, residual="in place", more=1.0),
                        dict(center=True, bias=True), dict(norm=False, residual="strided")):
            first, again = (Case(*shape, dtype, **options)() for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, again))
    run_ranks(script, 1)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_quantised_norm(dtype, quant):
    def script():
        for (m, n), keep, skip in (((3, 272), True, 0), ((2, 33), False, 1), ((1, 2056), False, 0)):
            Case(m, n, dtype, residual="apart", quant=quant, keep=keep, skip=skip)()
    run_ranks(script, 1)


@pytest.mark.parametrize("into", ["x", "out into x"])
@pytest.mark.parametrize("n", [64, 41, 2056])
def test_the_sum_or_the_norm_may_go_where_x_was(into, n):
    def script():
        for residual in ("apart", "in place") if into == "out into x" else ("apart", "strided"):
            Case(4, n, bias=True, residual=residual, into=into)()
    run_ranks(script, 1)


@pytest.mark.parametrize("sms", [1, 132])
def test_threads_are_those_that_were_fastest_and_the_norm_is_as_right(sms):
    """With one SM all numbers of rows are many."""
    def script():
        def taken(n, whole=True, adds=True, norms=True):
            return threads_of(9, n, BF16, whole, adds, norms)
        assert taken(4096) == ((256, 2) if sms == 1 else (512, 1)) and taken(8192) == (512, 2)
        assert taken(8192, adds=False) == (256, 4) and taken(4096, adds=False) == (128, 4)
        assert taken(8192, norms=False) == taken(8191, whole=False) == (1024, 1)
        assert taken(65536, adds=False) == taken(65536) == (1024, 8) and taken(8, adds=False) == (128, 1)
        for center in (False, True):
            Case(9, 4096, residual="apart", center=center)()
            Case(2, 8 * 1024 + 8, F32, center=center, bias=True)()
    run_ranks(script, 1, num_sms=sms)


def test_bias_and_residual_are_added_before_the_one_rounding():
    """1 + 2^-8 + 2^-8 is a number of bfloat16; either step alone would round to 1."""
    def script():
        x, small, out = torch.ones(3, 8, dtype=BF16), torch.full((3, 8), 2.0**-8, dtype=BF16), poisoned(3, 8, dtype=BF16)
        given = (x, torch.ones(8, dtype=BF16), small[0], small, out, poisoned(3, 8, dtype=BF16))
        call = NormRows(3, 8, BF16)
        call.compile(*given)
        call.launch(*given)
        triton_dist.synchronize()
        assert bool((given[5].float() == 1 + 2.0**-7).all()) and bool((out.float() == 1).all())
    run_ranks(script, 1)


@pytest.mark.parametrize("most", [launch.MOST_ROW_BYTES, 64])
def test_rows_that_no_program_holds_are_left_to_torch(most):
    """As wide ones are; with the same roundings, hence near to the same numbers."""
    def script():
        x, weight, bias = (random_tensor(*shape, dtype=BF16, seed=seed) for seed, shape in enumerate([(5, 96), (96,), (96,)]))
        residual = random_tensor(5, 96, dtype=BF16, seed=9)
        norm, total = triton_dist.ops.all_reduce_rmsnorm(x, weight, bias=bias, residual=residual, method="unfused")
        other, _ = triton_dist.ops.all_reduce_layernorm(x, weight, bias, residual=residual, method="unfused")
        whole = triton_dist.ops.all_reduce_rmsnorm_quant(x, weight, bias=bias, residual=residual, method="unfused")
        triton_dist.synchronize()
        return norm.float(), total.float(), other.float(), whole.residual_out.float(), whole.out.float() * whole.scales
    with mock.patch.object(launch, "MOST_ROW_BYTES", most) if most == 64 else nullcontext(), \
            mock.patch.object(NormRows, "compile", side_effect=AssertionError) if most == 64 else nullcontext():
        found = run_ranks(script, 2)[0]
    assert torch.equal(found[1], found[3])
    if most == 64:
        usual = run_ranks(script, 2)[0]
        assert torch.equal(found[1], usual[1]), "the roundings of the sum are the same"
        for ours, by_torch in zip(usual, found):
            torch.testing.assert_close(by_torch, ours, rtol=2**-3, atol=2**-6)
