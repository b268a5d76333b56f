# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs kernels through the front end on a bare scheduler, for tests of the language alone."""
import itertools

import pytest
import torch

from triton_dist.backends.emulator import frontend
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.scheduler import Actor, Crew, Cta, Scheduler


@pytest.fixture(autouse=True)
def engine():
    """A scheduler of its own for each test; deterministic, preempting at random."""
    torch.manual_seed(0)
    with scheduler.activated(Scheduler(seed=1, mode="random")) as running:
        yield running


def start(kernel, grid, *args, rank=0, **kwargs):
    """Binds and spawns a launch on a rank; returns its crew."""
    running = scheduler.active()
    outer, running.current = running.current, Actor("host", rank, "host")
    try:
        bound = frontend.bind(kernel, grid, args, kwargs)
        crew = Crew(rank, bound.name)
        crew.bound = bound
        for z, y, x in itertools.product(*(range(n) for n in reversed(bound.grid))):
            cta = Cta((x, y, z), bound.grid, bound.name, bound.num_warps)
            running.spawn(Actor(f"{bound.name}{cta.pid}", rank, "program", cta, crew), bound.body)
    finally:
        running.current = outer
    return crew


def finish(*crews):
    """Runs until all launches are over; raises what failed in one."""
    running = scheduler.active()
    running.run_until(lambda: all(c.done for c in crews) or any(c.error for c in crews))
    for crew in crews:
        if crew.error:
            raise crew.error


def launch(kernel, grid, *args, **kwargs):
    finish(start(kernel, grid if isinstance(grid, (tuple, list)) or callable(grid) else (grid, ), *args, **kwargs))
