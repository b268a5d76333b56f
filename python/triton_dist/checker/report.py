# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a check gives back."""
import collections
from dataclasses import dataclass, field

from triton_dist.checker.faults import Fault


@dataclass
class Report:
    """Faults and figures of a check: schedules run, programs started, accesses checked, seconds, bytes moved by link."""
    faults: list[Fault] = field(default_factory=list)
    schedules: int = 0
    programs: int = 0
    accesses: int = 0
    seconds: float = 0.0
    links: collections.Counter = field(default_factory=collections.Counter)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.faults

    def __str__(self) -> str:
        figures = (f"{self.schedules} schedules, {self.programs} programs, {self.accesses} checked accesses, "
                   f"{self.seconds:.1f} seconds")
        if self.clean:
            return f"clean: {figures}"
        found = "\n\n".join(map(str, self.faults))
        return f"{found}\n\n{len(self.faults)} fault{'s' * (len(self.faults) > 1)}: {figures}"

    def traffic(self) -> str:
        """Bytes that crossed each link, a mean a schedule; links that carried the same in one line."""
        rows: dict = {}
        for (a, b), nbytes in sorted(self.links.items()):
            rows.setdefault(nbytes // max(1, self.schedules), []).append(f"{a}->{b}")
        lines = [f"  {nbytes} bytes on {', '.join(links)}" for nbytes, links in rows.items()]
        return "\n".join(["between ranks, in a schedule:", *lines]) if lines else "no bytes between ranks"
