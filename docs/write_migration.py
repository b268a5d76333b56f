# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes docs/migration.md: python docs/write_migration.py [FILE]. Kept in step by tests/published/test_names.py."""
import sys
from itertools import groupby
from pathlib import Path

from triton_dist.dropin.names import TABLES

_HEAD = """<!-- Written by docs/write_migration.py; do not edit. -->
# Migration from Triton-distributed

A script that was written for the published Triton-distributed API runs without changes, if it uses only names that exist here:

```console
$ bash launch.sh --published script.py                             # on all GPUs, or emulated ranks
$ TRITON_DIST_BACKEND=emulator bash launch.sh --published --nproc_per_node 2 script.py
```

`--published` prepares the process before the script is imported: kernels of plain `triton.jit` may use `dl` and SHMEM, and modules of
the published Triton can be imported. On emulated ranks `device="cuda"`, `torch.cuda`, `cuda` (cuda-python) and
`nvshmem` (nvshmem4py) stand for the emulated device. Each rank has one, with 132 SMs (`TRITON_DIST_EMULATOR_SMS`).
If nvshmem4py is installed, the heap is NVSHMEM's (`TRITON_DIST_HEAP`), which kernels that call SHMEM need.

{summary} The tables below list all
of them, with what new code should use. Other projects: [coming from another library](index.md#coming-from-another-library).

What differs from the original:

- `tid` and similar functions make code for single threads ([SHMEM](shmem.md#rules)). A branch on `tid` may contain
  `ld`, `st`, atomics, shuffles, arithmetic and SHMEM calls of thread scope. A barrier, a tensor operation or `dl.wait` in
  it is refused in the emulator, and hangs on a GPU.
- `simt_exec_region` cannot read elements of blocks.
- Graph capture is refused on emulated ranks.
- On GPUs `nvshmem.core` is nvshmem4py's own, except that `finalize` leaves our heap alone. Allocate with
  `nvshmem_create_tensor`.
- Scripts that run by `--published` cannot be run under `--check`.
"""


def page() -> str:
    """The page, in Markdown."""
    counts, parts = [], []
    for title, names in TABLES.items():
        there = sum(not name.missing for name in names)
        counts.append(f"{there} of {len(names)} {title.lower()}")
        parts.append(f"\n## {title}\n\n{there} of {len(names)} exist.\n")
        for module, rows in groupby(names, lambda name: name.module):
            parts.append(f"\n### `{module}`\n\n| published | in new code | instead, if missing |\n|---|---|---|\n")
            parts += [f"| `{row.name}` | {row.clean or '**missing**'} | {row.missing} |\n" for row in rows]
    summary = "The package has " + ", ".join(counts) + "."
    return _HEAD.format(summary=summary) + "".join(parts)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("migration.md")
    path.write_text(page())
