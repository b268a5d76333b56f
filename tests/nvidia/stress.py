# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Thousands of calls with nothing between them, eager and in graphs, each compared bit by bit with the first of its kind.

    bash launch.sh tests/nvidia/stress.py --calls 2000 --seed 1 --log-file stress.txt
    bash launch.sh --nproc_per_node 2 tests/nvidia/stress.py --memcheck      # one small call of each kernel

Calls of ag_gemm and gemm_rs in random order: many shapes, two dtypes, every fused method, x pushed by the copy engine and by SMs,
on the world and on pairs of ranks (both pairs at once, at different shapes), on two streams in turn, with a collective of
torch.distributed now and then and one rank after another late, on the host or on the device. On GPUs replays of graphs of
1, 3 and 5 calls come between. No barrier and no host synchronisation between calls: a counter on the device collects what
differs. Set TRITON_DIST_WAIT_TIMEOUT to turn a hang into a report.
"""
import argparse
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import triton_dist
from triton_dist.bench.host import commit, device_name
from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import Group, TorchGroup, resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, poisoned, random_tensor

F16, BF16 = torch.float16, torch.bfloat16
COLLECTIVE_EVERY, LATE_EVERY = 16, 8
BITS = torch.int16                          # results are compared as bits: NaN differs from NaN's absence


@dataclass(frozen=True)
class Case:
    """One kind of call, per rank: ag_gemm x [m, k], weight [n, k]; gemm_rs x [m * size, k], weight [n, k].

    `idle`: the last rank has no tiles (n = 0), or no terms (k = 0).
    """
    op: str
    m: int
    n: int
    k: int
    dtype: torch.dtype = BF16
    bias: bool = False
    idle: bool = False
    comm_sms: int | None = None

    def label(self) -> str:
        marks = ("bias", self.bias), ("idle rank", self.idle), (f"{self.comm_sms} SMs", self.comm_sms)
        notes = "".join(f" {note}" for note, on in marks if on)
        return f"{self.op} {self.m}x{self.n}x{self.k} {str(self.dtype).removeprefix('torch.')}{notes}"


GPU_CASES = (
    Case("ag_gemm", 200, 1000, 7392),
    Case("ag_gemm", 200, 1000, 200, F16, bias=True),
    Case("ag_gemm", 2048, 256, 4096),
    Case("ag_gemm", 512, 2048, 512),
    Case("ag_gemm", 128, 256, 64),
    Case("ag_gemm", 1, 8, 8, F16),
    Case("ag_gemm", 64, 512, 264, idle=True),
    Case("ag_gemm", 200, 1000, 200, F16, bias=True, comm_sms=1),
    Case("ag_gemm", 512, 2048, 512, comm_sms=16),
    Case("ag_gemm", 64, 512, 264, idle=True, comm_sms=3),
    Case("gemm_rs", 200, 1000, 1848),
    Case("gemm_rs", 200, 1000, 72, F16, bias=True),
    Case("gemm_rs", 1024, 2048, 1024),
    Case("gemm_rs", 512, 4096, 512),
    Case("gemm_rs", 128, 256, 64),
    Case("gemm_rs", 1, 8, 8, F16),
    Case("gemm_rs", 64, 512, 264, idle=True),
)
EMULATOR_CASES = (
    Case("ag_gemm", 9, 40, 56),
    Case("ag_gemm", 20, 24, 200, F16, bias=True),
    Case("ag_gemm", 1, 8, 8, F16),
    Case("ag_gemm", 5, 16, 24, idle=True),
    Case("ag_gemm", 9, 40, 56, comm_sms=3),
    Case("ag_gemm", 5, 16, 24, F16, idle=True, comm_sms=1),
    Case("gemm_rs", 9, 40, 56),
    Case("gemm_rs", 20, 24, 72, F16, bias=True),
    Case("gemm_rs", 1, 8, 8, F16),
    Case("gemm_rs", 5, 16, 24, idle=True),
)


class Job:
    """A case by one method on one group: inputs, an output a stream, the first result, and counters of differences."""

    def __init__(self, case: Case, method: str, group: Group, streams: int, seed: int):
        self.case, self.method, self.group = case, method, group
        self.options = dict(group=group, method=method, **({"comm_sms": case.comm_sms} if case.op == "ag_gemm" else {}))
        idle = case.idle and group.rank == group.size - 1
        n, k, dtype = case.n, case.k, case.dtype
        if case.op == "ag_gemm":
            n, rows, out = 0 if idle else n, case.m, (case.m * group.size, 0 if idle else n)
        else:
            k, rows, out = 0 if idle else k, case.m * group.size, (case.m, n)
        self.x = random_tensor(rows, k, dtype=dtype, seed=seed + group.rank)
        self.weight = random_tensor(n, k, dtype=dtype, seed=seed + 100 + group.rank)
        self.bias = random_tensor(n, dtype=dtype, seed=seed + 200) if case.bias else None
        self.outs = [poisoned(*out, dtype=dtype) for _ in range(streams)]
        self.different = torch.zeros(streams, dtype=torch.int64, device=triton_dist.device())
        self.first: Any = None
        self.calls = 0

    def label(self) -> str:
        return f"{self.case.label()} {self.method} on {self.group.size} ranks"

    def begin(self) -> None:
        """The first call: compared with float64, kept for the others. Collective over the group."""
        op, reference = (ag_gemm, ag_gemm_float64) if self.case.op == "ag_gemm" else (gemm_rs, gemm_rs_float64)
        op(self.x, self.weight, bias=self.bias, out=self.outs[0], **self.options)
        triton_dist.synchronize()
        expected = reference(self.x, self.weight, self.group, self.bias)
        roundings = 1 if self.case.op == "ag_gemm" else self.group.size
        try:
            assert_matches(self.outs[0], expected, k=self.case.k * self.group.size, roundings=roundings)
        except AssertionError as error:
            raise AssertionError(f"{self.label()}: {error}") from None
        self.first = self.outs[0].clone()

    def call(self, stream: int) -> None:
        """One more call on the current stream, number `stream`; what differs is counted there, on the device."""
        out, op = self.outs[stream], ag_gemm if self.case.op == "ag_gemm" else gemm_rs
        out.fill_(float("nan"))
        op(self.x, self.weight, bias=self.bias, out=out, **self.options)
        catch_up()
        self.different[stream] += torch.ne(out.view(BITS), self.first.view(BITS)).any()
        self.calls += 1


class Replay:
    """A graph of calls on the world, captured on stream 0."""

    def __init__(self, jobs: list):
        self.jobs, self.graph = jobs, torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()                        # the default one cannot be captured
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(self.graph, stream=stream):
            for job in jobs:
                job.call(0)
        for job in jobs:
            job.calls -= 1                                  # captured, not made

    def call(self, other: Any) -> None:
        """Replays it on the current stream. Ops order their own calls only; here, those on stream `other` before and after."""
        here = torch.cuda.current_stream()
        here.wait_stream(other)
        self.graph.replay()
        other.wait_stream(here)
        for job in self.jobs:
            job.calls += 1


class Collective:
    """An all-gather of torch.distributed on the world, between our calls, checked like them."""

    def __init__(self, world: Group):
        self.world, self.calls = world, 0
        self.x = random_tensor(1000, dtype=torch.float32, seed=world.rank)
        self.out = torch.empty(world.size * 1000, device=self.x.device)
        self.first = torch.cat([random_tensor(1000, dtype=torch.float32, seed=rank) for rank in range(world.size)])
        self.different = torch.zeros(1, dtype=torch.int64, device=self.x.device)

    def label(self) -> str:
        return f"all-gather of torch.distributed on {self.world.size} ranks"

    def call(self) -> None:
        self.out.fill_(float("nan"))
        self.world.all_gather_tensor(self.out, self.x)
        self.different[0] += torch.ne(self.out, self.first).any()
        self.calls += 1


def methods(case: Case) -> list:
    """The fused methods that this device has for a case."""
    core = backend().core(case.op)
    row = case.k if case.op == "ag_gemm" else case.n
    return ["portable"] + (["ws"] if core is not None and core.serves(case.dtype, row) else [])


def pair_of(world: Group) -> Group | None:
    """The group of ranks (0, 1), (2, 3), ... that this rank is in; None where pairs are the world or leave one out."""
    if world.size < 4 or world.size % 2 or not isinstance(world, TorchGroup):
        return None
    import torch.distributed as dist
    pairs = [dist.new_group([r, r + 1], backend=backend().torch_backend()) for r in range(0, world.size, 2)]
    return resolve(pairs[world.rank // 2])


def catch_up() -> None:
    """In the emulator, torch's own operations run on the host at once, not behind the kernels of the current stream."""
    if triton_dist.device().type == "cpu":
        triton_dist.current_stream().synchronize()


def be_late(on_device: bool, milliseconds: float) -> None:
    """Delays this rank's next call: its host, or only its device."""
    if on_device and triton_dist.device().type == "cuda":
        torch.cuda._sleep(int(milliseconds * 1.5e6))        # cycles, at roughly 1.5 GHz
    else:
        time.sleep(milliseconds / 1e3)


def prepare(cases: tuple, groups: list, streams: int, seed: int, order: random.Random) -> list:
    """Jobs by group: [[(case, method) on group 0, ...], ...], each with its first result, in an order that is the same
    on all ranks. Workspaces grow here, from small to large and not sorted.
    """
    kinds = [(i, case, method) for i, case in enumerate(cases) for method in methods(case)]
    jobs = [[Job(case, method, group, streams, seed + 1000 * i) for i, case, method in kinds] for group in groups]
    everything = [(g, j) for g, of_group in enumerate(jobs) for j in range(len(of_group))]
    order.shuffle(everything)
    for g, j in everything:
        jobs[g][j].begin()
    return jobs


def graphs(jobs: list, order: random.Random) -> list:
    """Graphs of 1, 3 and 5 calls of the world's jobs, two of each; none in the emulator, which has no capture."""
    if triton_dist.device().type != "cuda":
        return []
    small = [job for job in jobs[0] if job.case.m * job.case.k <= 1 << 22]      # larger gathers are captured with comm_sms only
    return [Replay([order.choice(small) for _ in range(count)]) for count in (1, 1, 3, 3, 5, 5)]


def storm(jobs: list, replays: list, collective: Collective, streams: list, calls: int, late_ms: float,
          order: random.Random) -> Counter:
    """The calls. Every rank draws the same numbers; only lateness, and which shape a pair takes, depend on the rank."""
    world, done = collective.world, Counter()
    for number in range(calls):
        g, j = order.randrange(len(jobs)), order.randrange(len(jobs[0]))
        late, on_device, delay = order.randrange(LATE_EVERY) == 0, order.random() < 0.5, late_ms * order.random()
        if g > 0:
            j = (j + world.rank // 2) % len(jobs[g])        # the pairs run different shapes at the same time
        job = jobs[g][j]
        with triton_dist.use_stream(streams[number % len(streams)]):
            if late and world.rank == number // LATE_EVERY % world.size:
                be_late(on_device, delay)
            job.call(number % len(streams))
            if replays and number % len(streams) == 0 and order.random() < 0.5:
                order.choice(replays).call(streams[1])
                done["replays"] += 1
            # Collectives follow the last op's stream, and the next op waits for that stream: one order on all ranks.
            if number % COLLECTIVE_EVERY == COLLECTIVE_EVERY - 1:
                collective.call()
        done.update([job.case.op, job.method, "pairs" if g else "world", *(["late"] if late else [])])
    triton_dist.synchronize()
    return done


def report(jobs: list, collective: Collective, world: Group) -> tuple[list, list]:
    """(a line a kind of call with its count, a line a rank and kind of call whose results differed)."""
    kinds = [job for of_group in jobs for job in of_group] + [collective]
    bad = [(int(kind.different.sum()), kind) for kind in kinds]
    wrong = [f"rank {world.rank}: {count} of {kind.calls} calls of {kind.label()} differ from the first"
             for count, kind in bad if count]
    everyone = world.all_gather_object(wrong)
    return [f"{kind.calls:6d}  {kind.label()}" for kind in kinds], [line for lines in everyone for line in lines]


def write_log(path: Path, line: str, counts: list, wrong: list) -> None:
    """Appends what was run, where, and how it ended."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset")
    facts = f"{device_name()}, torch {torch.__version__}, commit {commit()}, CUDA_DEVICE_MAX_CONNECTIONS {connections}"
    with path.open("a") as file:
        file.write("\n".join([line, facts, *counts, *wrong, "failed" if wrong else "passed"]) + "\n\n")


def memcheck(cases: tuple, world: Group) -> int:
    """One call of each kernel at the smallest ragged shapes, for a tool that watches memory."""
    small = [case for case in cases if case.bias or case.m == 1]
    jobs = [Job(case, method, world, 1, 0) for case in small for method in methods(case)]
    for job in jobs:
        job.begin()
    return len(jobs)


def main() -> None:
    on_gpu = triton_dist.device().type == "cuda"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000 if on_gpu else 40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--late-ms", type=float, default=4.0, help="a late rank is late by up to this")
    parser.add_argument("--log-file", "--log", type=Path, help="append to a text file what was run")
    parser.add_argument("--memcheck", action="store_true", help="only one small call of each kernel")
    args = parser.parse_args()
    start = time.perf_counter()
    triton_dist.initialize_distributed()
    world, cases = resolve(), GPU_CASES if on_gpu else EMULATOR_CASES
    if args.memcheck:
        count = memcheck(cases, world)
        if world.rank == 0:
            print(f"{count} kinds of calls on {world.size} x {device_name()} match float64\n✅ memcheck calls passed")
        triton_dist.finalize_distributed()
        return
    order = random.Random(args.seed)
    pair = pair_of(world)
    groups = [world] + ([pair] if pair is not None else [])
    streams = [triton_dist.current_stream(), triton_dist.new_stream()]
    jobs, collective = prepare(cases, groups, len(streams), args.seed, order), Collective(world)
    collective.call()                                       # its communicator exists before the calls begin
    triton_dist.synchronize()
    world.barrier()
    replays = graphs(jobs, order)
    ready = time.perf_counter()
    done = storm(jobs, replays, collective, streams, args.calls, args.late_ms, order)
    seconds = time.perf_counter() - ready
    counts, wrong = report(jobs, collective, world)
    line = (f"{args.calls} calls, seed {args.seed}, {world.size} x {triton_dist.device().type}: "
            + ", ".join(f"{done[name]} {name}" for name in "ag_gemm gemm_rs ws portable world pairs late replays".split())
            + f", {collective.calls} collectives; {seconds:.1f} s after {ready - start:.1f} s of first calls; "
            + f"{len(wrong)} kinds of calls differ")
    if world.rank == 0:
        print("\n".join([line, *wrong[:40]]), flush=True)
        if args.log_file:
            write_log(args.log_file, line, counts, wrong)
    if wrong:
        raise SystemExit(1)
    if world.rank == 0:
        print("✅ stress passed", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
