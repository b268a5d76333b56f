# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""CUDA graphs that others make: torch.compile with "reduce-overhead", torch.cuda.make_graphed_callables, and generate() of
transformers with a static cache. The first calls of all ops are in them.

    bash launch.sh --nproc_per_node 2 tests/nvidia/graphs_of_torch.py
    bash launch.sh --nproc_per_node 2 tests/nvidia/graphs_of_torch.py --parts train

Results are those of eager calls. Also in the emulator, where torch has no graphs and calls are eager.
"""
import argparse
import copy
import time
from typing import Any, Callable

import torch
from torch import nn

import triton_dist
from triton_dist.layers import AGGemm, GemmRS
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

PARTS = ("train", "callables", "generate")
STEPS, NEW = 4, 12


class Block(nn.Module):
    """A column-parallel and a row-parallel layer with a residual: rows are sharded by sequence."""

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype):
        super().__init__()
        rank = resolve().rank
        self.up = AGGemm(nn.Parameter(random_tensor(inner, hidden, dtype=dtype, seed=1 + rank) / hidden**0.5))
        self.down = GemmRS(nn.Parameter(random_tensor(hidden, inner, dtype=dtype, seed=11 + rank) / inner**0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def sizes() -> tuple[int, int, int, torch.dtype]:
    """(rows of a rank, hidden, inner, dtype)."""
    return (128, 1024, 2048, torch.bfloat16) if on_gpu() else (4, 32, 32, torch.float32)


def on_gpu() -> bool:
    return triton_dist.device().type == "cuda"


def steps(run: Callable, block: Block, rows: int, hidden: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Outputs and gradients of a few training steps."""
    found = []
    for step in range(STEPS):
        x = random_tensor(rows, hidden, dtype=dtype, seed=100 + 2 * step + resolve().rank).requires_grad_()
        block.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        y = run(x)
        y.square().mean().backward()
        found += [t.detach().clone() for t in (y, x.grad, *[p.grad for p in block.parameters()]) if t is not None]
    return found


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert torch.equal(a, b), f"{(a - b).abs().max()} of {b.abs().max()}"


def train() -> None:
    """Forward and backward passes in the graphs of torch.compile."""
    rows, hidden, inner, dtype = sizes()
    block = Block(hidden, inner, dtype)
    options: dict[str, Any] = {"mode": "reduce-overhead"} if on_gpu() else {"backend": "aot_eager"}
    found = steps(torch.compile(block, fullgraph=True, **options), block, rows, hidden, dtype)
    wanted = steps(block, block, rows, hidden, dtype)
    for a, b in zip(found, wanted, strict=True):                # the compiler joins other operations, which round once
        torch.testing.assert_close(a, b, rtol=2e-2 if on_gpu() else 1e-5, atol=2e-2 if on_gpu() else 1e-5)


def callables() -> None:
    """Forward and backward passes in two graphs that make_graphed_callables has captured."""
    rows, hidden, inner, dtype = sizes()
    block = Block(hidden, inner, dtype)
    sample = random_tensor(rows, hidden, dtype=dtype, seed=7).requires_grad_()
    graphed = torch.cuda.make_graphed_callables(block, (sample,)) if on_gpu() else block
    found = steps(graphed, block, rows, hidden, dtype)
    eager = Block(hidden, inner, dtype)
    same(found, steps(eager, eager, rows, hidden, dtype))


def generate() -> None:
    """Tokens of a divided Llama in float32: with a static cache, whose steps transformers compiles, as with one that grows."""
    from torch.distributed.device_mesh import init_device_mesh

    from triton_dist.integrations.transformers import tensor_parallel

    from transformers import AutoModelForCausalLM, LlamaConfig
    torch.manual_seed(0)
    _, hidden, inner, _ = sizes()
    config = LlamaConfig(vocab_size=512, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=8,
                         num_key_value_heads=max(2, resolve().size), max_position_embeddings=64, pad_token_id=0)
    alone = AutoModelForCausalLM.from_config(config).to(triton_dist.device()).eval()
    model = tensor_parallel(copy.deepcopy(alone), init_device_mesh(triton_dist.device().type, (resolve().size,)))
    ids = torch.randint(3, 512, (2, 6), device=triton_dist.device())
    asked = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            static = model.generate(**asked, cache_implementation="static")
            triton_dist.synchronize()
            took = time.perf_counter() - start
        assert torch.equal(static, model.generate(**asked)), "tokens differ"
    if resolve().rank == 0:
        print(f"{NEW} tokens with a static cache in {1e3 * took:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    for part in args.parts:
        triton_dist.reset()
        torch._dynamo.reset()
        start = time.perf_counter()
        globals()[part]()
        if resolve().rank == 0:
            print(printable(f"✅ {part}, {time.perf_counter() - start:.1f} s"), flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
