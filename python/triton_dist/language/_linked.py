# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the libraries that are linked into a kernel say to the device functions while the kernel is traced.

A backend writes the files that its kernels link. The first line of such a file is a statement: which backend it is, which
device functions it lacks and why, and code that Triton must see in the kernel itself. So the answer comes from the target
of the compilation, which need not be the backend of the process. A file's name changes with its content and is a part of
Triton's cache key, and so is what the file states.
"""
import functools
import json
import re
from dataclasses import asdict, dataclass, field

MARK = "; triton_dist states "


@dataclass(frozen=True)
class Statement:
    """The first line of a linked file.

    backend: its name, for errors. lacks: symbols of device functions that kernels linked with this file cannot call, by the
    reason. assembly: (text, constraints) of inline assembly, by symbol, for functions that give more than one value, which
    a call cannot, and for instructions that only some targets of the backend have.
    """
    backend: str = ""
    lacks: dict = field(default_factory=dict)
    assembly: dict = field(default_factory=dict)

    def line(self) -> str:
        """The line, without its end."""
        return MARK + json.dumps(asdict(self), sort_keys=True)

    def why_not(self, symbol: str) -> str | None:
        """Why `symbol` cannot be called; None where it can."""
        return next((why for why, symbols in self.lacks.items() if symbol in symbols), None)


@functools.cache
def statement(path: str) -> Statement:
    """What the linked file at `path` states; nothing where it is not one of ours."""
    with open(path, "rb") as file:
        line = file.readline()
    return Statement(**json.loads(line[len(MARK):])) if line.startswith(MARK.encode()) else Statement()


@functools.cache
def defined(path: str) -> frozenset:
    """Symbols that the device runtime at `path` defines."""
    with open(path) as file:
        return frozenset(re.findall(r"^define [^@]*@(tdist_\w+)\(", file.read(), re.M))


def libraries(semantic) -> dict:
    """{key: path} of what is linked into the kernel that is being traced."""
    return dict(getattr(semantic.builder.options, "extern_libs", None) or ())
