# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the symmetric heap of a rank holds, as text."""
from triton_dist.runtime.heap import RESERVED, heap
from triton_dist.runtime.state import state

_UNITS = ("B", "KiB", "MiB", "GiB")


def memory_summary() -> str:
    """What this rank's symmetric heap holds: a line for each tensor of it, workspaces of ops included. Not collective.

    Returns lines of text: the heap's size, what is in use, and the largest range that is free; then name, bytes and ranks of
    each allocation, the largest first; last the bytes of device memory outside the heap in which workspaces count calls.
    Raises NotInitialized where there is no heap.

    Example:
        print(triton_dist.memory_summary())
    """
    here, rank = heap(), state().world.world_ranks[state().world.rank]
    found = sorted(here.allocations(), key=lambda a: (-a.nbytes, a.offset))
    used = RESERVED + sum(a.nbytes for a in found)
    lines = [f"symmetric heap of rank {rank}: {_size(here.arena.nbytes)}, {_size(used)} in use, largest free range "
             f"{_size(here.largest_free())}"]
    width = max((len(a.name) for a in found), default=0)
    lines += [f"  {a.name:<{width}}  {_size(a.nbytes):>10}  ranks {list(a.group.world_ranks)}" for a in found]
    control = sum(space.control.nbytes for space in state().workspaces.values())
    lines.append(f"outside the heap: {_size(control)} of {len(state().workspaces)} workspaces")
    return "\n".join(lines)


def _size(nbytes: int) -> str:
    """Bytes in the largest unit of which there is at least one, with up to one decimal."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"
