# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From times a round to a row of a result file."""
from typing import Any

from triton_dist.bench import late, results, stats
from triton_dist.bench.measure import Measurement, Settings


class NoResult(Exception):
    """A shape has no row: none of our methods, or not the baseline, could be timed. The message says why."""


def build(facts: dict, found: Measurement, settings: Settings) -> dict:
    """The row of one shape. `facts`: op, shape, dtype, world, device, m, n, k (global), commit, date.

    `ms`, `efficiency` and the ratios speak of the first of our methods that was timed; `ours` has them all.
    efficiency = T* / T with T* = max(matmul alone, collective alone); a ratio is the other's time over ours. Where ranks were
    late, `mode` says which and `late` what it cost; all other columns are of the calls on time.
    """
    rounds = {name: ms for name, ms in found.milliseconds.items() if not name.endswith(late.SUFFIX)}
    methods = [name for name in settings.methods if name in rounds]
    missing = [name for name in ("gemm", "comm", "seq") if name not in rounds]
    if missing or not methods:
        names = missing or settings.methods
        raise NoResult("; ".join(f"{name}: {found.skipped.get(name, 'not timed')}" for name in names))
    limit = stats.largest(rounds["gemm"], rounds["comm"])
    peers = [peer for peer in settings.peers if peer in rounds]
    rivals = {"seq": rounds["seq"], **{peer: rounds[peer] for peer in peers}}
    rivals["best_peer"] = stats.smallest(*rivals.values())
    ours = {name: _ours(name, found, limit, rivals) for name in methods}
    first = ours[methods[0]]
    return {
        **facts,
        "ms_gemm": _median(rounds["gemm"]),
        "ms_comm": _median(rounds["comm"]),
        "ms_seq": _median(rounds["seq"]),
        "ms_peers": {peer: _median(rounds[peer]) if peer in rounds else None for peer in settings.peers},
        "ms": first["ms"],
        "ms_limit": _median(limit),
        "efficiency": first["efficiency"],
        "ci95": first["ci95"],
        "method": found.chosen if methods[0] == "auto" else methods[0],
        "graph": False,
        "mode": results.PLAIN if settings.lateness is None else str(settings.lateness),
        "rounds": settings.rounds,
        "ratios": first["ratios"],
        "ours": ours,
        "all_ms": {name: figures(stats.estimate(samples), "ms") for name, samples in rounds.items()},
        "all_efficiency": {name: figures(stats.ratio(limit, mine), "efficiency") for name, mine in rounds.items()},
        "host_us": {name: short(us) for name, us in found.host_us.items() if name in rounds},
        "iterations": {name: count for name, count in found.iterations.items() if name in rounds},
        "skipped": found.skipped,
        **({} if settings.lateness is None else {"late": _late(found)}),
    }


def _late(found: Measurement) -> dict:
    """mean_ms of lateness a call; of each candidate its milliseconds when late, and what that is more than on time."""
    both = {name: (found.milliseconds[name + late.SUFFIX], ms) for name, ms in found.milliseconds.items()
            if name + late.SUFFIX in found.milliseconds}
    return {"mean_ms": short(found.late_ms),
            "costs": {name: {"ms": _median(slow), **figures(stats.estimate([a - b for a, b in zip(slow, quick)]), "cost_ms")}
                      for name, (slow, quick) in both.items()}}


def _ours(name: str, found: Measurement, limit: list, rivals: dict) -> dict:
    mine = found.milliseconds[name]
    return {
        "ms": _median(mine),
        **figures(stats.ratio(limit, mine), "efficiency"),
        "ratios": {rival: figures(stats.ratio(samples, mine), "ratio") for rival, samples in rivals.items()},
        "relative_error": short(found.errors[name]),
        "bitwise_repeat": True,                         # a method that does not repeat is never timed
    }


def figures(found: stats.Estimate, name: str) -> dict[str, Any]:
    """An estimate as a row has it: its value as `name`, and the interval."""
    return {name: short(found.value), "ci95": [short(found.low), short(found.high)]}


def _median(samples: list) -> float:
    return short(stats.estimate(samples).value)


def short(value: float) -> float:
    """Five digits: no figure is better than that."""
    return float(f"{value:.5g}")
