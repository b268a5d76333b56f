# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs that end badly: what an exception of the emulator or of the script is called in a report."""
import traceback

from triton_dist.backends.emulator.engine.registry import MARK
from triton_dist.checker.faults import Faults, Found
from triton_dist.checker.sites import Site, hidden, sites
from triton_dist.runtime.errors import CollectiveMismatch, DeviceFault, HangError


def note_error(faults: Faults, error: BaseException) -> None:
    """Adds the fault that an exception which has ended a run stands for."""
    if isinstance(error, DeviceFault):
        kind = error.kind or "error"
    elif isinstance(error, CollectiveMismatch):
        kind = "collective-mismatch"
    else:
        kind = getattr(error, "kind", "") or ("deadlock" if isinstance(error, HangError) else "error")
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    name = "" if isinstance(error, (DeviceFault, HangError)) else f"{type(error).__name__}: "
    try:
        faults.add(kind, statements(error), f"{name}{error}{notes}")
    except Found:
        pass


def statements(error: BaseException) -> list:
    """The kernel statements that an exception came through, innermost first; those of the script where there is none."""
    every = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [(frame, line) for frame, line in every if MARK in frame.f_globals]
    if not inside and getattr(error, "stack", ()):
        return sites(error.stack)
    inside = inside or [(frame, line) for frame, line in every if not hidden(frame.f_code.co_filename)] or every[-1:]
    return [Site(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in reversed(inside)]
