# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The measuring method.

Each way to compute a shape (a candidate) is first checked against float64 with a poisoned output. Then come rounds. In
a round every candidate is timed once, in an order that turns from round to round: the same matmuls as before every
other candidate bring the device to the same power state, one untimed call, a barrier of the group, then a batch of
back-to-back calls that rotate over input sets larger than L2. A candidate's time in a round is the mean of its batch on
the slowest rank. Ratios are formed inside a round, since clocks drift between rounds. With stragglers (late.py) a candidate has a
twin that is late.
"""
import math
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

import torch

from triton_dist.bench import late
from triton_dist.bench.checks import Call, Checker
from triton_dist.bench.problems import Problem
from triton_dist.bench.symmetric import group_name
from triton_dist.runtime.streams import current_stream, device, synchronize

PEERS = ("torch",)
_FEWEST, _MOST = 10, 200                # calls in a batch
_TRIAL = 3                              # calls from which the length of a batch is planned


@dataclass
class Settings:
    """How to measure. `iterations` None: as many calls a batch as fill `batch_ms`, within bounds."""
    rounds: int = 9
    iterations: int | None = None
    batch_ms: float = 20.0
    duty_ms: float = 15.0
    methods: tuple = ("auto", "ws", "portable")
    peers: tuple = PEERS
    lateness: late.Lateness | None = None   # with it, candidates are timed late as well


@dataclass
class Measurement:
    """What the ranks found for one shape; the same on all ranks."""
    milliseconds: dict = field(default_factory=dict)    # candidate: [time of round 0, ...], the slowest rank's
    host_us: dict = field(default_factory=dict)         # candidate: microseconds the host needs a call, median
    iterations: dict = field(default_factory=dict)      # candidate: calls in a batch
    errors: dict = field(default_factory=dict)          # candidate: relative error against float64
    skipped: dict = field(default_factory=dict)         # candidate: why it was not timed
    failed: list = field(default_factory=list)          # of the skipped, what ran and went wrong
    chosen: str = ""                                    # the method behind "auto"
    late_ms: float = 0.0                                # mean lateness a call, of the rank that is late most


def measure(problem: Problem, settings: Settings) -> Measurement:
    """Checks and times every candidate. Collective over the problem's group."""
    problem.prepare()
    checker = Checker(problem)
    calls: dict = {"gemm": problem.gemm, "comm": problem.comm}
    if checker.admit("seq", problem.sequential):
        calls["seq"] = problem.sequential
    for method in settings.methods:
        call = partial(problem.ours, method=method)
        if checker.admit(method, call, ours=True):
            calls[method] = call
    for peer in settings.peers:
        name, reason = group_name()
        call = partial(problem.torch_fused, group_name=name)
        if reason is not None:
            checker.skipped[peer] = reason
        elif checker.admit(peer, call):
            calls[peer] = call
    checker.forget_reference()
    result = Measurement(errors=checker.errors, skipped=checker.skipped, failed=checker.failed, chosen=problem.chosen())
    late_calls = _late_calls(calls, problem, settings)
    _rounds(result, {**calls, **late_calls}, problem, settings)
    if late_calls:
        result.late_ms = max(problem.group.all_gather_object(next(iter(late_calls.values())).mean()))
    for method in [method for method in settings.methods if method in calls]:
        twin = f"{method}{late.SUFFIX}"
        again = [calls[method]] + ([late.storm(late_calls[twin], problem.sets)] if late_calls else [])
        if not all(checker.repeat(method, call) for call in again):
            del result.milliseconds[method]             # it was wrong while it was timed
            result.milliseconds.pop(twin, None)
    return result


def _late_calls(calls: dict, problem: Problem, settings: Settings) -> dict:
    """The late twins of all candidates but the matmul and the collective alone; {} where nobody is to be late."""
    if settings.lateness is None:
        return {}
    pause = late.pause_on(settings.lateness.on)
    return {f"{name}{late.SUFFIX}": late.Late(call, settings.lateness, problem.group.rank, pause)
            for name, call in calls.items() if name not in ("gemm", "comm")}


def _rounds(result: Measurement, calls: dict, problem: Problem, settings: Settings) -> None:
    group, names = problem.group, list(calls)
    trial = {name: max(group.all_gather_object(_trial(call, problem.sets))) for name, call in calls.items()}
    if settings.lateness is not None:                   # twins, and all schedules, have equal numbers of calls
        trial = dict(trial, **dict.fromkeys(names[2:], max(trial.values())))
    result.iterations = {name: settings.iterations or batch_length(trial[name], settings.batch_ms) for name in names}
    duty = math.ceil(settings.duty_ms / max(trial["gemm"], 1e-3)) if device().type == "cuda" else 0

    def once(name: str) -> tuple[float, float]:
        for s in range(duty):
            problem.gemm(s % problem.sets)
        calls[name](0)
        synchronize()
        group.barrier()
        return batch(calls[name], problem.sets, result.iterations[name])
    everyone = group.all_gather_object(in_turn(names, settings.rounds, once))
    for name in names:
        result.milliseconds[name] = [max(rank[name][r][0] for rank in everyone) for r in range(settings.rounds)]
        result.host_us[name] = max(statistics.median(us for _, us in rank[name]) for rank in everyone)


def in_turn(names: list, rounds: int, once: Callable[[str], Any]) -> dict:
    """{name: [once(name) of each round]}, each once a round, in an order that turns from round to round."""
    found: dict = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            found[name].append(once(name))
    return found


def batch_length(milliseconds: float, batch_ms: float) -> int:
    """Calls in a batch, for calls that take `milliseconds` each."""
    return min(_MOST, max(_FEWEST, math.ceil(batch_ms / max(milliseconds, 1e-6))))


def _trial(call: Call, sets: int) -> float:
    call(0)
    synchronize()
    return batch(call, sets, _TRIAL)[0]


def batch(call: Call, sets: int, iterations: int) -> tuple[float, float]:
    """(milliseconds, microseconds on the host) a call, of back-to-back calls that rotate over the input sets."""
    stop = _gpu_clock() if device().type == "cuda" else _wall_clock()
    start = time.perf_counter()
    for i in range(iterations):
        call((i + 1) % sets)                            # set 0 has just been used
    host_us = (time.perf_counter() - start) * 1e6
    return stop() / iterations, host_us / iterations


def _gpu_clock() -> Callable[[], float]:
    """Starts an event pair on the current stream; the returned function ends it and gives milliseconds."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(current_stream())

    def stop() -> float:
        end.record(current_stream())
        end.synchronize()
        return begin.elapsed_time(end)
    return stop


def _wall_clock() -> Callable[[], float]:
    begin = time.perf_counter()

    def stop() -> float:
        synchronize()
        return (time.perf_counter() - begin) * 1e3
    return stop
