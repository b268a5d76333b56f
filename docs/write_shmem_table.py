# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes the table of libshmem_device's functions: python docs/write_shmem_table.py [FILE]. Kept in step by the tests."""
import sys
from collections import Counter
from pathlib import Path

from triton_dist.backends.amd import rocshmem_functions
from triton_dist.backends.nvidia import nvshmem_functions
from triton_dist.language.abi import ROWS
from triton_dist.language.extra import libshmem_device
from triton_dist.language.shmem_abi import FUNCTIONS

_WHO = {"all": "every thread", "thread": "one thread", "warp": "the first warp", "block": "all threads together",
        "each": "each thread that calls it"}
_HEAD = """<!-- Written by docs/write_shmem_table.py; do not edit. -->
# Which SHMEM function works where

`libshmem_device` has {total} functions: {counts}.
A function that is refused gives an error when the kernel is compiled. The error names the function and the backend.

| function | done by | emulator | NVIDIA, `TRITON_DIST_HEAP=nvshmem` | AMD, `TRITON_DIST_HEAP=rocshmem` (compiled, never run) | status |
|---|---|---|---|---|---|
"""


def table() -> str:
    """The page, in Markdown."""
    statuses, lines = Counter(), []
    for function in FUNCTIONS.values():
        row = ROWS[function.symbol]
        nvidia, amd = (f"`{name}`" if name else "refused" for name in (nvshmem_functions.function_of(row),
                                                                       rocshmem_functions.function_of(row)))
        status = "emulator only" if nvidia == "refused" else "works"
        statuses[status] += 1
        given = ", ".join(f"{p}={function.defaults[0]}" if function.defaults and p == function.params[-1] else p
                          for p in function.params)
        lines.append(f"| `{function.name}({given})` | {_WHO[row.caller]} | works | "
                     f"{nvidia} | {amd} | {status} |\n")
    counts = ", ".join(f"{statuses[name]} {words}" for name, words in (
        ("works", "work on NVIDIA GPUs and in the emulator"), ("emulator only", "in the emulator only")))
    constants = {name: getattr(libshmem_device, name) for name in libshmem_device.__all__
                 if isinstance(getattr(libshmem_device, name), int)}
    values = ", ".join(f"`{name}` {'sys.maxsize' if value == sys.maxsize else value}" for name, value in constants.items())
    return f"{_HEAD.format(total=len(FUNCTIONS), counts=counts)}{''.join(lines)}\n## Constants\n\n{values}.\n"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("shmem_functions.md")
    path.write_text(table())
