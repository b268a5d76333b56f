# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The bars that the project has set itself, and whether the newest result files reach them.

Statistics. A row's figure is the median over interleaved rounds of a ratio formed inside a round, with its 95 % interval by
order statistics (stats.estimate). A bar on a geometric mean takes that of the medians of all its shapes, and combines
their intervals as of independent measurements (stats.geomean_of). A bar on each shape takes rows as they are.

Verdicts. `met`: the figure is at the bar or above. `unclear`: below, but the interval reaches the bar. `SHORT`: the
interval lies below the bar. `not measured`: a row is missing, or has fewer than 7 rounds. Rows with stragglers never
count, and where method="auto" was measured it is the one that is judged.
"""
from dataclasses import dataclass, field
from pathlib import Path

from triton_dist.bench import results, table
from triton_dist.bench.shapes import Shape, parse
from triton_dist.bench.stats import Estimate, geomean_of

LEAST_ROUNDS = 7
MET, UNCLEAR, SHORT, MISSING = "met", "unclear", "SHORT", "not measured"


@dataclass(frozen=True)
class Bar:
    """`figure` over the shapes of a set (shapes.py): their geometric mean, or each of them, is to be at least `least`.

    figure: "T*/T", "vs best_peer" or "vs seq" (the other's time over ours).
    """
    op: str
    shapes: str
    figure: str
    over: str                               # "geomean" or "each"
    least: float


BARS = (
    Bar("ag_gemm", "large", "T*/T", "geomean", 1.00),
    Bar("ag_gemm", "large", "T*/T", "each", 0.96),
    Bar("ag_gemm", "large", "vs best_peer", "geomean", 1.02),
    Bar("ag_gemm", "medium", "T*/T", "geomean", 0.94),
    Bar("ag_gemm", "medium", "T*/T", "each", 0.90),
    Bar("ag_gemm", "medium", "vs best_peer", "geomean", 1.05),
    Bar("ag_gemm", "small", "vs seq", "each", 0.98),
    Bar("gemm_rs", "large", "T*/T", "geomean", 0.98),
    Bar("gemm_rs", "large", "T*/T", "each", 0.92),
    Bar("gemm_rs", "large", "vs best_peer", "geomean", 1.02),
    Bar("gemm_rs", "medium", "T*/T", "geomean", 0.90),
    Bar("gemm_rs", "medium", "T*/T", "each", 0.82),
    Bar("gemm_rs", "medium", "vs best_peer", "geomean", 1.02),
    Bar("gemm_rs", "small", "vs seq", "each", 0.98),
)
HOSTS = (("H100/H200", 4), ("H100/H200", 2))        # devices of the same SMs and links, GPUs: every bar holds on each
DTYPE, GRAPH = "bfloat16", False


@dataclass
class Finding:
    """What the result files say of one bar on one host. `found` is of the rows there are, also where some are missing."""
    bar: Bar
    device: str
    world: int
    verdict: str
    found: Estimate | None = None
    shape: str = ""                         # the one that the figure speaks of; "" for a mean
    rows: list = field(default_factory=list)
    missing: list = field(default_factory=list)     # Shapes


def judge(folder: Path) -> list[Finding]:
    """Every bar on every host, from the newest rows under `folder`. FileNotFoundError where there are no results."""
    rows = {op: sorted((row for rows, _ in results.newest(folder, op).values() for row in rows), key=lambda row: row["date"])
            for op in dict.fromkeys(bar.op for bar in BARS)}
    return [_judge(bar, device, world, rows[bar.op]) for device, world in HOSTS for bar in BARS]


def status(findings: list) -> int:
    """Exit status: 1 where a bar is not reached, else 2 where one is not measured, else 0."""
    verdicts = {finding.verdict for finding in findings}
    return 1 if SHORT in verdicts else 2 if MISSING in verdicts else 0


def cells(findings: list) -> list[list[str]]:
    """Header and a line for each bar."""
    header = ["on", "op", "shapes", "figure", "bar", "found", "95 %", "verdict", "of shape", "measured", "commit"]
    return [header] + [_line(finding) for finding in findings]


def text(findings: list) -> str:
    """The table, how many bars have which verdict, and the commands that measure what is missing."""
    count = {verdict: sum(f.verdict == verdict for f in findings) for verdict in (MET, UNCLEAR, SHORT, MISSING)}
    lines = [*table.aligned(cells(findings)), "", ", ".join(f"{n} {verdict}" for verdict, n in count.items() if n)]
    needed = commands(findings)
    return "\n".join(lines + (["", "To measure what is missing:", *needed] if needed else []))


def commands(findings: list) -> list[str]:
    """The commands that measure the rows that bars lack, one for each op and host. Of a set that lacks more than half its
    shapes all are measured."""
    shapes: dict = {}
    for finding in findings:
        few = len(finding.missing) <= len(finding.rows)
        shapes.setdefault((finding.bar.op, finding.device, finding.world), {}).update(dict.fromkeys(
            [shape.name for shape in finding.missing] if few else [finding.bar.shapes]))
    return [f"triton-dist bench {op} --nproc_per_node {world} --shapes {' '.join(names)} --out benchmarks/results"
            f"    # on {world} x {device}" for (op, device, world), names in shapes.items() if names]


def _judge(bar: Bar, device: str, world: int, rows: list) -> Finding:
    usable = {(row["m"], row["n"], row["k"]): row
              for row in results.headline([row for row in rows if _counts(row, bar, device, world)])}
    needed = parse([bar.shapes], bar.op, world, emulated=False)
    have = [(shape, usable[_sizes(shape)]) for shape in needed if _sizes(shape) in usable]
    finding = Finding(bar, device, world, MISSING, rows=[row for _, row in have],
                      missing=[shape for shape in needed if _sizes(shape) not in usable])
    if not have:
        return finding
    if bar.over == "geomean":
        finding.found = geomean_of([_figure(row, bar.figure) for _, row in have])
    else:                                               # the one whose interval lies lowest below, else the least
        shape, row = min(have, key=lambda pair: _order(_figure(pair[1], bar.figure), bar.least))
        finding.found, finding.shape = _figure(row, bar.figure), shape.name
    if not finding.missing or (bar.over == "each" and finding.found.high < bar.least):
        finding.verdict = _verdict(finding.found, bar.least)
    return finding


def _counts(row: dict, bar: Bar, device: str, world: int) -> bool:
    """Whether a row may be judged. "Best peer" means more than the unfused path: a fused peer must have been tried."""
    return (any(name in row["device"] for name in device.split("/"))
            and (row["world"], row["dtype"], row["graph"]) == (world, DTYPE, GRAPH)
            and row["rounds"] >= LEAST_ROUNDS and (bar.figure != "vs best_peer" or bool(row["ms_peers"])))


def _figure(row: dict, name: str) -> Estimate:
    if name == "T*/T":
        return Estimate(row["efficiency"], *row["ci95"])
    ratio = row["ratios"][name.removeprefix("vs ")]
    return Estimate(ratio["ratio"], *ratio["ci95"])


def _order(found: Estimate, least: float) -> tuple:
    return found.high >= least, found.value


def _verdict(found: Estimate, least: float) -> str:
    return MET if found.value >= least else UNCLEAR if found.high >= least else SHORT


def _sizes(shape: Shape) -> tuple:
    return shape.m, shape.n, shape.k


def _line(finding: Finding) -> list[str]:
    bar, found, rows = finding.bar, finding.found, finding.rows
    have, need = len(rows), len(rows) + len(finding.missing)
    verdict = finding.verdict + (f" ({have} of {need} shapes)" if finding.missing else "")
    what = f"{bar.figure}, {'mean' if bar.over == 'geomean' else 'each'}"
    dates = sorted({row["date"] for row in rows})
    return [f"{finding.world} x {finding.device}", bar.op, bar.shapes, what, f"{bar.least:.2f}",
            *(["-", "-"] if found is None else [f"{found.value:.3f}", f"{found.low:.3f}-{found.high:.3f}"]),
            verdict, finding.shape or "-", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if rows else "-",
            ", ".join(dict.fromkeys(str(row["commit"]) for row in rows)) or "-"]
