# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Thousands of calls with nothing between them, eager and in graphs, each compared bit by bit with the first of its kind.

    bash launch.sh tests/nvidia/stress.py --calls 2000 --seed 1 --log-file stress.txt
    bash launch.sh --nproc_per_node 2 tests/nvidia/stress.py --ops all_reduce gemm_ar --wrap
    bash launch.sh --nproc_per_node 2 tests/nvidia/stress.py --memcheck      # one call of each kind that is small

Calls of all ops, or of some, in random order: the kinds in stress_cases.py, on the world and on pairs of ranks (both pairs at
once, at different shapes), on two streams in turn, with a collective of torch.distributed now and then and one rank after
another late, on the host or on the device. On GPUs replays of graphs of 1, 3 and 5 calls come between. No barrier and no host
synchronisation between calls: a counter on the device collects what differs. With --wrap all epochs pass 2^31 in the first half
of the calls and 0 in the second. Set TRITON_DIST_WAIT_TIMEOUT to turn a hang into a report.
"""
import argparse
import os
import random
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Iterator

import torch

import triton_dist
from triton_dist.bench.host import commit, device_name
from triton_dist.runtime.backend import backend
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import Group, TorchGroup, resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

from stress_cases import OPS, Case, emulator_cases, gpu_cases, make, placed

COLLECTIVE_EVERY, LATE_EVERY, MOST_LINES = 16, 8, 40
BITS = torch.int16                          # results are compared as bits: NaN differs from NaN's absence
WRAPS = 2**31 - 2, -2                       # epochs before the first and the second half of the calls


class Job:
    """A case on one group: what it writes to on each stream, what the first call left there, and what was wrong."""

    def __init__(self, case: Case, group: Group, streams: int, seed: int):
        self.case, self.group, self.kind = case, group, make(case, group, seed)
        self.written = [[placed(start, case.odd) for start in self.kind.starts] for _ in range(streams)]
        self.different = torch.zeros(streams, dtype=torch.int64, device=triton_dist.device())
        self.first: Any = None
        self.wrong, self.calls = "", 0

    def label(self) -> str:
        return f"{self.case.label()} on {self.group.size} ranks"

    def begin(self) -> None:
        """The first call: compared with float64, kept for the others. Collective over the group."""
        results = self.kind.run(*self.written[0])
        triton_dist.synchronize()
        try:
            self.kind.check(*(results if isinstance(results, tuple) else (results,)))
        except AssertionError as error:
            self.wrong = f"first call of {self.label()}: {error}"
        self.first = [t.clone() for t in self.written[0]]

    def call(self, stream: int) -> None:
        """One more call on the current stream, number `stream`; what differs is counted there, on the device."""
        for t, start in zip(self.written[stream], self.kind.starts):
            t.copy_(start)
        self.kind.run(*self.written[stream])
        catch_up()
        for t, first in zip(self.written[stream], self.first):
            self.different[stream] += torch.ne(t.view(BITS), first.view(BITS)).any()
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

    def call(self) -> None:
        """Replays it on the current stream."""
        self.graph.replay()
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


@contextmanager
def between(stream: Any) -> Iterator[None]:
    """What is done on the current stream comes behind, and before, what is on `stream`. Ops order their own calls only."""
    here = triton_dist.current_stream()
    here.wait_stream(stream)
    yield
    stream.wait_stream(here)


def prepare(cases: list, groups: list, streams: int, seed: int, order: random.Random) -> tuple[list, Counter]:
    """(jobs by group: [[the first case on group 0, ...], ...], each with its first result; seconds of first calls by op).

    Workspaces grow here, from small to large and not sorted. Pairs come before the world, each beginning with other cases: what
    one has compiled, the others find on the disk.
    """
    jobs, seconds = [[Job(case, group, streams, seed + 1000 * i) for i, case in enumerate(cases)] for group in groups], Counter()
    for group, of_group in reversed(list(zip(groups, jobs))):
        begin = group.world_ranks[0] * len(cases) // groups[0].size
        mixed = order.sample(of_group, len(of_group))
        for job in mixed[begin:] + mixed[:begin]:
            start = time.perf_counter()
            job.begin()
            seconds[job.case.op] += time.perf_counter() - start
    return jobs, seconds


def graphs(jobs: list, order: random.Random) -> list:
    """Graphs of 1, 3 and 5 calls of the world's jobs, four of each; none in the emulator, which has no capture."""
    if triton_dist.device().type != "cuda":
        return []
    capturable = [job for job in jobs[0] if job.case.capturable]
    return [Replay([order.choice(capturable) for _ in range(count)]) for count in (1, 3, 5) * 4 if capturable]


def spaces(groups: list) -> list:
    """The workspaces of these groups, in an order that all their ranks share."""
    return [state().workspaces[key, kind] for group in groups for key, kind in sorted(state().workspaces) if key == group.key]


def restart(groups: list, epoch: int) -> None:
    """Collective: every count continues from `epoch`, in memory as fresh as if nothing had ever had the numbers to come."""
    triton_dist.synchronize()
    groups[0].barrier()
    for space in spaces(groups):
        for part in (space.data, space.flags):
            if part is not None:
                part.zero_()
        space.set_epoch(epoch)


def storm(jobs: list, replays: list, collective: Collective, streams: list, numbers: range, late_ms: float,
          order: random.Random) -> Counter:
    """The calls. Every rank draws the same numbers; only lateness, and which shape a pair takes, depend on the rank."""
    world, done = collective.world, Counter()
    for number in numbers:
        g, j = order.randrange(len(jobs)), order.randrange(len(jobs[0]))
        late, on_device, delay = order.randrange(LATE_EVERY) == 0, order.random() < 0.5, late_ms * order.random()
        if g > 0:
            j = (j + world.rank // 2) % len(jobs[g])        # the pairs run different shapes at the same time
        job, turn = jobs[g][j], number % len(streams)
        other = streams[1 - turn]
        with triton_dist.use_stream(streams[turn]):
            if late and world.rank == number // LATE_EVERY % world.size:
                be_late(on_device, delay)
            with between(other) if job.case.by_library else nullcontext():
                job.call(turn)
            if replays and turn == 0 and order.random() < 0.5:
                with between(other):
                    order.choice(replays).call()
                done["replays"] += 1
            # Collectives follow the last op's stream, and the next op waits for that stream: one order on all ranks.
            if number % COLLECTIVE_EVERY == COLLECTIVE_EVERY - 1:
                collective.call()
        done.update([job.case.op, "pairs" if g else "world", *(["late"] if late else [])])
    triton_dist.synchronize()
    return done


def on_all_ranks(world: Group, lines: list) -> list:
    """The lines of every rank, with its number."""
    return [f"rank {rank}: {line}" for rank, lines in enumerate(world.all_gather_object(lines)) for line in lines]


def write_log(path: Path, line: str, counts: list, wrong: list) -> None:
    """Appends what was run, where, and how it ended."""
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset")
    facts = f"{device_name()}, torch {torch.__version__}, commit {commit()}, CUDA_DEVICE_MAX_CONNECTIONS {connections}"
    with path.open("a") as file:
        file.write("\n".join([line, facts, *counts, *wrong, "failed" if wrong else "passed"]) + "\n\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS, metavar="OP", help=f"of {', '.join(OPS)}; default all")
    parser.add_argument("--calls", type=int, help="default 2000 on GPUs, 40 emulated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrap", action="store_true", help="all epochs pass 2^31 in the first half of the calls, then 0")
    parser.add_argument("--late-ms", type=float, default=4.0, help="a late rank is late by up to this")
    parser.add_argument("--log-file", "--log", type=Path, help="append to a text file what was run")
    parser.add_argument("--memcheck", action="store_true", help="only one call of each kind that is small, on the world")
    args = parser.parse_args()
    if args.calls is None:
        args.calls = 2000 if triton_dist.device().type == "cuda" else 40
    return args


def main() -> None:
    args = arguments()
    start = time.perf_counter()
    triton_dist.initialize_distributed()
    world, order = resolve(), random.Random(args.seed)
    cases = gpu_cases() if triton_dist.device().type == "cuda" else emulator_cases()
    cases = [case for case in cases if case.op in args.ops and (case.small or not args.memcheck)]
    pair = None if args.memcheck else pair_of(world)
    groups = [world] + ([pair] if pair is not None else [])
    streams = [triton_dist.current_stream(), triton_dist.new_stream()]
    with triton_dist.prepare_graphs():
        jobs, seconds = prepare(cases, groups, len(streams), args.seed, order)
    firsts = "first calls: " + ", ".join(f"{op} {spent:.1f} s" for op, spent in seconds.most_common())
    wrong = on_all_ranks(world, [job.wrong for of_group in jobs for job in of_group if job.wrong])
    if world.rank == 0:
        print("\n".join([firsts, *wrong[:MOST_LINES]]), flush=True)
    if wrong:
        raise SystemExit(1)
    if args.memcheck:
        if world.rank == 0:
            print(f"{len(cases)} kinds of calls on {world.size} x {device_name()} match float64")
            print(printable("✅ memcheck calls passed"))
        triton_dist.finalize_distributed()
        return
    collective = Collective(world)
    collective.call()                                       # its communicator exists before the calls begin
    replays = graphs(jobs, order)
    triton_dist.synchronize()
    world.barrier()
    ready, done, passed = time.perf_counter(), Counter(), []
    middle = args.calls // 2 if args.wrap else args.calls
    for epoch, numbers in zip(WRAPS, (range(middle), range(middle, args.calls))):
        if args.wrap:
            restart(groups, epoch)
        done += storm(jobs, replays, collective, streams, numbers, args.late_ms, order)
        passed.append(sum(space.calls_begun() < 0 if epoch > 0 else space.calls_begun() > 0 for space in spaces(groups)))
    took = time.perf_counter() - ready
    kinds = [job for of_group in jobs for job in of_group] + [collective]
    counts = [f"{kind.calls:6d}  {kind.label()}" for kind in kinds]
    wrong = on_all_ranks(world, [f"{int(kind.different.sum())} of {kind.calls} calls of {kind.label()} differ from the first"
                                 for kind in kinds if kind.different.any()])
    line = (f"{args.calls} calls, seed {args.seed}, {world.size} x {triton_dist.device().type}: "
            + ", ".join(f"{done[name]} {name}" for name in [*args.ops, "world", "pairs", "late", "replays"])
            + f", {collective.calls} collectives; {took:.1f} s after {ready - start:.1f} s of first calls; "
            + (f"{passed[0]} of {len(spaces(groups))} epochs passed 2^31, {passed[1]} 0; " if args.wrap else "")
            + f"{len(wrong)} kinds of calls differ")
    if world.rank == 0:
        print("\n".join([line, *wrong[:MOST_LINES]]), flush=True)
        if args.log_file:
            write_log(args.log_file, f"{line}\n{firsts}", counts, wrong)
    if wrong:
        raise SystemExit(1)
    if world.rank == 0:
        print(printable("✅ stress passed"), flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
