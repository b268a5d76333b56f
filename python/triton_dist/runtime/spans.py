# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What a recorder gives: spans of time inside kernels."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Something that a program did.

    rank: whose; kernel: its name; program: number of the program, -1 for a copy engine; event: one of trace_abi.EVENTS;
    lap: which of its kind; number: what the kernel says of it; start, stop: in nanoseconds of the rank's device, or in turns of
    the emulator.
    """
    rank: int
    kernel: str
    program: int
    event: str
    lap: int
    number: int
    start: int
    stop: int
