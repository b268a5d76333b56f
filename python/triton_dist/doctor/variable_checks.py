# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What is wrong with a variable's value: functions that give a sentence, or "" where nothing is."""
import math
import shutil
from pathlib import Path
from typing import Callable

from triton_dist.runtime.environment import parse_number


def one_of(*allowed: str) -> Callable[[str], str]:
    """A check for one of these words."""
    return lambda text: "" if text.lower() in allowed else f"expected one of {', '.join(allowed)}"


def read_by(parse: Callable) -> Callable[[str], str]:
    """A check that says what the runtime's own reader of such a value says."""
    def problem(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            return str(error)
        return ""
    return problem


def number(kind: Callable, least: float = -math.inf) -> Callable[[str], str]:
    """A check for numbers of at least `least`."""
    return read_by(lambda text: parse_number(text, least, kind))


def mode(text: str) -> str:
    """Of the emulator's order."""
    try:
        from triton_dist.backends.emulator.engine.order import MODES
    except ImportError:             # greenlet is missing, which the versions report
        return ""
    return one_of(*MODES)(text)


def folder(text: str) -> str:
    """Of a path that is a folder, or can become one."""
    place = Path(text)
    while not place.exists():
        place = place.parent
    return "" if place.is_dir() else f"{place} is not a folder"


def program(text: str) -> str:
    """Of what can be run."""
    return "" if shutil.which(text) else "no such program"


def flag(text: str) -> str:
    """Of Triton's switches."""
    return one_of("0", "1", "true", "false", "on", "off", "y", "n", "yes", "no")(text)


def nothing(text: str) -> str:
    """Any value is right."""
    return ""
