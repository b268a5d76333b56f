# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The part "fused" of moe.py: dispatch_grouped_gemm and grouped_gemm_combine."""
from typing import Any, Callable

import torch

import triton_dist
from triton_dist import ops
from triton_dist.ops.dispatch_grouped_gemm import op as choices
from triton_dist.runtime.workspace import reset
from triton_dist.testing import random_tensor

BF16, F32 = torch.bfloat16, torch.float32
COMM_SMS = (8, 12, 22, 33, 44)  # that move rows beside a product, of those that are tried


def fused(bench: Any, models: dict, routed: Callable) -> None:
    """All of it. models, routed: of moe.py.

    "hidden": of the time of the exchange beside the product, what is not seen in the fused time.
    """
    world = bench.group.size
    for model in ("Qwen3-30B-A3B", "DeepSeek-V3") if bench.gpu else ("tiny", ):
        experts, k, hidden, inner = models.get(model, (4 * world, 2, 32, 16))
        experts = min(experts, 64 * world)
        gate_up = random_tensor(experts // world, 2 * inner, hidden, dtype=BF16, seed=bench.group.rank) / hidden**0.5
        down = random_tensor(experts // world, hidden, inner, dtype=BF16, seed=bench.group.rank + 9) / inner**0.5
        for tokens in (128, 1024, 4096, 8192) if bench.gpu else (40, ):
            x = random_tensor(tokens, hidden, dtype=BF16, seed=bench.group.rank + 20)
            weights = random_tensor(tokens, k, dtype=F32, seed=2)
            where = f"{model}, {experts} experts, {tokens} tokens"
            for skew in (False, True):
                ids = routed(bench, tokens, k, experts, skew)
                bench.attempt(f"fused {where}, skew {skew}",
                              lambda ids=ids, x=x, weights=weights, w=gate_up: same_products(x, ids, weights, w, experts))
            fused_times(bench, where, x, routed(bench, tokens, k, experts), weights, gate_up, down, experts)
        del gate_up, down


def same_products(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, experts: int) -> None:
    """Raises unless the fused ways give the bits of the two ops in turn, by the same product, in each of several calls."""
    for method in ("ws", "portable") if x.is_cuda else ("portable", ):
        with torch.no_grad():
            came = ops.ep_dispatch(x, ids, weights, num_experts=experts, layout="indexed")
            wanted = ops.grouped_gemm(came.x, gate_up, offsets=came.expert_offsets, counts=came.expert_rows,
                                      sources=came.sources, act="silu_mul", method=method)
        rows = int(came.expert_offsets[-1])  # pyright: ignore
        for number in range(5):
            h, other = ops.dispatch_grouped_gemm(x, ids, weights, gate_up, num_experts=experts, method=method)
            triton_dist.synchronize()
            for what, a, b in (("h", h[:rows], wanted[:rows]), ("positions", other.positions, came.positions),
                               ("weights", other.topk_weights, came.topk_weights), ("offsets", other.expert_offsets,
                                                                                   came.expert_offsets)):
                if not torch.equal(a, b):  # pyright: ignore
                    places = int((a != b).sum())  # pyright: ignore
                    raise AssertionError(f"{method}, call {number}: {what} differs in {places} places")


def fused_times(bench: Any, where: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor,
                down: torch.Tensor, experts: int) -> None:
    def dispatch(layout: str = "indexed") -> ops.EPDispatched:
        return ops.ep_dispatch(x, ids, weights, num_experts=experts, layout=layout)

    def first(method: str) -> tuple:
        return ops.dispatch_grouped_gemm(x, ids, weights, gate_up, num_experts=experts, method=method)

    def all_of_it(method: str) -> torch.Tensor:
        h, came = first(method)
        return ops.grouped_gemm_combine(h, down, came, residual=x)

    def by_torch() -> torch.Tensor:
        came = dispatch("expert")
        ends = came.expert_offsets[1:]  # pyright: ignore
        both = mm(came.x, gate_up.transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        y = mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
        return ops.ep_combine(y, came.handle, topk_weights=came.topk_weights, residual=x)

    mm = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    came = dispatch("expert")
    rows: dict = dict(offsets=came.expert_offsets, counts=came.expert_rows)
    parts = {"the product alone": lambda: ops.grouped_gemm(came.x, gate_up, act="silu_mul", **rows),
             "dispatch, then the product": lambda: first("unfused"), "fused, auto": lambda: first("auto")}
    kept, found = choices.COMM_SMS, {}
    with torch.no_grad():
        for name, call in parts.items():
            found[name] = bench.us(f"{where}: {name}", call, 4)
        for method in ("ws", "portable") if bench.gpu else ("portable", ):
            for sms in COMM_SMS if bench.gpu and method == "ws" else (33, ):
                reset()
                choices.COMM_SMS = (sms, )
                name = f"fused, {method}, {sms} SMs"
                found[name] = bench.us(f"{where}: {name}", lambda method=method: first(method), 4)
        choices.COMM_SMS = kept
        reset()
        whole = {"all, unfused": lambda: all_of_it("unfused"), "all, auto": lambda: all_of_it("auto"),
                 "all, fused": lambda: all_of_it("ws" if bench.gpu else "portable")}
        if bench.gpu and mm is not None:
            whole["all, dispatch by expert and torch grouped_mm"] = by_torch
        for name, call in whole.items():
            found[name] = bench.us(f"{where}: {name}", call, 4)
    alone, turned = found["the product alone"], found["dispatch, then the product"]
    for name, us in found.items():
        hidden = ""
        if name.startswith("fused") and us and alone and turned and turned > alone:
            hidden = f"   hidden {100 * (turned - us) / (turned - alone):6.1f} %"
        if us is not None:
            bench.say(f"{where:44s} {name:44s} {us:10.1f} us{hidden}")
