# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""torch.compile with mode="reduce-overhead", whose CUDA graphs own a memory pool: also where the first calls of all are in it.

In the emulator there are no such graphs, and what is tested is the rest; `tests/on_gpus.py` runs this on GPUs.
"""
from typing import Any, Callable

import pytest
import torch

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import EPMoE, TopKRouter
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

WORLD, ROWS, CALLS = 2, 8, 4
DTYPE = torch.bfloat16


def collectives(method: str, n: int, k: int) -> Callable:
    how = {"method": method}

    def call(x: torch.Tensor) -> tuple:
        return (ops.all_reduce(x, **how), ops.all_gather(x, **how), ops.reduce_scatter(x, **how), ops.all_to_all_single(x, **how))
    return call


def products(method: str, n: int, k: int) -> Callable:
    wide = random_tensor(n, k, dtype=DTYPE, seed=2)
    residual, norm = random_tensor(ROWS, k, dtype=DTYPE, seed=4), random_tensor(k, dtype=DTYPE, seed=5)
    how = {"method": method}

    def call(x: torch.Tensor) -> tuple:
        y, total = ops.all_reduce_rmsnorm(x, norm, residual=residual, **how)
        return ops.ag_gemm(x, wide, **how), ops.gemm_rs(x, wide, **how), ops.gemm_ar(x, wide, **how), y, total
    return call


def experts(method: str, n: int, k: int) -> Callable:
    router = TopKRouter(torch.nn.Parameter(random_tensor(8, k, dtype=DTYPE, seed=6)), 2)
    weights = random_tensor(8, 2 * n, k, dtype=DTYPE, seed=7) / k**0.5, random_tensor(8, k, n, dtype=DTYPE, seed=8) / n**0.5
    layer = EPMoE.from_full(router, *[torch.nn.Parameter(weight) for weight in weights])

    def call(x: torch.Tensor) -> tuple:
        return (layer(x),)
    return call


@pytest.mark.parametrize("make, method", [(collectives, "auto"), (collectives, "unfused"), (products, "auto"),
                                          (products, "unfused"), (experts, "auto")])
def test_first_calls_are_those_of_a_compiled_model(make, method):
    def ranks() -> None:
        triton_dist.reset()
        on_gpu, rank = triton_dist.device().type == "cuda", resolve().rank
        n, k = (256, 512) if on_gpu else (64, 64)
        options: dict[str, Any] = {"mode": "reduce-overhead"} if on_gpu else {"backend": "aot_eager"}
        call, found = make(method, n, k), []
        compiled = torch.compile(call, fullgraph=True, **options)
        xs = [random_tensor(ROWS, k, dtype=DTYPE, seed=10 * turn + rank) for turn in range(CALLS)]
        with torch.no_grad():
            for x in xs:
                torch.compiler.cudagraph_mark_step_begin()
                found.append([t.clone() for t in compiled(x)])
            for x, results in zip(xs, found):
                for result, wanted in zip(results, call(x), strict=True):
                    assert torch.equal(result, wanted)
        assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
    torch._dynamo.reset()
    run_ranks(ranks, WORLD)
    torch._dynamo.reset()
