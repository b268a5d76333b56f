# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ranks: of the world, from the context global, and of teams, from an int32 array on the device.

A team is a pointer to int32 [size, my index, world rank of member 0, world rank of member 1, ...]. Kernels of ops take
a team, because one compiled module serves many groups; `rank` and `num_ranks` always speak of the world.
"""
import triton.language as tl

from triton_dist.language._call import helper, primitive
from triton_dist.language._check import pointee_bits


@primitive
def _rank():
    return "tdist_rank", ()


@primitive
def _num_ranks():
    return "tdist_num_ranks", ()


@helper
def rank(axis: tl.constexpr = -1):
    """World rank of this device.

    Args:
        axis: ignored, accepted for compatibility.

    Returns:
        int32.
    """
    return _rank()


@helper
def num_ranks(axis: tl.constexpr = -1):
    """Number of ranks in the world.

    Args:
        axis: ignored, accepted for compatibility.

    Returns:
        int32.
    """
    return _num_ranks()


@helper
def team_size(team):
    """Number of members of a team.

    Args:
        team: pointer to int32, as ops pass it to their kernels.

    Returns:
        int32.
    """
    pointee_bits("team_size", team, (32, ))
    return tl.load(team)


@helper
def team_rank(team):
    """This rank's index in a team.

    Args:
        team: pointer to int32, as ops pass it to their kernels.

    Returns:
        int32.
    """
    pointee_bits("team_rank", team, (32, ))
    return tl.load(team + 1)


@helper
def team_world_rank(team, i):
    """World rank of a member of a team, which is what `symm_at` and `notify` take.

    Args:
        team: pointer to int32, as ops pass it to their kernels.
        i: index of the member, an integer scalar or tensor.

    Returns:
        int32 of the shape of `i`.
    """
    pointee_bits("team_world_rank", team, (32, ))
    return tl.load(team + 2 + i)
