# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The host time of a first call with a number of rows that has not come before, after `warm_up` has prepared its class.

    bash launch.sh --nproc_per_node 2 tests/nvidia/new_rows.py
    bash launch.sh --nproc_per_node 2 tests/nvidia/new_rows.py --calls 100 --profile

`--profile` also prints where the first rank's time goes. Times are milliseconds on the slowest rank, from the call to its return.
"""
import argparse
import cProfile
import pstats
import random
import statistics
import time
from typing import Callable

import torch

import triton_dist
from triton_dist import ops
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

LARGEST = 8192


def calls(n: int, k: int) -> dict[str, Callable[[int], object]]:
    """Each op as a function of its number of rows. n and k are global; few rows for what decoding calls."""
    world, rank = resolve().size, resolve().rank
    x = random_tensor(LARGEST, k // world, dtype=torch.bfloat16, seed=rank)
    rows = random_tensor(LARGEST // world, k, dtype=torch.bfloat16, seed=rank)
    column = random_tensor(n // world, k, dtype=torch.bfloat16, seed=100 + rank)
    row = random_tensor(n, k // world, dtype=torch.bfloat16, seed=200 + rank)
    norm = random_tensor(n, dtype=torch.bfloat16, seed=7)
    y = random_tensor(LARGEST, n, dtype=torch.bfloat16, seed=300 + rank)
    return {
        "ag_gemm": lambda m: ops.ag_gemm(rows[:m // world], column),
        "gemm_rs": lambda m: ops.gemm_rs(x[:m // world * world], row),
        "gemm_ar": lambda m: ops.gemm_ar(x[:m], row),
        "all_reduce": lambda m: ops.all_reduce(y[:m]),
        "all_reduce_rmsnorm": lambda m: ops.all_reduce_rmsnorm(y[:m], norm),
    }


def timed(call: Callable[[int], object], number: int) -> float:
    """Milliseconds of the host for one call, when all ranks begin together and the device is idle."""
    triton_dist.synchronize()
    resolve().barrier()
    start = time.perf_counter()
    call(number)
    took = time.perf_counter() - start
    triton_dist.synchronize()
    return 1e3 * took


def slowest(times: list[float]) -> list[float]:
    return [max(one) for one in zip(*resolve().all_gather_object(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60, help="numbers of rows, drawn at random")
    parser.add_argument("--ops", nargs="+", help="of those measured (default: all)")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    group, world = resolve(), resolve().size
    largest, n, k = (LARGEST, 4096, 4096) if triton_dist.device().type == "cuda" else (96, 64 * world, 64)
    for name, call in calls(n, k).items():
        if args.ops and name not in args.ops:
            continue
        numbers = range(world, largest + 1, world)
        start = time.perf_counter()
        known = triton_dist.warm_up(call, numbers)
        warm = time.perf_counter() - start
        new = random.Random(1).sample([number for number in numbers if number not in known], min(args.calls, len(numbers) - len(known)))
        profile = cProfile.Profile() if args.profile and group.rank == 0 else None
        if profile:
            profile.enable()
        first = slowest([timed(call, number) for number in new])
        if profile:
            profile.disable()
        again = slowest([timed(call, number) for number in new])
        if group.rank == 0:
            order = sorted(first)
            print(f"{name}: {len(known)} calls of warm_up took {warm:.1f} s; first calls of {len(new)} numbers: median "
                  f"{statistics.median(first):.2f}, 90th percentile {order[int(0.9 * len(order))]:.2f}, most {order[-1]:.2f} "
                  f"(at {new[first.index(order[-1])]} rows); again: median {statistics.median(again):.3f}", flush=True)
            if profile:
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
