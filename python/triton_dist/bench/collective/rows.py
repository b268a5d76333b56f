# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""From times a round to a row of a result file, and rows as a table."""
from typing import Any

from triton_dist.bench import stats
from triton_dist.bench.collective import sizes
from triton_dist.bench.collective.measure import Measurement, Settings
from triton_dist.bench.rows import NoResult, figures, short
from triton_dist.bench.table import aligned

_SIZES = "size: of the larger of input and output; bandwidths in GB/s as in nccl-tests. "
BEST = ("best_peer", "best_outside")         # the fastest of NCCL and torch, and of other projects
_SHAPES = "gemm: the matmul alone; peers: the matmul, then their all-reduce. "
_TIME = "time: microseconds a call, median over rounds, of the slowest rank."
_BEST = " vs best: the best peer's time over ours, per round, with its 95 % interval."

_RATES = ("algbw", "busbw")


def closest(row: dict) -> dict | None:
    """Our figures against the fastest of all peers."""
    return min((row["ratios"][name] for name in BEST if name in row["ratios"]), key=lambda found: found["ratio"], default=None)


def how(row: dict) -> str:
    """How the calls of a row were timed."""
    return "in a CUDA graph" if row["graph"] else "back to back"


def build(facts: dict, problem: Any, found: Measurement, settings: Settings) -> dict:
    """The row of one problem. `facts`: op, dtype, world, device, commit, date. `us`, rates and ratios: the first method's.

    `us_beside`: of what is compared with nothing.
    """
    methods = [name for name in settings.methods if name in found.us]
    peers = [peer for peer in settings.peers if f"peer:{peer}" in found.us]
    if not methods:
        raise NoResult("; ".join(f"{name}: {found.skipped.get(name, 'not timed')}" for name in settings.methods))
    rivals = {peer: found.us[f"peer:{peer}"] for peer in peers}
    for best, mine in ((BEST[0], [name for name in peers if name not in settings.outside]),
                       (BEST[1], [name for name in peers if name in settings.outside])):
        if mine:
            rivals[best] = stats.smallest(*(rivals[name] for name in mine))
    ours = {name: _ours(name, problem, found, rivals) for name in methods}
    return {
        **facts,
        **problem.about(),
        **{name: figure for name, figure in ours[methods[0]].items() if name != "relative_error"},
        "us_peers": {peer: short(stats.estimate(rivals[peer]).value) if peer in rivals else None for peer in settings.peers},
        "us_beside": {name: short(stats.estimate(found.us[name]).value) for name in problem.beside},
        "method": found.chosen if methods[0] == "auto" else methods[0],
        "graph": settings.graph,
        "rounds": settings.rounds,
        "ours": ours,
        "iterations": found.iterations,
        "skipped": found.skipped,
    }


def _ours(name: str, problem: Any, found: Measurement, rivals: dict) -> dict:
    time = stats.estimate(found.us[name])
    return {
        **figures(time, "us"),
        **{rate: short(value) for rate, value in problem.rates(time.value).items()},
        "ratios": {rival: figures(stats.ratio(us, found.us[name]), "ratio") for rival, us in rivals.items()},
        "relative_error": short(found.errors[name]),
    }


def cells(rows: list) -> list[list[str]]:
    """Header and a line a problem: its columns, and the times of our other methods, of what is beside, and of the peers.

    Sizes have the columns of nccl-tests.
    """
    others = list(dict.fromkeys(name for row in rows for name in list(row["ours"])[1:]))
    beside = list(dict.fromkeys(name for row in rows for name in row.get("us_beside", {})))
    peers = list(dict.fromkeys(peer for row in rows for peer in row["us_peers"]))
    header = [*_problem(rows[0]), "type", "method", "time us", *[rate for rate in _RATES if rate in rows[0]],
              *[f"{name} us" for name in (*others, *beside, *peers)], "vs best", "95 %"]
    return [header] + [_line(row, others, beside, peers) for row in rows]


def text(rows: list) -> str:
    """The table as plain text."""
    row = rows[0]
    note = " (emulated: times say nothing about a GPU)" if row["device"] == "emulator" else ""
    best = [against["ratio"] for against in map(closest, rows) if against is not None]
    mean = f"vs best, geometric mean {stats.geomean(best):.3f}. " if best else ""
    table = cells(rows)
    columns = _SIZES if "bytes" in row else _SHAPES if "gemm us" in table[0] else ""
    return "\n".join([f"{row['op']} on {row['world']} x {row['device']}{note}, {row['rounds']} rounds, calls {how(row)}",
                      *aligned(table), f"{mean}{columns}{_TIME}{_BEST if best else ''}"])


def _problem(row: dict) -> dict:
    """What tells a problem from others: its columns."""
    if "bytes" in row:
        return {"size": sizes.text(row["bytes"]), "bytes": str(row["bytes"]), "count": str(row["count"])}
    return {"shape": row["shape"], "M": str(row["m"]), "N": str(row["n"]), "K": str(row["k"])}


def _line(row: dict, others: list, beside: list, peers: list) -> list[str]:
    best = closest(row)
    return [*_problem(row).values(), row["dtype"], row["method"], _us(row["us"]),
            *[f"{row[rate]:.2f}" for rate in _RATES if rate in row],
            *[_us(row["ours"].get(name, {}).get("us")) for name in others],
            *[_us(row["us_beside"].get(name)) for name in beside],
            *[_us(row["us_peers"].get(peer)) for peer in peers], "-" if best is None else f"{best['ratio']:.3f}",
            "-" if best is None else "{:.3f}-{:.3f}".format(*best["ci95"])]


def _us(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 1000 else f"{value:.0f}"
