# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Options of NVIDIA's compiler that a variable sets, where the launch does not."""
import os
import re

from triton_dist.runtime.errors import InvalidArgument

PTX_VERSION = "TRITON_DIST_PTX_VERSION"


def parse_ptx_version(text: str) -> int:
    """83 of "8.3" or "83". Raises ValueError that says what was expected."""
    found = re.fullmatch(r"(\d)\.?(\d)", text.strip())
    if found is None:
        raise ValueError("expected a version of PTX such as 8.3")
    return 10 * int(found[1]) + int(found[2])


def options(given: dict) -> dict:
    """`given`, and ptx_version where TRITON_DIST_PTX_VERSION is set and `given` has none.

    Raises InvalidArgument where the variable holds no version.
    """
    text = os.environ.get(PTX_VERSION, "").strip()
    if not text or "ptx_version" in given:
        return given
    try:
        return {**given, "ptx_version": parse_ptx_version(text)}
    except ValueError as error:
        raise InvalidArgument(f"{PTX_VERSION}={text!r}: {error}") from None
