# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Hang reports as text, the same for every backend: one row for each thing that waits, all ranks in one table."""
import sys
from dataclasses import dataclass
from typing import Mapping, Sequence

SHOWN = 24          # rows; more of them say nothing new


@dataclass
class Row:
    """One waiting actor, or one rank's state. `writer`: who wrote the flag last, or who should."""
    rank: int
    kernel: str = ""
    program: str = ""
    site: str = ""
    what: str = ""
    wanted: str = ""
    seen: str = ""
    writer: str = ""

    def cells(self) -> tuple:
        return (str(self.rank), self.kernel, self.program, self.site, self.what, self.wanted, self.seen, self.writer)


def table(rows: Sequence[Row], writer: str = "last writer") -> str:
    """The rows as aligned text; columns that are empty in all are left out. `writer` heads the last column."""
    header = ("rank", "kernel", "program", "at", "waits for", "wanted", "seen", writer)
    lines = [header, *(row.cells() for row in rows[:SHOWN])]
    used = [i for i in range(len(header)) if any(line[i] for line in lines[1:])]
    widths = [max(len(line[i]) for line in lines) for i in used]
    text = ["  ".join(line[i].ljust(w) for i, w in zip(used, widths)).rstrip() for line in lines]
    if len(rows) > SHOWN:
        text.append(f"... and {len(rows) - SHOWN} more")
    return "\n".join(text)


def last_words(text: str) -> None:
    """Prints a line to the process's own stderr.

    While torch's excepthook calls that of others, `sys.stderr` is a buffer, which is lost when the process ends there.
    """
    stream = sys.__stderr__ if sys.__stderr__ is not None and not sys.__stderr__.closed else sys.stderr
    print(text, file=stream, flush=True)


def merge(reports: Mapping[int, Sequence[Row]], world_size: int) -> list[Row]:
    """Rows of all ranks by rank, so few of each that every rank is seen. `reports`: what ranks told; not all may have."""
    limit = max(1, SHOWN // world_size)
    merged: list[Row] = []
    for rank in range(world_size):
        rows = list(reports.get(rank, ()))
        merged += rows[:limit] or [Row(rank, what="nothing was heard from this rank")]
        if len(rows) > limit:
            merged[-1].program += f" and {len(rows) - limit} more"
    return merged
