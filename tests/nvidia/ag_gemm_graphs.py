# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm in CUDA graphs: is it right, and does it keep the overlap of eager calls?

    bash launch.sh --nproc_per_node 2 tests/nvidia/ag_gemm_graphs.py
    bash launch.sh --nproc_per_node 2 tests/nvidia/ag_gemm_graphs.py --shapes 8192,57344,8192 --rounds 15
    CUDA_DEVICE_MAX_CONNECTIONS=1 bash launch.sh --nproc_per_node 2 tests/nvidia/ag_gemm_graphs.py --rounds 0

First all results are compared with float64, and with each other bit by bit, in a random order of replays of two graphs and eager
calls with one rank late. Then times of a call on the slowest rank, in microseconds: medians over rounds, in which eager batches
and graphs of --calls calls take turns. Shapes are global: x [M / W, K], weight [N / W, K]. Emulated, results alone.
"""
import argparse
import random
import statistics
from typing import Any, Callable

import torch

import triton_dist
from triton_dist.bench.measure import batch, in_turn
from triton_dist.ops import ag_gemm
from triton_dist.runtime.groups import Group, resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, poisoned, random_tensor

# A 70B decoder's gate and up projections, its queries, keys and values, and the same of 8B.
SHAPES = ("8192,57344,8192", "8192,10240,8192", "8192,28672,4096", "8192,6144,4096", "2048,57344,8192", "2048,28672,4096")
WAYS = {"auto": {}, "4 SMs": {"comm_sms": 4}, "unfused": {"method": "unfused"}}
STEPS = 60


class Calls:
    """Calls of one shape: each way has an output of its own."""

    def __init__(self, group: Group, m: int, n: int, k: int):
        self.group, self.k = group, k
        self.x = random_tensor(m // group.size, k, dtype=torch.bfloat16, seed=group.rank)
        self.weight = random_tensor(n // group.size, k, dtype=torch.bfloat16, seed=100 + group.rank)
        self.outs = {name: poisoned(m, n // group.size, dtype=torch.bfloat16) for name in WAYS}

    def run(self, name: str) -> None:
        ag_gemm(self.x, self.weight, out=self.outs[name], **WAYS[name])

    def check(self) -> None:
        """Eager calls, which are made ready for graphs, against float64."""
        with triton_dist.prepare_graphs():
            for name in WAYS:
                self.run(name)
        triton_dist.synchronize()
        expected = ag_gemm_float64(self.x, self.weight, self.group, None)
        for name, out in self.outs.items():
            assert_matches(out, expected, k=self.k)
        self.first = self.outs["auto"].clone()


def captured(steps: list) -> Any:
    """A graph of some calls, each a function without arguments."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        for step in steps:
            step()
    return graph


def mixed(every: list, group: Group, order: random.Random) -> int:
    """Replays of graphs of one and of three calls, and eager calls, in a random order: how many results differ from the first."""
    different = torch.zeros(1, dtype=torch.int64, device=triton_dist.device())

    def one(calls: Calls) -> None:
        calls.outs["auto"].fill_(float("nan"))
        calls.run("auto")
        different.add_(torch.ne(calls.outs["auto"], calls.first).any())
    graphs = [captured([lambda calls=calls: one(calls) for calls in some]) for some in (
        every[:1], [every[0], every[-1], every[0]])] if triton_dist.device().type == "cuda" else []
    for _ in range(STEPS):
        late, which = order.randrange(group.size), order.randrange(4)
        if graphs and late == group.rank:
            torch.cuda._sleep(2_000_000)                        # about a millisecond
        if graphs and which < 3:
            graphs[which % 2].replay()
        else:
            one(order.choice(every))
    triton_dist.synchronize()
    return int(different.sum())


def times(calls: Calls, group: Group, rounds: int, count: int) -> dict:
    """{way: microseconds}: eager and captured."""
    steps: dict[str, Callable] = {f"{name}, eager": (lambda _, name=name: calls.run(name)) for name in WAYS}
    lengths = dict.fromkeys(steps, count)
    for name in WAYS:
        graph = captured([lambda name=name: calls.run(name)] * count)
        steps[f"{name}, graph"], lengths[f"{name}, graph"] = (lambda _, graph=graph: graph.replay()), 1

    def once(name: str) -> float:
        steps[name](0)
        triton_dist.synchronize()
        group.barrier()
        return batch(steps[name], 1, lengths[name])[0] * 1e3 / (count // lengths[name])
    everyone = group.all_gather_object(in_turn(list(steps), rounds, once))
    return {name: statistics.median(max(each) for each in zip(*(rank[name] for rank in everyone))) for name in steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="M,N,K")
    parser.add_argument("--rounds", type=int, default=9, help="0: results alone")
    parser.add_argument("--calls", type=int, default=6, help="in a batch, and in a graph")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    group, gpu = resolve(), triton_dist.device().type == "cuda"
    shapes = [tuple(map(int, text.split(","))) for text in args.shapes] if gpu else [(64, 48, 64), (128, 32, 96)]
    every = []
    for shape in shapes:
        every.append(Calls(group, *shape))
        every[-1].check()
    wrong = sum(group.all_gather_object(mixed(every, group, random.Random(0))))
    if group.rank == 0:
        print(f"{len(every)} shapes match float64; of {STEPS} replays and eager calls on each of {group.size} ranks {wrong} "
              "results differ", flush=True)
    for shape, calls in zip(shapes, every if gpu and args.rounds else []):
        found = times(calls, group, args.rounds, args.calls)
        if group.rank == 0:
            best = min(found["unfused, eager"], found["unfused, graph"])
            print(f"M, N, K = {shape}: graph / eager {found['auto, graph'] / found['auto, eager']:.3f}, "
                  f"unfused / graph {best / found['auto, graph']:.3f}; us: "
                  + ", ".join(f"{name} {us:.1f}" for name, us in found.items()), flush=True)
    triton_dist.finalize_distributed()
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
