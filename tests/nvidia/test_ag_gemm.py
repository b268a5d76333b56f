# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM against torch. A script (`bash launch.sh test_ag_gemm.py [M N K]`) and a pytest module.

M, N and K are global: each rank holds x [M / W, K] and weight [N / W, K]; where N does not divide, the first ranks hold
one row more.
"""
import torch

import triton_dist
from triton_dist.ops import ag_gemm
from triton_dist.runtime.groups import resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_script, poisoned, random_tensor, share


def inputs(m: int, n: int, k: int, dtype: torch.dtype) -> tuple:
    """x and weight of this rank."""
    group = resolve()
    x = random_tensor(m // group.size, k, dtype=dtype, seed=group.rank)
    return x, random_tensor(share(n, group), k, dtype=dtype, seed=100 + group.rank)


def check(m: int, n: int, k: int, dtype: torch.dtype, method: str = "portable", calls: int = 3) -> float:
    """Runs calls back to back, compares each with float64 and the repeats bit by bit. Returns the relative error."""
    group, (x, weight) = resolve(), inputs(m, n, k, dtype)
    bias = random_tensor(weight.shape[0], dtype=dtype, seed=200 + group.rank)
    outs = [poisoned(m, weight.shape[0], dtype=dtype) for _ in range(calls)]
    for out in outs:
        ag_gemm(x, weight, bias=bias, out=out, method=method)
    triton_dist.synchronize()
    error = assert_matches(outs[0], ag_gemm_float64(x, weight, group, bias), k=k)
    if not all(torch.equal(out, outs[0]) for out in outs[1:]):
        raise AssertionError("repeated calls differ")
    return error


def test_ag_gemm_script_on_emulated_ranks():
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    errors = run_ranks(lambda: check(72, 40, 50, torch.bfloat16), 4)
    assert max(errors) < 1e-2


if __name__ == "__main__":
    gemm_script(__doc__, ag_gemm, inputs, check)
