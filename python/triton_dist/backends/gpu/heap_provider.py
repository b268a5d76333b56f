# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which heap provider a world of GPUs uses: TRITON_DIST_HEAP's word, or what the hosts leave."""
import os
from typing import Any, Callable, Sequence

from triton_dist.runtime.errors import InvalidArgument, TritonDistError, UnsupportedFeature
from triton_dist.runtime.groups import Group, require_agreement
from triton_dist.runtime.hosts import host


def heap_provider(offered: Sequence[str], world: Group) -> str:
    """Collective over `world`: TRITON_DIST_HEAP, the same on all ranks, out of `offered`.

    `auto`, the default: the first where all ranks are on one host, else the last."""
    asked = os.environ.get("TRITON_DIST_HEAP", "").strip().lower() or "auto"
    answers = world.all_gather_object((asked in (*offered, "auto"), host()))
    wrong = [rank for rank, (known, _) in enumerate(answers) if not known]
    if wrong:
        raise InvalidArgument(f"TRITON_DIST_HEAP={asked!r}: expected one of {', '.join((*offered, 'auto'))} on every rank, found "
                              f"something else on rank {wrong[0]}")
    require_agreement(world, "TRITON_DIST_HEAP", asked)
    if asked != "auto":
        return asked
    return offered[0] if len({where for _, where in answers}) == 1 else offered[-1]


def on_every_rank(world: Group, provider: str, step: Callable[[], Any]) -> Any:
    """Collective over `world`: what `step` returns on this rank; UnsupportedFeature on all ranks where it fails on one.

    `step` must not communicate through `world`."""
    made, problem = None, ""
    try:
        made = step()
    except TritonDistError as error:
        problem = str(error)
    for rank, other in enumerate(world.all_gather_object(problem)):
        if other:
            raise UnsupportedFeature(f"TRITON_DIST_HEAP={provider}: rank {rank}: {other}")
    return made
