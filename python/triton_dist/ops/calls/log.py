# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The log of decisions: how calls of an op run, and why. Logger "triton_dist.plans"; TRITON_DIST_LOG=plans prints it."""
import logging
import warnings
from typing import Any

from triton_dist.runtime.environment import logs
from triton_dist.runtime.groups import Group
from triton_dist.runtime.state import state

plans = logging.getLogger("triton_dist.plans")


def decided(op: str, group: Group, call: Any, way: Any, why: str) -> None:
    """A line for a kind of call that is planned: op, shape, ranks, method with its tiling, and the reason."""
    if plans.isEnabledFor(logging.INFO):
        plans.info("rank %d of %s: %s: %s runs by %s, because %s", group.rank, list(group.world_ranks), op, call, way, why)


def fallback(what: Any, text: str) -> None:
    """A call runs otherwise than it was asked to. Logged each time, and a warning on the first occasion in a world."""
    plans.info("%s", text)
    if what not in state().warned:
        state().warned.add(what)
        warnings.warn(text, RuntimeWarning, stacklevel=6)


def _show() -> None:
    """Prints the log to stderr where TRITON_DIST_LOG asks for it."""
    if "plans" in logs():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        plans.addHandler(handler)
        plans.setLevel(logging.INFO)


_show()
