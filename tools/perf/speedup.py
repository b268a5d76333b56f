# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Pictures of how many times as fast as the alternatives an op is: the other's time over ours."""
import math
from itertools import cycle
from pathlib import Path
from typing import Any

from triton_dist.bench import results
from triton_dist.bench.collective.sizes import text

RIVALS = {"seq": "in sequence", "torch": "torch, fused", "best_peer": "the best other"}
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GEMMS = {"ag_gemm": ("seq", "torch"), "gemm_rs": ("seq", "torch"), "gemm_ar": ("best_peer",)}


def measured(folder: Path, op: str) -> dict:
    """{host kind: rows of `op` in bf16 without stragglers}, of GPUs alone; the most ranks last."""
    found = {kind: [row for row in results.headline(rows) if row["dtype"] == "bfloat16"]
             for kind, (rows, host) in results.newest(folder, op).items() if host["comparable"]}
    return {kind: found[kind] for kind in sorted(found) if found[kind]}


def over_rows(rows: list, rival: str) -> dict:
    """{M: (geometric mean over models, least, most)} of the rival's time over ours."""
    by_m: dict = {}
    for row in rows:
        if rival in row["ratios"]:
            by_m.setdefault(row["m"], []).append(row["ratios"][rival]["ratio"])
    return {m: (math.exp(sum(map(math.log, found)) / len(found)), min(found), max(found)) for m, found in sorted(by_m.items())}


def over_sizes(rows: list) -> dict:
    """{bytes: NCCL's time over ours}, of calls in graphs."""
    return {row["bytes"]: row["ratios"]["nccl"]["ratio"] for row in sorted(rows, key=lambda row: row["bytes"])
            if row["graph"] and "nccl" in row["ratios"]}


def series(folder: Path, name: str) -> dict:
    """{host kind: {label: points}} of the picture of an op, or of "collectives"."""
    found: dict = {}
    if name == "collectives":
        for op in COLLECTIVES:
            for kind, rows in measured(folder, op).items():
                found.setdefault(kind, {})[op] = over_sizes(rows)
    else:
        for kind, rows in measured(folder, name).items():
            found[kind] = {RIVALS.get(rival, rival): over_rows(rows, rival) for rival in GEMMS[name]}
    kept = {kind: {label: points for label, points in lines.items() if points} for kind, lines in found.items()}
    return {kind: lines for kind, lines in sorted(kept.items()) if lines}


def fingerprint(folder: Path, name: str) -> str:
    """Names what a picture shows (results.digest)."""
    return results.digest(series(folder, name))


def pictures(folder: Path) -> list[str]:
    """The names of those for which there are results."""
    return [name for name in (*GEMMS, "collectives") if series(folder, name)]


def picture(folder: Path, name: str, target: Path) -> Path:
    """Draws one into a PNG, a panel for each kind of host; returns its path."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = series(folder, name)
    columns = min(2, len(found))
    lines = -(-len(found) // columns)
    figure, axes = pyplot.subplots(lines, columns, squeeze=False, layout="constrained",
                                   figsize=(7.2, 2.7 * lines + 0.4))
    for axis, (kind, panel) in zip(axes.flat, found.items()):
        (_lines if name == "collectives" else _bars)(axis, panel)
        axis.axhline(1.0, color="black", linewidth=1, linestyle="--")
        axis.set_title(kind, fontsize=9)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.legend(fontsize=7, title="times as fast as" if name != "collectives" else "", title_fontsize=7)
    for axis in axes.flat[len(found):]:
        axis.set_visible(False)
    figure.supylabel("the other's time over ours", fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130, metadata={"Source": fingerprint(folder, name)})
    pyplot.close(figure)
    return target


def _bars(axis: Any, panel: dict) -> None:
    """Bars over M; a line in each from the least to the most over models."""
    rows = sorted({m for points in panel.values() for m in points})
    width = 0.8 / len(panel)
    for number, ((label, points), colour) in enumerate(zip(panel.items(), _COLOURS)):
        places = [rows.index(m) + width * (number - (len(panel) - 1) / 2) for m in points]
        means = [mean for mean, _, _ in points.values()]
        spread = [[mean - least for mean, least, _ in points.values()], [most - mean for mean, _, most in points.values()]]
        axis.bar(places, means, width, label=label, color=colour)
        axis.errorbar(places, means, yerr=spread, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
    axis.set_xticks(range(len(rows)), [str(m) for m in rows], rotation=45)
    axis.set_xlabel("M", fontsize=8)


def _lines(axis: Any, panel: dict) -> None:
    sizes = sorted({size for points in panel.values() for size in points})
    for (label, points), colour in zip(panel.items(), cycle(_COLOURS)):
        axis.plot(list(points), list(points.values()), label=label, color=colour, marker="o", markersize=3, linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes[::2], [text(size) for size in sizes[::2]], rotation=45)
    axis.minorticks_off()
