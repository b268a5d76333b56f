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

from triton_dist.language import abi

_SITE = re.compile(r"\b(\d+);? +(?://|;) tdist_site$")
_FILE = re.compile(r'^\s*\.file\s+(\d+) (?:"[^"]*" )?"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+) (\d+) (\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?[^/;]*(?:(?://|;) (.*))?")
_FRAME = re.compile(r"([^\s@\[\]:]+):(\d+)(?::\d+)?")
_LIBRARY = frozenset(path.name for path in Path(abi.__file__).parent.rglob("*.py"))


def sites(assembly: str) -> dict[int, str]:
    """'file.py:line' by number of the wait; of the author's statement, not of the library inside it."""
    lines = assembly.splitlines()
    files = {match[1]: Path(match[2]).name for match in map(_FILE.match, lines) if match}
    found, frames, callers = {}, [], {}
    for line in lines:
        if match := _LOC.match(line):
            here, caller = match.group(1, 2, 3), match.group(4, 5, 6)
            callers[here] = caller
            # The comment has the whole chain, unless PTX says in the directive what the place was inlined at.
            frames = (_chain(here, callers, files) if caller[0] else _FRAME.findall(match[7] or ""))
        elif match := _SITE.search(line.rstrip()):
            found[int(match[1])] = _author(frames)
    return found


def _chain(place: tuple, callers: dict, files: dict) -> list:
    """(file, line) of a place and of what it was inlined into, innermost first."""
    frames: list = []
    while place[0] and len(frames) < 32:
        frames.append((files.get(place[0], ""), place[1]))
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
    outside = [frame for frame in known if frame[0] not in _LIBRARY]
    return ":".join((outside or known)[0]) if known else ""
