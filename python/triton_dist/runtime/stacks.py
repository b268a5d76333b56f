# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where another thread is, without holding its frames.

A frame that one thread holds while its function returns on another keeps the function's locals, and these are then destroyed on
the wrong thread. Guards of torch in C++, such as that of inference mode, put back the state of the thread that destroys them.
So torch.compile would end with a wrong grad mode on a thread that was only looked at.
"""
import functools
import gc
import os
import sys
import threading
import time
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, methodcaller
from pathlib import Path
from types import CodeType
from typing import Optional

_PACKAGES = ("torch", "triton", "triton_dist")  # whose calls are not the script's


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


def script_line(thread: Optional[int] = None) -> str:
    """Where the script of a thread, or of this one, is: 'file.py:line (function)' of the innermost call that is in no package.

    It is empty if there is none.
    """
    return next((place_in(code, line) for code, line in stack_of(thread or threading.get_ident())
                 if not in_packages(code.co_filename)), "")


def place_in(code: CodeType, line: int) -> str:
    """'file.py:line (function)' of a line of code."""
    return f"{os.path.basename(code.co_filename)}:{line} ({code.co_name})"


@functools.lru_cache(4096)
def in_packages(file: str) -> bool:
    """Whether a file belongs to torch, Triton, this package or Python itself, by where these are installed."""
    if file.startswith("<frozen "):
        return True
    path = Path(os.path.realpath(file))
    packages, python = _installed()
    return any(path.is_relative_to(folder) for folder in packages) or (
        path.is_relative_to(python) and not path.is_relative_to(python / "site-packages"))


@functools.cache
def _installed() -> tuple[list, Path]:
    """(folders of the packages, that of Python's own modules)."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    return [Path(os.path.realpath(file)).parent for file in files if file], Path(os.path.realpath(threading.__file__)).parent


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
