# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The recorder's device functions as ABI rows, and the layout of what they write.

They make a library of their own, which is linked while a process traces. Kernels that are compiled without it are the same as
if they did not call the recorder. `trace.py` makes the functions, `backends/gpu/trace_library.py` their bodies, and
`backends/emulator/twins/trace.py` their twins.

A kernel's buffer has a slot for each (program, event, lap): start and stop in nanoseconds, and a number that the kernel gives.
So nothing is counted, and a warp that records waits for nothing.
"""
from triton_dist.language.abi import ROWS, Row

LIBRARY = "tdist_trace"       # key under extern_libs
SYMBOL = "tdist_trace_buffer"           # the global variable that says where the buffer is: address, programs, laps
EVENTS = ("tile", "wait", "load", "mma", "add", "store", "signal", "push")
WORDS = 4                     # int64 of a slot: start, stop, number, and one that is free
PROGRAMS, LAPS = 256, 128     # of a buffer; what is beyond is not recorded

EVENT = f"{LIBRARY}_event"
CLOCK = f"{LIBRARY}_clock"
ROWS[EVENT] = Row(EVENT, ("int32", "int32", "int32", "int32"), "int32", False,
                  "(event, 0 for start or 1 for stop, lap, number): writes the time to the slot", library=LIBRARY)
ROWS[CLOCK] = Row(CLOCK, (), "int64", False, "nanoseconds of the device's global timer", library=LIBRARY)
