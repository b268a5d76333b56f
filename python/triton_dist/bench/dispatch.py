# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What an op costs the host where its plan is the baseline: its unfused method beside the same torch calls made directly.

Two figures: the op with a plan that does nothing, hence the way to the plan alone, which any machine can time; and the difference
of the whole calls. Shapes are tiny, so that the device keeps up and only host time is seen. The calls are timed in turns, in
blocks that fit into a device's launch queue; the difference is taken block by block.
"""
import time
from typing import Callable

import torch

from triton_dist.bench import stats
from triton_dist.bench.host import device_name
from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state
from triton_dist.runtime.streams import device, synchronize
from triton_dist.testing import random_tensor

_BLOCK, _ROUNDS, _EMULATED_ROUNDS, _SIZE = 100, 60, 10, 32


def run(group: Group) -> str:
    """The figures of this rank, a line for each op. Collective over `group`, the world."""
    lines, rounds = [], _ROUNDS if device().type == "cuda" else _EMULATED_ROUNDS
    for op, (ours, direct) in _calls(group).items():
        found = [(_block(direct), _block(ours)) for _ in range(rounds)][rounds // 10:]       # the first ones warm up
        by_hand, by_op = (stats.estimate(times).value for times in zip(*found))
        more = stats.estimate([theirs - mine for mine, theirs in found])
        for known in state().recent.values():
            known.plan.run = lambda *args: None
        alone = stats.estimate([_block(ours) for _ in range(rounds)])
        state().recent.clear()
        state().plans.clear()
        lines.append(f"{op} on {group.size} x {device_name()}: dispatch alone {alone.value:.2f} us a call (95 %: {alone.low:.2f} "
                     f"to {alone.high:.2f}); directly {by_hand:.2f} us of host time, by the op {by_op:.2f} us: "
                     f"{more.value:+.2f} us (95 %: {more.low:+.2f} to {more.high:+.2f})")
    if device().type != "cuda":
        lines.append("Emulated: the emulator's own bookkeeping of calls is in these figures.")
    return "\n".join(lines)


def _calls(group: Group) -> dict:
    """{op: (call by the op, the same directly)}."""
    w, n = group.size, _SIZE
    x, weight = (random_tensor(n, n, dtype=torch.bfloat16, seed=seed) for seed in (0, 1))
    tall, wide = random_tensor(n * w, n, dtype=torch.bfloat16, seed=2), torch.empty(n * w, n, dtype=x.dtype, device=device())
    out = torch.empty_like(x)

    def gather_then_multiply() -> None:
        gathered = torch.empty((n * w, n), dtype=x.dtype, device=x.device)
        group.all_gather_tensor(gathered, x)
        torch.matmul(gathered, weight.t(), out=wide)

    def multiply_then_scatter() -> None:
        group.reduce_scatter_tensor(out, torch.matmul(tall, weight.t()))
    return {"ag_gemm": (lambda: ag_gemm(x, weight, out=wide, method="unfused"), gather_then_multiply),
            "gemm_rs": (lambda: gemm_rs(tall, weight, out=out, method="unfused"), multiply_then_scatter)}


def _block(call: Callable) -> float:
    """Microseconds of host time a call."""
    synchronize()
    start = time.perf_counter()
    for _ in range(_BLOCK):
        call()
    return (time.perf_counter() - start) * 1e6 / _BLOCK
