# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Why an op runs the way it does: its candidates with predicted times, and the one that `auto` takes."""
from dataclasses import dataclass
from typing import Any

import torch

from triton_dist.ops import _check, _model, _plan
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


@dataclass(frozen=True)
class Explanation:
    """`chosen`: method that auto takes; `estimates`: candidates, the fastest first, empty without a model; `reason`."""
    op: str
    shape: tuple
    chosen: str
    reason: str
    estimates: list

    def __str__(self) -> str:
        m, n, k, world = self.shape
        lines = [f"{self.op} M={m} N={n} K={k} on {world} ranks: {self.chosen}, because {self.reason}"]
        lines += [f"  {e.method:9s} {e.ms:8.3f} ms predicted  ({e.note})" for e in self.estimates]
        return "\n".join(lines)


def explain(op: str, m: int, n: int, k: int, *, group: Any = None, dtype: torch.dtype = torch.bfloat16) -> Explanation:
    """What `auto` does for global sizes M, N and K, divided evenly over the group: M and N for ag_gemm, M and K for gemm_rs.

    Predictions are good to about 20 % (ops._model.ERROR), and there are none on devices that have not been measured.
    Collective only in that all ranks of `group` get the same answer; nothing is sent.
    """
    if op not in ("ag_gemm", "gemm_rs"):
        raise InvalidArgument(f"op: expected 'ag_gemm' or 'gemm_rs', found {op!r}; pass one of these names")
    for name, size in (("m", m), ("n", n), ("k", k)):
        _check.size(name, size)
    if dtype not in _check.DTYPES:
        raise InvalidArgument(f"dtype: expected torch.float16, torch.bfloat16 or torch.float32, found {dtype!r}")
    members = resolve(group)
    world, core, machine = members.size, backend().core(op), backend().machine_model()
    gather = op == "ag_gemm"
    rows = -(-m // world)
    shard = (rows, -(-n // world), k) if gather else (rows, n, -(-k // world))
    bytes_in = (world - 1) * rows * (k if gather else n) * dtype.itemsize
    serves = core is not None and core.serves(dtype, k if gather else n)
    chosen = _plan.choose(op, "auto", members, serves, bytes_in, needs_stream_memory_ops=gather)
    estimates = []
    if machine is not None:
        config = backend().gemm_config(dtype, rows)
        if serves:
            config = core.config(dtype, rows) if gather else core.config(dtype, rows, n, dtype)
        predict = _model.ag_gemm_estimates if gather else _model.gemm_rs_estimates
        estimates = predict(machine, *shard, world, dtype.itemsize, config, serves)
    if chosen == "unfused":
        reason = (_plan.obstacle(members, needs_stream_memory_ops=gather)
                  or f"the collective brings only {bytes_in / 1e6:.1f} MB to a rank")
    elif machine is None:
        reason = "the device has not been measured, and fusing is what it usually gains by"
    else:
        reason = f"the collective's {bytes_in / 1e6:.1f} MB a rank hide behind the GEMM"
    return Explanation(op, (m, n, k, world), chosen, reason, estimates)
