# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What ranks print on one terminal."""
import sys
from typing import Any


def whole_lines() -> None:
    """From now on this process writes a line to stdout and stderr at once, with its end, so that lines of ranks never mix.

    torchrun starts ranks with `python -u`, by which text and the end of its line are two writes.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:             # not one that somebody has put in place of the terminal
            reconfigure(line_buffering=True, write_through=False)


def printable(text: str, stream: Any = None) -> str:
    """`text` without signs that a stream (stdout) cannot show, such as a tick on a terminal that knows Latin letters only."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "ascii"
    return text.encode(encoding, "ignore").decode(encoding).strip()
