# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The context global: what device code knows of the world (protocol rule 20).

One struct, named `tdist_ctx` in every module of the device runtime, filled by the host when a module is loaded and again
when the world changes. Layout, little endian (the `.ll` files declare the same):

    int32 rank, int32 world_size, int32 kernel_id, int32 reserved,
    int64 wait_timeout_ns, int64 diagnostics_address, int64 barrier_pad_address, int64 0, int64 base[64]

`base[r]` is the address at which rank r's heap is mapped here; 0 means not reachable by loads and stores. The 0 before it is what
a kernel finds for rank -1: the address that `symm_at` makes of it faults. Otherwise it would lie in this rank's own heap.
"""
import struct
from dataclasses import dataclass, field

MAX_WORLD = 64
SYMBOL = "tdist_ctx"
_FORMAT = f"<4i4q{MAX_WORLD}Q"
SIZE = struct.calcsize(_FORMAT)

# Diagnostics: records a bounded wait writes when it expires (host memory that the device can write).
DIAG_SLOTS = 64
_DIAG_RECORD = "<4i3q5i"      # valid, rank, kernel_id, n | flag, wanted, seen | program x, y, z, lane, site
DIAG_RECORD_SIZE = 64         # padded
if struct.calcsize(_DIAG_RECORD) > DIAG_RECORD_SIZE:
    raise ValueError("a diagnostic record does not fit its slot")


@dataclass
class Context:
    """Host copy of the context global."""
    rank: int = 0
    world_size: int = 1
    wait_timeout_ns: int = 0
    diagnostics: int = 0
    barrier_pad: int = 0
    bases: list = field(default_factory=list)
    nodes: tuple = ()                   # node of each world rank; stays on the host

    def pack(self, kernel_id: int = 0) -> bytes:
        """The struct's bytes for one module."""
        bases = list(self.bases) + [0] * (MAX_WORLD - len(self.bases))
        return struct.pack(_FORMAT, self.rank, self.world_size, kernel_id, 0, self.wait_timeout_ns, self.diagnostics,
                           self.barrier_pad, 0, *bases)


@dataclass(frozen=True)
class WaitRecord:
    """One expired wait: who waited for what, and what the flag held."""
    rank: int
    kernel_id: int
    n: int
    flag: int
    wanted: int
    seen: int
    program: tuple
    lane: int
    site: int


def unpack_records(raw: bytes) -> list[WaitRecord]:
    """The valid records of a diagnostics buffer of DIAG_SLOTS * DIAG_RECORD_SIZE bytes."""
    records = []
    for slot in range(DIAG_SLOTS):
        valid, rank, kernel, n, flag, wanted, seen, x, y, z, lane, site = struct.unpack_from(
            _DIAG_RECORD, raw, slot * DIAG_RECORD_SIZE)
        if valid:
            records.append(WaitRecord(rank, kernel, n, flag, wanted, seen, (x, y, z), lane, site))
    return records
