# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The variables that are set, and what is wrong with their values. `variable_table` has what each one does."""
from typing import Mapping

from triton_dist.doctor.report import BAD, NOTE, OK, WARN, Finding
from triton_dist.doctor.variable_table import VARIABLES

# Set under a launcher only; a wrong one makes this process wait for a world that was never started.
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """A line for each variable that is set, and one for each of ours that is not read."""
    found = []
    for name, variable in VARIABLES.items():
        text = environ.get(name, "").strip()
        if text:
            problem = variable.check(text)
            found.append(Finding(name, f"{text!r}: {problem}" if problem else text,
                                 (BAD if variable.ours else WARN) if problem else OK,
                                 f"unset {name}, or give it a value that it can have" if problem else ""))
    for name in sorted(environ):
        if name.startswith("TRITON_DIST_") and name not in VARIABLES and name != "TRITON_DIST_ROOT":
            found.append(Finding(name, "set, but nothing reads it", WARN, "triton-dist env has the names"))
    missing = [name for name in _LAUNCHER if not environ.get(name)]
    if "RANK" in environ and missing:
        found.append(Finding("RANK", f"set without {', '.join(missing)}", BAD, "unset RANK, or start with launch.sh or torchrun"))
    if "RANK" not in environ and environ.get("MASTER_ADDR"):
        found.append(Finding("MASTER_ADDR", f"{environ['MASTER_ADDR']}, without a launcher's RANK: on one node launch.sh does "
                             "not use it", NOTE))
    return found or [Finding("none is set", "", NOTE)]
