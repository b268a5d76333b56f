# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which ranks are on one host."""
import functools
import socket
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def host() -> str:
    """What all processes of this host have alike and no other host has: its name, which others may have, and that of its boot."""
    try:
        return f"{socket.gethostname()} {_BOOT.read_text().strip()}"
    except OSError:                         # another kernel, or /proc is hidden
        return socket.gethostname()
