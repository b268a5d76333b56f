# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-RS against torch. A script (`bash launch.sh test_gemm_rs.py [M N K]`) and a pytest module.

M, N and K are global: each rank holds x [M, K / W] and weight [N, K / W]; where K does not divide, the first ranks hold
one column more.
"""
import torch

import triton_dist
from triton_dist.ops import gemm_rs
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, gemm_rs_float64, gemm_script, poisoned, random_tensor, share


def inputs(m: int, n: int, k: int, dtype: torch.dtype) -> tuple:
    """x and weight of this rank."""
    group = resolve()
    x = random_tensor(m, share(k, group), dtype=dtype, seed=group.rank)
    return x, random_tensor(n, x.shape[1], dtype=dtype, seed=100 + group.rank)


def check(m: int, n: int, k: int, dtype: torch.dtype, method: str = "portable", calls: int = 3) -> float:
    """Runs calls back to back, compares each with float64 and the repeats bit by bit. Returns the relative error."""
    group, (x, weight) = resolve(), inputs(m, n, k, dtype)
    bias = random_tensor(n, dtype=dtype, seed=200)
    outs = [poisoned(m // group.size, n, dtype=dtype) for _ in range(calls)]
    for out in outs:
        gemm_rs(x, weight, bias=bias, out=out, method=method)
    triton_dist.synchronize()
    error = assert_matches(outs[0], gemm_rs_float64(x, weight, group, bias), k=k, roundings=group.size)
    if not all(torch.equal(out, outs[0]) for out in outs[1:]):
        raise AssertionError("repeated calls differ")
    return error


def test_gemm_rs_script_on_emulated_ranks():
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    errors = run_ranks(lambda: check(96, 80, 100, torch.bfloat16), 3)
    assert max(errors) < 2e-2


if __name__ == "__main__":
    gemm_script(__doc__, gemm_rs, inputs, check)
