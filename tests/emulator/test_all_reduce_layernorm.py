# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce_layernorm on virtual worlds: shapes, dtypes, what is added, means far from 0, gradients, schedules."""
import pytest
import torch
from scenarios import AR, ARN, BF16, F16, F32, back_to_back, overtaking

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import all_reduce_layernorm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, poisoned, random_tensor

OURS = ["one_shot", "two_shot"]
SHAPES = [(1, 64), (9, 41), (3, 700), (2, 1), (17, 200)]


def layer_norm_float64(total, weight, norm_bias, eps):
    """Of float64 rows, by its definition."""
    difference = total - total.mean(-1, keepdim=True)
    norm = difference / (difference.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    return norm if norm_bias is None else norm + norm_bias.double()


class ARL(ARN):
    """One all_reduce_layernorm of x [m, n], its norm with a bias where it adds a bias."""

    def __call__(self, seed, group):
        x, w, b, r, before, total = self.tensors(seed, group)
        shift = random_tensor(self.n, dtype=self.dtype, seed=seed + 7) if self.bias else None
        out = poisoned(self.m, self.n, dtype=self.dtype)
        got = all_reduce_layernorm(x, w, shift, bias=b, residual=r, eps=self.eps, group=group, out=out, residual_out=total,
                                   method=self.method)
        assert got[0] is out and got[1] is total

        def verify():
            roundings = 1 if self.method.endswith("_shot") else group.size + 3
            summed = x.double().contiguous()
            group.all_reduce_tensor(summed)
            for added in (b, before):
                summed = summed if added is None else summed + added.double()
            assert_matches(total, summed, k=group.size, roundings=roundings)
            # Of the rounded sum: where differences are small beside the mean, its rounding is not that of the norm.
            assert_matches(out, layer_norm_float64(total.double(), w, shift, self.eps), k=self.n, roundings=3)
            return torch.stack([out, total])
        return verify


@pytest.mark.parametrize("world, method", [(1, "auto"), (2, "one_shot"), (3, "two_shot"), (4, "one_shot"), (8, "two_shot"),
                                           (2, "unfused")])
def test_ragged_shapes_back_to_back(world, method):
    run_ranks(lambda: back_to_back([ARL(*shape, method, bias=True) for shape in SHAPES]), world, seed=world)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_dtypes_places_and_alignment(method, dtype):
    calls = [ARL(5, 72, method, dtype, True, "in place", 0), ARL(2, 33, method, dtype, False, "strided", 1),
             ARL(3, 130, method, dtype, False, None, 0), ARL(2, 40, method, dtype, True, "apart", 1)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("method", OURS)
def test_a_slow_rank_other_ops_and_more_vectors_than_threads(method):
    calls = [ARL(9, 130, method, residual="in place"), AR(700, "one_shot"), ARN(2, 70, "two_shot"), ARL(1, 64, method)]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=3), 3, mode="skew")
    run_ranks(lambda: back_to_back([ARL(2, 9000, method, F32, bias=True)]), 2)


@pytest.mark.parametrize("method", [*OURS, "unfused"])
def test_a_mean_far_from_0_costs_no_digits(method):
    """Values about 1000: squares less the square of the mean would lose them in fp32."""
    def script():
        x = random_tensor(3, 500, dtype=F32, seed=4) + (1000 if resolve().rank == 0 else 0)
        out, total = all_reduce_layernorm(x, torch.ones(500), eps=0, method=method)
        triton_dist.synchronize()
        expected = layer_norm_float64(total.double(), torch.ones(500), None, 0)
        assert float((out.double() - expected).abs().max()) < 1e-4
    run_ranks(script, 2)


def test_the_same_bits_on_all_ranks_and_in_all_schedules_and_the_checker_finds_nothing():
    def script():
        return back_to_back([ARL(7, 1001, "one_shot", BF16, True, "apart"), ARL(7, 100, "two_shot", BF16, True, "apart")])
    first = run_ranks(script, 4, mode="eager")
    again = run_ranks(script, 4, mode="random", seed=7)
    assert all(torch.equal(a, b) for found in (first, again) for rank in found for a, b in zip(rank, first[0]))
    report = check_kernel(script, 3, 2)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("outputs", ["y", "total", "both"])
def test_gradients_are_torchs(outputs):
    def script():
        group = resolve()

        def leaves():
            made = [random_tensor(*shape, dtype=F32, seed=seed) for shape, seed in (
                ((2, 3, 24), group.rank), ((24,), 8), ((24,), 9), ((24,), 10), ((2, 3, 24), 11))]
            return [t.requires_grad_() for t in made]

        def loss(y, total):
            weight = random_tensor(2, 3, 24, dtype=F32, seed=12)
            return (y * weight).sum() * (outputs != "total") + (total.square() * weight).sum() * (outputs != "y")
        ours = leaves()
        x, weight, norm_bias, bias, residual = ours
        loss(*all_reduce_layernorm(x, weight, norm_bias, bias=bias, residual=residual)).backward()
        parts = [random_tensor(2, 3, 24, dtype=F32, seed=rank) for rank in range(group.size) if rank != group.rank]
        theirs = leaves()
        x, weight, norm_bias, bias, residual = theirs
        total = x + sum(parts) + bias + residual
        loss(torch.nn.functional.layer_norm(total, (24,), weight, norm_bias, 1e-5), total).backward()
        for mine, expected in zip(ours, theirs):
            grad = torch.zeros_like(mine) if mine.grad is None else mine.grad
            wanted = torch.zeros_like(grad) if expected.grad is None else expected.grad
            torch.testing.assert_close(grad, wanted, rtol=2e-4, atol=2e-5)
    run_ranks(script, 2)


@pytest.mark.parametrize("change, said", [
    (dict(norm_bias=torch.ones(3)), r"norm_bias: expected None or a tensor of shape \[24\]"),
    (dict(norm_bias=torch.ones(24, dtype=BF16)), "norm_bias: expected torch.float32"),
    (dict(weight=None), "weight: .* pass ones"), (dict(eps=-1), "eps: expected None or a number")])
def test_bad_input_is_refused_and_the_world_goes_on(change, said):
    def script():
        with pytest.raises(InvalidArgument, match=said):
            all_reduce_layernorm(**{"x": torch.ones(4, 24), "weight": torch.ones(24), **change})
        back_to_back([ARL(4, 24, "one_shot")])
    run_ranks(script, 2)
