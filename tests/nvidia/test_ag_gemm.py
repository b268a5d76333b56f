# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM against torch. A script (`bash launch.sh test_ag_gemm.py [M N K]`) and a pytest module.

M, N and K are global: each rank holds x [M / W, K] and weight [N / W, K]; where N does not divide, the first ranks hold
one row more.
"""
from functools import partial

import torch

import triton_dist
from triton_dist.ops import ag_gemm
from triton_dist.runtime.groups import resolve
from triton_dist.testing import (ag_gemm_float64, assert_matches, compare_with_unfused, gemm_arguments, poisoned, random_tensor,
                                 share)


def check(m: int, n: int, k: int, dtype: torch.dtype, method: str = "portable", calls: int = 3) -> float:
    """Runs calls back to back, compares each with float64 and the repeats bit by bit. Returns the relative error."""
    group = resolve()
    x = random_tensor(m // group.size, k, dtype=dtype, seed=group.rank)
    weight = random_tensor(share(n, group), k, dtype=dtype, seed=100 + group.rank)
    bias = random_tensor(weight.shape[0], dtype=dtype, seed=200 + group.rank)
    outs = [poisoned(m, weight.shape[0], dtype=dtype) for _ in range(calls)]
    for out in outs:
        ag_gemm(x, weight, bias=bias, out=out, method=method)
    triton_dist.synchronize()
    error = assert_matches(outs[0], ag_gemm_float64(x, weight, group, bias), k=k)
    assert all(torch.equal(out, outs[0]) for out in outs[1:]), "repeated calls differ"
    return error


def main() -> None:
    args = gemm_arguments(__doc__)
    triton_dist.initialize_distributed()
    group = resolve()
    if args.m % group.size:
        raise SystemExit(f"M = {args.m} must divide by the {group.size} ranks")
    error = max(group.all_gather_object(check(args.m, args.n, args.k, args.dtype, args.method)))
    x = random_tensor(args.m // group.size, args.k, dtype=args.dtype, seed=group.rank)
    weight = random_tensor(share(args.n, group), args.k, dtype=args.dtype, seed=100 + group.rank)
    compare_with_unfused(partial(ag_gemm, x, weight), args, group, error)
    triton_dist.finalize_distributed()


def test_ag_gemm_script_on_emulated_ranks():
    from triton_dist.backends.emulator.virtual import run_ranks
    errors = run_ranks(lambda: check(72, 40, 50, torch.bfloat16), 4)
    assert max(errors) < 1e-2


if __name__ == "__main__":
    main()
