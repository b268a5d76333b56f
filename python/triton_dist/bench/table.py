# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The tables that a benchmark prints, one line a shape, or where ranks were late one line a candidate."""
from typing import Any

from triton_dist.bench import results
from triton_dist.bench.stats import geomean

_LEGEND = ("Milliseconds, median over rounds. matmul and comm alone, T* = max of both. T*/T, its 95 % interval and the "
           "ratios are formed per round, for the first of our methods.")
_LATE_LEGEND = ("cost = late - on time, per round; beyond = cost - mean lateness of the rank that is late most: below zero, "
                "lateness was hidden. Results under lateness are bitwise those on time.")


def cells(rows: list) -> list[list[str]]:
    """Header and lines of a list of rows of one op."""
    peers = _names(rows, "ms_peers")
    methods = _names(rows, "ours")
    header = ["shape", "M", "N", "K", "matmul", "comm", "seq", *peers, *[f"ours:{m}" for m in methods], "T*", "T*/T",
              "95 %", "vs seq", *[f"vs {p}" for p in peers], "method"]
    return [header] + [_line(row, peers, methods) for row in rows]


def late_cells(rows: list) -> list[list[str]]:
    """Header and lines of rows in which ranks were late: a line for each candidate of each shape."""
    header = ["shape", "M", "N", "K", "who is late", "mean lateness", "candidate", "on time", "late", "cost", "95 %", "beyond"]
    return [header] + [_late_line(row, name, cost) for row in rows for name, cost in row["late"]["costs"].items()]


def text(rows: list) -> str:
    """The table as plain text, columns aligned, with the geometric mean of T*/T, and that of stragglers where there are any."""
    row, mean = rows[0], geomean([row["efficiency"] for row in rows])
    note = " (emulated: times say nothing about a GPU)" if row["device"] == "emulator" else ""
    title = f"{row['op']} {row['dtype']} on {row['world']} x {row['device']}{note}, {row['rounds']} rounds"
    late = [row for row in rows if results.mode(row) != results.PLAIN]
    return "\n".join([title, *aligned(cells(rows)), f"T*/T geometric mean {mean:.3f}. {_LEGEND}",
                      *(["", *aligned(late_cells(late)), _LATE_LEGEND] if late else [])])


def aligned(lines: list) -> list[str]:
    """Lines of cells as text: columns of one width, a rule below the header."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    header, *body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines]
    return [header, "-" * len(header), *body]


def milliseconds(value: Any) -> str:
    """A time as tables show it; "-" for None."""
    return "-" if value is None else f"{value:.4f}" if value < 1 else f"{value:.3f}"


def _line(row: dict, peers: list, methods: list) -> list[str]:
    low, high = row["ci95"]
    return [*_shape(row), *map(milliseconds, (row["ms_gemm"], row["ms_comm"], row["ms_seq"])),
            *[milliseconds(row["ms_peers"].get(peer)) for peer in peers],
            *[milliseconds(row["ours"].get(method, {}).get("ms")) for method in methods], milliseconds(row["ms_limit"]),
            f"{row['efficiency']:.3f}", f"{low:.3f}-{high:.3f}", _ratio(row, "seq"),
            *[_ratio(row, peer) for peer in peers], row["method"]]


def _late_line(row: dict, name: str, cost: dict) -> list[str]:
    low, high = cost["ci95"]
    return [*_shape(row), results.mode(row), f"{row['late']['mean_ms']:.3f}", name, milliseconds(row["all_ms"][name]["ms"]),
            milliseconds(cost["ms"]), f"{cost['cost_ms']:.3f}", f"{low:.3f} to {high:.3f}",
            f"{cost['cost_ms'] - row['late']['mean_ms']:+.3f}"]


def _shape(row: dict) -> list[str]:
    return [row["shape"], str(row["m"]), str(row["n"]), str(row["k"])]


def _names(rows: list, column: str) -> list:
    return list(dict.fromkeys(name for row in rows for name in row[column]))


def _ratio(row: dict, rival: str) -> str:
    found = row["ratios"].get(rival)
    return "-" if found is None else f"{found['ratio']:.3f}"
