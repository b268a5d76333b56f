# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which line of a kernel a bounded wait stands on.

In the bounded variant of the device runtime each inlined copy of a wait loads a number that the assembler makes unique
(`tdist_site` in the device.ll files). The assembly that Triton keeps beside the binary has that number and, before it, the
chain of source lines that the copy was inlined through, so no line has to travel through the compiler.
"""
import re
from functools import cache
from pathlib import Path
from typing import Callable, Iterable

from triton_dist.language import abi

_SITE = re.compile(r"\b(\d+);? +(?://|;) tdist_site$")
_FILE = re.compile(r'^\s*\.file\s+(\d+) (?:"([^"]*)" )?"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+) (\d+) (\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?[^/;]*(?:(?://|;) (.*))?")
_FRAME = re.compile(r"([^\s@\[\]:]+):(\d+)(?::\d+)?")
_LIBRARY = Path(abi.__file__).resolve().parent
_NAMES = frozenset(path.name for path in _LIBRARY.rglob("*.py"))


def sites(assembly: str) -> dict[int, str]:
    """'file.py:line' by number of the wait; of the author's statement, not of the library inside it."""
    lines = assembly.splitlines()
    files = {match[1]: Path(match[2] or "", match[3]) for match in map(_FILE.match, lines) if match}
    library = _library(files.values())
    found, frames, callers = {}, [], {}
    for line in lines:
        if match := _LOC.match(line):
            here, caller = match.group(1, 2, 3), match.group(4, 5, 6)
            callers[here] = caller
            # The comment has the whole chain, unless PTX says in the directive what the place was inlined at.
            frames = (_chain(here, callers, files, library) if caller[0]
                      else [(name, number, library(name)) for name, number in _FRAME.findall(match[7] or "")])
        elif match := _SITE.search(line.rstrip()):
            found[int(match[1])] = _author(frames)
    return found


def _library(files: Iterable[Path]) -> Callable[[str], bool | None]:
    """A function that tells whether a file of this name is the language's own, by the assembly's list of files; None: perhaps.

    A user's file may have the name of one of ours, such as memory.py.
    """
    owners: dict = {}
    for path in files:
        owners.setdefault(path.name, set()).add(path.is_relative_to(_LIBRARY))

    def library(name: str) -> bool | None:
        found = owners.get(name, {name in _NAMES})
        return found.copy().pop() if len(found) == 1 else None
    return library


def _chain(place: tuple, callers: dict, files: dict, library: Callable) -> list:
    """(file, line, whether it is ours) of a place and of what it was inlined into, innermost first."""
    frames: list = []
    while place[0] and len(frames) < 32:
        path = files.get(place[0], Path())
        frames.append((path.name, place[1], path.is_relative_to(_LIBRARY)))
        place = callers.get(place, ("",))
    return frames


@cache
def sites_of(path: str) -> dict[int, str]:
    """`sites` of an assembly file; empty where it cannot be read."""
    try:
        return sites(Path(path).read_text())
    except OSError:
        return {}


def _author(frames: list) -> str:
    known = [frame for frame in frames if frame[1] != "0"]
    if not known:
        return ""
    outside = next((frame for frame in known if frame[2] is False), None)
    perhaps = next((frame for frame in reversed(known) if frame[2] is None), None)     # the library is inside, never outside
    return ":".join((outside or perhaps or known[0])[:2])
