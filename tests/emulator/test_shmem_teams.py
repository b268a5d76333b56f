# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Teams that scripts make for SHMEM calls of some ranks."""
import pytest
import torch
import triton.language as tl

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.errors import CollectiveMismatch, HangError, InvalidArgument
from triton_dist.runtime.groups import resolve

N = 16


@triton_dist.jit
def team_kernel(dest, source, out, team, turns, N: tl.constexpr):
    """Gathers and broadcasts in a team, again and again, without a barrier between."""
    size = shmem.team_n_pes(team)
    offsets = tl.arange(0, N)
    tl.store(out, shmem.team_my_pe(team))
    tl.store(out + 1, size)
    tl.store(out + 2, shmem.team_translate_pe(team, size - 1, shmem.NVSHMEM_TEAM_WORLD))
    for turn in range(turns):
        tl.store(source + offsets, tl.zeros((N,), tl.float32) + shmem.my_pe() + 10 * turn)
        shmem.fcollect(team, dest + turn * N * size, source, N)
        shmem.barrier(team)
    shmem.broadcast(team, dest, source, N, size - 1)


def script(*teams):
    """What each rank's kernels saw of the teams that it is in, by team."""
    rank = resolve().rank
    numbers = [triton_dist.shmem_team(ranks) for ranks in teams]
    found = []
    for ranks, number in zip(teams, numbers):
        dest = triton_dist.create_symm_tensor((3 * N * len(ranks),), torch.float32)
        source = triton_dist.create_symm_tensor((N,), torch.float32)
        out = torch.zeros(3, dtype=torch.int32)
        assert (number is not None) == (rank in ranks)
        if number is not None:
            team_kernel[(1,)](dest, source, out, number, 3, N=N)
            triton_dist.synchronize()
            expected = [[r + 10.0 * turn] * N for turn in range(3) for r in ranks]
            expected[0] = [ranks[-1] + 20.0] * N              # the broadcast
            assert dest.view(-1, N).tolist() == expected
            assert out.tolist() == [list(ranks).index(rank), len(ranks), ranks[-1]]
        resolve().barrier()
        found.append(number)
    return found


@pytest.mark.parametrize("mode", ["eager", "random", "late", "skew"])
def test_teams_of_some_ranks(mode):
    for seed in range(3):
        found = run_ranks(lambda: script([0, 2], [1, 3], range(4), (1, 2), [3]), 4, mode=mode, seed=seed)
        assert found[0] == [6, None, 8, None, None] and found[3] == [None, 7, 8, None, 10]


def test_teams_over_nodes():
    run_ranks(lambda: script([0, 2], [1, 3], range(4)), 4, nodes=2, mode="late")


def test_teams_are_clean_under_the_checker():
    report = check_kernel(lambda: script([0, 2], [1, 2]), 3, 7)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("ranks", [[], [0, 4], [-1, 1], [2, 1], [0, 1, 3], [0, 0], "01", 2, [0.5], None])
def test_ranks_that_are_no_team_are_refused(ranks):
    def refused():
        with pytest.raises(InvalidArgument, match="ranks: expected some of 0 to 3, rising by equal steps, found"):
            triton_dist.shmem_team(ranks)
        return True
    assert all(run_ranks(refused, 4))


def test_ranks_must_agree():
    def differing():
        with pytest.raises(CollectiveMismatch, match="ranks of a SHMEM team: ranks disagree"):
            triton_dist.shmem_team([0, resolve().rank + 1])
        return True
    assert all(run_ranks(differing, 3))


@triton_dist.jit
def barrier_kernel(team, who):
    if shmem.my_pe() != who:
        shmem.barrier(team)


def test_who_is_no_member_may_not_call():
    def stranger():
        triton_dist.shmem_team([0, 1])
        if resolve().rank == 2:
            with pytest.raises(InvalidArgument, match=r"rank 2 is no member of team 6, of ranks \[0, 1\]"):
                barrier_kernel[(1,)](6, 0)
        return True
    assert all(run_ranks(stranger, 3))


def test_a_member_that_stays_away_is_a_hang_that_names_the_pad():
    def lonely():
        number = triton_dist.shmem_team([0, 2])
        if number is not None:
            barrier_kernel[(1,)](number, 2)
    with pytest.raises(HangError, match=r"SHMEM pad of ranks \[0, 2\]"):
        run_ranks(lonely, 3)
