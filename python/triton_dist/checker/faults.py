# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a run has found: faults, each once, and the exception that ends a run at the first."""
from dataclasses import dataclass, field

from triton_dist.runtime.errors import TritonDistError

KINDS = ("race", "deadlock", "livelock", "out-of-bounds", "use-after-free", "uninitialized-read", "left-signal",
         "collective-mismatch", "barrier-misuse", "residency", "error")


_SOFT = ("left-signal",)      # a later schedule may show its cause


class Found(TritonDistError):
    """Ends a run: the fault is in the report."""


@dataclass
class Fault:
    """One fault. `where`: (file, line, function) of the statements involved, innermost first, the earlier access first."""
    kind: str
    where: list
    text: str
    token: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" + (f"\n  replay: --replay {self.token}" if self.token else "")


@dataclass
class Faults:
    """Collects faults of one run or of many. `token`: of the run that goes on now."""
    keep_going: bool = False
    token: str = ""
    found: list = field(default_factory=list)
    soft: list = field(default_factory=list)
    _keys: set = field(default_factory=set)

    def add(self, kind: str, sites: list, text: str) -> None:
        """Notes a fault unless one of this kind at these statements is known. Raises Found where a run ends at the first.

        A left signal ends nothing: it is kept until `settle`, so that it hides no race of the same check."""
        where = [tuple(site) for site in sites]
        key = kind, tuple(where)
        soft = kind in _SOFT and not self.keep_going
        if key not in self._keys and (self.keep_going or soft or not self.found):
            self._keys.add(key)
            (self.soft if soft else self.found).append(Fault(kind, where, text, self.token))
        if not self.keep_going and not soft:
            raise Found(f"{kind}: {text}")

    def settle(self) -> None:
        """The check is over: the first left signal is reported as well, after what else was found."""
        self.found += self.soft[:1]
        self.soft.clear()
