# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Measures a model's layers: every variant is checked against one rank in float32, then timed once a round.

A time is that of back-to-back passes over all layers, or of replays of a CUDA graph of one pass, on the slowest rank.
"""
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Container

import torch

from triton_dist.bench import symmetric
from triton_dist.bench.measure import batch, batch_length, in_turn
from triton_dist.bench.model import ways
from triton_dist.bench.model.decoder import Decoder, Layer, shard, whole_layer
from triton_dist.bench.model.variants import ALONE, SYMMETRIC, Variant, compiled, possible
from triton_dist.bench.model.words import ARCHS
from triton_dist.runtime.groups import Group
from triton_dist.runtime.streams import device, synchronize

_BATCH_MS = 30.0


@dataclass(frozen=True)
class Case:
    """What is timed. rows: of a sequence, or sequences that decode. cached: positions in each cache, 0 but for decode."""
    arch: str
    phase: str
    rows: int
    cached: int
    layers: int
    dtype: torch.dtype


@dataclass
class Measurement:
    """What the ranks found for a case; the same on all ranks."""
    milliseconds: dict = field(default_factory=dict)    # variant: [a pass in round 0, ...], the slowest rank's
    errors: dict = field(default_factory=dict)          # variant: relative error against one rank in float32
    skipped: dict = field(default_factory=dict)         # variant: why it was not timed
    failed: list = field(default_factory=list)          # of the skipped, what gave wrong results


def measure(case: Case, group: Group, rounds: int, iterations: int | None, graph: bool,
            chosen: Container[str] | None = None) -> Measurement:
    """Checks and times every variant, or those that are chosen. Collective."""
    arch, train = ARCHS[case.arch], case.phase == "train"
    shards, h, upstream, want = _reference(case, group)
    variants, missing = possible(case.phase, chosen, emulated=device().type != "cuda")
    if any(name in SYMMETRIC for name in variants):
        nbytes = case.rows * arch.hidden * case.dtype.itemsize
        _agreed(group, lambda: symmetric.reserve_workspace(nbytes, symmetric.group_name()[0]))     # variants say why not
    found, steps = Measurement(skipped=missing), {}
    for name, variant in variants.items():
        made: dict = {}

        def first(name: str = name, variant: Variant = variant, made: dict = made) -> None:
            way = variant.make(group)
            decoder = Decoder(arch, shards, way, case.rows, case.cached, group.size)
            forward = compiled(decoder.forward, variant.compiled)
            made["run"] = _step(forward, _part(h, way), _part(upstream, way), shards, train)
            results = [made["run"]() for _ in range(2)][-1]     # the first may record what the second runs
            made["error"] = max(_error(got, _part(wanted, way)) for got, wanted in zip(results, want))
        why = _agreed(group, first)
        if why is None and name != ALONE:
            found.errors[name] = max(group.all_gather_object(made["error"]))
            if not found.errors[name] <= _bound(case):
                why = f"relative error {found.errors[name]:.2g}, expected at most {_bound(case):.2g}"
                found.failed.append(name)
        if why is None and graph:
            def capture(made: dict = made) -> None:
                made["run"] = _captured(made["run"])
            why = _agreed(group, capture)
        if why is not None:
            found.skipped[name] = why
        else:
            steps[name] = made["run"]
    _rounds(found, steps, group, rounds, iterations)
    return found


def _reference(case: Case, group: Group) -> tuple[list[Layer], torch.Tensor, torch.Tensor, list]:
    """(this rank's weights, the input, the gradient that comes back, what a pass gives on one rank in float32)."""
    arch, train = ARCHS[case.arch], case.phase == "train"
    shards, whole = [], []
    for number in range(case.layers):
        layer = whole_layer(arch, number, case.dtype)
        shards.append(shard(layer, arch, group.rank, group.size))
        whole.append(Layer(*(t.float() for t in layer.tensors())))
    generator = torch.Generator(device=device()).manual_seed(12345)
    h, upstream = (torch.empty(case.rows, arch.hidden, dtype=case.dtype, device=device()).normal_(generator=generator)
                   for _ in range(2))
    decoder = Decoder(arch, whole, ways.One(), case.rows, case.cached, 1)
    want = _step(decoder.forward, h.float(), upstream.float(), whole, train)()[:2 if train else 1]
    for layer in shards:
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down):
            weight.requires_grad_(train)
    return shards, h, upstream, [t.detach() for t in want]


def _step(forward: Callable, h: torch.Tensor, upstream: torch.Tensor, layers: list[Layer], train: bool) -> Callable[[], list]:
    """A pass over the layers; in training also back, to the gradients of the input and of all weights of linears."""
    if not train:
        def infer() -> list:
            with torch.no_grad():
                return [forward(h)]
        return infer
    h = h.clone().requires_grad_()
    weights = [w.requires_grad_() for layer in layers for w in (layer.qkv, layer.out, layer.gate_up, layer.down)]

    def step() -> list:
        out = forward(h)
        return [out, *torch.autograd.grad(out, [h, *weights], upstream)]
    return step


def _part(t: torch.Tensor, way: Any) -> torch.Tensor:
    """What a rank has of [rows, hidden] between layers."""
    return t.chunk(way.world)[way.rank] if way.layout == ways.SEQUENCE else t


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.detach().float() - want).norm() / want.norm())


def _bound(case: Case) -> float:
    """Of the relative error: about eight roundings a layer, which add up like noise, and four times that."""
    return 4 * torch.finfo(case.dtype).eps * math.sqrt(8 * case.layers)


def _captured(run: Callable) -> Callable:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()

    def replay(keeps: Any = run) -> None:           # what the graph reads and writes lives as long as it
        graph.replay()
    return replay


def _agreed(group: Group, work: Callable) -> str | None:
    """Does `work` on all ranks; None, or why it failed on any of them."""
    why = None
    try:
        work()
        synchronize()
    except Exception as error:                  # another library's, or a capture's: said in the row
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return next((found for found in group.all_gather_object(why) if found is not None), None)


def _rounds(found: Measurement, steps: dict, group: Group, rounds: int, iterations: int | None) -> None:
    calls = {name: lambda s, run=run: run() for name, run in steps.items()}
    counts = {}
    for name, call in calls.items():
        call(0)
        synchronize()
        group.barrier()
        counts[name] = iterations or batch_length(max(group.all_gather_object(batch(call, 1, 3)[0])), _BATCH_MS)

    def once(name: str) -> float:
        calls[name](0)
        synchronize()
        group.barrier()
        return batch(calls[name], 1, counts[name])[0]
    everyone = group.all_gather_object(in_turn(list(calls), rounds, once))
    found.milliseconds = {name: [max(times) for times in zip(*(rank[name] for rank in everyone))] for name in calls}
