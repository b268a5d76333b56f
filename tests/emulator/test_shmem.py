# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What libshmem_device promises and what it does not, on emulated ranks.

tests/nvidia/test_nvshmem_api.py has one case a function."""
import pytest
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument
from triton_dist.runtime.groups import resolve

N = 256
SEEDS = range(6)


@triton_dist.jit
def send_kernel(dest, source, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Sends source to the next rank and tells it; out = what was there when the flag said so."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    offsets = tl.arange(0, N)
    if HOW == "put_signal":
        shmem.putmem_signal_nbi(dest, source, N * 4, flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
    elif HOW == "nbi, then overwritten":
        shmem.putmem_signal_nbi(dest, source, N * 4, flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
        tl.store(source + offsets, tl.zeros((N,), tl.float32) - 1)
    elif HOW == "blocking, then overwritten":
        shmem.putmem_signal(dest, source, N * 4, flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
        tl.store(source + offsets, tl.zeros((N,), tl.float32) - 1)
    else:
        shmem.putmem_nbi_block(dest, source, N * 4, peer)
        if HOW == "put, fence, signal":
            shmem.fence()
        elif HOW == "put, quiet, signal":
            shmem.quiet()
        if HOW == "put, notify":
            dl.notify(flag, peer, 1)
        else:
            shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_SET, peer)
    shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_EQ, 1)
    tl.store(out + offsets, tl.load(dest + offsets))


def arrived(how: str) -> bool:
    """The script of a rank: whether all it should get had come when it was told."""
    group = resolve(triton_dist.initialize_distributed())
    dest, source = (triton_dist.create_symm_tensor((N,), torch.float32, name=name) for name in ("dest", "source"))
    flag = triton_dist.create_symm_tensor((1,), torch.int64, name="flag")
    source.copy_(torch.arange(N) + group.rank)
    triton_dist.synchronize()
    group.barrier()
    out = torch.full((N,), float("nan"))
    send_kernel[(1,)](dest, source, flag, out, HOW=how, N=N)
    triton_dist.synchronize()
    return torch.equal(out, torch.arange(N, dtype=torch.float32) + (group.rank - 1) % group.size)


def arrivals(how: str, mode: str, seed: int, world: int = 2) -> list:
    return run_ranks(lambda: arrived(how), world, mode=mode, seed=seed)


@pytest.mark.parametrize("how", ["put_signal", "put, fence, signal", "put, quiet, signal", "blocking, then overwritten"])
@pytest.mark.parametrize("mode", ["eager", "random", "late", "skew", "priority"])
def test_what_is_ordered_arrives_in_order(how, mode):
    assert all(all(arrivals(how, mode, seed, world)) for seed in SEEDS for world in (1, 2, 3))


@pytest.mark.parametrize("how", ["put, signal", "put, notify", "nbi, then overwritten"])
def test_what_is_not_ordered_arrives_too_late(how):
    """Some order of events shows the missing fence, and eager delivery never does."""
    assert not all(all(arrivals(how, "late", seed)) for seed in SEEDS)
    if how != "nbi, then overwritten":
        assert all(all(arrivals(how, "eager", seed)) for seed in SEEDS)


@triton_dist.jit
def round_kernel(dest, source, out, turns, N: tl.constexpr):
    """Broadcasts from every rank in turn, gathers, and meets, without a barrier between calls of the team."""
    offsets = tl.arange(0, N)
    for turn in range(turns):
        shmem.broadcast_block(shmem.NVSHMEM_TEAM_WORLD, dest + turn * N, source, N, turn % shmem.n_pes())
        tl.store(out + turn * N + offsets, tl.load(dest + turn * N + offsets))
        tl.store(source + offsets, tl.load(source + offsets) + 10)
    shmem.sync_all()


@triton_dist.jit
def gather_kernel(dest, source, turns, N: tl.constexpr):
    """Gathers and meets in turn; source is written between."""
    offsets = tl.arange(0, N)
    for turn in range(turns):
        tl.store(source + offsets, tl.zeros((N,), tl.float32) + turn)
        shmem.fcollect(shmem.NVSHMEM_TEAM_WORLD, dest + turn * N * shmem.n_pes(), source, N)
        shmem.barrier_all_warp()


@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_collectives_follow_each_other(mode):
    world, turns = 3, 7

    def script():
        rank = triton_dist.initialize_distributed().rank()
        dest = triton_dist.create_symm_tensor((turns * N,), torch.float32)
        source = triton_dist.create_symm_tensor((N,), torch.float32)
        source.fill_(rank)
        out = torch.zeros(turns * N)
        round_kernel[(1,)](dest, source, out, turns, N=N)
        triton_dist.synchronize()
        return out.view(turns, N)
    for seed in SEEDS:
        for out in run_ranks(script, world, mode=mode, seed=seed):
            assert torch.equal(out, torch.tensor([turn % world + 10.0 * turn for turn in range(turns)])[:, None].expand(-1, N))


def once(kernel, *args, world: int = 2, grid: int = 1, seed: int = 0, **options):
    """Launches `kernel(words, flag, *args)` on every rank."""
    def script():
        triton_dist.initialize_distributed()
        words = triton_dist.create_symm_tensor((64,), torch.float32, name="words")
        flag = triton_dist.create_symm_tensor((1,), torch.int64, name="flag")
        kernel[(grid,)](words, flag, *args, **options)
        triton_dist.synchronize()
    return run_ranks(script, world, mode="random", seed=seed)


@triton_dist.jit
def barrier_kernel(words, flag):
    shmem.barrier_all_block()


def test_two_programs_of_a_rank_in_one_barrier_are_an_error():
    once(barrier_kernel)
    with pytest.raises(InvalidArgument, match="another program of rank .* is in barrier_all_block of team 0"):
        once(barrier_kernel, grid=2)


@triton_dist.jit
def put_local_kernel(words, flag, local, size, pe):
    shmem.putmem(words, local, size, pe)
    shmem.putmem(local, words, size, pe)


@pytest.mark.parametrize("size, pe, told", [(16, 1, "dest is in no symmetric heap"), (16, 2, "pe 2 does not exist"),
                                            (-4, 1, "size must be at least 0"), (1 << 30, 1, "bytes")])
def test_addresses_sizes_and_ranks_are_checked(size, pe, told):
    with pytest.raises((DeviceFault, InvalidArgument), match=told):
        once(put_local_kernel, torch.zeros(64), size, pe)


@triton_dist.jit
def team_kernel(words, flag, team):
    shmem.barrier(team)


def test_teams_are_checked():
    for team in (shmem.NVSHMEM_TEAM_WORLD, shmem.NVSHMEMX_TEAM_SAME_MYPE_NODE, shmem.NVSHMEMI_TEAM_GPU_LEADERS):
        once(team_kernel, team)
    with pytest.raises(DeviceFault, match="team 6 does not exist"):
        once(team_kernel, shmem.NVSHMEM_TEAMS_MIN)


@triton_dist.jit
def wait_kernel(words, flag):
    if dl.rank() == 0:
        shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_GT, 3)


def test_a_signal_that_never_comes_is_a_hang_with_its_flag():
    with pytest.raises(HangError, match=r"wait_kernel.*flag \+ 0, of rank 0 .*gt 3 +0 +never written"):
        once(wait_kernel)


@triton_dist.jit
def sync_kernel(words, flag):
    if dl.rank() != 1:
        shmem.sync_all()


def test_a_barrier_that_one_rank_skips_is_a_hang_that_names_the_pad():
    with pytest.raises(HangError, match=r"sync_kernel.*SHMEM pad of team 0"):
        once(sync_kernel, world=3)


def test_a_plain_triton_kernel_may_not_call():
    import triton

    @triton.jit
    def plain(words, flag):
        tl.store(words, shmem.my_pe())
    with pytest.raises(Exception, match="triton_dist.jit"):
        once(plain)


def test_the_checker_knows_that_collectives_are_ordered():
    def script():
        group = resolve(triton_dist.initialize_distributed())
        dest = triton_dist.create_symm_tensor((3 * N * group.size,), torch.float32)
        source = triton_dist.create_symm_tensor((N,), torch.float32)
        gather_kernel[(1,)](dest, source, 3, N=N)
        triton_dist.synchronize()
        return dest.sum().item()
    report = check_kernel(script, 3, schedules=8)
    assert report.clean, str(report)


@pytest.mark.parametrize("how, clean", [("put_signal", True), ("put, quiet, signal", True), ("put, fence, signal", True),
                                        ("blocking, then overwritten", True), ("put, signal", False), ("put, notify", False),
                                        ("nbi, then overwritten", False)])
def test_the_checker_sees_what_is_ordered_and_what_is_not(how, clean):
    report = check_kernel(lambda: arrived(how), 2, schedules=8)
    assert report.clean == clean, str(report)
