# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Why an op runs the way it does: its candidates with predicted and measured times, and the one that `auto` takes."""
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.calls import checks, decide
from triton_dist.ops.calls.record import record_of
from triton_dist.ops.op import op_of
from triton_dist.ops.tuning import table, tables
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument


@dataclass(frozen=True)
class Candidate:
    """A way to run the op: milliseconds by the model and by measurement, None where there is none; `note`: what the
    prediction is made of, or why the candidate failed."""
    choice: Choice
    predicted: float | None
    measured: float | None
    note: str

    def __str__(self) -> str:
        times = [f"{'-':>9s}" if ms is None else f"{ms:9.4f}" for ms in (self.predicted, self.measured)]
        return f"{times[0]} {times[1]}  {self.choice}{f'  ({self.note})' if self.note else ''}"


@dataclass(frozen=True)
class Explanation:
    """`chosen`: method that auto takes, `choice`: the same with its tiling; `reason`; `candidates`: the fastest first."""
    op: str
    shape: Shape
    world: int
    choice: Choice
    reason: str
    candidates: list

    @property
    def chosen(self) -> str:
        """The method that auto takes."""
        return self.choice.method

    def __str__(self) -> str:
        s = self.shape
        lines = [f"{self.op} M={s.m} N={s.n} K={s.k} on {self.world} ranks: {self.choice.method}, because {self.reason}"]
        if self.candidates:
            lines.append(f"  {'predicted':>9s} {'measured':>9s}  milliseconds a call")
        return "\n".join(lines + [f"{'->' if found.choice == self.choice else '  '}{found}" for found in self.candidates])


def explain(op: str, m: int, n: int, k: int = 1, *, group: Any = None, dtype: torch.dtype = torch.bfloat16) -> Explanation:
    """What `auto` does for global sizes M, N and K.

    Args:
        op: name of an op (`triton_dist.ops.OPS`).
        m, n, k: divided evenly over the group: M and N for ag_gemm, M and K for gemm_rs, K for gemm_ar. Of a collective the
            larger of x and out is [M, N], and K does not matter.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        dtype: of the operands: float16, bfloat16 or float32.

    Measured times are those of this shape, or of the nearest one of its class; a prediction is good to about 20 %
    (ops.tuning.model.ERROR), and there is none on devices that have not been measured. With TRITON_DIST_AUTOTUNE a shape that
    has not been called yet is explained as if it were not to be measured. The same on all ranks of `group`, all of which must
    call: at an op's first use on a group tables are shared.

    Returns an Explanation, which prints as a table. Raises InvalidArgument for an op that there is not.

    Example:
        print(triton_dist.ops.explain("ag_gemm", 8192, 28672, 4096))
    """
    found = op_of(op)
    for name, size in (("m", m), ("n", n), ("k", k)):
        checks.size(name, size)
    if dtype not in checks.DTYPES:
        raise InvalidArgument(f"dtype: expected torch.float16, torch.bfloat16 or torch.float32, found {dtype!r}")
    members = found.members(group)
    agreed = found.at(m, n, k, dtype, members)
    ways = found.candidates(agreed, members)
    rule, shape = found.rule(agreed, members, ways), found.shape(agreed, members, dict(m=m, n=n, k=k).get(found.local_axis, 0))
    decision, entries = decide.Decision(*rule), {}
    if found.timed and len(ways) > 1:
        record = record_of(found, members, members)
        entries = tables.of(found, record).entries
        decision = decide.decided(record, agreed, shape) or decide.from_table(ways, rule, shape, entries)
    return Explanation(op, Shape(op, shape.dtype, m, n, k), members.size, decision.choice, decision.reason,
                       _rows(found.estimates(agreed, members, shape, ways), ways, table.find(entries, shape)))


def _rows(estimates: dict, ways: Sequence[Choice], entry: table.Entry | None) -> list[Candidate]:
    """The ways of which something is known, the fastest first."""
    machine, rows = backend().machine_model(), []
    source = "; rates are published ones, not measured" if machine is not None and machine.published else ""
    for choice in dict.fromkeys((*ways, *estimates)):
        estimate = estimates.get(choice)
        measured, failed = (entry.ms.get(choice), entry.failed.get(choice)) if entry else (None, None)
        if estimate or measured or failed:
            rows.append(Candidate(choice, estimate and estimate.ms, measured,
                                  failed or (estimate.note + source if estimate else "")))
    return sorted(rows, key=lambda row: (row.measured is None, row.measured or row.predicted or 0.0))
