# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The table of `bench model`: layers of a decoder with our ops, beside the fastest way without them."""
from pathlib import Path

from tools.perf.table import markdown
from triton_dist.bench import results

_WORDS = """## In a model

Times of four decoder layers with random weights, in milliseconds. *fastest without us* is the fastest of NCCL (eager and
compiled), torch's asynchronous tensor parallelism and torch's symmetric memory. *times as fast* is its time divided by that of
our fastest variant, formed inside a round, with its 95 % interval. [In a model](models.md#how-fast) has the command.
"""
_HEADS = ["model", "phase", "fastest without us", "triton_dist, eager", "triton_dist, fastest", "times as fast", "commit"]


def section(folder: Path) -> list[str]:
    """The section's parts, none where no model was measured on GPUs."""
    found = []
    for kind, (rows, host) in sorted(results.newest(folder, "model").items(), reverse=True):
        latest = {_cell(row): row for row in sorted(rows, key=lambda row: row["date"])}
        if host["comparable"]:
            found += [f"**{kind}**\n", markdown([_HEADS, *(_line(latest[cell]) for cell in sorted(latest))])]
    return [_WORDS, *found] if found else []


def _cell(row: dict) -> tuple:
    return row["arch"].rpartition("-")[0], int(row["arch"].rpartition("-")[2][:-1]), row["phase"], row["graph"], row["rows"]


def _line(row: dict) -> list[str]:
    best, other = row["best"], row["best_other"]
    ratio, eager = row["ratios"][best], row["ms"].get("ours")
    return [row["arch"], f"{row['phase']} {row['rows']}{', graph' if row['graph'] else ''}",
            f"{row['ms'][other]['ms']:.3f}, {other}", f"{eager['ms']:.3f}" if eager else "-",
            f"**{row['ms'][best]['ms']:.3f}**, {best.removeprefix('ours').removeprefix(', ') or 'eager'}",
            f"{ratio['ratio']:.2f} ({ratio['ci95'][0]:.2f} to {ratio['ci95'][1]:.2f})", row["commit"][:12]]
