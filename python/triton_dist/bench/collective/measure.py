# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Measures a collective, or gemm_ar: every candidate is checked, then timed once a round, in an order that turns.

A time is that of back-to-back calls on the slowest rank, or of the calls in a CUDA graph, which leaves the host out: also the
time by which hosts replay it apart, since it begins by an all-reduce of one number and records its own events behind that. Calls
rotate over the problem's sets of inputs.
"""
import math
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from triton_dist.bench.checks import Checker
from triton_dist.bench.collective.problem import Problem
from triton_dist.bench.measure import batch, batch_length, in_turn
from triton_dist.bench.symmetric import group_name
from triton_dist.ops import all_reduce
from triton_dist.runtime.streams import device, synchronize

_FEWEST, _MOST, _GRAPH_MS = 4, 20, 10.0         # calls in a graph: 20, as in nccl-tests, fewer where they take longer than that


@dataclass
class Settings:
    """How to measure. `iterations` None: as many calls as suit the problem."""
    rounds: int
    iterations: int | None
    methods: tuple
    peers: tuple
    graph: bool
    outside: dict = field(default_factory=dict)         # peers of other projects: {name: class}


@dataclass
class Measurement:
    """What the ranks found for one problem; the same on all ranks."""
    us: dict = field(default_factory=dict)              # candidate: [microseconds a call in round 0, ...], the slowest rank's
    iterations: dict = field(default_factory=dict)      # candidate: calls timed in a round
    errors: dict = field(default_factory=dict)          # candidate: relative error against float64
    skipped: dict = field(default_factory=dict)         # candidate: why it was not timed
    failed: list = field(default_factory=list)          # of the skipped, what ran and went wrong
    chosen: str = ""                                    # the method behind "auto"


def measure(problem: Problem, settings: Settings) -> Measurement:
    """Checks and times every candidate. Collective over the problem's group."""
    checker, calls = Checker(problem), dict(problem.beside)
    for method in settings.methods:
        candidate = problem.ours(method)
        if checker.admit(method, candidate.checked, ours=problem.repeats(method)):
            calls[method] = candidate.timed
    name, reason = group_name()
    for peer in settings.peers:
        label = f"peer:{peer}"
        if reason is not None and peer.startswith("symm_"):
            checker.skipped[label] = reason
            continue
        made: dict = {}

        def make(peer: str = peer, made: dict = made) -> None:
            theirs = settings.outside.get(peer)
            made["candidate"] = problem.peer(peer, name) if theirs is None else problem.outside(theirs)
        if checker.make(label, make) and checker.admit(label, made["candidate"].checked):
            calls[label] = made["candidate"].timed
    checker.forget_reference()
    found = Measurement(errors=checker.errors, skipped=checker.skipped, failed=checker.failed, chosen=problem.chosen())
    _rounds(found, calls, problem, settings)
    return found


def _rounds(found: Measurement, calls: dict, problem: Problem, settings: Settings) -> None:
    group = problem.group
    found.iterations = {name: settings.iterations or _calls(call, problem, settings) for name, call in calls.items()}
    make = _graph if settings.graph else _eager
    timed = {name: make(call, found.iterations[name], problem) for name, call in calls.items()}

    def once(name: str) -> float:
        timed[name]()
        synchronize()
        group.barrier()
        return timed[name]()
    everyone = group.all_gather_object(in_turn(list(timed), settings.rounds, once))
    found.us = {name: [max(times) for times in zip(*(rank[name] for rank in everyone))] for name in timed}


def _calls(call: Callable, problem: Problem, settings: Settings) -> int:
    call(0)
    synchronize()
    each = max(problem.group.all_gather_object(batch(call, problem.sets, 3)[0]))
    return min(_MOST, max(_FEWEST, math.ceil(_GRAPH_MS / each))) if settings.graph else batch_length(each, batch_ms=5.0)


def _eager(call: Callable, iterations: int, problem: Problem) -> Callable[[], float]:
    return lambda: batch(call, problem.sets, iterations)[0] * 1e3


def _graph(call: Callable, iterations: int, problem: Problem) -> Callable[[], float]:
    """A graph of so many calls; the returned function replays it and gives microseconds a call."""
    stream, together = torch.cuda.Stream(), torch.ones(1, device=device())

    def meet() -> None:
        all_reduce(together, group=problem.group, out=together)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        meet()
        call(0)
    synchronize()
    problem.group.barrier()
    graph = torch.cuda.CUDAGraph()
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    with torch.cuda.graph(graph, stream=stream):
        meet()
        begin.record(stream)
        for i in range(iterations):
            call(i % problem.sets)
        end.record(stream)

    def replay(keeps: Any = (call, together)) -> float:         # what the graph reads and writes lives as long as it
        graph.replay()
        synchronize()
        return begin.elapsed_time(end) * 1e3 / iterations
    return replay
