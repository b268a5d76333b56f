# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Times of an op's candidates, taken on all ranks together with the same numbers of calls.

First all candidates are built, then compiled, and ranks agree on which have been (protocol rule 17: then nobody compiles while
others spin). Each rank starts to compile at another one, so that ranks of one host find most of them in Triton's cache. A
short trial, behind a first one that only warms up, leaves the finalists; these are timed in rounds whose order turns, since
clocks drift.
"""
import math
import statistics
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import HangError
from triton_dist.runtime.groups import Group

_FIRST = 2                      # calls of what warms up: libraries load their kernels then, and buffers are allocated
_TRIAL_MS, _MOST_TRIAL = 2.0, 20                    # the trial of a candidate fills this time, with at most so many calls
_NEAR = 1.25                    # finalists are within this of the best trial
_ROUNDS = 5
_BATCH_MS, _MOST = 8.0, 50      # a round of a finalist fills this time, with at most so many calls

Run = Callable[[], None]


def measure(group: Group, title: str, candidates: Sequence, build: Callable[[Any], Any]) -> tuple[dict, dict]:
    """({candidate: milliseconds a call, the slowest rank's median}, {candidate: why it failed}). Collective; equal on all ranks.

    `build(candidate)`, maybe collective, gives an object that makes a call when called, once its `compile()`, which sends
    nothing, has returned. What either raises on one rank rules the candidate out on all.
    """
    with _progress(group, title, 3 * len(candidates) + _ROUNDS) as step:
        runs, reasons = {}, {}
        for candidate in candidates:
            runs[candidate], reasons[candidate] = _tried(lambda candidate=candidate: build(candidate))
        start = group.rank * len(candidates) // group.size
        for candidate in (*candidates[start:], *candidates[:start]):
            if not reasons[candidate]:
                _, reasons[candidate] = _tried(runs[candidate].compile)
            step(str(candidate))
        everyone = group.all_gather_object([reasons[candidate] for candidate in candidates])
        failed = {}
        for candidate, found in zip(candidates, zip(*everyone)):
            bad = next((rank for rank, why in enumerate(found) if why), None)
            if bad is not None:
                failed[candidate] = f"rank {group.world_ranks[bad]}: {found[bad]}"
                del runs[candidate]
        if not runs:
            return {}, failed
        first = _times(group, runs, 1, dict.fromkeys(runs, _FIRST), step)
        calls = {candidate: max(_FIRST, min(_MOST_TRIAL, math.ceil(_TRIAL_MS / ms))) for candidate, ms in first.items()}
        trial = _times(group, runs, 1, calls, step)
        best = min(trial, key=trial.get)
        finalists = {candidate: run for candidate, run in runs.items() if trial[candidate] <= _NEAR * trial[best]}
        calls = {candidate: max(1, min(_MOST, math.ceil(_BATCH_MS / trial[candidate]))) for candidate in finalists}
        final = _times(group, finalists, _ROUNDS, calls, step)
        drift = final[best] / trial[best]               # clocks fall under load: makes the others' trials comparable
        return {candidate: final.get(candidate, drift * trial[candidate]) for candidate in runs}, failed


def _tried(work: Callable[[], Any]) -> tuple[Any, str]:
    """(what `work` gives, why it failed)."""
    try:
        return work(), ""
    except HangError:
        raise                           # nothing that ranks could agree on
    except Exception as error:          # whatever a compiler or a driver raises
        return None, f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:200]}"


def _times(group: Group, runs: dict, rounds: int, calls: dict, step: Callable[[str], None]) -> dict:
    """Milliseconds a call of each: its median over the rounds on the slowest rank."""
    order, mine = list(runs), {candidate: [] for candidate in runs}
    for number in range(rounds):
        turn = number % len(order)
        for candidate in order[turn:] + order[:turn]:
            mine[candidate].append(batch(group, runs[candidate], calls[candidate]))
            if rounds == 1:
                step(str(candidate))
        if rounds > 1:
            step(f"round {number + 1} of {rounds}")
    everyone = group.all_gather_object([statistics.median(mine[candidate]) for candidate in order])
    return dict(zip(order, map(max, zip(*everyone))))


def batch(group: Group, run: Run, calls: int) -> float:
    """Milliseconds a call of back-to-back calls on this rank, behind an untimed one and a barrier."""
    run()
    backend().synchronize()
    group.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    backend().synchronize()
    return (time.perf_counter() - start) * 1e3 / calls


@contextmanager
def _progress(group: Group, title: str, steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on the terminal of member 0, where there is one and rich is installed; gives a function that takes a step."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        Console = None
    if group.rank != 0 or Console is None or not (console := Console(stderr=True)).is_terminal:
        yield lambda text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=steps, now="")

        def step(text: str) -> None:
            bar.update(task, advance=1, now=text, refresh=True)
        yield step
