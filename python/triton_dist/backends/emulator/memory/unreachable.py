# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Base addresses of ranks whose memory loads and stores cannot reach.

On a GPU the base of such a rank is 0. Here it is an address that nothing has and that says whose it was to be, so that whatever
uses it can name the rank.
"""
from triton_dist.backends.emulator.engine import scheduler
from triton_dist.runtime.heap import elsewhere

_FIRST = 1 << 62              # no user address is that high
_ROOM = 1 << 42               # bytes of a heap, at most
_MOST = 1 << 18               # ranks beyond this, either way, lose their number


def base(rank: int) -> int:
    """The base address of a rank that is not there, or not reachable."""
    return _FIRST + (max(-_MOST, min(rank, _MOST)) + _MOST) * _ROOM


def words(address: int) -> str:
    """What an address got from `base` was to be; "" for any other."""
    if address < _FIRST:
        return ""
    rank, running = (address - _FIRST) // _ROOM - _MOST, scheduler.active()
    context = running.context_of(running.current.rank)
    if not 0 <= rank < context.world_size:
        return f"symm_at was given rank {rank}, which does not exist: the world has {context.world_size}"
    return elsewhere(context.nodes, context.rank, rank)
