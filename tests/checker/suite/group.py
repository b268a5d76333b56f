# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Sub-groups: whom a barrier or a flag of a group orders, and whom it does not."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import team

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


@triton_dist.jit
def put_to(x, buffer, to, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, to) + i, tl.load(x + i))  # FAULT


@triton_dist.jit
def get_from(buffer, owner, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(dl.symm_at(buffer, owner) + i))  # FAULT


@case("group/barrier-of-those-concerned", world=3)
@case("group/barrier-without-the-reader", "race", world=3, how="without", twin="group/barrier-of-those-concerned",
      why="The reader is not in the group whose barrier follows the put.")
def barrier_of(rank, how):
    """Rank 0 puts into rank 1; a barrier of a group; rank 1 or, through it, rank 2 reads."""
    world, buffer, out, x = resolve(), symm(N), filled(-1.0), filled(4.0)
    group = world.new_group([0, 1]) if how else world.new_group([0, 1, 2])
    if rank == 0:
        put_to[(1, )](x, buffer, 1, N=N)
        triton_dist.synchronize()
    if group is not None:
        group.barrier()
    if rank == 2:
        get_from[(1, )](buffer, 1, out, N=N)
    meet()
    return pairs((out, 4 if rank == 2 else -1))


@case("group/barriers-in-a-chain", world=3)
@case("group/barriers-in-a-broken-chain", "race", world=3, how="reversed", twin="group/barriers-in-a-chain",
      why="Rank 1 meets rank 2 before it meets rank 0.")
def chained(rank, how):
    """Rank 0 puts into rank 2 and meets rank 1; then rank 1 meets rank 2, which reads: order is transitive."""
    world, buffer, out, x = resolve(), symm(N), filled(-1.0), filled(4.0)
    groups = [world.new_group([0, 1]), world.new_group([1, 2])]
    if rank == 0:
        put_to[(1, )](x, buffer, 2, N=N)
        triton_dist.synchronize()
    for group in groups[::-1] if how else groups:
        if group is not None:
            group.barrier()
    if rank == 2:
        get_from[(1, )](buffer, 2, out, N=N)
    meet()
    return pairs((out, 4 if rank == 2 else -1))


@triton_dist.jit
def team_exchange(x, buffer, flag, out, members, HOW: tl.constexpr, N: tl.constexpr):
    """All-gather in a team: members by index, addresses by world rank."""
    i, me, size = tl.arange(0, N), dl.team_rank(members), dl.team_size(members)
    for hop in range(size):
        index = (me + hop) % size
        peer = dl.team_world_rank(members, index)
        tl.store(dl.symm_at(buffer, peer) + me * N + i, tl.load(x + i))  # FAULT
        dl.notify(flag + me, peer)
    for index in range(size):
        if HOW == "own":
            token = dl.wait(flag + me, 1, "sys", "acquire")
        else:
            token = dl.wait(flag + index, 1, "sys", "acquire")
        tl.store(out + index * N + i, tl.load(dl.consume_token(buffer, token) + index * N + i))  # FAULT
    if HOW == "own":
        dl.wait(flag, size, "sys", "acquire")


@case("group/two-teams-at-once", world=4)
@case("group/waits-for-its-own-flag", "race", world=4, how="own", twin="group/two-teams-at-once",
      why="Each member waits for the flag it has set itself.")
def teams(rank, how):
    """Ranks 0 and 2, and 1 and 3, gather within their groups at the same time, in tensors of their groups."""
    world = resolve()
    group = [g for g in (world.new_group([0, 2]), world.new_group([3, 1])) if g is not None][0]
    buffer, flag, out = symm(2 * N, group=group), flags(2, group=group), filled(-1.0, 2 * N)
    team_exchange[(1, )](filled(float(rank)), buffer, flag, out, team(group), HOW=how, N=N)
    meet()
    return pairs((out, torch.tensor(group.world_ranks).float().repeat_interleave(N)))
