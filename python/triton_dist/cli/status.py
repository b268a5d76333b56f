# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How a tool of the command line ends."""
import sys
from typing import Callable

from triton_dist.runtime.errors import InvalidArgument, TritonDistError


def status_of(tool: str, work: Callable[[], int]) -> int:
    """What `work` returns; where it raises one of our errors, that is printed: 2 for words that make no sense, else 1."""
    try:
        return work()
    except TritonDistError as error:
        print(f"triton-dist {tool}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1
