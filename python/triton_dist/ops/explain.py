# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Why an op runs the way it does: its candidates with predicted and measured times, and the one that `auto` takes."""
from dataclasses import dataclass, replace
from typing import Any, Callable

import torch

from triton_dist.ops import _plan, _tune
from triton_dist.ops.calls import checks
from triton_dist.ops.tuning import model, table
from triton_dist.ops.tuning.table import Choice, Shape
from triton_dist.ops.ag_gemm import op as _ag_gemm
from triton_dist.ops.gemm_ar import op as _gemm_ar
from triton_dist.ops.gemm_rs import op as _gemm_rs
from triton_dist.runtime.backend import backend
from triton_dist.runtime.capabilities import MachineModel
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, resolve


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


def explain(op: str, m: int, n: int, k: int, *, group: Any = None, dtype: torch.dtype = torch.bfloat16) -> Explanation:
    """What `auto` does for global sizes M, N and K, divided evenly over the group: M and N for ag_gemm, M and K for gemm_rs,
    K for gemm_ar.

    Measured times are those of this shape, or of the nearest one of its class; a prediction is good to about 20 %
    (ops.tuning.model.ERROR), and there is none on devices that have not been measured. With TRITON_DIST_AUTOTUNE a shape that
    has not been called yet is explained as if it were not to be measured. The same on all ranks of `group`, all of which must
    call: at the group's first use tables are shared.
    """
    if op not in ("ag_gemm", "gemm_rs", "gemm_ar"):
        raise InvalidArgument(f"op: expected 'ag_gemm', 'gemm_rs' or 'gemm_ar', found {op!r}; pass one of these names")
    for name, size in (("m", m), ("n", n), ("k", k)):
        checks.size(name, size)
    if dtype not in checks.DTYPES:
        raise InvalidArgument(f"dtype: expected torch.float16, torch.bfloat16 or torch.float32, found {dtype!r}")
    members = resolve(group)
    if op == "gemm_ar":
        method, reason = _gemm_ar.choose("auto", members, m, n, dtype)
        machine, rows = backend().machine_model(), []
        if machine is not None and not _plan.across_nodes(members):
            found = model.gemm_ar_estimates(machine, m, n, -(-k // members.size), members.size, dtype.itemsize)
            rows = [Candidate(Choice(each.method), each.ms, None, each.note + _source(machine)) for each in found]
        return Explanation(op, Shape(op, str(dtype).removeprefix("torch."), m, n, k), members.size, Choice(method), reason, rows)
    rows = -(-m // members.size)
    if op == "ag_gemm":
        agreed = _ag_gemm.agreement(rows, k, dtype, "auto", members)
        ways, bytes_in = _ag_gemm.candidates(rows, k, dtype, members), _ag_gemm.bytes_in(rows, k, dtype, members.size)
        shape = _ag_gemm.shape(rows, k, dtype, n, members.size)
    else:
        agreed = _gemm_rs.agreement(rows, n, dtype, dtype, "auto", members)
        ways, bytes_in = _gemm_rs.candidates(rows, n, dtype, dtype, members), _gemm_rs.bytes_in(rows, n, dtype, members.size)
        shape = _gemm_rs.shape(rows, n, dtype, dtype, k, members.size)
    if agreed["method"] == "unfused":
        found = _tune.Decision(Choice("unfused"), _plan.obstacle(members, needs_stream_memory_ops=op == "ag_gemm"))
    else:
        rule = _plan.rule(op, ways, members, bytes_in)
        found = (_tune.decided(members, tuple(agreed.items()), shape)
                 or _tune.from_table(ways, rule, shape, _tune.tables(members).entries))
    return Explanation(op, Shape(op, shape.dtype, m, n, k), members.size, found.choice, found.reason,
                       _rows(ways, shape, members, dtype, _tune.tables(members).entries))


def _rows(ways: list, shape: Shape, group: Group, dtype: torch.dtype, entries: dict) -> list[Candidate]:
    """The candidates of which something is known, the fastest first."""
    entry, predict = table.find(entries, shape), _predictor(shape, group, dtype)
    rows = []
    for choice in ways:
        estimate = predict(choice) if predict else None
        measured = entry.ms.get(choice) if entry else None
        failed = entry.failed.get(choice) if entry else None
        if estimate or measured or failed:
            rows.append(Candidate(choice, estimate and estimate.ms, measured, failed or (estimate.note if estimate else "")))
    return sorted(rows, key=lambda row: (row.measured is None, row.measured or row.predicted or 0.0))


def _predictor(shape: Shape, group: Group, dtype: torch.dtype) -> Callable[[Choice], model.Estimate] | None:
    machine, world = backend().machine_model(), group.size
    if machine is None or _plan.across_nodes(group):       # rates are those inside a node
        return None
    gather = shape.op == "ag_gemm"
    sizes = (shape.m // world, -(-shape.n // world), shape.k) if gather else (shape.m // world, shape.n, -(-shape.k // world))
    estimates = model.ag_gemm_estimates if gather else model.gemm_rs_estimates
    source = _source(machine)

    def predict(choice: Choice) -> model.Estimate:
        config = choice.config or backend().gemm_config(dtype, sizes[0])        # of the unfused method it says nothing
        found = estimates(machine, *sizes, world, dtype.itemsize, config, choice.method == "ws")
        estimate = next(estimate for estimate in found if estimate.method == choice.method)
        return replace(estimate, note=estimate.note + source)
    return predict


def _source(machine: MachineModel) -> str:
    """What a prediction's note says of where its rates come from."""
    return "; rates are published ones, not measured" if machine.published else ""
