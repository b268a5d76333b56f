# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Writes the page of environment variables: python docs/write_environment.py [FILE]. Kept in step by the tests."""
import sys
from pathlib import Path

from triton_dist.doctor.variable_table import SECTIONS

_HEAD = """<!-- Written by docs/write_environment.py of triton_dist/doctor/variable_table.py; do not edit. -->
# Environment variables

This page lists every variable that triton_dist reads, and those of Triton that people who write kernels use.
`triton-dist env` prints the same list with the values of the process. `triton-dist env --set` prints only those that
are set. An empty value counts as unset. An invalid value is an error that says what was expected.
"""
_AFTER = {"For the launcher, the scripts and the benchmark": """
`launch.sh` takes the defaults of its options from `NPROC_PER_NODE`, `NNODES`, `NODE_RANK`, and on several nodes `MASTER_ADDR` and
`MASTER_PORT` (one node needs no address, so one left from another job does no harm). It sets `PYTHONPATH` and, unless they are set,
`PYTHONUNBUFFERED` and `OMP_NUM_THREADS`. `triton-dist launch` is the same for those who have installed the package.
"""}


def page() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for title, variables in SECTIONS.items():
        parts.append(f"\n## {title}\n\n| variable | meaning | default |\n|---|---|---|\n")
        parts += [f"| `{variable.name}` | {variable.effect} | {variable.default} |\n" for variable in variables]
        parts.append(_AFTER.get(title, ""))
    return "".join(parts)


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("environment.md")
    path.write_text(page())
