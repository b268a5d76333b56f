# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Stragglers: a rank that is late before each call, or all ranks late by random times, and what that costs.

Every candidate is timed twice in each round, on time and late, with the same number of calls; the k-th call of a rank is
late by the same time whichever candidate it is. cost = late - on time, round by round. The mean lateness is that of the
rank which is late most: a program that hides nothing and loses nothing pays exactly that.
"""
import random
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch

from triton_dist.compat.torch import cuda_sleep
from triton_dist.runtime.streams import current_stream, device

Call = Callable[[int], Any]
SUFFIX = ", late"                           # of the name of a candidate's late twin
_SPIN = 2e-4                                # seconds of a pause that are spun: sleeping overshoots
_CYCLES = 10_000_000                        # of the trial by which the device's clock is read


@dataclass(frozen=True)
class Lateness:
    """Who is late before a call, by how much, and where.

    rank: the late one, by `ms` each time; None: every rank, by a random time from 0 to `ms` of its own.
    on: "host" (the call is issued late) or "device" (issued in time behind a kernel that spins). An emulated device has no
    clock, and its launches end before they return: there both are the host's.
    """
    rank: int | None
    ms: float
    on: str = "host"

    def __str__(self) -> str:
        who = "jitter" if self.rank is None else f"rank {self.rank} late"
        return f"{who} {self.ms:g} ms on the {self.on}"


class Late:
    """A candidate's call with lateness before it, on this rank."""

    def __init__(self, call: Call, lateness: Lateness, rank: int, pause: Callable[[float], None]):
        self._call, self._lateness, self._rank, self._pause = call, lateness, rank, pause
        self._draw = random.Random(rank)
        self._calls, self._total = 0, 0.0

    def __call__(self, s: int) -> Any:
        ms = self._next()
        self._calls, self._total = self._calls + 1, self._total + ms
        if ms:
            self._pause(ms)
        return self._call(s)

    def mean(self) -> float:
        """Milliseconds by which this rank has been late, a call."""
        return self._total / max(1, self._calls)

    def _next(self) -> float:
        if self._lateness.rank is None:
            return self._draw.uniform(0, self._lateness.ms)
        return self._lateness.ms if self._lateness.rank == self._rank else 0.0


def pause_on(where: str) -> Callable[[float], None]:
    """A function that delays this rank by milliseconds: its host, or the current stream of its device."""
    if where == "host" or device().type != "cuda":
        return _pause_host
    cycles = _cycles_per_ms()
    return lambda ms: cuda_sleep(int(ms * cycles))


def storm(call: Call, sets: int) -> Call:
    """Late calls on the other sets, three turns, then on the set asked for, with no host synchronisation between them."""
    def calls(s: int) -> Any:
        for _ in range(3):
            for other in range(1, sets):
                call((s + other) % sets)
        return call(s)
    return calls


def _pause_host(ms: float) -> None:
    end = time.perf_counter() + ms / 1e3
    time.sleep(max(0.0, ms / 1e3 - _SPIN))
    while time.perf_counter() < end:
        pass


def _cycles_per_ms() -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cuda_sleep(_CYCLES)                                 # wakes the clocks
    begin.record(current_stream())
    cuda_sleep(_CYCLES)
    end.record(current_stream())
    end.synchronize()
    return _CYCLES / begin.elapsed_time(end)
