# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows of `bench model`, and their table."""
from typing import Any

from triton_dist.bench.model.variants import ALONE, VARIANTS
from triton_dist.bench.stats import estimate, ratio
from triton_dist.bench.table import aligned

_LEGEND = ("ms: a pass over all layers, median over rounds, of the slowest rank, with its 95 % interval. ratio: time of the best "
           "without us / this, formed per round. error: relative, against one rank in float32.")


def build(facts: dict, measured: Any, rounds: int, graph: bool) -> dict:
    """A row of what was measured. The best of ours is compared with the best of the others, each by its median."""
    kinds = VARIANTS[facts["phase"]]
    every = {name: estimate(times) for name, times in measured.milliseconds.items()}
    ours = {name: {"ms": every[name].value} for name in every if kinds[name].ours}
    others = [name for name in every if not kinds[name].ours and name != ALONE]
    row = {**facts, "graph": graph, "rounds": rounds, "call": f"{facts['arch']} {facts['phase']} {facts['rows']}",
           "ms": {name: {"ms": found.value, "ci95": [found.low, found.high]} for name, found in every.items()},
           "errors": measured.errors, "skipped": measured.skipped, "ours": ours or {"none": {}}, "ratios": {}}
    if others:
        row["best_other"] = min(others, key=lambda name: every[name].value)
        for name in every:
            found = ratio(measured.milliseconds[row["best_other"]], measured.milliseconds[name])
            row["ratios"][name] = {"ratio": found.value, "ci95": [found.low, found.high]}
    if ours:
        row["best"] = min(ours, key=lambda name: every[name].value)
    return row


def text(rows: list) -> str:
    """A table for each row."""
    return "\n\n".join(map(_table, rows)) + f"\n{_LEGEND}"


def _table(row: dict) -> str:
    note = " (emulated: times say nothing about a GPU)" if row["device"] == "emulator" else ""
    title = (f"{row['layers']} layers of {row['arch']}, {row['phase']}, {row['rows']} rows"
             f"{', %d cached' % row['cached'] if row['cached'] else ''}, {row['dtype']}"
             f"{', in CUDA graphs' if row['graph'] else ''} on {row['world']} x {row['device']}{note}, {row['rounds']} rounds")
    lines = [["", "ms", "95 %", "ratio", "95 %", "error"]]
    for name, found in row["ms"].items():
        against = row["ratios"].get(name)
        error = row["errors"].get(name)
        lines.append([name, f"{found['ms']:.3f}", "{:.3f}-{:.3f}".format(*found["ci95"]),
                      "-" if against is None else f"{against['ratio']:.3f}",
                      "-" if against is None else "{:.3f}-{:.3f}".format(*against["ci95"]),
                      "-" if error is None else f"{error:.1e}"])
    return "\n".join([title, *aligned(lines), *(f"not timed: {name}: {why}" for name, why in row["skipped"].items())])
