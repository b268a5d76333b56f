# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The parts "fused" and "gathered" of moe.py: dispatch_grouped_gemm and grouped_gemm_combine."""
from contextlib import ExitStack
from typing import Any, Callable, Iterator
from unittest import mock

import torch

import triton_dist
from triton_dist import ops
from triton_dist.cores.hopper import grouped_gemm as core
from triton_dist.ops.dispatch_grouped_gemm import op as choices
from triton_dist.ops.ep import self_flagged
from triton_dist.runtime.workspace import reset
from triton_dist.testing import random_tensor

BF16, F32 = torch.bfloat16, torch.float32
COMM_SMS = (8, 12, 22, 33, 44)  # that move rows beside a product, of those that are tried


def fused(bench: Any, models: dict, routed: Callable) -> None:
    """All of it. models, routed: of moe.py.

    "hidden": of the time of the exchange beside the product, what is not seen in the fused time.
    """
    for where, x, weights, gate_up, down, experts, k in _layers(bench, models):
        for skew in (False, True):
            ids = routed(bench, len(x), k, experts, skew)
            bench.attempt(f"fused {where}, skew {skew}",
                          lambda ids=ids, x=x, weights=weights, w=gate_up: same_products(x, ids, weights, w, experts))
        fused_times(bench, where, x, routed(bench, len(x), k, experts), weights, gate_up, down, experts)


def gathered(bench: Any, models: dict, routed: Callable) -> None:
    """The unfused way of dispatch_grouped_gemm whose product gathers rows, or copies them; what is chosen; and "auto".

    Bits are compared over several calls, by even and by skewed routing.
    """
    ways = {"copied": 0, "gathered": 1 << 30, "as it is chosen": None}
    for where, x, weights, gate_up, down, experts, k in _layers(bench, models):
        results: dict = {True: [], False: []}
        for way, most in ways.items():
            reset()
            with ExitStack() as stack, torch.no_grad():
                if most is not None:
                    stack.enter_context(mock.patch.object(core, "GATHERED_N", most))
                    # so that rows do not come by expert
                    stack.enter_context(mock.patch.object(self_flagged, "serves", lambda *_: True))
                for skew, found in results.items():
                    ids = routed(bench, len(x), k, experts, skew)
                    for _ in range(3):
                        h, came = ops.dispatch_grouped_gemm(x, ids, weights, gate_up, num_experts=experts, method="unfused")
                        triton_dist.synchronize()
                        found.append(h[:int(came.expert_offsets[-1])].clone())  # pyright: ignore

                def whole(method: str, ids: torch.Tensor = ids) -> torch.Tensor:
                    h, came = ops.dispatch_grouped_gemm(x, ids, weights, gate_up, num_experts=experts, method=method)
                    return ops.grouped_gemm_combine(h, down, came, residual=x)

                calls = {"dispatch, then the product": lambda ids=ids: ops.dispatch_grouped_gemm(
                    x, ids, weights, gate_up, num_experts=experts, method="unfused"),
                    "all, unfused": lambda: whole("unfused"), "all, auto": lambda: whole("auto")}
                for name, call in calls.items():
                    us = bench.us(f"{where}: {name}, rows {way}", call, 4)
                    bench.say(f"{where:44s} {name:28s} rows {way:16s} {us or 0:10.1f} us")
        bench.attempt(f"bits of {where}", lambda results=results: _equal(results))
    reset()


def _equal(results: dict) -> None:
    for skew, found in results.items():
        for number, h in enumerate(found):
            if not torch.equal(h, found[0]):
                raise AssertionError(f"skew {skew}: call {number} differs in {int((h != found[0]).sum())} places")


def _layers(bench: Any, models: dict) -> Iterator[tuple]:
    """(words, x, weights of choices, gate and up, down, experts, choices of a token) of each model and number of tokens."""
    world = bench.group.size
    for model in bench.models if bench.gpu else ("tiny", ):
        experts, k, hidden, inner = models.get(model, (4 * world, 2, 32, 16))
        experts = min(experts, 64 * world)
        gate_up = random_tensor(experts // world, 2 * inner, hidden, dtype=BF16, seed=bench.group.rank) / hidden**0.5
        down = random_tensor(experts // world, hidden, inner, dtype=BF16, seed=bench.group.rank + 9) / inner**0.5
        for tokens in bench.tokens or ((128, 1024, 4096, 8192) if bench.gpu else (40, )):
            x = random_tensor(tokens, hidden, dtype=BF16, seed=bench.group.rank + 20)
            weights = random_tensor(tokens, k, dtype=F32, seed=2)
            yield f"{model}, {experts} experts, {tokens} tokens", x, weights, gate_up, down, experts, k


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
