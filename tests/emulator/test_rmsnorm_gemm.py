# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""rmsnorm_gemm against float64: values, gradients, calls that ranks make unalike, captures, and what is refused."""
from unittest import mock

import pytest
import torch
from scenarios import BF16, F16, F32, captures_by_rank, graph  # noqa: F401  (a fixture)

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.bench.any_op import AnyOp
from triton_dist.bench.shapes import Shape
from triton_dist.ops import rmsnorm_gemm
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import assert_matches, poisoned, random_tensor, rmsnorm_gemm_float64

EPS = 1e-3
SHAPES = [(1, 40, 96), (5, 66, 130), (20, 24, 300), (33, 96, 64), (70, 8, 520), (2, 2, 1)]


def operands(m, n, k, dtype=BF16, norm=True, bias=False, residual=None, seed=0):
    """Arguments of a call. residual: None, "apart" or "strided"."""
    given = dict(x=random_tensor(m, k, dtype=dtype, seed=seed), weight=random_tensor(n, k, dtype=dtype, seed=seed + 1) / k**0.5)
    if norm:
        given["norm_weight"] = random_tensor(k, dtype=dtype, seed=seed + 2)
    if bias:
        given["bias"] = random_tensor(n, dtype=dtype, seed=seed + 3)
    if residual is not None:
        given["residual"] = random_tensor(m, k, dtype=dtype, seed=seed + 4)
        if residual == "strided":
            given["residual"] = given["residual"].t().contiguous().t()
    return given


def compare(given, out, total, act=None, norm_weight_bias=0.0, eps=EPS):
    """out and total of a call with these arguments against float64."""
    expected, added = rmsnorm_gemm_float64(**given, act=act, norm_weight_bias=norm_weight_bias, eps=eps)
    if total is not None:
        assert_matches(total, added, k=1)
    k, gated = given["x"].shape[1], act is not None
    # An error of gate counts as often as up is large, which is up to four times its usual size, and the other way round. So fp32
    # sums one after the other, as GPUs make them, pass the bound for sums alone by up to a third.
    assert_matches(out, expected, k=16 * k if gated else k, roundings=8 if gated else 4)


def checked(m, n, k, method="portable", act=None, norm_weight_bias=0.0, **options):
    """One call into poisoned tensors, compared with the reference. Returns the bits of the results."""
    given = operands(m, n, k, **options)
    dtype, adds = given["x"].dtype, "residual" in given
    out, total = poisoned(m, n // (1 if act is None else 2), dtype=dtype), poisoned(m, k, dtype=dtype) if adds else None
    got = rmsnorm_gemm(**given, eps=EPS, norm_weight_bias=norm_weight_bias, act=act, out=out, residual_out=total, method=method)
    triton_dist.synchronize()
    assert (got[0] is out and got[1] is total) if adds else got is out
    compare(given, out, total, act, norm_weight_bias)
    return torch.cat([out.flatten(), *([] if total is None else [total.flatten()])]).view(torch.uint8)


@pytest.mark.parametrize("residual, norm, bias, act, more", [
    (None, True, False, None, 0.0), ("apart", True, True, "silu_mul", 1.0), ("strided", False, True, None, 0.0),
    (None, False, False, "silu_mul", 0.0)])
@pytest.mark.parametrize("method", ["portable", "unfused"])
def test_ragged_shapes_give_the_same_bits_again(method, residual, norm, bias, act, more):
    def script():
        for seed, shape in enumerate(SHAPES):
            found = [checked(*shape, method, act, more, norm=norm, bias=bias, residual=residual, seed=seed) for _ in range(2)]
            assert torch.equal(*found)
    run_ranks(script, 1)


@pytest.mark.parametrize("method", ["portable", "unfused", "auto"])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_dtypes(dtype, method):
    run_ranks(lambda: [checked(9, 80, 264, method, "silu_mul", dtype=dtype, residual="apart"),
                       checked(20, 40, 264, method, dtype=dtype, bias=True)], 1)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_ranks_need_not_call_alike_and_a_refused_call_harms_nobody(world):
    def script():
        rank = state().world.rank
        for _ in range(rank):
            checked(3 + rank, 40, 64)
        if rank == 1:
            with pytest.raises(InvalidArgument, match="act: expected"):
                checked(3, 40, 64, act="gelu")
            checked(3, 40, 72)
        total = ops.all_reduce(torch.full((4,), float(rank)))
        assert torch.equal(total, torch.full((4,), world * (world - 1) / 2))
    run_ranks(script, world)


def test_strided_operands_and_none_at_all():
    def script():
        given = operands(4, 24, 64)
        strided = dict(given, x=given["x"].t().contiguous().t(), weight=given["weight"].t().contiguous().t())
        for now in (given, strided, dict(given, x=torch.cat([given["x"], given["x"]], 1)[:, :64])):
            out = rmsnorm_gemm(**now, eps=EPS, method="portable")
            triton_dist.synchronize()
            compare(given, out, None)
        for m, n, k in ((0, 24, 64), (4, 0, 64), (4, 24, 0)):
            empty = operands(m, n, k, bias=True)
            out = rmsnorm_gemm(**empty, method="portable")
            assert out.shape == (m, n) and (k or torch.equal(out, empty["bias"].expand(m, n)))
    run_ranks(script, 1)


def test_outliers_of_a_row_stay_in_that_row():
    """A NaN, an infinity and a row of zeros do to their own row what they do to a norm, and nothing to others."""
    def script():
        given = operands(5, 40, 96, F32)
        given["x"][1, 7], given["x"][2, 90], given["x"][3] = float("nan"), float("inf"), 0
        for method in ("portable", "unfused"):
            out = rmsnorm_gemm(**given, eps=EPS, method=method)
            triton_dist.synchronize()
            assert out[1].isnan().all() and out[2].isnan().all() and torch.equal(out[3], torch.zeros(40))
            good = {name: t[[0, 4]] if name == "x" else t for name, t in given.items()}
            compare(good, out[[0, 4]], None)
    run_ranks(script, 1)


@pytest.mark.parametrize("method", ["portable", "unfused"])
@pytest.mark.parametrize("residual, norm, bias, act, more", [
    ("apart", True, True, "silu_mul", 0.5), (None, True, False, None, 0.0), ("apart", False, True, None, 0.0),
    (None, False, True, "silu_mul", 0.0)])
def test_gradients(residual, norm, bias, act, more, method):
    def script():
        given = operands(6, 24, 40, F32, norm, bias, residual)
        leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
        wide = {name: t.double().requires_grad_() for name, t in given.items()}
        got = rmsnorm_gemm(**leaves, eps=EPS, norm_weight_bias=more, act=act, method=method)
        want = rmsnorm_gemm_float64(**wide, act=act, norm_weight_bias=more, eps=EPS)
        got = got if residual else (got,)
        grads = [random_tensor(*t.shape, dtype=F32, seed=50 + i) for i, t in enumerate(got)]
        torch.autograd.backward(got, grads)
        torch.autograd.backward(want[:len(got)], [grad.double() for grad in grads])
        for name, leaf in leaves.items():
            torch.testing.assert_close(leaf.grad.double(), wide[name].grad, rtol=2e-4, atol=2e-4)
        if residual:                                    # each output alone
            for i in range(2):
                for t in (*leaves.values(), *wide.values()):
                    t.grad = None
                rmsnorm_gemm(**leaves, eps=EPS, norm_weight_bias=more, act=act, method=method)[i].sum().backward()
                rmsnorm_gemm_float64(**wide, act=act, norm_weight_bias=more, eps=EPS)[i].sum().backward()
                torch.testing.assert_close(leaves["x"].grad.double(), wide["x"].grad, rtol=2e-4, atol=2e-4)
    run_ranks(script, 1)


@pytest.mark.parametrize("residual", [None, "apart"])
def test_a_repeated_call_is_found_and_one_of_other_rows_is_not_taken_for_it(residual):
    def script():
        given = operands(3, 24, 64, residual=residual)
        rmsnorm_gemm(**given, eps=EPS, method="portable")
        with mock.patch.object(Calls, "_looked_at", side_effect=AssertionError("looked at again")):
            for _ in range(2):
                now = {name: t.clone() for name, t in given.items()}
                got = rmsnorm_gemm(**now, eps=EPS, method="portable")
                triton_dist.synchronize()
                compare(now, *(got if residual else (got, None)))
        for rows in (5, 18, 3):
            now = dict(given, **operands(rows, 24, 64, residual=residual, seed=9))
            got = rmsnorm_gemm(**now, eps=EPS, method="portable")
            triton_dist.synchronize()
            compare(now, *(got if residual else (got, None)))
    run_ranks(script, 1)


@pytest.mark.usefixtures("captures_by_rank")
def test_calls_are_captured():
    def script():
        given = operands(3, 24, 64, residual="apart")
        rmsnorm_gemm(**given, eps=EPS, method="portable")
        with graph() as captured:
            out, total = rmsnorm_gemm(**given, eps=EPS, method="portable")
        for seed in (20, 30):
            for name, t in operands(3, 24, 64, residual="apart", seed=seed).items():
                given[name].copy_(t)
            captured.replay()
            triton_dist.synchronize()
            compare(given, out, total)
    run_ranks(script, 1)


BAD = [
    (dict(weight=torch.zeros(24, 60)), "weight: expected"), (dict(norm_weight=torch.zeros(24)), "norm_weight: expected"),
    (dict(bias=torch.zeros(64)), "bias: expected"), (dict(residual=torch.zeros(4, 60)), "residual: expected"),
    (dict(residual=torch.zeros(4, 64, dtype=F16)), "residual: expected"), (dict(eps=-1.0), "eps: expected"),
    (dict(norm_weight_bias="1"), "norm_weight_bias: expected"), (dict(act="gelu"), "act: expected"),
    (dict(out=torch.zeros(4, 12)), "out: expected"), (dict(out=torch.zeros(4, 24), act="silu_mul"), "out: expected"),
    (dict(residual_out=torch.zeros(4, 64)), "residual_out: expected None"), (dict(method="packets"), "method: expected"),
    (dict(x=torch.zeros(64)), "x: expected"), (dict(weight=torch.zeros(23, 64), act="silu_mul"), "weight: expected"),
]


@pytest.mark.parametrize("wrong, message", BAD, ids=[message for _, message in BAD])
def test_bad_input_is_refused(wrong, message):
    def script():
        given = {**operands(4, 24, 64, F32), **wrong}
        with pytest.raises(InvalidArgument, match=message):
            rmsnorm_gemm(**given)
        checked(4, 24, 64)
    run_ranks(script, 2)


def test_what_is_read_is_not_written():
    def script():
        given = operands(4, 64, 64, F32, residual="apart")
        for name in ("x", "residual"):
            with pytest.raises(InvalidArgument, match=f"out: must not overlap {name}"):
                rmsnorm_gemm(**given, out=given[name])
            with pytest.raises(InvalidArgument, match=f"residual_out: must not overlap {name}"):
                rmsnorm_gemm(**given, residual_out=given[name])
        one = torch.zeros(4, 64)
        with pytest.raises(InvalidArgument, match="out: must not overlap residual_out"):
            rmsnorm_gemm(**given, out=one, residual_out=one)
        with pytest.raises(InvalidArgument, match="weight: requires grad"):
            rmsnorm_gemm(**dict(given, weight=given["weight"].requires_grad_()), out=torch.zeros(4, 64))
    run_ranks(script, 1)


def test_explain_says_how_and_why():
    def script():
        return [ops.explain("rmsnorm_gemm", m, 512, 256) for m in (1, 64, 4096)]
    for found in run_ranks(script, 2)[0]:
        assert found.reason and found.chosen


def test_bench_calls_it_by_the_inputs_that_it_describes():
    def script():
        timed = AnyOp(ops.OPS["rmsnorm_gemm"], Shape("", 4, 24, 64), BF16, resolve())
        found = []
        for method in ("portable", "unfused"):
            out = timed.ours(method).checked(0)
            triton_dist.synchronize()
            found.append(out.clone())
        return found
    portable, unfused = run_ranks(script, 1)[0]
    torch.testing.assert_close(portable, unfused, rtol=0.05, atol=0.5)
