# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which heap provider a world of GPUs uses: TRITON_DIST_HEAP's word, or what the hosts leave."""
import os
import socket
from typing import Sequence

from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import Group, require_agreement


def heap_provider(offered: Sequence[str], world: Group) -> str:
    """Collective over `world`: TRITON_DIST_HEAP, the same on all ranks, out of `offered`.

    `auto`, the default: the first where all ranks are on one host, else the last."""
    asked = os.environ.get("TRITON_DIST_HEAP", "").strip().lower() or "auto"
    answers = world.all_gather_object((asked in (*offered, "auto"), socket.gethostname()))
    wrong = [rank for rank, (known, _) in enumerate(answers) if not known]
    if wrong:
        raise InvalidArgument(f"TRITON_DIST_HEAP={asked!r}: expected one of {', '.join((*offered, 'auto'))} on every rank, found "
                              f"something else on rank {wrong[0]}")
    require_agreement(world, "TRITON_DIST_HEAP", asked)
    if asked != "auto":
        return asked
    return offered[0] if len({host for _, host in answers}) == 1 else offered[-1]
