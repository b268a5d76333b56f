# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Pictures from result files, drawn on any machine: per shape, every way to compute it relative to the limit T*."""
import os
from pathlib import Path

from triton_dist.bench.results import load

_MOST_BYTES = 300_000


def draw(folder: Path) -> list[Path]:
    """Draws <op>.png beside each <op>.json in `folder`; returns the pictures. FileNotFoundError where there is none."""
    sources = sorted(path for path in Path(folder).glob("*.json") if path.name != "host.json")
    if not sources:
        raise FileNotFoundError(f"{folder}: expected result files such as ag_gemm.json, found none")
    return [_picture(path, load(path)) for path in sources]


def bars(row: dict) -> dict:
    """Label -> (T*/T, low, high) of every bar of a row, ours last."""
    labels = {"seq": "in sequence", **{peer: f"{peer}, fused" for peer in row["ms_peers"]},
              **{method: f"ours, {method}" for method in row["ours"]}}
    figures = {name: row["all_efficiency"].get(name) for name in labels}
    return {labels[name]: (found["efficiency"], *found["ci95"]) for name, found in figures.items() if found is not None}


def _picture(path: Path, rows: list) -> Path:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict = {}
    for row in rows:
        panels.setdefault((row["world"], row["dtype"], row["device"]), []).append(row)
    widest = max(len(panel) for panel in panels.values())
    figure, axes = pyplot.subplots(len(panels), 1, squeeze=False, layout="constrained",
                                   figsize=(min(24, max(7, 1.9 * widest)), 3.6 * len(panels)))
    for axis, ((world, dtype, device), panel) in zip(axes[:, 0], panels.items()):
        _panel(axis, panel)
        axis.set_title(f"{rows[0]['op']} {dtype}, {world} x {device}", fontsize=10)
    target = path.with_suffix(".png")
    for dpi in (110, 80, 55):
        figure.savefig(target, dpi=dpi)
        if os.path.getsize(target) < _MOST_BYTES:
            break
    pyplot.close(figure)
    return target


def _panel(axis, rows: list) -> None:
    drawn = [bars(row) for row in rows]
    labels = list(dict.fromkeys(label for found in drawn for label in found))
    width = 0.8 / len(labels)
    for i, label in enumerate(labels):
        here = [(x, found[label]) for x, found in enumerate(drawn) if label in found]
        heights = [value for _, (value, _, _) in here]
        spread = [[max(0.0, value - low) for _, (value, low, _) in here],
                  [max(0.0, high - value) for _, (value, _, high) in here]]
        axis.bar([x + (i - (len(labels) - 1) / 2) * width for x, _ in here], heights, width, yerr=spread, label=label,
                 error_kw={"elinewidth": 0.8})
    axis.axhline(1.0, color="black", lw=1, linestyle="--", label="limit T* = max(matmul, collective), each alone")
    names = [f"{row['shape']}\n{row['m']}, {row['n']}, {row['k']}" for row in rows]
    axis.set_xticks(range(len(rows)), names, fontsize=8)
    axis.set_ylabel("T* / T, higher is faster")
    axis.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
