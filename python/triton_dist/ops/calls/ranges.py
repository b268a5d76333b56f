# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A named range around each call of an op, for timelines, where TRITON_DIST_NVTX asks for it."""
import functools
import os
from typing import Any, Callable

from triton_dist.runtime.backend import backend


def wanted() -> bool:
    """TRITON_DIST_NVTX: whether calls have ranges, of ops that are called for the first time on a group."""
    return os.environ.get("TRITON_DIST_NVTX", "") not in ("", "0")


def name_of(op: str, choice: Any, shape: tuple) -> str:
    """What a range is called: op, way, and shape of the output."""
    return f"triton_dist.{op} {choice.method} [{', '.join(map(str, shape))}]"


def around(run: Callable, name: str) -> Callable:
    """`run` inside of a range."""
    @functools.wraps(run)
    def ranged(*args: Any, **kwargs: Any) -> Any:
        with backend().named_range(name):
            return run(*args, **kwargs)
    return ranged
