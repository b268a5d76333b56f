# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which schedules a check runs, and the token that names one for a replay."""
import re
from dataclasses import dataclass, field
from typing import Iterator, Optional, Sequence

from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.runtime.errors import InvalidArgument

EXHAUSTIVE = "exhaustive"
_ORDER = ("eager", "late", "random", "skew", "priority", "pct", "round-robin")      # a plain fault shows at once
_TOKEN = re.compile(r"([a-z-]+)\.s(\d+)\.w(\d+)\.m(\d+)(?:\.c(\d+(?:-\d+)*)?)?")


@dataclass(frozen=True)
class Schedule:
    """Everything that fixes a run: mode and seed of the order, ranks, programs resident on a rank, choices of an exhaustive one.

    trail: what an exhaustive run could have chosen; filled by the run.
    """
    mode: str
    seed: int
    world_size: int
    num_sms: int
    choices: tuple = ()
    trail: list = field(default_factory=list, compare=False)

    @property
    def token(self) -> str:
        """'late.s17.w4.m8': what --replay takes."""
        choices = f".c{'-'.join(map(str, self.choices))}" if self.mode == EXHAUSTIVE else ""
        return f"{self.mode}.s{self.seed}.w{self.world_size}.m{self.num_sms}{choices}"


def parse(token: str) -> Schedule:
    """The schedule of a token."""
    found = _TOKEN.fullmatch(token.strip())
    if found is None or found.group(1) not in (*MODES, EXHAUSTIVE):
        raise InvalidArgument(f"replay token {token!r}: expected mode.sSEED.wRANKS.mSMS with a mode of {', '.join(MODES)}")
    choices = tuple(map(int, found.group(5).split("-"))) if found.group(5) else ()
    return Schedule(found.group(1), *map(int, found.groups()[1:4]), choices)


def schedules(count: int, seed: int, world_size: int, num_sms: int, modes: Optional[Sequence[str]] = None) -> Iterator[Schedule]:
    """`count` schedules: the modes in turn, each with seeds from `seed` on; 'exhaustive' alone enumerates orders instead."""
    chosen = tuple(modes or _ORDER)
    for mode in chosen:
        if mode not in (*MODES, EXHAUSTIVE):
            raise InvalidArgument(f"modes: expected some of {', '.join((*MODES, EXHAUSTIVE))}, found {mode!r}")
    if EXHAUSTIVE in chosen and len(chosen) > 1:
        raise InvalidArgument(f"modes: {EXHAUSTIVE!r} stands alone, found {', '.join(chosen)}")
    if count < 1 or world_size < 1 or num_sms < 1:
        raise InvalidArgument(f"schedules, ranks and SMs: expected at least 1 of each, found {count}, {world_size}, {num_sms}")
    if chosen == (EXHAUSTIVE, ):
        from triton_dist.checker.exhaustive import exhaustive
        return exhaustive(count, world_size, num_sms)
    return (Schedule(chosen[i % len(chosen)], seed + i // len(chosen), world_size, num_sms) for i in range(count))
