# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The versions that triton_dist is made for, and the check of them at import. Nothing else states a range."""
import importlib
import re
import sys
import warnings
from dataclasses import dataclass

from triton_dist.runtime.errors import UnsupportedFeature


@dataclass(frozen=True)
class Supported:
    """A range of (major, minor): below `least` nothing is promised and import fails; above `newest` nothing was tested."""
    name: str
    least: tuple
    newest: tuple

    def __str__(self) -> str:
        return f"{_text(self.least)} to {_text(self.newest)}"

    def problem(self, found: str) -> str:
        """What is wrong with version `found`; '' where nothing is."""
        version = parse(found)
        if version < self.least:
            return (f"{self.name} {found} is too old: triton_dist needs {_text(self.least)} or newer (tested up to "
                    f"{_text(self.newest)}); {self.remedy()}")
        if version > self.newest:
            return (f"{self.name} {found} is newer than any that triton_dist was tested with ({self}); if it misbehaves, "
                    f"{self.remedy()}")
        return ""

    def remedy(self) -> str:
        """The command that gives a version in the range."""
        if self.name == "Python":
            return f"use python{_text(self.least)} or newer"
        upper = f"{self.newest[0]}.{self.newest[1] + 1}"
        return f"pip install '{self.name}>={_text(self.least)},<{upper}'"


PYTHON = Supported("Python", (3, 11), (3, 13))
TORCH = Supported("torch", (2, 11), (2, 13))
TRITON = Supported("triton", (3, 6), (3, 9))


def parse(version: str) -> tuple:
    """(major, minor) of a version such as "2.11.0+cu130"; (0, 0) where there is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def installed() -> dict:
    """Version by name of Python, torch and triton; '' for what cannot be imported."""
    found = {PYTHON.name: ".".join(map(str, sys.version_info[:3]))}
    for item in (TORCH, TRITON):
        try:
            found[item.name] = str(importlib.import_module(item.name).__version__)
        except ImportError:
            found[item.name] = ""
    return found


def check() -> None:
    """Called at import. Raises UnsupportedFeature below a range, warns above it."""
    found = installed()
    for item in (PYTHON, TORCH, TRITON):
        version = found[item.name]
        if not version:
            raise UnsupportedFeature(f"triton_dist needs {item.name}, which cannot be imported; {item.remedy()}")
        problem = item.problem(version)
        if problem and parse(version) < item.least:
            raise UnsupportedFeature(problem)
        if problem:
            warnings.warn(problem, stacklevel=3)


def _text(version: tuple) -> str:
    return ".".join(map(str, version))
