# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""How far the clocks of devices are apart: flags go to and fro between rank 0 and each other rank, each noting its time.

Of a round trip t0 -> t1 -> t2 the other clock is ahead by t1 - (t0 + t2) / 2, to within half of the trip. The quickest of many
trips counts. Clocks drift, so this is done before and after a trace, and what lies between is interpolated.
"""
from dataclasses import dataclass

import torch
import triton.language as tl

import triton_dist.language as dl
from triton_dist.language.trace import _clock
from triton_dist.runtime.groups import Group
from triton_dist.runtime.heap import create_symm_tensor, free_symm_tensor
from triton_dist.runtime.jit import jit
from triton_dist.runtime.streams import device, synchronize

TRIPS = 200


@dataclass(frozen=True)
class Offset:
    """A clock is `ahead` ns of rank 0's, to within `error` ns, at time `at` of its own."""
    ahead: float
    error: float
    at: float


@jit
def trips_kernel(flag, times, peer, FIRST: tl.constexpr, TRIPS: tl.constexpr):
    """times int64 [TRIPS, 2]: of the rank that goes FIRST departures and returns, of the other one arrivals."""
    for trip in range(TRIPS):
        if FIRST:
            tl.store(times + 2 * trip, _clock())
            dl.notify(flag, peer, trip + 1)
            dl.wait(flag, 1, "sys", "acquire", trip + 1)
            tl.store(times + 2 * trip + 1, _clock())
        else:
            dl.wait(flag, 1, "sys", "acquire", trip + 1)
            tl.store(times + 2 * trip, _clock())
            dl.notify(flag, peer, trip + 1)


def offsets(group: Group, trips: int = TRIPS) -> list[Offset]:
    """Of each rank, on all ranks. Collective."""
    flag = create_symm_tensor((1,), torch.int32)
    found = []
    for rank in range(1, group.size):
        flag.zero_()
        synchronize()
        group.barrier()
        times = torch.zeros(trips, 2, dtype=torch.int64, device=device())
        if group.rank in (0, rank):
            trips_kernel[(1,)](flag, times, rank if group.rank == 0 else 0, FIRST=group.rank == 0, TRIPS=trips, num_warps=1)
            synchronize()
        noted = group.all_gather_object(times.cpu().tolist())
        found.append(of_trips(noted[0], [arrived for arrived, _ in noted[rank]]))
    free_symm_tensor(flag)
    return [Offset(0.0, 0.0, 0.0), *found]


def of_trips(there_and_back: list, arrivals: list) -> Offset:
    """The offset that the quickest trip gives."""
    (left, came), arrived = min(zip(there_and_back, arrivals), key=lambda trip: trip[0][1] - trip[0][0])
    return Offset(arrived - (left + came) / 2, (came - left) / 2, float(arrived))


def on_clock_of_rank_0(time: float, before: Offset, after: Offset) -> float:
    """A rank's time by rank 0's clock, the offset interpolated between two measurements."""
    part = 0.0 if after.at == before.at else (time - before.at) / (after.at - before.at)
    return time - (before.ahead + part * (after.ahead - before.ahead))
