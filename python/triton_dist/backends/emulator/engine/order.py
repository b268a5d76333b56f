# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The order of turns: which ready actor goes next. The delivery modes:

    eager     copies land when issued, rare preemption
    random    any ready actor may be next
    late      streams and copies move only when an actor waits for them, or when nothing else can run
    skew      late, and one rank runs ahead of the others
    priority  the ready actor of the highest priority runs; priorities are random and change at random moments, so that
              single programs and copies are left far behind
    pct       the same with three changes at random turns (probabilistic concurrency testing)
    round-robin  everybody in turn
"""
import random
from typing import Any, Collection, Optional

from triton_dist.backends.emulator.engine.actors import Actor

MODES = ("eager", "random", "late", "skew", "priority", "pct", "round-robin")
LATE = ("late", "skew")
PREEMPT = {"eager": 64, "random": 8, "late": 8, "skew": 8, "priority": 8, "pct": 8,      # points between two preemptions,
           "round-robin": 8}                                                             # at most
_ESCAPE = 0.005      # late modes: how often any actor may run, so that a spinning program cannot starve a copy
_AHEAD = 0.9         # skew: how often the leading rank goes first
_DEMOTE = 0.01       # priority: how often the leading actor becomes the last
_CHANGES, _HORIZON = 3, 1000      # pct: how often the leading actor becomes the last, within how many turns


class Ready:
    """The actors that could take a turn now. The order depends on the mode and the generator only."""

    def __init__(self, mode: str, rng: random.Random):
        self._mode, self._rng = mode, rng
        self._late = mode in LATE
        self._awake: list = []
        self._asleep: list = []              # streams and copies
        self._leads: dict = {}               # rank -> how far ahead it likes to be
        self._changes = {int(rng.random() * _HORIZON) for _ in range(_CHANGES)} if mode == "pct" else set()
        self._taken = 0

    def add(self, actor: Actor) -> None:
        (self._asleep if actor.lazy and self._mode != "round-robin" else self._awake).append(actor)

    def remove(self, actor: Actor) -> None:
        for pool in (self._awake, self._asleep):
            if actor in pool:
                pool.remove(actor)

    def all(self) -> list:
        return self._awake + self._asleep

    def __bool__(self) -> bool:
        return bool(self._awake or self._asleep)

    def take(self, waited: Collection) -> Optional[Actor]:
        """Removes and returns the next actor; None where there is none. `waited`: the keys that actors wait for."""
        awake, asleep, rng = self._awake, self._asleep, self._rng
        if self._mode in ("priority", "pct"):
            return self._take_first()
        if self._mode == "round-robin":
            return awake.pop(0) if awake else None
        if not self._late or rng.random() < _ESCAPE:
            n = int(rng.random() * (len(awake) + len(asleep)))
            if n < len(awake):
                return _take(awake, n)
            return _take(asleep, n - len(awake)) if asleep else None
        if awake:
            if self._mode == "skew" and rng.random() < _AHEAD:
                top = max(map(self._lead, awake))
                return self._take_any(awake, [i for i, actor in enumerate(awake) if self._lead(actor) == top])
            return _take(awake, int(rng.random() * len(awake)))
        wanted = [i for i, actor in enumerate(asleep) if any(key in waited for key in actor.serves)]
        return self._take_any(asleep, wanted or range(len(asleep))) if asleep else None

    def _take_any(self, pool: list, places: Any) -> Actor:
        return _take(pool, places[int(self._rng.random() * len(places))])

    def _take_first(self) -> Optional[Actor]:
        pool = max((self._awake, self._asleep), key=lambda pool: max(map(self._urgency, pool), default=-1e9))
        if not pool:
            return None
        index = max(range(len(pool)), key=lambda i: self._urgency(pool[i]))
        self._taken += 1
        if self._taken in self._changes or self._mode == "priority" and self._rng.random() < _DEMOTE:
            pool[index].priority = -self._rng.random()
        return _take(pool, index)

    def _urgency(self, actor: Actor) -> float:
        if actor.priority is None:
            actor.priority = self._rng.random()
        return actor.priority

    def _lead(self, actor: Actor) -> float:
        if actor.rank not in self._leads:
            self._leads[actor.rank] = self._rng.random()
        return self._leads[actor.rank]


def _take(actors: list, index: int) -> Actor:
    """Removes and returns one actor, in constant time."""
    actors[index], actors[-1] = actors[-1], actors[index]
    return actors.pop()
