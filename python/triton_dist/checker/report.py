# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a check gives back."""
import collections
from dataclasses import dataclass, field

from triton_dist.checker.faults import Fault


@dataclass
class Report:
    """What a check has found. `str(report)` is what `triton-dist check` prints.

    Attributes:
        faults: every Fault.
        schedules: number of runs.
        programs: number of programs that have started in all runs.
        accesses: number of accesses that were checked.
        seconds: how long it took.
        links: (from rank, to rank) -> bytes of data and flags that were counted in all runs.
        formula: (from rank, to rank) -> bytes of data that the ops should have moved.
    """
    faults: list[Fault] = field(default_factory=list)
    schedules: int = 0
    programs: int = 0
    accesses: int = 0
    seconds: float = 0.0
    links: collections.Counter = field(default_factory=collections.Counter)
    formula: collections.Counter = field(default_factory=collections.Counter)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def __str__(self) -> str:
        figures = (f"{self.schedules} schedule{'s' * (self.schedules > 1)}, {self.programs} programs, "
                   f"{self.accesses} checked accesses, {self.seconds:.1f} seconds")
        if self.clean:
            return f"clean: {figures}"
        found = "\n\n".join(map(str, self.faults))
        return f"{found}\n\n{len(self.faults)} fault{'s' * (len(self.faults) > 1)}: {figures}"

    def traffic(self) -> str:
        """Bytes that crossed each link beside the ops' formulas, a mean a schedule; links that carried the same in one line."""
        rows: dict = {}
        for link in sorted(self.links.keys() | self.formula.keys()):
            counted, formula = (counter[link] // max(1, self.schedules) for counter in (self.links, self.formula))
            rows.setdefault((counted, formula), []).append("{}->{}".format(*link))
        lines = []
        for (counted, formula), links in rows.items():
            beside = f" (the ops' data, by their formulas: {formula})" if formula else ""
            lines.append(f"  {counted} bytes on {', '.join(links)}{beside}")
        return "\n".join(["between ranks, in a schedule:", *lines]) if lines else "no bytes between ranks"
