# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Tuning of listed shapes into a table. The tuning itself is the ops' own (ops/_tune.py)."""
from typing import Any


def __getattr__(name: str) -> Any:
    """The published autotuner of host functions, imported on first use: docs/migration.md."""
    if name in ("autotune", "to_hashable"):
        from triton_dist.dropin import tuning
        return getattr(tuning, name)
    raise AttributeError(name)
