# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From times a round to a row of a result file, and rows as a table."""
from typing import Any

from triton_dist.bench import stats
from triton_dist.bench.collective import sizes
from triton_dist.bench.collective.measure import Measurement, Settings
from triton_dist.bench.collective.plot import how
from triton_dist.bench.collective.problem import Problem
from triton_dist.bench.rows import NoResult, figures, short
from triton_dist.bench.table import aligned

_LEGEND = ("size: of the larger of input and output. time: microseconds a call, median over rounds, of the slowest rank; "
           "bandwidths in GB/s as in nccl-tests. vs best: the best peer's time over ours, per round, with its 95 % interval.")


def build(facts: dict, problem: Problem, found: Measurement, settings: Settings) -> dict:
    """The row of one size. `facts`: op, dtype, world, device, commit, date. `us`, bandwidths and ratios: the first method's."""
    methods = [name for name in settings.methods if name in found.us]
    peers = [peer for peer in settings.peers if f"peer:{peer}" in found.us]
    if not methods:
        raise NoResult("; ".join(f"{name}: {found.skipped.get(name, 'not timed')}" for name in settings.methods))
    rivals = {peer: found.us[f"peer:{peer}"] for peer in peers}
    if rivals:
        rivals["best_peer"] = stats.smallest(*rivals.values())
    ours = {name: _ours(name, problem, found, rivals) for name in methods}
    return {
        **facts,
        "bytes": problem.nbytes,
        "count": problem.count,
        **{name: ours[methods[0]][name] for name in ("us", "ci95", "algbw", "busbw", "ratios")},
        "us_peers": {peer: short(stats.estimate(rivals[peer]).value) if peer in rivals else None for peer in settings.peers},
        "method": found.chosen if methods[0] == "auto" else methods[0],
        "graph": settings.graph,
        "rounds": settings.rounds,
        "ours": ours,
        "iterations": found.iterations,
        "skipped": found.skipped,
    }


def _ours(name: str, problem: Problem, found: Measurement, rivals: dict) -> dict:
    time = stats.estimate(found.us[name])
    algbw = problem.nbytes / time.value / 1e3
    return {
        **figures(time, "us"),
        "algbw": short(algbw),
        "busbw": short(algbw * problem.bus_factor),
        "ratios": {rival: figures(stats.ratio(us, found.us[name]), "ratio") for rival, us in rivals.items()},
        "relative_error": short(found.errors[name]),
    }


def cells(rows: list) -> list[list[str]]:
    """Header and a line a size: columns as in nccl-tests, and the times of our other methods and of the peers beside them."""
    others = list(dict.fromkeys(name for row in rows for name in list(row["ours"])[1:]))
    peers = list(dict.fromkeys(peer for row in rows for peer in row["us_peers"]))
    header = ["size", "bytes", "count", "type", "method", "time us", "algbw", "busbw", *[f"{name} us" for name in others],
              *[f"{peer} us" for peer in peers], "vs best", "95 %"]
    return [header] + [_line(row, others, peers) for row in rows]


def text(rows: list) -> str:
    """The table as plain text."""
    row = rows[0]
    note = " (emulated: times say nothing about a GPU)" if row["device"] == "emulator" else ""
    return "\n".join([f"{row['op']} on {row['world']} x {row['device']}{note}, {row['rounds']} rounds, calls {how(row)}",
                      *aligned(cells(rows)), _LEGEND])


def _line(row: dict, others: list, peers: list) -> list[str]:
    best = row["ratios"].get("best_peer")
    return [sizes.text(row["bytes"]), str(row["bytes"]), str(row["count"]), row["dtype"], row["method"], _us(row["us"]),
            f"{row['algbw']:.2f}", f"{row['busbw']:.2f}", *[_us(row["ours"].get(name, {}).get("us")) for name in others],
            *[_us(row["us_peers"].get(peer)) for peer in peers], "-" if best is None else f"{best['ratio']:.3f}",
            "-" if best is None else "{:.3f}-{:.3f}".format(*best["ci95"])]


def _us(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 1000 else f"{value:.0f}"
