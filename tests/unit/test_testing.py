# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the other tests rely on: that a wrong result is found, and a right one is not called wrong."""
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from triton_dist.testing import assert_matches, gemm_arguments, poisoned, random_tensor, share

K = 4096


def gemm(dtype):
    x, w = random_tensor(64, K, dtype=dtype, seed=1), random_tensor(48, K, dtype=dtype, seed=2)
    return (x.double() @ w.double().t()).to(dtype), x.double() @ w.double().t()


@pytest.mark.parametrize("dtype, error", [(torch.float16, 1e-3), (torch.bfloat16, 5e-3), (torch.float32, 1e-6)])
def test_one_rounding_is_right_and_one_wrong_element_is_found(dtype, error):
    out, reference = gemm(dtype)
    assert 0 < assert_matches(out, reference, k=K) < error
    step = 8 * torch.finfo(dtype).eps * float(reference.square().mean().sqrt())
    out[3, 7] += 64 * step
    with pytest.raises(AssertionError, match=f"element {3 * 48 + 7}: expected"):
        assert_matches(out, reference, k=K)


OPTIMIZED = """
import torch
from triton_dist.bench.checks import _same_bits
from triton_dist.testing import assert_matches
one = torch.ones(8, 8)
wrong = [lambda: assert_matches(0 * one, one.double(), k=8), lambda: assert_matches(one / 0 - one / 0, one.double(), k=8),
         lambda: assert_matches(one[:4], one.double(), k=8), lambda: _same_bits(one, 2 * one)]
for check in wrong:
    try:
        check()
    except AssertionError:
        print("found")
assert_matches(one, one.double(), k=8)
"""


@pytest.mark.full
def test_wrong_results_are_found_without_assert_statements_too():
    done = subprocess.run([sys.executable, "-O", "-c", OPTIMIZED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["found"] * 4


def test_a_missing_term_of_the_sum_is_found():
    x, w = (random_tensor(rows, K, dtype=torch.bfloat16, seed=rows).double() for rows in (64, 48))
    short = (x[:, 64:] @ w[:, 64:].t()).bfloat16()
    with pytest.raises(AssertionError, match="allowed error"):
        assert_matches(short, x @ w.t(), k=K)


def test_unwritten_elements_and_wrong_shapes_are_found():
    out, reference = gemm(torch.float16)
    with pytest.raises(AssertionError, match="3072 of 3072 elements are NaN"):
        assert_matches(poisoned(64, 48, dtype=torch.float16), reference, k=K)
    with pytest.raises(AssertionError, match=r"shape: expected \[64, 48\], found \[48, 64\]"):
        assert_matches(out.t(), reference, k=K)
    assert assert_matches(out[:0], reference[:0], k=K) == 0.0


def test_inputs_depend_on_the_seed_alone():
    assert torch.equal(random_tensor(5, 7, dtype=torch.float32, seed=3), random_tensor(5, 7, dtype=torch.float32, seed=3))
    assert not torch.equal(random_tensor(5, 7, dtype=torch.float32, seed=3), random_tensor(5, 7, dtype=torch.float32, seed=4))


def test_shares_add_up():
    for total in (0, 1, 7, 8):
        parts = [share(total, SimpleNamespace(size=3, rank=rank)) for rank in range(3)]
        assert sum(parts) == total and max(parts) - min(parts) <= 1


def test_arguments_of_a_gemm_script(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["script", "1", "2", "3", "--dtype", "float16"])
    args = gemm_arguments("about")
    assert (args.m, args.n, args.k, args.dtype, args.method) == (1, 2, 3, torch.float16, "auto")
    monkeypatch.setattr("sys.argv", ["script", "1", "2"])
    with pytest.raises(SystemExit):
        gemm_arguments("about")
    assert "M, N and K, or none" in capsys.readouterr().err


@pytest.mark.parametrize("m, n, k, world, expected", [
    (8192, 8192, 29568, 8, (256, 256, 924)), (8192, 8192, 29568, 3, (258, 256, 924)), (256, 256, 256, 4, (256, 256, 256)),
    (1 << 40, 1, 1, 2, (1 << 26, 1, 1)),
])
def test_emulated_sizes_keep_their_proportions_and_divide_by_the_ranks(m, n, k, world, expected):
    from triton_dist.testing import emulated_sizes
    assert emulated_sizes(m, n, k, world) == expected
