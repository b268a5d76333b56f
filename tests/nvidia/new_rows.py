# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The host time of a first call with a number of rows that has not come before, after `warm_up` has prepared its class.

    bash launch.sh --nproc_per_node 2 tests/nvidia/new_rows.py
    bash launch.sh --nproc_per_node 2 tests/nvidia/new_rows.py --calls 100 --ops gemm_ar --profile

Two other kinds of calls come between these, in random order. "known" are calls of the op with numbers that `warm_up` has called:
what of them takes long is the noise of the host. "torch" are torch's own calls of the same sizes, whose matmul, norm or NCCL
loads kernels at some new sizes. They have numbers of rows of their own, since a kernel that one kind has loaded serves the other.
`--only ours` leaves torch's out: then nothing but `warm_up` has loaded kernels for the op.

Python's garbage collector runs between the calls alone, as docs/tuning.md advises to servers; --collector leaves it on. Times
are milliseconds on the slowest rank, from the call to its return. `--profile` makes as many calls again, with yet other numbers
of rows, and prints where the first rank's time goes; the profiler slows down those calls alone.
"""
import argparse
import cProfile
import gc
import itertools
import pstats
import random
import resource
import statistics
import time
from typing import Any, Callable, Sequence

import torch
from torch.nn import functional as F

import triton_dist
from triton_dist import ops
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

LARGEST, BAR = 8192, 1.0
Call = Callable[[int], Any]


def calls(n: int, k: int) -> dict[str, tuple[Call, Call]]:
    """Each op as a function of its number of rows, and what torch has for it. n and k are global."""
    group = resolve()
    world, rank = group.size, group.rank
    x = random_tensor(LARGEST, k // world, dtype=torch.bfloat16, seed=rank)
    rows = random_tensor(LARGEST // world, k, dtype=torch.bfloat16, seed=rank)
    gathered = random_tensor(LARGEST, k, dtype=torch.bfloat16, seed=50)
    column = random_tensor(n // world, k, dtype=torch.bfloat16, seed=100 + rank)
    row = random_tensor(n, k // world, dtype=torch.bfloat16, seed=200 + rank)
    norm = random_tensor(n, dtype=torch.bfloat16, seed=7)
    y = random_tensor(LARGEST, n, dtype=torch.bfloat16, seed=300 + rank)
    z = torch.zeros_like(y)

    def normed(m: int) -> torch.Tensor:
        group.all_reduce_tensor(z[:m])
        return F.rms_norm(z[:m], (n,), norm)
    return {
        "ag_gemm": (lambda m: ops.ag_gemm(rows[:m // world], column), lambda m: F.linear(gathered[:m], column)),
        "gemm_rs": (lambda m: ops.gemm_rs(x[:m // world * world], row), lambda m: F.linear(x[:m], row)),
        "gemm_ar": (lambda m: ops.gemm_ar(x[:m], row), lambda m: F.linear(x[:m], row)),
        "gemm_ar_rmsnorm": (lambda m: ops.gemm_ar_rmsnorm(x[:m], row, norm), lambda m: F.linear(x[:m], row)),
        "all_reduce": (lambda m: ops.all_reduce(y[:m]), lambda m: group.all_reduce_tensor(z[:m])),
        "all_reduce_rmsnorm": (lambda m: ops.all_reduce_rmsnorm(y[:m], norm), normed),
    }


class Causes:
    """What else happened on the host during a call, since something must explain one that takes long."""

    def __init__(self) -> None:
        self._collecting = self._begun = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _: dict) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
        else:
            self._collecting += time.perf_counter() - self._begun

    def counts(self) -> tuple[float, int, int]:
        """(ms in the garbage collector, segments that torch's allocator took from the driver, times the thread was preempted)"""
        return (1e3 * self._collecting, torch.cuda.memory_stats().get("segment.all.allocated", 0),
                resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)

    def since(self, before: tuple[float, int, int]) -> str:
        collecting, segments, preempted = (now - then for now, then in zip(self.counts(), before))
        found = [f"garbage collector {collecting:.2f} ms"] * (collecting > 0.05) + ["memory from the driver"] * (segments > 0)
        return " and ".join(found + [f"preempted {preempted} times"] * (preempted > 0))


def timed(call: Call, number: int, causes: Causes) -> tuple[float, str, str]:
    """(milliseconds of the host for one call, when all ranks begin together and the device is idle; what happened beside it; how
    the ops in it ran)."""
    triton_dist.synchronize()
    if not gc.isenabled():
        gc.collect()
    resolve().barrier()
    before = causes.counts()
    state().watched = ways = []
    start = time.perf_counter()
    call(number)
    took = time.perf_counter() - start
    state().watched = None
    beside = causes.since(before)
    triton_dist.synchronize()
    return 1e3 * took, beside, " + ".join(f"{name} {choice.method}" for name, _, choice, _ in ways) or "torch"


def slowest(found: list[tuple[float, str, str]]) -> list[tuple[float, str]]:
    """(milliseconds, what happened beside it) of each call, on the rank where it took longest."""
    return [max(one) for one in zip(*resolve().all_gather_object([each[:2] for each in found]))]


def words(times: Sequence[float]) -> str:
    order = sorted(times)
    return (f"{len(order):4d} calls: median {statistics.median(order):.3f}, 90th percentile {order[int(0.9 * len(order))]:.3f}, "
            f"most {order[-1]:.3f}")


def measured(both: dict[str, Call], order: Sequence[tuple[str, int]]) -> list[str]:
    """Lines on these calls, each of a kind and with a number of rows, and on the same calls again."""
    causes = Causes()
    found = [timed(both[kind], number, causes) for kind, number in order]
    first = slowest(found)
    again = [took for took, _ in slowest([timed(both[kind], number, causes) for kind, number in order])]
    lines = []
    for kind in both:
        mine = [i for i, (each, _) in enumerate(order) if each == kind]
        if not mine:
            continue
        lines.append(f"  {kind:5s} {words([first[i][0] for i in mine])}; again: median "
                     f"{statistics.median(again[i] for i in mine):.3f}")
        ways = dict.fromkeys(found[i][2] for i in mine)
        if kind == "ours":
            lines += [f"        {words([first[i][0] for i in mine if found[i][2] == way])}: {way}" for way in ways]
        late = sorted(((order[i][1], *first[i]) for i in mine if first[i][0] > BAR), key=lambda one: -one[1])
        lines.append(", ".join([f"        {len(late)} above {BAR:g} ms", *(
            f"{took:.2f} at {number} rows" + f" ({beside})" * bool(beside) for number, took, beside in late[:8])]))
    return lines


def profiled(call: Call, numbers: Sequence[int]) -> None:
    profile = cProfile.Profile()
    for number in numbers:
        triton_dist.synchronize()
        resolve().barrier()
        profile.enable()
        call(number)
        profile.disable()
    if resolve().rank == 0:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=60, help="of each kind, with numbers of rows drawn at random")
    parser.add_argument("--ops", nargs="+", help="of those measured (default: all)")
    parser.add_argument("--only", choices=("ours", "torch"), help="of the two kinds of calls")
    parser.add_argument("--collector", action="store_true", help="leaves Python's garbage collector on")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    group, world = resolve(), resolve().size
    largest, n, k = (LARGEST, 4096, 4096) if triton_dist.device().type == "cuda" else (96, 64 * world, 64)
    for name, (call, baseline) in calls(n, k).items():
        if args.ops and name not in args.ops:
            continue
        numbers, rng = range(world, largest + 1, world), random.Random(1)
        start = time.perf_counter()
        known = triton_dist.warm_up(call, numbers)
        warm = time.perf_counter() - start
        for number in known if args.only != "ours" else ():
            baseline(number)
        kinds = [args.only] if args.only else ["ours", "torch"]
        left = [number for number in numbers if number not in known]
        each = min(args.calls, len(left) // (len(kinds) + args.profile))
        new = rng.sample(left, (len(kinds) + args.profile) * each)
        order = [(kind, number) for kind, number in zip(itertools.cycle(kinds), new[:len(kinds) * each])]
        order += [("known", number) for number in rng.choices(known, k=each) if args.only != "torch"]
        rng.shuffle(order)
        gc.collect()
        if not args.collector:
            gc.freeze()
            gc.disable()
        lines = measured({"ours": call, "known": call, "torch": baseline}, order)
        gc.enable()
        if group.rank == 0:
            print(f"{name}: {len(known)} calls of warm_up took {warm:.1f} s", *lines, sep="\n", flush=True)
        if args.profile:
            profiled(call if args.only != "torch" else baseline, new[-each:])
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
