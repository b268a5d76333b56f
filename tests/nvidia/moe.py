# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Mixture of experts on GPUs: is it right, and how fast is it. One command for all; smaller sizes where there is no GPU.

    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py                    # everything, a few minutes
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts check      # or "exchange", "gemm", "layer", "fused", "sweep"
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts repeat     # EPMoE in many calls, with late ranks
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts sweep      # tiles, warps and programs of the exchange
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts few --tokens 1 128   # self-flagged rows beside "push"
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts layer --peer-path FILE   # beside others' exchanges, too
    bash launch.sh --nproc_per_node 2 tests/nvidia/moe.py --parts gathered --models Qwen3-30B-A3B   # or copied first

Times are those of calls in a CUDA graph on the slowest rank, ids, weights and the gather of rows included. Bytes are those that
one rank sends to others, so rows that stay on their rank do not count. `--log-file F` writes all results as JSON.
The part "check" says how long each case took. A case that takes longer than `--case-limit` seconds ends the run, with a stack of
each rank: it hangs. Then `TRITON_DIST_WAIT_TIMEOUT=10` says which wait never ends.
"""
import argparse
import faulthandler
import itertools
import json
import statistics
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import moe_few
import moe_fused
import moe_layer
import moe_repeat
import torch

import triton_dist
from triton_dist import ops
from triton_dist.bench.collective.measure import _graph
from triton_dist.ops.ep import chunks
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.workspace import reset
from triton_dist.testing import assert_matches, milliseconds, poisoned, random_tensor

BF16, F16, F32, F8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
LAYOUTS = ("compact", "indexed", "expert", "masked")
# (experts, choices, hidden, inner) of a decoder; experts are those of the whole model
MODELS = {
    "DeepSeek-V3": (256, 8, 7168, 2048),
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "Qwen3-235B-A22B": (128, 8, 4096, 1536)
}
PARTS = ("check", "repeat", "exchange", "gemm", "layer", "fused", "gathered", "few", "sweep", "few_sweep")


class Bench:
    """Results of all parts, and how to take times."""
    def __init__(self, rounds: int, case_limit: float, tokens: list | None = None, ways: list | None = None,
                 models: list | None = None, peer_path: Path | None = None):
        self.group: Group = resolve()
        self.peer_path = peer_path
        self.case_limit = case_limit
        self.tokens, self.ways, self.models = tokens, ways, models or ["Qwen3-30B-A3B", "DeepSeek-V3"]
        self.gpu = triton_dist.device().type == "cuda"
        self.rounds, self.times, self.wrong = rounds, {}, []

    def say(self, text: str, end: str = "\n") -> None:
        if self.group.rank == 0:
            print(text, end=end, flush=True)

    def case(self, what: str, call: Callable[[], Any]) -> None:
        """`attempt`, and how many seconds it took. On a GPU a process whose case takes longer than `case_limit` ends."""
        self.say(f"{what}:", end=" ")
        begun = time.monotonic()
        if self.gpu:  # the emulator finds hangs itself
            faulthandler.dump_traceback_later(self.case_limit, exit=True)
        self.attempt(what, call)
        faulthandler.cancel_dump_traceback_later()
        self.say(f"{time.monotonic() - begun:.1f} s")

    def attempt(self, what: str, call: Callable[[], Any]) -> Any:
        """`call()` on all ranks; what fails is noted, and None is the result."""
        try:
            found, error = call(), None
        except Exception as caught:
            found, error = None, f"{type(caught).__name__}: {caught}"[:500]
            traceback.print_exc()
        errors = [e for e in self.group.all_gather_object(error) if e]
        if errors:
            self.wrong.append(f"{what}: {errors[0]}")
            self.say(f"WRONG {what}: {errors[0]}")
            return None
        return found

    def us(self, what: str, call: Callable[[], Any], calls: int = 8, **more: Any) -> float | None:
        """Microseconds of a call, the median of some rounds on the slowest rank, kept with `more`."""
        def timed() -> float:
            if not self.gpu:
                return 1e3 * milliseconds(call, self.group, 1)
            replay = _graph(lambda _: call(), calls, SimpleNamespace(group=self.group, sets=1))
            found = []
            for _ in range(self.rounds):
                self.group.barrier()
                found.append(max(self.group.all_gather_object(replay())))
            return statistics.median(found)

        found = self.attempt(what, timed)
        if found is not None:
            self.times[what] = dict(us=found, **more)
        return found


def routed(bench: Bench, tokens: int, k: int, experts: int, skew: bool = False, seed: int = 0) -> torch.Tensor:
    """int32 [tokens, k] different experts of each token; with `skew` the first experts are chosen far more often."""
    generator = torch.Generator(triton_dist.device()).manual_seed(1000 * seed + bench.group.rank)
    score = torch.rand(tokens, experts, generator=generator, device=triton_dist.device())
    if skew:
        score += torch.linspace(1, 0, experts, device=score.device)
    return score.topk(k, 1).indices.to(torch.int32).contiguous()


# -- is it right -------------------------------------------------------------------------------------------------------
def check(bench: Bench) -> None:
    """Fused against unfused, bit by bit, over layouts, dtypes and routings; repeats; graphs; products against float64."""
    group, world = bench.group, bench.group.size
    tokens, row = (777, 1024) if bench.gpu else (9, 128)
    experts, k = 8 * world, 4
    for layout, (dtype, quant) in itertools.product(LAYOUTS,
                                                    ((BF16, None), (F32, None), (F16, None), (BF16, "fp8_1x128"))):
        bench.case(f"{layout} {dtype} {quant}",
                   lambda layout=layout, dtype=dtype, quant=quant: same_bits(bench, layout, dtype, quant, tokens,
                                                                             row, k, experts))
    for size, layout, quant in itertools.product((1, 40, 200) if bench.gpu else (3, ), LAYOUTS, (None, "fp8_1x128")):
        bench.case(f"{size} tokens, {layout} {quant}",
                   lambda size=size, layout=layout, quant=quant: same_bits(bench, layout, BF16, quant, size,
                                                                           7168 if bench.gpu else 128, 8, experts))
    if bench.gpu:
        bench.case("a graph with other routing", lambda: replayed(bench, tokens, row, k, experts))
    for size, n, inner in ((3, 256, 512), (200, 384, 320)) if bench.gpu else ((3, 32, 48), ):
        bench.case(f"grouped_gemm of {size} rows an expert",
                   lambda size=size, n=n, inner=inner: products(size, n, inner))
    bench.say(f"check: {len(bench.wrong)} wrong on {world} x {triton_dist.device().type}")
    group.barrier()


def same_bits(bench: Bench, layout: str, dtype: torch.dtype, quant: str | None, tokens: int, row: int, k: int,
              experts: int) -> None:
    group = bench.group
    mine = (tokens * (group.rank + 1)) // group.size  # ranks have different numbers
    x = random_tensor(mine, row, dtype=dtype, seed=group.rank)
    weights = random_tensor(mine, k, dtype=F32, seed=group.rank + 50)
    for name, ids in (("uniform", routed(bench, mine, k,
                                         experts)), ("to one", torch.zeros(mine, k, dtype=torch.int32,
                                                                           device=x.device)),
                      ("some to none", routed(bench, mine, k, experts, seed=1) - 3)):
        ids = ids.contiguous()
        results = []
        for method in ("unfused", *["push", "self_flagged"] * (10 if bench.gpu else 1)):
            came = ops.ep_dispatch(x,
                                   ids,
                                   weights,
                                   num_experts=experts,
                                   layout=layout,
                                   quant=quant,
                                   max_tokens=tokens,
                                   method=method,
                                   capacity=tokens * group.size * k if layout == "masked" else None)
            y = random_tensor(came.x.shape[:-1].numel(), 64, dtype=BF16, seed=3).view(*came.x.shape[:-1], 64)
            by_choice = layout in ("expert", "masked")
            out = ops.ep_combine(y, came.handle, topk_weights=came.topk_weights if by_choice else None, method=method)
            triton_dist.synchronize()
            rows = int(came.rows)
            at = came.positions[came.positions >= 0].long() if by_choice else slice(rows)  # pyright: ignore
            flat = came.x.view(torch.uint8).view(-1, row * came.x.itemsize)[at]
            found = [out, came.topk_ids, came.topk_weights, came.rows, flat]
            found += [came.expert_rows, came.expert_offsets, came.positions] if layout != "compact" else []
            found += [came.scales.view(-1, row // 128)[at]] if quant else []  # pyright: ignore
            results.append([t.clone() for t in found])  # pyright: ignore
        for number, again in enumerate(results[1:]):
            for which, (a, b) in enumerate(zip(results[0], again)):
                if not torch.equal(a, b):
                    raise AssertionError(
                        f"{name}: result {which} of call {number} differs in {int((a != b).sum())} places")


def replayed(bench: Bench, tokens: int, row: int, k: int, experts: int) -> None:
    x = random_tensor(tokens, row, dtype=BF16, seed=bench.group.rank)
    ids = routed(bench, tokens, k, experts)

    def call() -> torch.Tensor:
        came = ops.ep_dispatch(x, ids, num_experts=experts, layout="expert")
        return ops.ep_combine(came.x, came.handle)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    bench.group.barrier()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made, stream=stream):
        out = call()
    for seed in range(5):
        ids.copy_(routed(bench, tokens, k, experts, skew=seed % 2 == 1, seed=seed))
        made.replay()
        torch.cuda.synchronize()
        assert_matches(out, k * x.double(), k=k, roundings=bench.group.size + 2)


def products(size: int, n: int, inner: int) -> None:
    counts = torch.tensor([size, 0, 3 * size + 1, size // 2 + 1], dtype=torch.int32, device=triton_dist.device())
    begins = torch.cat([counts.new_zeros(1), (-(-counts // 16) * 16).cumsum(0, dtype=torch.int32)])
    rows = int(begins[-1])
    x = poisoned(rows, inner, dtype=BF16)
    for e, (first, count) in enumerate(zip(begins.tolist(), counts.tolist())):
        x[first:first + count] = random_tensor(count, inner, dtype=BF16, seed=e)
    weight = random_tensor(len(counts), 2 * n, inner, dtype=BF16, seed=9) / inner**0.5
    scale = random_tensor(rows, dtype=F32, seed=8)
    leaf = weight.clone().requires_grad_()
    plain = ops.grouped_gemm(x, leaf, offsets=begins, counts=counts)
    gated = ops.grouped_gemm(x, weight, offsets=begins, counts=counts, act="silu_mul", row_weights=scale)
    to = random_tensor(rows, 2 * n, dtype=BF16, seed=7)
    plain.backward(to)
    triton_dist.synchronize()
    for e, (first, count) in enumerate(zip(begins.tolist(), counts.tolist())):
        at = slice(first, first + count)
        product = x[at].double() @ weight[e].double().t()
        gate, up = product.chunk(2, -1)
        assert_matches(plain.detach()[at], product, k=inner)
        assert_matches(gated[at],
                       torch.nn.functional.silu(gate) * up * scale[at].double()[:, None],
                       k=inner,
                       roundings=2)
        assert_matches(leaf.grad[e], to[at].double().t() @ x[at].double(), k=max(1, count))  # pyright: ignore


# -- how fast is it ------------------------------------------------------------------------------------------------------
def exchange(bench: Bench, sizes: tuple | None = None, label: str = "") -> None:
    """Dispatch by layout, as bf16 and as fp8, and combine: hidden 7168, 8 of 256 experts, or what is right without a GPU."""
    world = bench.group.size
    experts, k, row, _ = MODELS["DeepSeek-V3"] if bench.gpu else (4 * world, 2, 128, 32)
    for tokens in sizes or ((1, 16, 128, 1024, 4096) if bench.gpu else (4, )):
        ids = routed(bench, tokens, k, experts)
        x, weights = random_tensor(tokens, row, dtype=BF16, seed=1), random_tensor(tokens, k, dtype=F32, seed=2)
        owner = ids // (experts // world)
        remote = sum(int((owner == r).any(1).sum()) for r in range(world) if r != bench.group.rank)
        for name, how in (("dispatch bf16", {}), ("dispatch fp8", dict(quant="fp8_1x128")), ("dispatch bf16 indexed",
                                                                                             dict(layout="indexed")),
                          ("dispatch bf16 by expert",
                           dict(layout="expert")), ("dispatch fp8 masked",
                                                    dict(layout="masked",
                                                         quant="fp8_1x128",
                                                         capacity=max(16, 2 * tokens * world * k // experts)))):
            if label and "layout" in how:
                continue
            nbytes = remote * (row * (1 if "quant" in how else 2))
            line(
                bench, f"{label}{name}, {tokens} tokens", nbytes,
                bench.us(f"{label}{name}, {tokens} tokens",
                         lambda how=how: ops.ep_dispatch(x, ids, weights, num_experts=experts, **how),
                         nbytes=nbytes))
        for name, layout in (("combine compact", "compact"), ("combine by expert", "expert")):
            if label and layout == "expert":
                continue
            came = ops.ep_dispatch(x, ids, weights, num_experts=experts, layout=layout)
            y = random_tensor(*came.x.shape, dtype=BF16, seed=3)
            out, by = torch.empty_like(x), came.topk_weights if layout == "expert" else None
            nbytes = remote * row * 2  # about as many come from others as go to them
            line(
                bench, f"{label}{name}, {tokens} tokens", nbytes,
                bench.us(
                    f"{label}{name}, {tokens} tokens",
                    lambda came=came, y=y, by=by, out=out: ops.ep_combine(y, came.handle, topk_weights=by, out=out),
                    nbytes=nbytes))
            del came, y
        if not label:
            parts = torch.empty(world * tokens, row, dtype=BF16, device=x.device)
            line(bench, f"for comparison: all_gather of {tokens} tokens", (world - 1) * tokens * row * 2,
                 bench.us(f"all_gather, {tokens} tokens", lambda parts=parts: ops.all_gather(x, out=parts)))


def line(bench: Bench, what: str, nbytes: int, us: float | None) -> None:
    if us is not None:
        bench.say(f"{what:48s} {us:9.1f} us   {nbytes / 1e6:8.2f} MB to others   {nbytes / us / 1e3:7.1f} GB/s")


def gathered(bench: Bench) -> None:
    """Rows that the product gathers beside rows that are copied first: equal bits, and times."""
    moe_fused.gathered(bench, MODELS, routed)


def few(bench: Bench) -> None:
    """Few tokens by each method in turn."""
    moe_few.few(bench, routed)


def few_sweep(bench: Bench) -> None:
    """The same by other sizes of programs."""
    moe_few.sweep(bench, routed)


def sweep(bench: Bench) -> None:
    """The exchange by other pieces, warps and parts, 128 and 4096 tokens. The fastest belong into ops/ep/chunks.py."""
    names = ("MOVED", "ROUNDED", "SUMMED", "PASSED", "PLACED")
    kept = [getattr(chunks, name) for name in names]
    space = [(32, 64, 4, 2), (32, 128, 4, 2), (32, 32, 4, 2), (16, 64, 4, 2), (16, 16, 4, 2), (8, 128, 4, 2), (8, 64, 4, 2),
             (16, 64, 4, 1), (32, 128, 8, 1), (4, 16, 2, 4), (8, 16, 4, 2)] if bench.gpu else [(1, 4, 4, 2)]
    for tile, a_round, warps, parts in space:
        reset()
        pieces = chunks.Pieces(tile << 10, a_round << 10, warps=warps, parts=parts)
        all_fit = replace(pieces, registers=min(255, 65536 // (2 * parts * 32 * warps)))        # all programs of a chunk an SM
        for name, value in zip(names, (pieces, pieces, all_fit, tile << 9, pieces)):
            setattr(chunks, name, value)
        exchange(bench, (128, 4096) if bench.gpu else (4, ), f"{tile}, {a_round} KiB, {warps} warps, {parts} parts: ")
    reset()
    for name, value in zip(names, kept):
        setattr(chunks, name, value)


def gemm(bench: Bench) -> None:
    """grouped_gemm beside torch's grouped_mm and a loop of products; rows of each expert equal, and by random routing."""
    world = bench.group.size
    shapes = [(8, 4096, 8192, 7168),
              (8, 4096, 7168, 2048)] if bench.gpu else [(2, 4, 16, 16)]  # experts, rows of each, N, K
    for experts, k, hidden, inner in MODELS.values() if bench.gpu else ():
        local = experts // world
        for tokens in (16, 128, 1024, 4096):
            each = max(1, tokens * world * k // experts)
            shapes += [(local, each, 2 * inner, hidden), (local, each, hidden, inner)]
    for experts, each, n, k in shapes:
        x = random_tensor(experts * each, k, dtype=BF16, seed=1)
        weight = random_tensor(experts, n, k, dtype=BF16, seed=2) / k**0.5
        begins = torch.arange(experts + 1, dtype=torch.int32, device=x.device) * each
        out = torch.empty(experts * each, n, dtype=BF16, device=x.device)
        ways: dict = {"ours": lambda: ops.grouped_gemm(x, weight, offsets=begins)}
        mm = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if bench.gpu and mm is not None and n % 8 == k % 8 == 0:
            ways["torch grouped_mm"] = lambda mm=mm: mm(x, weight.transpose(1, 2), offs=begins[1:])
        ways["a loop"] = lambda: [
            torch.mm(a, w.t(), out=o) for a, w, o in zip(x.chunk(experts), weight, out.chunk(experts))
        ]
        flops, nbytes, text = 2 * experts * each * n * k, 2 * experts * n * k, f"{experts} x [{each}, {k}] x [{n}, {k}]"
        for name, call in ways.items():
            us = bench.us(f"gemm {text}, {name}", call, 4, flops=flops, weight_bytes=nbytes)
            if us is not None:
                bench.say(
                    f"{text:40s} {name:18s} {us:10.1f} us   {flops / us / 1e6:7.1f} TF/s   weights {nbytes / us / 1e3:7.1f} GB/s"
                )


def repeat(bench: Bench) -> None:
    """EPMoE in many calls: bits of the first of its kind, which is right beside a reference; what is wrong if not."""
    moe_repeat.repeat(bench, MODELS)


def layer(bench: Bench) -> None:
    """A whole EPMoE beside layers by other projects' parts."""
    moe_layer.layer(bench, MODELS, bench.peer_path)


def fused(bench: Bench) -> None:
    """dispatch_grouped_gemm: its bits against the two ops in turn; then times of it, and of all between router and sum."""
    moe_fused.fused(bench, MODELS, routed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[:6]))
    parser.add_argument("--rounds", type=int, default=9, help="replays of each graph, of which the median is taken")
    parser.add_argument("--tokens", nargs="+", type=int, help="numbers of tokens for repeat, layer, fused, gathered, few*")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), help="for the parts repeat, layer, fused and gathered")
    parser.add_argument("--peer-path", type=Path, help="a Python file whose EXCHANGES the part layer times too (moe_layer.py)")
    parser.add_argument("--ways", nargs="+", choices=list(moe_few.WAYS), help="what these two time; default: the first three")
    parser.add_argument("--case-limit", type=float, default=60, help="seconds after which a case of the check counts as hung")
    parser.add_argument("--log-file", type=Path, help="where all results go, as JSON")
    args = parser.parse_args()
    triton_dist.initialize_distributed()
    bench = Bench(args.rounds, args.case_limit, args.tokens, args.ways, args.models, args.peer_path)
    for part in args.parts:
        bench.attempt(part, lambda part=part: globals()[part](bench))
    if args.log_file and bench.group.rank == 0:
        args.log_file.write_text(
            json.dumps(dict(world=bench.group.size, times=bench.times, wrong=bench.wrong), indent=1) + "\n")
    bench.say("all right" if not bench.wrong else f"{len(bench.wrong)} WRONG: " + "; ".join(bench.wrong))
    triton_dist.finalize_distributed()
    raise SystemExit(bool(bench.wrong))


if __name__ == "__main__":
    main()
