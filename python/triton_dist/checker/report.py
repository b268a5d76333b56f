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
        """Bytes that crossed each link in all schedules together, a mean a schedule."""
        runs = max(1, self.schedules)
        rows = [f"  rank {a} -> rank {b}: {nbytes // runs} bytes" for (a, b), nbytes in sorted(self.links.items())]
        return "\n".join(["bytes by link, mean of a schedule:", *rows]) if rows else "no bytes between ranks"
