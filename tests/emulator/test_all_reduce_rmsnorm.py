# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm on virtual worlds: shapes, dtypes, what is added, places, methods, groups, streams, epochs, capture."""
from unittest import mock

import pytest
import torch
from scenarios import (AR, ARN, BF16, F16, F32, FIVE_ON, GAR, back_to_back, captures_by_rank, capturing, overtaking,
                       past_the_wrap_and_zero, side_stream, two_groups)

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import AllReduceRMSNorm
from triton_dist.ops import all_reduce_rmsnorm
from triton_dist.ops import OPS
from triton_dist.ops.exchange.sizes import by_size
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import SymmetricHeap, heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace, workspace
from triton_dist.testing import all_reduce_rmsnorm_float64, assert_matches, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
OURS = ["one_shot", "two_shot"]
SHAPES = [(1, 64), (9, 41), (3, 700), (2, 1), (17, 200)]


@pytest.mark.every("world")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", [*OURS, *(pytest.param(name, marks=pytest.mark.full) for name in ("unfused", "auto"))])
def test_ragged_shapes_back_to_back(world, method):
    """Fewer rows than ranks, rows of no whole words, rows of more words than threads."""
    shapes = SHAPES if world < 8 else SHAPES[:4]
    run_ranks(lambda: back_to_back([ARN(*shape, method) for shape in shapes]), world, seed=world)


@pytest.mark.one
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_dtypes_places_and_alignment(method, dtype):
    calls = [ARN(m, n, method, dtype, bias, residual, skip) for m, n in ((5, 72), (2, 33)) for bias in (False, True)
             for residual in (None, "apart", "strided", "in place") for skip in (0, 1)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_the_norm_or_the_sum_may_go_over_x(method):
    """vLLM's fusion writes the norm over x and the sum over the residual, or the sum over x. Programs have several rows each."""
    calls = [ARN(m, n, method, dtype, bias, residual, over_x=over_x) for m, n, dtype in ((5, 72, BF16), (7, 33, F32))
             for over_x in ("norm", "sum", None) for residual, bias in (("apart", True), (None, False), ("in place", False))
             if (over_x, residual) != ("sum", "in place")]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=1), 3, mode="random", num_sms=2)
    run_ranks(lambda: back_to_back(calls[:4]), 1)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_zeros_stay_positive(world):
    """A word of zeros travels as -0.0 in its upper element; no sum and no norm keeps that sign."""
    def script():
        for dtype in (F16, BF16, F32):
            x, weight = torch.zeros(3, 24, dtype=dtype), torch.ones(24, dtype=dtype)
            for method in (*OURS, "unfused"):
                found = all_reduce_rmsnorm(x, weight, method=method)
                triton_dist.synchronize()
                assert not any(t.count_nonzero() or t.signbit().any() for t in found), method
    run_ranks(script, world)


@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_ops_in_turn_and_a_slow_rank(mode):
    """all_reduce and gemm_ar use the same workspace."""
    calls = [ARN(9, 130, "two_shot", residual="in place"), AR(700, "one_shot"), ARN(1, 64, "one_shot", bias=True),
             GAR(6, 24, 40), ARN(2, 70, "two_shot", residual="apart"), AR(40, "two_shot")]
    for slow in (0, 2):
        run_ranks(lambda: overtaking(calls, slow=slow, repeat=2), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("method", OURS)
def test_more_rows_than_programs_and_more_words_than_threads(method):
    calls = [ARN(11, 260, method, bias=True, residual="in place"), ARN(2, 9000, method, dtype=F32)]
    run_ranks(lambda: back_to_back(calls), 2, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_every_rank_and_every_schedule_has_the_same_bits(method, mode):
    def script():
        return back_to_back([ARN(4, 1001, method, dtype=BF16, bias=True, residual="apart")])[0]
    first = run_ranks(script, 3, mode="eager")
    assert all(torch.equal(both, first[0]) for both in first)
    assert all(torch.equal(both, first[0]) for both in run_ranks(script, 3, mode=mode, seed=7))


@pytest.mark.parametrize("method", OURS)
def test_bias_and_residual_are_added_before_the_one_rounding_and_the_norm_is_of_the_rounded_sum(method):
    """1 + 2^-8 + 2^-8 is a number of bfloat16; either step alone would round to 1."""
    def script():
        x, small = torch.full((3, 8), float(resolve().rank == 0), dtype=BF16), torch.full((3, 8), 2.0**-8, dtype=BF16)
        out, total = all_reduce_rmsnorm(x, torch.full((8,), 2.0, dtype=BF16), bias=small[0], residual=small, eps=0, method=method)
        triton_dist.synchronize()
        assert bool((total.float() == 1 + 2.0**-7).all()) and bool((out.float() == 2).all())
    run_ranks(script, 2)


@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_eps_is_torchs(method):
    def script():
        x = random_tensor(4, 24, dtype=F32, seed=3) * 1e-4
        weight = random_tensor(24, dtype=F32, seed=4)
        for eps in (None, 0, 1e-6, 0.5):
            out, total = all_reduce_rmsnorm(x, weight, eps=eps, method=method)
            triton_dist.synchronize()
            torch.testing.assert_close(out, torch.nn.functional.rms_norm(2 * x, (24,), weight, eps), rtol=1e-5, atol=1e-7)
            assert torch.equal(total, 2 * x)
    run_ranks(script, 2)


@pytest.mark.one
@pytest.mark.parametrize("method", OURS)
def test_two_groups_and_two_streams(method):
    calls = [ARN(9, 70, method, bias=True), ARN(2, 33, method, residual="in place")]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)


@pytest.mark.one
@pytest.mark.parametrize("start", FIVE_ON)
@pytest.mark.parametrize("method", OURS)
def test_epochs_pass_the_wrap_and_zero(method, start):
    calls, growing = [ARN(9, 40, method), ARN(1, 70, method)], [ARN(4, 128 * (i + 1), method) for i in range(5)]
    run_ranks(lambda: past_the_wrap_and_zero(calls, growing, "self-flagged", start), 3, mode="late")


def test_the_second_call_allocates_nothing_symmetric():
    def script():
        calls = [ARN(20, 200, "two_shot"), ARN(1, 24, "one_shot")]
        back_to_back(calls)
        live = set(heap()._live)
        back_to_back(calls)
        assert set(heap()._live) == live
    run_ranks(script, 2)


@pytest.mark.parametrize("shape", [(0, 24), (5, 0), (2, 3, 40), (40,), (1, 1, 1)])
@pytest.mark.parametrize("method", [*OURS, "unfused", "auto"])
def test_any_number_of_dimensions_and_none_of_elements(method, shape):
    def script():
        x = random_tensor(*shape, dtype=F32, seed=resolve().rank)
        weight, residual = random_tensor(shape[-1], dtype=F32, seed=9), random_tensor(*shape, dtype=F32, seed=8)
        out, total = all_reduce_rmsnorm(x, weight, residual=residual, method=method)
        triton_dist.synchronize()
        norm, summed = all_reduce_rmsnorm_float64(x, weight, resolve(), residual=residual)
        assert out.shape == total.shape == x.shape
        if x.numel():
            assert_matches(total, summed, k=3)
            assert_matches(out, norm, k=40, roundings=3)
        back_to_back([ARN(4, 24, "one_shot")])
    run_ranks(script, 2)


def test_strided_operands():
    def script():
        x, weight = random_tensor(12, 64, dtype=F16, seed=resolve().rank)[:, 8:40], random_tensor(32, dtype=F16, seed=9)
        for method in (*OURS, "unfused"):
            out, total = all_reduce_rmsnorm(x, weight, method=method)
            triton_dist.synchronize()
            norm, summed = all_reduce_rmsnorm_float64(x, weight, resolve())
            assert_matches(total, summed, k=2)
            assert_matches(out, norm, k=32, roundings=3)
    run_ranks(script, 2)


# -- layer -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_layer(eps):
    @torch.no_grad()
    def script():
        group = resolve()
        norm = torch.nn.RMSNorm(24, eps=eps)
        torch.nn.init.normal_(norm.weight)
        x, residual = (random_tensor(5, 24, dtype=F32, seed=seed) for seed in (group.rank, 8))
        bias = torch.ones(24)
        layer = AllReduceRMSNorm.from_norm(norm, bias)
        assert layer.weight.data_ptr() == norm.weight.data_ptr()
        out, total = layer(x, residual)
        triton_dist.synchronize()
        expected, summed = all_reduce_rmsnorm_float64(x, norm.weight.detach(), group, bias, residual,
                                                      torch.finfo(F32).eps if eps is None else eps)
        assert_matches(total, summed, k=3)
        assert_matches(out, expected, k=24, roundings=3)
        again, written = torch.empty(5, 24), residual.clone()
        assert layer(x, written, out=again, residual_out=written) == (again, written)
        triton_dist.synchronize()
        assert torch.equal(again, out) and torch.equal(written, total)
    run_ranks(script, 3)


def test_no_eps_is_that_of_torch_with_its_gradient():
    """torch norms rows of fp16 and bf16 in fp32, whose eps it takes. Rows are so small that the dtype's own would show."""
    def script():
        norm = torch.nn.RMSNorm(24).bfloat16()
        x = (random_tensor(5, 24, dtype=torch.bfloat16, seed=4) / 64).requires_grad_()
        same, factor = x.detach().clone().requires_grad_(), random_tensor(5, 24, dtype=torch.bfloat16, seed=5)
        expected = norm(same)
        (expected * factor).sum().backward()
        wanted = norm.weight.grad.clone()
        norm.zero_grad()
        for method in (*OURS, "unfused"):
            out = all_reduce_rmsnorm(x / 2, norm.weight, eps=None, method=method)[0]       # of two ranks
            triton_dist.synchronize()
            torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
        (out * factor).sum().backward()
        torch.testing.assert_close(norm.weight.grad, wanted, rtol=0.02, atol=0.05)
        torch.testing.assert_close(x.grad, same.grad / 2, rtol=0.05, atol=0.05 * float(same.grad.abs().max()))
    run_ranks(script, 2)


# -- capture -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", OURS)
def test_capture_uses_what_has_run_before_and_keeps_its_memory(method):
    def script():
        ran = ARN(9, 40, method, bias=True)
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran, ran])
        data = workspace(resolve(), "self-flagged").data
        back_to_back([ARN(64, 600, method)])
        assert workspace(resolve(), "self-flagged").data is not data
        assert data.tdist_allocation.live, "a captured graph still stores there"
        back_to_back([ran])
    run_ranks(script, 2)


def test_capture_of_what_has_not_run_is_unfused_or_an_error():
    def script():
        with capturing():
            back_to_back([ARN(9, 40, "auto")])
            with pytest.raises(InvalidArgument, match="'one_shot' is not possible here: .*; use 'auto' or 'unfused'"):
                all_reduce_rmsnorm(torch.ones(4, 8), torch.ones(8), method="one_shot")
        assert (resolve().key, "self-flagged") not in state().workspaces
        back_to_back([ARN(9, 40, "auto"), ARN(9, 40, "auto")])
        assert workspace(resolve(), "self-flagged").calls_begun() == 2
    run_ranks(script, 2)


# -- choice ------------------------------------------------------------------------------------------------------------
def test_auto_takes_one_hop_then_two_then_the_parts():
    def taken(world, *sizes):
        return [by_size(OPS["all_reduce_rmsnorm"].steps, world, nbytes)[0] for nbytes in sizes]
    assert taken(2, 1, 256 * 8192 * 2) == ["one_shot"] * 2
    assert taken(2, 257 * 8192 * 2, 16 << 20, (16 << 20) + 1) == ["two_shot", "two_shot", "unfused"]
    assert taken(4, 1, 64 << 10, 1 << 20, 9 << 20) == ["one_shot", "one_shot", "two_shot", "unfused"]


def test_a_group_whose_memory_is_not_reachable_takes_its_own_collective():
    def script():
        back_to_back([ARN(9, 40, "auto")])
        with pytest.raises(InvalidArgument, match="can load and store each other's memory; use 'auto' or 'unfused'"):
            all_reduce_rmsnorm(torch.ones(4, 8), torch.ones(8), method="two_shot")
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    with mock.patch.object(SymmetricHeap, "reachable", lambda self, group: False):
        run_ranks(script, 2)


# -- models whose norm multiplies by 1 + weight -------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_a_number_is_added_to_the_weight_before_it_is_rounded(method, dtype):
    """1 + 2^-12 is no number of bfloat16: a weight of that size would be lost if 1 were added to it in its own dtype."""
    def script():
        x, weight = random_tensor(5, 72, dtype=dtype, seed=resolve().rank), random_tensor(72, dtype=dtype, seed=9) * 2.0**-12
        residual = random_tensor(5, 72, dtype=dtype, seed=8)
        out, total = all_reduce_rmsnorm(x, weight, residual=residual, weight_bias=1.0, method=method)
        found = OPS["all_reduce_rmsnorm_quant"].function(x, weight, residual=residual, weight_bias=1.0, keep_norm=True,
                                                         method=method)
        plain, _ = all_reduce_rmsnorm(x, weight, residual=residual, method=method)
        triton_dist.synchronize()
        expected, summed = all_reduce_rmsnorm_float64(x, weight, resolve(), residual=residual, weight_bias=1.0)
        assert_matches(out, expected, k=72, roundings=4)
        assert torch.equal(found.norm_out, out) and not torch.equal(plain, out)
        if dtype is F32:
            assert float((out.double() - expected).abs().max()) < 2.0**-18, "the weight itself counts"
    run_ranks(script, 2)


@pytest.mark.parametrize("through", [lambda f: f, lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)],
                         ids=["eager", "compiled"])
def test_gradients_of_a_norm_with_one_added(through):
    def script():
        leaves = [random_tensor(*shape, dtype=F32, seed=seed).requires_grad_() for shape, seed in (((4, 24), 3), ((24,), 8))]
        call = through(lambda x, w: all_reduce_rmsnorm(x, w, eps=1e-5, weight_bias=1.0)[0].square().sum())
        found = torch.autograd.grad(call(*leaves), leaves)
        x, weight = leaves
        expected = torch.autograd.grad(torch.nn.functional.rms_norm(2 * x, (24,), weight + 1, 1e-5).square().sum(), leaves)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[0], expected[0] / 2, rtol=1e-4, atol=1e-5)     # of this rank's term alone
    run_ranks(script, 2)
