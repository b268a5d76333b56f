# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The end of a world whose process still holds CUDA graphs with collectives in them: nothing hangs, and the exit status is 0.

    bash launch.sh --nproc_per_node 2 tests/nvidia/leaving.py --graph torch --end exit

NCCL ends a communicator only after the last graph that has captured its collectives. Such a graph may be a user's own, one that
holds an op's unfused way, or one that torch.compile keeps for good.
"""
import argparse
import time
from typing import Any

import torch
import torch.distributed as dist

import triton_dist
from triton_dist.ops import all_gather, all_reduce

_kept: list[Any] = []


def hold(kind: str) -> None:
    """Leaves a graph of this kind in the process, which has been replayed."""
    x = torch.ones(1024, 256, device=triton_dist.device())

    def call(t: torch.Tensor) -> torch.Tensor:
        if kind == "torch":
            dist.all_reduce(t)
            return t
        return all_reduce(t) if kind == "fused" else all_gather(t, method="unfused")
    if kind == "compiled":
        run = torch.compile(call, mode="reduce-overhead")
        for _ in range(4):
            run(x)
        _kept.append(run)
    else:
        call(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(x)
        graph.replay()
        _kept.append(graph)
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=("torch", "fused", "unfused", "compiled"), default="unfused")
    parser.add_argument("--end", choices=("finalize", "again", "exit"), default="finalize",
                        help="again: a second world follows; exit: the script just ends")
    args = parser.parse_args()
    rank, start = 0, 0.0
    for world in range(2 if args.end == "again" else 1):
        triton_dist.initialize_distributed()
        rank = dist.get_rank()
        hold(args.graph)
        if args.end == "again" and not world and rank:          # now one rank alone holds a graph
            _kept.clear()
            torch._dynamo.reset()
        start = time.perf_counter()
        if args.end != "exit":
            triton_dist.finalize_distributed()
    if rank == 0:
        print(f"a graph of kind {args.graph}, then {args.end}: left after {time.perf_counter() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
