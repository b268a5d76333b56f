# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where code is: the stack of kernel statements that runs now, or the line of a host script. Cheap until it is printed."""
import linecache
import os
import sys
from typing import Any, NamedTuple

from triton_dist.backends.emulator.engine.registry import MARK

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DEVICE_LIBRARY = os.path.join(_LIBRARY, "language")
_MACHINERY = ("threading.py", "contextlib.py")
_HIDDEN = tuple(os.path.join(_LIBRARY, name) for name in ("backends", "runtime", "checker"))


class Site(NamedTuple):
    """A statement. `file` is a full path."""
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line} ({self.function})"

    def source(self) -> str:
        """The statement's first line."""
        return linecache.getline(self.file, self.line).strip()


_interned: dict = {}     # ids of codes and instructions -> stack; a stack keeps its codes, so their ids stay their own


def forget() -> None:
    """Drops the stacks that are known, so that they keep no kernel alive. Nothing of the runs before may be in use."""
    _interned.clear()


def kernel_stack(frame: Any = None) -> tuple:
    """Of the running kernel, or one that stands at a frame: ((code, instruction), ...), innermost first; () outside a kernel.

    Equal stacks are one object.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    if frame is None:
        return ()
    key: list = []
    inner = frame
    while frame is not None and MARK in frame.f_globals:
        key += id(frame.f_code), frame.f_lasti
        frame = frame.f_back
    found = _interned.get(tuple(key))
    if found is None:
        found, frame = [], inner
        while frame is not None and MARK in frame.f_globals:
            found.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        found = _interned[tuple(key)] = tuple(found)
    return found


def host_stack(frame: Any = None) -> tuple:
    """Of the running host script, or one at a frame: statements outside the runtime, innermost first, at most four."""
    frame = frame or sys._getframe(1)
    found: list = []
    while frame is not None and len(found) < 4:
        if not hidden(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def script_stack() -> tuple:
    """Of the running host script: its statement that has called the library, innermost first, and what has called that."""
    found: list = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < 4:
        file = frame.f_code.co_filename
        if not (hidden(file) or file.startswith(_LIBRARY + os.sep)):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def is_library(stack: tuple) -> bool:
    """Whether a kernel stack's innermost statement is called by the device library itself: a wait inside a barrier."""
    return len(stack) > 1 and all(code.co_filename.startswith(_DEVICE_LIBRARY) for code, _ in stack[:2])


def hidden(file: str) -> bool:
    """Whether a host frame of this file says nothing to the author of a script."""
    return file.startswith(_HIDDEN) or "/torch/" in file or file.endswith(_MACHINERY)


def sites(stack: tuple) -> list:
    """The statements of a stack. Those of the device library go, unless there is no other."""
    every = [Site(code.co_filename, _line(code, at), code.co_name) for code, at in stack]
    own = [s for s in every if not s.file.startswith(_DEVICE_LIBRARY)]
    return own or every


def _line(code: Any, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
