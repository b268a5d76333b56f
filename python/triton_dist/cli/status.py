# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How a tool of the command line ends, and what it asks before it begins."""
import os
import sys
from pathlib import Path
from typing import Callable

from triton_dist.runtime.errors import InvalidArgument, TritonDistError
from triton_dist.runtime.folders import why_unwritable


def status_of(tool: str, work: Callable[[], int]) -> int:
    """What `work` returns; where it raises one of our errors, that is printed: 2 for words that make no sense, else 1."""
    try:
        return work()
    except TritonDistError as error:
        print(f"triton-dist {tool}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1


def check_file(path: Path, option: str = "--out") -> None:
    """Raises InvalidArgument where the file `path` cannot be written: before the work, whose result would be lost."""
    if path.is_dir():
        reason = "it is a folder"
    elif path.exists() and not os.access(path, os.W_OK):
        reason = "it may not be changed"
    else:
        reason = why_unwritable(path.parent)
    if reason:
        raise InvalidArgument(f"{option} {path} cannot be written: {reason}; name another file")


def check_folder(path: Path, option: str = "--out") -> None:
    """Raises InvalidArgument where no file can be written into the folder `path`, which need not be there yet."""
    reason = why_unwritable(path)
    if reason:
        raise InvalidArgument(f"{option} {path} cannot be written: {reason}; name another folder")
