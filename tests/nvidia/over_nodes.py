# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops over nodes on GPUs of one host: ranks are told that they are on other nodes, so all that crosses goes through SHMEM calls.

    TRITON_DIST_HEAP=nvshmem TRITON_DIST_NODES=2x1 bash launch.sh --nproc_per_node 2 tests/nvidia/over_nodes.py

Dispatch and combine by "two_level", and "auto" of other ops, are compared with the collectives of torch.distributed. Also in the
emulator, without the first variable.
"""
import time
from functools import partial
from typing import Any, Callable

import torch

import triton_dist
from triton_dist import ops
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

LAYOUTS = ("compact", "indexed", "expert", "masked")
REPEATS, CALLS = 3, 10


def on_gpu() -> bool:
    return triton_dist.device().type == "cuda"


def say(text: str) -> None:
    if resolve().rank == 0:
        print(text, flush=True)


def routed(tokens: int, hidden: int, top_k: int, experts: int, dtype: torch.dtype) -> tuple:
    """(x, ids, weights) of this rank's tokens."""
    rank = resolve().rank
    random = torch.Generator().manual_seed(50 + rank)
    ids = torch.stack([torch.randperm(experts, generator=random)[:top_k] for _ in range(tokens)]).int()
    weights = random_tensor(tokens, top_k, dtype=torch.float32, seed=9 + rank).abs()
    return random_tensor(tokens, hidden, dtype=dtype, seed=5 + rank), ids.to(triton_dist.device()), weights


def rows(found: ops.EPDispatched, layout: str) -> list[torch.Tensor]:
    """What of a dispatch is set: the rest of its memory is not."""
    came = int(found.rows)
    results = [found.rows, found.topk_ids[:came], found.topk_weights[:came]]
    if layout in ("compact", "indexed"):
        return [*results, found.x[:came]]
    counts, begins = found.expert_rows.tolist(), found.expert_offsets.tolist()
    return [*results, found.expert_rows, *[found.x[expert, :count] if layout == "masked" else found.x[begin:begin + count]
                                           for expert, (count, begin) in enumerate(zip(counts, begins))]]


def exchange(tokens: int, hidden: int, top_k: int, experts: int, dtype: torch.dtype, layout: str) -> None:
    """A dispatch has the bits of the unfused one; a combine adds in float32 in the same order."""
    x, ids, weights = routed(tokens, hidden, top_k, experts, dtype)
    dispatch = partial(ops.ep_dispatch, x, ids, weights, num_experts=experts, layout=layout)
    for _ in range(REPEATS):
        came, wanted = dispatch(method="two_level"), dispatch(method="unfused")
        for a, b in zip(rows(came, layout), rows(wanted, layout), strict=True):
            assert torch.equal(a, b)
        by = came.topk_weights if layout in ("expert", "masked") else None
        sums = [ops.ep_combine(came.x, came.handle, topk_weights=by, method=method) for method in ("two_level", "unfused")]
        torch.testing.assert_close(*sums)


def others(m: int, n: int, k: int) -> None:
    """"auto" of the ops that cross nodes, and their unfused ways."""
    rank = resolve().rank
    x, weight = (random_tensor(size, k, dtype=torch.bfloat16, seed=seed + rank) for size, seed in ((m, 1), (n, 20)))
    calls: dict[str, Callable[..., Any]] = {
        "all_gather": partial(ops.all_gather, x), "reduce_scatter": partial(ops.reduce_scatter, x),
        "all_reduce": partial(ops.all_reduce, x), "ag_gemm": partial(ops.ag_gemm, x, weight),
        "gemm_rs": partial(ops.gemm_rs, x, weight)}
    for name, call in calls.items():
        for _ in range(REPEATS):
            found, wanted = call().float(), call(method="unfused").float()
            worst = (found - wanted).abs().max() / wanted.abs().max()
            assert worst < 2e-2, f"{name}: {worst}"


def speed(tokens: int, hidden: int, top_k: int, experts: int) -> None:
    """Microseconds of a dispatch in a loop of calls."""
    x, ids, weights = routed(tokens, hidden, top_k, experts, torch.bfloat16)
    for method in ("two_level", "unfused"):
        for calls in (REPEATS, CALLS):
            triton_dist.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                ops.ep_dispatch(x, ids, weights, num_experts=experts, method=method)
            triton_dist.synchronize()
            took = (time.perf_counter() - start) / calls
        say(f"dispatch of {tokens} x {hidden} by {method}: {took * 1e6:.0f} us")


def main() -> None:
    triton_dist.initialize_distributed()
    say(f"nodes {resolve().nodes}")
    for sizes in ((8, 1024, 2, 4), (128, 2048, 8, 64), (1000, 7168, 8, 64)) if on_gpu() else ((8, 64, 2, 4), (33, 128, 4, 8)):
        for dtype in (torch.bfloat16, torch.float32):
            for layout in LAYOUTS:
                exchange(*sizes, dtype, layout)
            say(f"dispatch and combine of {sizes[0]} x {sizes[1]} in {dtype}: as unfused")
    for sizes in ((256, 512, 1024), (2048, 1024, 4096)) if on_gpu() else ((8, 16, 32),):
        others(*sizes)
    if on_gpu():
        speed(4096, 7168, 8, 64)
    say(printable("✅ ops over nodes"))
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
