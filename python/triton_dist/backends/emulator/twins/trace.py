# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Twins of the recorder: an observer that traces hears what kernels note."""
from typing import Any

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.registry import twin
from triton_dist.backends.emulator.rebuild import primitives
from triton_dist.backends.emulator.values.promotion import I32, I64
from triton_dist.backends.emulator.values.scalars import IntScalar
from triton_dist.language.trace_abi import CLOCK, EVENT, EVENTS


@twin("trace._is_traced")
def is_traced() -> bool:
    return scheduler.active().observer.traces


def event(number_of_event: Any, stop: Any, lap: Any, number: Any) -> IntScalar:
    scheduler.active().observer.noted(EVENTS[number_of_event.v], bool(stop.v), lap.v, number.v)
    return IntScalar(0, I32)


def clock() -> IntScalar:
    return IntScalar(scheduler.active().observer.clock(), I64)


primitives.SYMBOLS.update({EVENT: event, CLOCK: clock})
