# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A picture of what has peers: time over size, or over M with a panel a model, for our first method and the peers."""
from itertools import cycle
from pathlib import Path
from typing import Any

from triton_dist.bench.collective.rows import how
from triton_dist.bench.collective.sizes import text
from triton_dist.bench.results import digest

_BEHIND = "gemm, then "
_COLOURS = ("#0072b2", "#7f7f7f", "#e69f00", "#56b4e9", "#cc79a7")


def alike(rows: list) -> list[list]:
    """Rows apart by what those of one picture or table share: world, dtype, and whether calls are in a graph; sizes, or models
    and their M, ascending."""
    groups: dict = {}
    for row in sorted(rows, key=lambda row: (row.get("n", 0) * row.get("k", 0), _size(row))):
        groups.setdefault((row["world"], row["dtype"], row["graph"]), []).append(row)
    return [groups[kind] for kind in sorted(groups, reverse=True)]


def fingerprint(rows: list) -> str:
    """Names what a picture of `rows` shows (results.digest)."""
    found = {title: curves(panel) for title, panel in _panels(rows).items()}
    return digest(found.get("", found))


def curves(rows: list) -> dict:
    """{label: [(bytes or M, microseconds), ...]}, as in `rows`."""
    found: dict = {}
    for row in rows:
        peers = {_BEHIND + name if "m" in row else name: us for name, us in row["us_peers"].items()}
        ours = f"triton_dist, {next(iter(row['ours']))}"
        for label, us in {ours: row["us"], **peers, **row.get("us_beside", {})}.items():
            if us is not None:
                found.setdefault(label, []).append((_size(row), us))
    return found


def _size(row: dict) -> int:
    return row["bytes"] if "bytes" in row else row["m"]


def _panels(rows: list) -> dict:
    """{title: rows of one weight}, of a collective all under ""."""
    panels: dict = {}
    for row in rows:
        model = f"{row['shape'].partition('@')[0]}: " if "@" in row.get("shape", "") else ""
        panels.setdefault(f"{model}N {row['n']}, K {row['k']}" if "m" in row else "", []).append(row)
    return panels


def picture(rows: list, target: Path) -> Path:
    """Draws rows of one collective that are alike into a PNG; returns its path."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels, row = _panels(rows), rows[0]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, squeeze=False, layout="constrained",
                                   figsize=(6.4, 4.2) if len(panels) == 1 else (5.2 * columns, 3.1 * lines + 0.4))
    for axis, (title, panel) in zip(axes.flat, panels.items()):
        _panel(axis, panel)
        axis.set_title(title, fontsize=9)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    axes[0, 0].legend(fontsize=8)
    title = f"{row['op']} {row['dtype']}, {row['world']} x {row['device']}, calls {how(row)}"
    if "" in panels:
        axes[0, 0].set_title(title, fontsize=10)
    else:
        figure.suptitle(title, fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=100, metadata={"Source": fingerprint(rows)})
    pyplot.close(figure)
    return target


def _panel(axis: Any, rows: list) -> None:
    for (label, points), colour in zip(curves(rows).items(), cycle(_COLOURS)):
        axis.plot(*zip(*points), label=label, color=colour, marker="o", markersize=4, linewidth=1)
    ticks = sorted({_size(row) for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(ticks, [text(size) if "bytes" in rows[0] else str(size) for size in ticks], fontsize=7, rotation=45)
    axis.set_xlabel("" if "bytes" in rows[0] else "M", fontsize=8)
    axis.set_ylabel("microseconds a call, lower is faster", fontsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
