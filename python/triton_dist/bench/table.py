# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The table that a benchmark prints, one line a shape."""
from typing import Any

from triton_dist.bench.stats import geomean

_LEGEND = ("Milliseconds, median over rounds. matmul and comm alone, T* = max of both. T*/T, its 95 % interval and the "
           "ratios are formed per round, for the first of our methods.")


def cells(rows: list) -> list[list[str]]:
    """Header and lines of a list of rows of one op."""
    peers = _names(rows, "ms_peers")
    methods = _names(rows, "ours")
    header = ["shape", "M", "N", "K", "matmul", "comm", "seq", *peers, *[f"ours:{m}" for m in methods], "T*", "T*/T",
              "95 %", "vs seq", *[f"vs {p}" for p in peers], "method"]
    return [header] + [_line(row, peers, methods) for row in rows]


def text(rows: list) -> str:
    """The table as plain text, columns aligned, with the geometric mean of T*/T."""
    lines = cells(rows)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines]
    row, mean = rows[0], geomean([row["efficiency"] for row in rows])
    note = " (emulated: times say nothing about a GPU)" if row["device"] == "emulator" else ""
    title = f"{row['op']} {row['dtype']} on {row['world']} x {row['device']}{note}, {row['rounds']} rounds"
    return "\n".join([title, body[0], "-" * len(body[0]), *body[1:], f"T*/T geometric mean {mean:.3f}. {_LEGEND}"])


def _line(row: dict, peers: list, methods: list) -> list[str]:
    low, high = row["ci95"]
    return [row["shape"], str(row["m"]), str(row["n"]), str(row["k"]), _ms(row["ms_gemm"]), _ms(row["ms_comm"]),
            _ms(row["ms_seq"]), *[_ms(row["ms_peers"].get(peer)) for peer in peers],
            *[_ms(row["ours"].get(method, {}).get("ms")) for method in methods], _ms(row["ms_limit"]),
            f"{row['efficiency']:.3f}", f"{low:.3f}-{high:.3f}", _ratio(row, "seq"),
            *[_ratio(row, peer) for peer in peers], row["method"]]


def _names(rows: list, column: str) -> list:
    return list(dict.fromkeys(name for row in rows for name in row[column]))


def _ms(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if value < 1 else f"{value:.3f}"


def _ratio(row: dict, rival: str) -> str:
    found = row["ratios"].get(rival)
    return "-" if found is None else f"{found['ratio']:.3f}"
