# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Python callables as kernels, for tests of the machine without its front end."""
from dataclasses import dataclass
from typing import Callable

from triton_dist.backends.emulator.backend import machine
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.scheduler import Waiting
from triton_dist.backends.emulator.memory import memory

MODES = scheduler.MODES


@dataclass
class Launch:
    """What frontend.bind returns, over a callable that takes the program's id."""
    name: str
    grid: tuple
    fn: Callable
    num_warps: int = 4

    def body(self):
        self.fn(*scheduler.active().current.cta.pid)


def launch(fn, grid=(1, 1, 1), name=None):
    """Launches a callable on the calling rank's current stream."""
    machine().device().launch(Launch(name or fn.__name__, grid, fn))


def wait_flag(address, value):
    """Waits until the int32 at `address` is at least `value`."""
    engine, mem = scheduler.active(), memory.active()
    engine.point()
    engine.block(address, lambda: mem.peek(address, 32) >= value,
                 Waiting("flag", address, value, "ge", lambda: mem.peek(address, 32), "kernel.py:1 (wait)"))


def set_flag(address, value):
    scheduler.active().point()
    memory.active().flag_store(address, value, 32)


def step():
    scheduler.active().point()
