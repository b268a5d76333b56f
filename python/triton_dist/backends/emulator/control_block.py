# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The control block: what each process of an emulated world tells the others of its state."""
import os
import struct
from dataclasses import dataclass
from typing import Any

SIZE = 4096
RUNNING, BLOCKED, FINISHED, FAILED = 1, 2, 3, 4
_FORMAT = "<3q2i3q8s96s32s192s192s"        # the fields of Record, in order
assert struct.calcsize(_FORMAT) <= SIZE


@dataclass
class Record:
    """State of one rank. `flag_offset` is in the heap of `flag_owner` (-1: not in the heap)."""
    pid: int = 0
    born: int = 0                          # start time of the process, in clock ticks, to tell a reused pid
    progress: int = 0
    state: int = RUNNING
    flag_owner: int = -1
    flag_offset: int = 0
    wanted: int = 0
    seen: int = 0
    cmp: str = ""
    kernel: str = ""
    program: str = ""
    site: str = ""
    what: str = ""

    def pack(self) -> bytes:
        values = [v.encode() if isinstance(v, str) else _fits(v) for v in vars(self).values()]
        return struct.pack(_FORMAT, *values)


def unpack(raw: Any) -> Record:
    values = struct.unpack_from(_FORMAT, raw)
    return Record(*(v.rstrip(b"\0").decode(errors="replace") if isinstance(v, bytes) else v for v in values))


def alive(record: Record) -> bool:
    """Whether the process that wrote the record still runs; a zombie does not."""
    state, born = stat_of(record.pid)
    return state not in ("", "Z", "X") and born == record.born


def stat_of(pid: int) -> tuple:
    """(state letter, start time) of a process; ('', 0) where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[19])
    except OSError:
        pass
    if os.path.exists("/proc/self/stat"):
        return "", 0
    try:
        os.kill(pid, 0)
    except OSError:
        return "", 0
    return "R", 0


def _fits(value: int) -> int:
    return (int(value) + 2**63) % 2**64 - 2**63
