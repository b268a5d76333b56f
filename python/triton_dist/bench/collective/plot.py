# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A picture of a collective: time over size, for our first method and the peers."""
from itertools import cycle
from pathlib import Path

from triton_dist.bench.collective.sizes import text
from triton_dist.bench.results import digest

_COLOURS = ("#0072b2", "#7f7f7f", "#e69f00", "#56b4e9", "#cc79a7")


def alike(rows: list) -> list[list]:
    """Rows apart by what those of one picture or table share: world, dtype, and whether calls are in a graph; sizes ascending."""
    groups: dict = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        groups.setdefault((row["world"], row["dtype"], row["graph"]), []).append(row)
    return [groups[kind] for kind in sorted(groups, reverse=True)]


def how(row: dict) -> str:
    """How the calls of a row were timed."""
    return "in a CUDA graph" if row["graph"] else "back to back"


def fingerprint(rows: list) -> str:
    """Names what a picture of `rows` shows (results.digest)."""
    return digest(curves(rows))


def curves(rows: list) -> dict:
    """{label: [(bytes, microseconds), ...]}, sizes as in `rows`."""
    found: dict = {}
    for row in rows:
        for label, us in {f"triton_dist, {next(iter(row['ours']))}": row["us"], **row["us_peers"]}.items():
            if us is not None:
                found.setdefault(label, []).append((row["bytes"], us))
    return found


def picture(rows: list, target: Path) -> Path:
    """Draws rows of one collective that are alike into a PNG; returns its path."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (label, points), colour in zip(curves(rows).items(), cycle(_COLOURS)):
        axis.plot(*zip(*points), label=label, color=colour, marker="o", markersize=4, linewidth=1)
    ticks = sorted({row["bytes"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(ticks, [text(size) for size in ticks], fontsize=7, rotation=45)
    axis.set_ylabel("microseconds a call, lower is faster", fontsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.legend(fontsize=8)
    row = rows[0]
    axis.set_title(f"{row['op']} {row['dtype']}, {row['world']} x {row['device']}, calls {how(row)}", fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=100, metadata={"Source": fingerprint(rows)})
    pyplot.close(figure)
    return target
