# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The bars that the project has set itself, and whether the newest result files reach them.

Statistics. A row's figure is the median over interleaved rounds of a time, or of a ratio formed inside a round, with its
95 % interval by order statistics (stats.estimate). A bar on a geometric mean takes that of the medians of all its shapes or
sizes, and combines their intervals as of independent measurements (stats.geomean_of). A bar on each takes rows as they are.

Verdicts. `met`: the figure is at the bar or better. `unclear`: worse, but the interval reaches the bar. `SHORT`: all of
the interval is worse than the bar. `not measured`: a row is missing, or has fewer than 7 rounds. Rows with stragglers never
count, and where method="auto" was measured it is the one that is judged.
"""
from dataclasses import dataclass, field
from pathlib import Path

from tools.perf import bar as by_shape, by_call, by_size
from tools.perf.bar import Bar
from triton_dist.bench import results, table
from triton_dist.bench.stats import Estimate, geomean_of

LEAST_ROUNDS = 7
MET, UNCLEAR, SHORT, MISSING = "met", "unclear", "SHORT", "not measured"
BARS = (*by_shape.BARS, *by_size.BARS, *by_call.BARS)
HOSTS = (("H100/H200", 8), ("H100/H200", 4), ("H100/H200", 2))        # devices of the same SMs and links, GPUs
DTYPE = "bfloat16"


@dataclass
class Finding:
    """What the result files say of one bar on one host. `found` is of the rows there are, also where some are missing."""
    bar: Bar
    device: str
    world: int
    verdict: str
    found: Estimate | None = None
    problem: str = ""                       # the one that the figure speaks of; "" for a mean
    rows: list = field(default_factory=list)
    missing: list = field(default_factory=list)     # names of problems


def judge(folder: Path, everywhere: bool = False) -> list[Finding]:
    """Every bar on each of its hosts, or everywhere, from the newest rows in `folder`. FileNotFoundError if it has none."""
    rows = {op: sorted((row for rows, _ in results.newest(folder, op).values() for row in rows), key=lambda row: row["date"])
            for op in dict.fromkeys(bar.op for bar in BARS)}
    return [_judge(bar, device, world, rows[bar.op]) for device, world in HOSTS for bar in BARS
            if everywhere or world in bar.worlds]


def status(findings: list) -> int:
    """Exit status: 1 where a bar is not reached, else 2 where one is not measured, else 0."""
    verdicts = {finding.verdict for finding in findings}
    return 1 if SHORT in verdicts else 2 if MISSING in verdicts else 0


def cells(findings: list) -> list[list[str]]:
    """Header and a line for each bar."""
    header = ["on", "op", "shapes, sizes, calls", "figure", "bar", "found", "95 %", "verdict", "at", "measured", "commit"]
    return [header] + [_line(finding) for finding in findings]


def text(findings: list) -> str:
    """The table, how many bars have which verdict, and the commands that measure what is missing."""
    count = {verdict: sum(f.verdict == verdict for f in findings) for verdict in (MET, UNCLEAR, SHORT, MISSING)}
    lines = [*table.aligned(cells(findings)), "", ", ".join(f"{n} {verdict}" for verdict, n in count.items() if n)]
    needed = commands(findings)
    return "\n".join(lines + (["", "To measure what is missing:", *needed] if needed else []))


def commands(findings: list) -> list[str]:
    """The commands that measure the rows that bars lack, one for each op and host. Of a set that lacks more than half its
    problems all are measured."""
    lacking: dict = {}
    for finding in findings:
        bar, few = finding.bar, len(finding.missing) <= len(finding.rows)
        lacking.setdefault((bar.op, bar.option, finding.device, finding.world), {}).update(dict.fromkeys(
            finding.missing if few else [bar.problems]))
    return [f"triton-dist bench {op} --nproc_per_node {world} {option} {' '.join(names)} --out benchmarks/results"
            f"    # on {world} x {device}" for (op, option, device, world), names in lacking.items() if names]


def _judge(bar: Bar, device: str, world: int, rows: list) -> Finding:
    usable = {bar.cell(row): row for row in results.headline([row for row in rows if _counts(row, bar, device, world)])}
    needed = bar.needed(world)
    have = [(name, usable[cell]) for cell, name in needed.items() if cell in usable]
    finding = Finding(bar, device, world, MISSING, rows=[row for _, row in have],
                      missing=[name for cell, name in needed.items() if cell not in usable])
    if not have:
        return finding
    if bar.over == "geomean":
        finding.found = geomean_of([bar.estimate(row) for _, row in have])
    else:                                               # the one whose interval lies lowest below, else the least
        finding.problem, row = min(have, key=lambda pair: _order(bar.margin(bar.estimate(pair[1]))))
        finding.found = bar.estimate(row)
    verdict = _verdict(bar.margin(finding.found))
    if not finding.missing or (bar.over == "each" and verdict == SHORT):
        finding.verdict = verdict
    return finding


def _counts(row: dict, bar: Bar, device: str, world: int) -> bool:
    return (any(name in row["device"] for name in device.split("/")) and (row["world"], row["dtype"]) == (world, DTYPE)
            and row["rounds"] >= LEAST_ROUNDS and bar.counts(row))


def _order(margin: Estimate) -> tuple:
    return margin.high >= 1, margin.value


def _verdict(margin: Estimate) -> str:
    return MET if margin.value >= 1 else UNCLEAR if margin.high >= 1 else SHORT


def _line(finding: Finding) -> list[str]:
    bar, found, rows = finding.bar, finding.found, finding.rows
    have, need = len(rows), len(rows) + len(finding.missing)
    verdict = finding.verdict + (f" ({have} of {need} {bar.plural})" if finding.missing else "")
    what = f"{bar.figure}, {'mean' if bar.over == 'geomean' else 'each'}"
    dates = sorted({row["date"] for row in rows})
    return [f"{finding.world} x {finding.device}", bar.op, bar.problems, what,
            f"{'at most ' if bar.at_most else ''}{bar.bound:.2f}",
            *(["-", "-"] if found is None else [f"{found.value:.3f}", f"{found.low:.3f}-{found.high:.3f}"]),
            verdict, finding.problem or "-", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if rows else "-",
            ", ".join(dict.fromkeys(str(row["commit"]) for row in rows)) or "-"]
