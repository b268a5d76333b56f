# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an eager call costs the host: `triton-dist bench dispatch`.

Where the plan is the baseline: the op with a plan that does nothing, hence the way to the plan alone. Where it is one kernel:
the whole call beside a bare launch of that kernel with the arguments that are bound. Shapes are small, so that the device keeps
up; calls are timed in blocks that fit into a device's launch queue, of both sorts in turn, and differences are taken block by
block. Two inputs take turns, so that addresses change from call to call.
"""
import argparse
import itertools
import time
from typing import Any, Callable

import torch

from triton_dist import ops
from triton_dist.bench import host, stats
from triton_dist.bench.dispatch_rows import BASELINES, CALLS, COMMAND
from triton_dist.bench.rows import short
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.streams import device, synchronize
from triton_dist.testing import random_tensor

_BLOCK, _ROUNDS, _SIZE, _BYTES, _K = 100, 60, 32, 8192, 512
_EMULATED = dict(block=2, rounds=3)


def run(args: argparse.Namespace, group: Group, keep: Callable = lambda row, host: None) -> tuple[int, list]:
    """(exit status, rows) for a parsed command line. Collective over `group`, the world; equal on all ranks.

    keep(row, host.json) is called for each row as soon as it is there.
    """
    facts = group.broadcast_object(host.describe(group.size) if group.rank == 0 else {})
    about = {"op": COMMAND, "dtype": "bfloat16", "world": group.size, "device": host.device_name(), "commit": facts["commit"],
             "date": facts["date"], "graph": False, "ours": {"auto": {}}}
    found = []
    for name in args.calls or CALLS:
        measured = (_baseline if name in BASELINES else _kernel)(name, group, args.rounds)
        if measured:
            found.append({**about, "call": name, **measured})
            keep(found[-1], facts)
    return 0, found


def _baseline(name: str, group: Group, rounds: int | None) -> dict:
    """The figures of an op whose plan does nothing."""
    calls = _calls(name, group)
    plan = _plan_of(name, calls)
    plan.run = lambda *args: None
    try:
        (alone,) = _times(group, rounds or _ROUNDS, _BLOCK, calls)
    finally:
        del plan.run
    return {**_figures("us", "ci95", stats.estimate(alone)), "floor_us": None, "rounds": len(alone)}


def _kernel(name: str, group: Group, rounds: int | None) -> dict | None:
    """The figures of an op that is one kernel; None where it is not, as on one rank."""
    emulated = device().type != "cuda"
    calls = _calls(name, group)
    plan = _plan_of(name, calls)
    launch = getattr(plan, "launch", None)
    if launch is None:
        return None
    floor = getattr(launch, "again", None) or _repeated(plan, calls[0])
    block, usual = (_EMULATED["block"], _EMULATED["rounds"]) if emulated else (_BLOCK, _ROUNDS)
    ours, bare = _times(group, rounds or usual, block, calls, [floor])
    above = [a - b for a, b in zip(ours, bare)]
    return {**_figures("us", "ci95", stats.estimate(ours)), "floor_us": short(stats.estimate(bare).value),
            **_figures("above_us", "above_ci95", stats.estimate(above)), "rounds": len(ours)}


def _repeated(plan: Any, call: Callable) -> Callable:
    """The plan's launch with the arguments that `call` launches with. Its call launches nothing, on any rank."""
    given, launch = [], plan.launch
    plan.launch = lambda *args: given.append(args)
    call()
    plan.launch = launch
    return lambda: launch(*given[0])


def _plan_of(name: str, calls: list) -> Any:
    """The plan that serves `calls`, which are made: all ranks have it then."""
    for call in (*calls, *calls):
        call()
    synchronize()
    records = state().records[ops.OPS[name]].values()
    found = [known.plan for record in records for known in record.known.values()]
    if not found:
        raise ValueError("dispatch: this torch's guards are not what is expected of them, so every call is looked at in full")
    return found[-1]


def _calls(name: str, group: Group) -> list[Callable]:
    """The call on each of two inputs."""
    op, w, emulated = getattr(ops, name), group.size, device().type != "cuda"
    if name in BASELINES:
        rows = _SIZE * (w if name == "gemm_rs" else 1)
        weight = random_tensor(_SIZE, _SIZE, dtype=torch.bfloat16, seed=1)
        out = torch.empty(_SIZE * (w if name == "ag_gemm" else 1), _SIZE, dtype=torch.bfloat16, device=device())
        return [lambda x=x: op(x, weight, out=out, method="unfused") for x in _inputs(rows, _SIZE)]
    n = (256 if emulated else _BYTES) // 2
    if name == "gemm_ar":
        weight = random_tensor(n, _SIZE if emulated else _K, dtype=torch.bfloat16, seed=1)
        return [lambda x=x: op(x, weight) for x in _inputs(1, weight.shape[1])]
    return [lambda x=x: op(x) for x in _inputs(*((1, n // w) if name == "all_gather" else (w, n // w)))]


def _inputs(*shape: int) -> list[torch.Tensor]:
    return [random_tensor(*shape, dtype=torch.bfloat16, seed=seed) for seed in (2, 3)]


def _times(group: Group, rounds: int, block: int, *kinds: list) -> list[list[float]]:
    """For each kind of call, the microseconds a call in each round on the slowest rank. The first rounds warm up, uncounted."""
    warm = -(-rounds // 10)
    found = [[_block(calls, block) for calls in kinds] for _ in range(rounds + warm)][warm:]
    every = group.all_gather_object(found)
    return [stats.largest(*([times[kind] for times in mine] for mine in every)) for kind in range(len(kinds))]


def _block(calls: list, block: int) -> float:
    """Microseconds of host time a call."""
    synchronize()
    turns = itertools.islice(itertools.cycle(calls), block)
    start = time.perf_counter()
    for call in turns:
        call()
    return (time.perf_counter() - start) * 1e6 / block


def _figures(value: str, interval: str, found: stats.Estimate) -> dict:
    return {value: short(found.value), interval: [short(found.low), short(found.high)]}
