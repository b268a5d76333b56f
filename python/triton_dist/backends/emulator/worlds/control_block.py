# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The control block: what each process of an emulated world tells the others of its state, and who wrote its flags last."""
import os
import struct
from dataclasses import dataclass
from typing import Any, Callable

from triton_dist.backends.emulator.worlds import ledger

RECORD = 4096                             # bytes for a Record, and one more thing at their end:
_TOLD = RECORD - 1                        # set once the rank has told its hang on stderr
_WRITER = struct.Struct("<qi52s")          # heap offset + 1, rank and name of who wrote a flag last
_WRITERS = 4096                            # slots, by offset; a later flag takes the place of an earlier one
CALLS = RECORD + _WRITERS * _WRITER.size          # where the rank's ledger of op calls begins
SIZE = CALLS + ledger.SIZE
RUNNING, BLOCKED, FINISHED, FAILED = 1, 2, 3, 4
_FORMAT = "<3q2i3q8s96s32s192s192s"        # the fields of Record, in order
if struct.calcsize(_FORMAT) > _TOLD:
    raise ValueError("a rank's record does not fit its place")


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


def told(block: Any) -> bool:
    """Whether the rank of this block has told its hang."""
    return block[_TOLD] != 0


def tell(block: Any) -> None:
    block[_TOLD] = 1


class Writers:
    """Last writer (rank, name) of a flag, by its address. Flags in the heap are noted in the control block of its owner.

    `locate` gives (owner, heap offset) of an address, or None.
    """

    def __init__(self, blocks: list, locate: Callable):
        self._blocks, self._locate, self._local = blocks, locate, {}

    def __setitem__(self, address: int, writer: tuple) -> None:
        place = self._locate(address)
        if place is None:
            self._local[address] = writer
            return
        owner, offset = place
        _WRITER.pack_into(self._blocks[owner], self._slot(offset), offset + 1, writer[0], writer[1].encode())

    def get(self, address: int) -> tuple | None:
        place = self._locate(address)
        return self._local.get(address) if place is None else self.at(*place)

    def at(self, owner: int, offset: int) -> tuple | None:
        """Last writer of the flag at `offset` in the heap of rank `owner`, as far as is known."""
        known, rank, name = _WRITER.unpack_from(self._blocks[owner], self._slot(offset))
        return (rank, name.rstrip(b"\0").decode(errors="replace")) if known == offset + 1 else None

    @staticmethod
    def _slot(offset: int) -> int:
        return RECORD + offset // 4 % _WRITERS * _WRITER.size


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
