# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A picture of a collective: time over size, for our first method and the peers."""
from pathlib import Path

from triton_dist.bench.collective.sizes import text

_COLOURS = ("#0072b2", "#7f7f7f", "#e69f00", "#56b4e9", "#cc79a7")


def curves(rows: list) -> dict:
    """{label: [(bytes, microseconds), ...]}, sizes ascending."""
    found: dict = {}
    for row in sorted(rows, key=lambda row: row["bytes"]):
        for label, us in {f"triton_dist, {next(iter(row['ours']))}": row["us"], **row["us_peers"]}.items():
            if us is not None:
                found.setdefault(label, []).append((row["bytes"], us))
    return found


def picture(rows: list, target: Path) -> Path:
    """Draws rows of one collective, one world and dtype, into a PNG; returns its path."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for (label, points), colour in zip(curves(rows).items(), _COLOURS):
        axis.plot(*zip(*points), label=label, color=colour, marker="o", markersize=4, linewidth=1)
    ticks = sorted({row["bytes"] for row in rows})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(ticks, [text(size) for size in ticks], fontsize=7, rotation=45)
    axis.set_ylabel("microseconds a call, lower is faster", fontsize=8)
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.legend(fontsize=8)
    row = rows[0]
    how = "in a CUDA graph" if row["graph"] else "back to back"
    axis.set_title(f"{row['op']} {row['dtype']}, {row['world']} x {row['device']}, calls {how}", fontsize=10)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=100)
    pyplot.close(figure)
    return target
