# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Rows of host time: what is timed, and their table."""
from typing import Any

from triton_dist.bench.collective.sizes import COMMANDS
from triton_dist.bench.shapes import OPS
from triton_dist.bench.table import aligned

COMMAND = "dispatch"
BASELINES = OPS                                             # by method="unfused", whose plan is then emptied
KERNELS = (*COMMANDS.values(), "gemm_ar")
CALLS = (*BASELINES, *KERNELS)
_LEGEND = ("us: host time a call, median over rounds, of the slowest rank. floor: a bare launch of the same kernel with the same "
           "arguments. Of ag_gemm and gemm_rs, unfused, the plan does nothing: what is left is the way to it.")


def cells(rows: list) -> list[list[str]]:
    """Header and a line a call."""
    return [["call", "us", "95 %", "floor us", "us above floor", "95 %"]] + [
        [row["call"], f"{row['us']:.2f}", _interval(row["ci95"]), *(("-", "-", "-") if row["floor_us"] is None else (
            f"{row['floor_us']:.2f}", f"{row['above_us']:.2f}", _interval(row["above_ci95"])))] for row in rows]


def text(rows: list) -> str:
    """The table as plain text."""
    row = rows[0]
    note = " (emulated: its bookkeeping is in these figures)" if row["device"] == "emulator" else ""
    return "\n".join([f"Host time of eager calls on {row['world']} x {row['device']}{note}, {row['rounds']} rounds",
                      *aligned(cells(rows)), _LEGEND])


def _interval(ends: Any) -> str:
    return "{:.2f}-{:.2f}".format(*ends)
