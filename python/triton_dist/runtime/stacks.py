# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where another thread is, without holding its frames.

A frame that one thread holds while its function returns on another keeps the function's locals, and these are then destroyed on
the wrong thread. Guards of torch in C++, such as that of inference mode, put back the state of the thread that destroys them.
So torch.compile would end with a wrong grad mode on a thread that was only looked at.
"""
import gc
import sys
import threading
import time
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, methodcaller
from types import CodeType
from typing import Optional


def stack_of(thread: int) -> list[tuple[CodeType, int]]:
    """The calls that a thread is in, innermost first: code, and the line it is at.

    Args:
        thread: what threading.get_ident() gives on that thread.

    Returns an empty list where there is no such thread, or it runs no Python code.
    """
    # Threads take turns between bytecodes. All of this is one call of C, during which no other thread runs, so that no function
    # returns while its frame is held. Python 3.11 may collect garbage in the middle, which runs bytecode.
    collects = gc.isenabled()
    gc.disable()
    try:
        innermost = map(methodcaller("get", thread), starmap(sys._current_frames, [()]))
        frames = takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))
        return list(map(attrgetter("f_code", "f_lineno"), frames))
    finally:
        if collects:
            gc.enable()


class Watched:
    """The thread that makes this object, for another one that asks whether it runs."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self.thread)

    def ran(self) -> Optional[int]:
        """Nanoseconds that the thread has run so far; None once it has ended. Where two answers are equal it stood still."""
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:
            return None
