# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The table of twins, and what all of the front end shares: the site of a kernel statement, errors, tuples."""
import sys
from typing import Any, Callable

from triton_dist.runtime.errors import DeviceFault, InvalidArgument, UnsupportedFeature
from triton_dist.runtime.stacks import place_in

TWINS: dict = {}          # 'core.load', 'math.exp', 'libdevice.tanh', ... -> the Python twin of that builtin
MARK = "__tdist_kernel__"  # a global of every rebuilt function: this frame is a kernel's


def twin(*names: str) -> Callable:
    """Registers a function as the twin of Triton builtins, named 'module.function' without leading underscore."""
    def register(fn: Callable) -> Callable:
        for name in names:
            TWINS[name] = fn
        return fn
    return register


def site(frame: Any = None) -> str:
    """'file.py:line (function)' of the kernel statement that runs now; 'host' outside a kernel."""
    frame = frame or sys._getframe(1)
    while frame is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    return "host" if frame is None else place_of(frame)


def place_of(frame: Any) -> str:
    """'file.py:line (function)' that a frame is at."""
    return place_in(frame.f_code, frame.f_lineno)


def invalid(text: str) -> InvalidArgument:
    """An error of the kernel's source, with the place."""
    return InvalidArgument(f"{text}, at {site()}")


def unsupported(text: str) -> UnsupportedFeature:
    """Something the emulator cannot run, with the place."""
    return UnsupportedFeature(f"{text}, at {site()}")


def fault(text: str, kind: str = "") -> DeviceFault:
    """What the device would fault on, with the place; `kind`: what a checker calls it."""
    error = DeviceFault(f"{text}, at {site()}")
    error.kind = kind
    return error


class Tup(tuple):
    """tl.tuple: shapes, lists and tuples inside kernels. Adds to lists too."""
    __slots__ = ()

    def __add__(self, other: Any) -> "Tup":
        return Tup((*self, *other))

    def __radd__(self, other: Any) -> "Tup":
        return Tup((*other, *self))

    def __mul__(self, n: Any) -> "Tup":
        return Tup(tuple.__mul__(self, int(n)))

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Tup(found) if type(index) is slice else found

    @property
    def values(self) -> list:
        return list(self)
