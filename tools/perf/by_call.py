# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The bars of host time, by call."""
from dataclasses import dataclass

from tools.perf.bar import Bar
from triton_dist.bench.dispatch_rows import BASELINES, COMMAND, KERNELS
from triton_dist.bench.stats import Estimate


@dataclass(frozen=True)
class CallBar(Bar):
    """A bar over calls. figure: "us", or "us above floor", both at most the bound."""

    plural = "calls"
    option = "--calls"
    at_most = True

    def needed(self, world: int) -> dict:
        return {(name,): name for name in self.problems.split()}

    def cell(self, row: dict) -> tuple:
        return (row["call"],)

    def counts(self, row: dict) -> bool:
        return self.figure == "us" or row["floor_us"] is not None

    def estimate(self, row: dict) -> Estimate:
        return Estimate(row["us"], *row["ci95"]) if self.figure == "us" else Estimate(row["above_us"], *row["above_ci95"])


BARS = (CallBar(COMMAND, " ".join(BASELINES), "us", "each", 2.0),
        CallBar(COMMAND, " ".join(KERNELS), "us above floor", "each", 10.0))
