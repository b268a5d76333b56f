# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_rmsnorm_quant on virtual worlds: values, scales, the norm beside them, odd values, layouts, refusals."""
import math

import pytest
import torch
from quant_scenarios import QARN, QUANTS
from scenarios import AR, ARN, BF16, F16, F32, back_to_back, captures_by_rank, capturing, overtaking, side_stream

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import OPS, all_reduce_rmsnorm, all_reduce_rmsnorm_quant, explain
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
F8 = torch.float8_e4m3fn
OURS = ["one_shot", "two_shot"]
SHAPES = [(1, 64), (9, 41), (3, 700), (2, 1), (17, 200), (4, 256)]


@pytest.mark.parametrize("world, method, quant", [
    (1, "auto", "fp8_row"), (2, "one_shot", "fp8_1x128"), (3, "two_shot", "fp8_row"), (4, "one_shot", "fp8_tensor"),
    (8, "two_shot", "fp8_1x128"), (2, "unfused", "fp8_row"), (3, "auto", "fp8_tensor")])
def test_ragged_shapes_back_to_back(world, method, quant):
    """Fewer rows than ranks, rows of no whole words, groups that a row does not fill, rows of more words than threads."""
    shapes = SHAPES if world < 4 else SHAPES[:4]
    run_ranks(lambda: back_to_back([QARN(*shape, method, quant) for shape in shapes]), world, seed=world)


@pytest.mark.full
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", [*OURS, "unfused", "auto"])
@pytest.mark.parametrize("quant", QUANTS)
def test_every_world_method_and_way_to_quantise(world, method, quant):
    run_ranks(lambda: back_to_back([QARN(*shape, method, quant) for shape in SHAPES]), world, seed=world)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("quant", QUANTS)
def test_dtypes_places_and_alignment(quant, dtype):
    """Rows that begin at no multiple of 16 bytes, what is added, where the sum goes, and whether the norm is kept."""
    calls = [QARN(m, n, method, quant, dtype, bias, residual, skip, keep) for method, m, n, bias, residual, skip, keep in (
        ("one_shot", 5, 272, False, "in place", 0, True), ("two_shot", 2, 136, True, "strided", 1, True),
        ("one_shot", 2, 33, True, None, 1, False), ("two_shot", 5, 272, False, "apart", 0, False))]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_ops_in_turn_and_a_slow_rank(mode):
    calls = [QARN(9, 130, "two_shot", "fp8_row", residual="in place"), AR(700, "one_shot"), QARN(1, 64, "one_shot", "fp8_1x128"),
             ARN(2, 70, "two_shot"), QARN(3, 256, "one_shot", "fp8_tensor")]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=2), 3, mode=mode)


@pytest.mark.parametrize("method, quant", [("one_shot", "fp8_row"), ("two_shot", "fp8_1x128")])
def test_more_rows_than_programs_more_words_than_threads_and_two_streams(method, quant):
    calls = [QARN(11, 260, method, quant, bias=True, residual="in place"), QARN(2, 9000, method, quant, F32)]
    run_ranks(lambda: back_to_back(calls), 2, num_sms=2)
    run_ranks(lambda: side_stream(calls[:1]), 3, seed=5)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("method", OURS)
def test_every_rank_and_every_schedule_has_the_same_bits(method, quant):
    def script():
        return back_to_back([QARN(4, 1001, method, quant, BF16, bias=True, residual="apart")])[0]
    first = run_ranks(script, 3, mode="eager")
    for found in (first, run_ranks(script, 3, mode="skew", seed=7)):
        assert all(torch.equal(both, first[0]) for both in found)


def quantized_by_hand(norm: torch.Tensor, quant: str, scale: torch.Tensor) -> tuple:
    """(the fp8 numbers of `norm` as uint8, its scales), one group of columns after another."""
    values, n = norm.double(), norm.shape[-1]
    step = {"fp8_tensor": n, "fp8_row": n, "fp8_1x128": 128}[quant]
    parts, scales = [], []
    for first in range(0, n, step):
        part = values[..., first:first + step]
        most = part.abs().amax(-1, keepdim=True).float().clamp_min(1e-10)
        scales.append(scale.expand_as(most) if quant == "fp8_tensor" else most * (1 / 448))
        by = torch.ones_like(scale) / scale if quant == "fp8_tensor" else torch.full_like(most, 448) / most
        parts.append((part.float() * by).clamp(-448, 448).to(F8))
    return torch.cat([part.view(torch.uint8) for part in parts], -1), torch.cat(scales, -1)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("quant", QUANTS)
def test_the_sum_and_the_norm_are_those_of_all_reduce_rmsnorm_and_the_rest_is_their_rounding(quant, dtype):
    """Bit by bit, for the fused and the unfused way alike."""
    def script():
        x, weight, residual = (random_tensor(*shape, dtype=dtype, seed=seed) for shape, seed in (
            ((5, 300), resolve().rank), ((300,), 8), ((5, 300), 9)))
        scale = torch.tensor([0.01]) if quant == "fp8_tensor" else None
        for method in (*OURS, "unfused"):
            given = dict(residual=residual, method=method)
            found = all_reduce_rmsnorm_quant(x, weight, quant=quant, scale=scale, keep_norm=True, **given)
            norm, total = all_reduce_rmsnorm(x, weight, **given)
            triton_dist.synchronize()
            assert torch.equal(found.residual_out, total) and torch.equal(found.norm_out, norm)
            q, scales = quantized_by_hand(norm, quant, scale)
            assert torch.equal(found.out.view(torch.uint8), q), method
            assert torch.equal(found.scales.expand_as(scales), scales), method
            assert found.scales is scale if quant == "fp8_tensor" else found.scales.shape[0] == 5
    run_ranks(script, 2)


@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_zeros_nan_and_infinities(method):
    """Row 0: zeros. 1: a NaN. 2: an infinity. 3: numbers, of which group 1 is 0. 4: numbers that the one scale does not reach."""
    def script():
        x = torch.zeros(5, 256)
        x[1, 5], x[2, 200] = float("nan"), float("inf")
        x[3, :128], x[4] = 3.0, 7.0
        x = x.bfloat16() if resolve().rank == 0 else torch.zeros(5, 256, dtype=BF16)
        weight = torch.ones(256, dtype=BF16)
        for quant in QUANTS:
            scale = torch.tensor(1e-4) if quant == "fp8_tensor" else None
            found = all_reduce_rmsnorm_quant(x, weight, quant=quant, scale=scale, keep_norm=True, method=method)
            triton_dist.synchronize()
            q, back = found.out.float(), found.out.float()
            back = back * (found.scales if quant != "fp8_1x128" else found.scales.repeat_interleave(128, -1))
            assert bool((q[0] == 0).all()) and bool((back[0] == 0).all())
            # A NaN spreads over the row by the mean of squares. An infinity is NaN, and makes 0 of the row's other numbers.
            assert bool(back[1].isnan().all())
            assert bool(back[2, 200].isnan())
            assert bool(back[2].isnan().all()) == (quant == "fp8_row")
            assert bool(back[2, :128].isnan().any()) == (quant == "fp8_row")
            if quant == "fp8_1x128":
                assert bool(back[2, 128:].isnan().all())
            assert bool((back[3, 128:] == 0).all()) and not bool(back[3].isnan().any())
            if quant == "fp8_tensor":
                assert bool((q[4] == 448).all()), "larger numbers are cut"
            else:
                assert torch.allclose(back[4], found.norm_out[4].float(), rtol=1e-6)
                least = torch.tensor(1e-10) * torch.tensor(1 / 448)
                assert bool((found.scales[0] == least).all())
    run_ranks(script, 2)


@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_scales_may_have_columns_one_after_another(method):
    """As matrix products on tensor cores take them: also with columns that are further apart than they are long."""
    def script():
        x, weight = random_tensor(5, 300, dtype=BF16, seed=resolve().rank), random_tensor(300, dtype=BF16, seed=8)
        expected = all_reduce_rmsnorm_quant(x, weight, quant="fp8_1x128", method=method)
        room = torch.full((3, 8), -1.0)
        for scales in (torch.full((3, 5), -1.0).t(), room[:, :5].t()):
            found = all_reduce_rmsnorm_quant(x, weight, quant="fp8_1x128", scales_out=scales, method=method)
            triton_dist.synchronize()
            assert found.scales is scales and torch.equal(scales, expected.scales)
        assert bool((room[:, 5:] == -1).all())
    run_ranks(script, 2)


@pytest.mark.parametrize("shape", [(0, 24), (5, 0), (2, 3, 140), (40,), (1, 1, 1)])
@pytest.mark.parametrize("quant", QUANTS)
def test_any_number_of_dimensions_and_none_of_elements(quant, shape):
    def script():
        x, weight = random_tensor(*shape, dtype=F32, seed=resolve().rank), random_tensor(shape[-1], dtype=F32, seed=9)
        scale = torch.tensor([0.5]) if quant == "fp8_tensor" else None
        for method in ("auto", "two_shot", "unfused"):
            found = all_reduce_rmsnorm_quant(x, weight, quant=quant, scale=scale, keep_norm=True, method=method)
            triton_dist.synchronize()
            assert found.out.shape == found.residual_out.shape == found.norm_out.shape == x.shape and found.out.dtype == F8
            if quant != "fp8_tensor":
                assert found.scales.shape == (*shape[:-1], 1 if quant == "fp8_row" else math.ceil(shape[-1] / 128))
                assert bool((found.scales > 0).all())
        back_to_back([ARN(4, 24, "one_shot")])
    run_ranks(script, 2)


def test_a_repeated_call_takes_no_plan_of_another_way_to_quantise():
    def script():
        x, weight = random_tensor(4, 256, dtype=BF16, seed=resolve().rank), torch.ones(256, dtype=BF16)
        scale = torch.tensor([0.1])
        first = None
        for _ in range(3):
            found = [all_reduce_rmsnorm_quant(x, weight, quant=quant, scale=scale if quant == "fp8_tensor" else None,
                                              keep_norm=keep, method="one_shot") for quant in QUANTS for keep in (False, True)]
            triton_dist.synchronize()
            assert [r.norm_out is not None for r in found] == [False, True] * 3
            assert [tuple(r.scales.shape) for r in found] == [(1,)] * 2 + [(4, 1)] * 2 + [(4, 2)] * 2
            bits = [t.view(torch.uint8) for r in found for t in (r.out, r.scales, r.residual_out)]
            first = first or bits
            assert all(torch.equal(a, b) for a, b in zip(bits, first))
        scale.fill_(0.2)        # the kernel reads the scale, not a copy of it
        again = all_reduce_rmsnorm_quant(x, weight, quant="fp8_tensor", scale=scale, method="one_shot")
        triton_dist.synchronize()
        assert not torch.equal(again.out.view(torch.uint8), first[0])
    run_ranks(script, 2)


def test_capture_uses_what_has_run_before():
    def script():
        ran = QARN(9, 256, "one_shot", "fp8_row")
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran, QARN(5, 40, "auto", "fp8_1x128")])      # the last one unfused
        back_to_back([ran])
    run_ranks(script, 2)


def test_explain_and_traffic_are_those_of_the_norm():
    def script():
        op, group = OPS["all_reduce_rmsnorm_quant"], resolve()
        plain = OPS["all_reduce_rmsnorm"]
        assert op.traffic(op.at(6, 256, 1, BF16, group), group) == plain.traffic(plain.at(6, 256, 1, BF16, group), group)
        assert op.steps == plain.steps
        return explain("all_reduce_rmsnorm_quant", 8, 256, group=group, dtype=BF16).chosen
    assert run_ranks(script, 2) == ["one_shot"] * 2


def test_inputs_that_require_grad_are_refused():
    def script():
        x, weight = torch.ones(2, 128), torch.ones(128, requires_grad=True)
        with pytest.raises(InvalidArgument, match="all_reduce_rmsnorm_quant: .* requires grad, .* no gradient; call it under"):
            all_reduce_rmsnorm_quant(x, weight)
        with pytest.raises(InvalidArgument, match="weight: requires grad"):
            all_reduce_rmsnorm_quant(x, weight, norm_out=torch.empty(2, 128))
        with torch.no_grad():
            assert not all_reduce_rmsnorm_quant(x, weight).residual_out.requires_grad
    run_ranks(script, 2)


def bad(**changes):
    return dict(dict(x=torch.ones(4, 256), weight=torch.ones(256)), **changes)


REFUSED = {
    "an unknown way": (lambda: bad(quant="fp4"), "quant: expected one of fp8_tensor, fp8_row, fp8_1x128, found 'fp4'"),
    "no way": (lambda: bad(quant=None), "quant: expected one of .*, found None"),
    "no scale": (lambda: bad(quant="fp8_tensor"), "scale: expected a float32 tensor of one element .*, found NoneType"),
    "a number": (lambda: bad(quant="fp8_tensor", scale=1.0), "scale: .*, found float"),
    "two scales": (lambda: bad(quant="fp8_tensor", scale=torch.ones(2)), r"scale: .*, found torch.float32 of shape \[2\]"),
    "a scale of another dtype": (lambda: bad(quant="fp8_tensor", scale=torch.ones(1, dtype=BF16)), "scale: .*bfloat16"),
    "a scale too many": (lambda: bad(scale=torch.ones(1)), "scale: expected None, since 'fp8_row' finds its scales"),
    "scales of a tensor": (lambda: bad(quant="fp8_tensor", scale=torch.ones(1), scales_out=torch.ones(1)),
                           "scales_out: expected None for 'fp8_tensor'"),
    "scales of another shape": (lambda: bad(scales_out=torch.ones(4)), r"scales_out: .*\[4, 1\]|scales_out: .* 2 dimensions"),
    "scales of another dtype": (lambda: bad(scales_out=torch.ones(4, 1, dtype=BF16)), "scales_out: expected torch.float32"),
    "scales with gaps": (lambda: bad(quant="fp8_1x128", scales_out=torch.ones(4, 4)[:, ::2]), "scales_out: .*contiguous"),
    "an output of another dtype": (lambda: bad(out=torch.ones(4, 256)), "out: expected torch.float8_e4m3fn"),
    "a norm of another dtype": (lambda: bad(norm_out=torch.ones(4, 256, dtype=BF16)), "norm_out: expected torch.float32"),
    "one tensor for two outputs": (lambda: bad(**dict.fromkeys(("norm_out", "residual_out"), torch.ones(4, 256))),
                                   "norm_out: must not overlap residual_out"),
    "the norm over a part of x": (lambda: (lambda t: dict(x=t[:4], weight=torch.ones(256), norm_out=t[1:]))(torch.ones(5, 256)),
                                  "norm_out: must not overlap x"),
    "a bias of another length": (lambda: bad(bias=torch.ones(3)), r"bias: expected None or a tensor of shape \[256\]"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_say_what_is_expected_and_leave_the_world_as_it_was(what):
    make, said = REFUSED[what]

    def script():
        with pytest.raises(InvalidArgument, match=said):
            all_reduce_rmsnorm_quant(**make())
        back_to_back([QARN(4, 128, "one_shot", "fp8_row")])
    run_ranks(script, 2)


@pytest.mark.parametrize("name, other", [("quant", {"quant": "fp8_1x128"}), ("keep", {"keep_norm": True}), ("eps", {"eps": 0.5})])
def test_ranks_that_ask_for_different_things_are_told(name, other):
    def script():
        with pytest.raises(triton_dist.TritonDistError, match=name):
            all_reduce_rmsnorm_quant(**bad(), **(other if resolve().rank else {}))
    run_ranks(script, 2)
