# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All orders of a small kernel with a limited number of preemptions, one after another.

Wherever several actors could continue there is a choice. The first option is to let the running actor continue. A run follows
the choices that it is given, and then takes the first option. The next run changes the last choice that can still be changed.
"""
from typing import Any, Iterator, Optional, Sequence

from triton_dist.backends.emulator.engine.actors import Actor
from triton_dist.backends.emulator.engine.order import Ready
from triton_dist.checker.schedules import EXHAUSTIVE, Schedule

PREEMPTIONS = 2


class Guided(Ready):
    """The order of turns by a list of choices. `trail`: [(how many could go, which went, whether others preempt)] as it was."""

    def __init__(self, rng: Any, schedule: Schedule):
        super().__init__("random", rng)
        self._choices, self.trail, self._last = schedule.choices, schedule.trail, None

    def add(self, actor: Actor) -> None:
        self._awake.append(actor)

    def take(self, waited: Any) -> Optional[Actor]:
        pool = self._awake
        if not pool:
            return None
        running = self._last in pool
        options = [self._last, *(a for a in pool if a is not self._last)] if running else list(pool)
        chosen = 0
        if len(options) > 1:
            at = len(self.trail)
            chosen = min(self._choices[at], len(options) - 1) if at < len(self._choices) else 0
            self.trail.append((len(options), chosen, running))
        self._last = options[chosen]
        pool.remove(self._last)
        return self._last


def guide(scheduler: Any, schedule: Schedule) -> None:
    """Makes a scheduler follow an exhaustive schedule: every point is a choice."""
    scheduler._ready = Guided(scheduler.rng, schedule)
    scheduler.point = scheduler.pause


def following(trail: Sequence[tuple], preemptions: int) -> Optional[tuple]:
    """The choices of the next run; None after the last."""
    for at in range(len(trail) - 1, -1, -1):
        options, chosen, preempts = trail[at]
        spent = sum(1 for _, taken, could in trail[:at] if could and taken)
        if chosen + 1 < options and (not preempts or spent < preemptions):
            return (*(taken for _, taken, _ in trail[:at]), chosen + 1)
    return None


def exhaustive(count: int, world_size: int, num_sms: int, preemptions: int = PREEMPTIONS) -> Iterator[Schedule]:
    """All schedules with at most `preemptions`, or the first `count`. Each must be run before the next is asked for."""
    choices: Optional[tuple] = ()
    while choices is not None and count > 0:
        schedule = Schedule(EXHAUSTIVE, 0, world_size, num_sms, choices)
        yield schedule
        choices, count = following(schedule.trail, preemptions), count - 1
