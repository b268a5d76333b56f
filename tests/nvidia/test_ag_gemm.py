# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM against torch. A script (`bash launch.sh test_ag_gemm.py [M N K]`) and a pytest module.

M, N and K are global: each rank holds x [M / W, K] and weight [N / W, K]; where N does not divide, the first ranks hold
one row more.
"""
import argparse

import torch

import triton_dist
from triton_dist.ops import ag_gemm
from triton_dist.runtime.groups import Group, resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, milliseconds, poisoned, random_tensor


def share(total: int, group: Group) -> int:
    """This rank's part of `total`."""
    return total // group.size + (group.rank < total % group.size)


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
    on_gpu = triton_dist.device().type == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=int, nargs="*", metavar="M N K", help="global sizes")
    parser.add_argument("--dtype", default="bfloat16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--method", default="auto", choices=["auto", "ws", "portable"])
    args = parser.parse_args()
    if len(args.shape) not in (0, 3):
        parser.error("give M, N and K, or none of them")
    m, n, k = args.shape or ((8192, 8192, 29568) if on_gpu else (256, 256, 256))
    dtype = getattr(torch, args.dtype)
    triton_dist.initialize_distributed()
    group = resolve()
    if m % group.size:
        parser.error(f"M = {m} must divide by the {group.size} ranks")
    error = max(group.all_gather_object(check(m, n, k, dtype, args.method)))
    x = random_tensor(m // group.size, k, dtype=dtype, seed=group.rank)
    weight = random_tensor(share(n, group), k, dtype=dtype, seed=100 + group.rank)
    iterations = 20 if on_gpu else 2
    times = {method: milliseconds(lambda: ag_gemm(x, weight, method=method), group, iterations)
             for method in (args.method, "unfused")}
    if group.rank == 0:
        print(f"ag_gemm M={m} N={n} K={k} {args.dtype} on {group.size} x {triton_dist.device().type}: "
              + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items()) + f", relative error {error:.1e}")
        print("✅ Triton and Torch match")
    triton_dist.finalize_distributed()


def test_ag_gemm_script_on_emulated_ranks():
    from triton_dist.backends.emulator.virtual import run_ranks
    errors = run_ranks(lambda: check(72, 40, 50, torch.bfloat16), 4)
    assert max(errors) < 1e-2


if __name__ == "__main__":
    main()
