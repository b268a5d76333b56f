# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Environment variables that hold numbers. docs/environment.md lists every variable of ours."""
import math
import os
from typing import Callable

from triton_dist.runtime.errors import InvalidArgument


def number(name: str, default: float, least: float = -math.inf, kind: Callable = float) -> float:
    """Value of a variable, as `kind` (float or int); `default` where it is unset or empty.

    Raises InvalidArgument for what is no finite number, or below `least`.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        what = "a whole number" if kind is int else "a number"
        raise InvalidArgument(f"{name}={text!r}: expected {what}" + (f" of at least {least}" if least > -math.inf else ""))
    return value


def wait_timeout() -> float:
    """TRITON_DIST_WAIT_TIMEOUT: seconds after which a device wait gives up; 0 when waits are unbounded."""
    return number("TRITON_DIST_WAIT_TIMEOUT", 0.0, least=0)


def debug() -> bool:
    """TRITON_DIST_DEBUG: whether ops compare their calls over the ranks."""
    return os.environ.get("TRITON_DIST_DEBUG", "") not in ("", "0")
