# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""SHMEM's functions on single words, strided copies, all-to-alls and locks. A script and a pytest module.

    bash launch.sh test_shmem_words.py

On GPUs it runs on the NVSHMEM heap, elsewhere by the emulator's twins. Reductions are the emulator's only.
"""
import os

import torch
import triton.language as tl

import triton_dist
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.language.extra.language_extra import __syncthreads, ld, st, tid
from triton_dist.runtime.console import printable
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import create_symm_tensor

TURNS = 2


@triton_dist.jit
def by_program(words, out):
    """Every rank acts on the next one's words, one call a program."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.atomic_set(words, 40 + shmem.my_pe(), peer)
    shmem.atomic_add(words + 1, 5, peer)
    shmem.atomic_inc(words + 2, peer)
    shmem.atomic_or(words + 3, 6, peer)
    shmem.atomic_and(words + 4, 3, peer)
    shmem.atomic_xor(words + 5, 9, peer)
    shmem.p(words + 6, 70 + shmem.my_pe(), peer)
    shmem.barrier_all()
    tl.store(out, shmem.atomic_fetch(words + 1, peer))
    tl.store(out + 1, shmem.g(words + 6, peer))
    shmem.barrier_all()


@triton_dist.jit
def by_thread(words, out, n):
    """Threads of all ranks draw numbers at rank 0, and take turns by compare_swap."""
    t = tid(0)
    if t < n:
        st(out + t, shmem.atomic_fetch_add(words, 1, 0))
        shmem.atomic_fetch_inc(words + 1, 0)
        shmem.atomic_add(words + 2, 2, 0)
        ticket = shmem.my_pe() * n + t
        while shmem.atomic_compare_swap(words + 3, ticket, ticket + 1, 0) != ticket:
            pass
        if t == 0:
            st(out + n, shmem.atomic_swap(words + 4, shmem.my_pe() + 1, 0))
            shmem.atomic_fetch_or(words + 5, 1 << shmem.my_pe(), 0)
            shmem.quiet()
    __syncthreads()
    shmem.barrier_all_block()


@triton_dist.jit
def flags(ivar, flag, out):
    """Threads signal the next rank by thread-scope calls inside a branch, and wait for the one before."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    t = tid(0)
    if t == 0:
        shmem.p(ivar, 17, peer)
        shmem.fence()
        shmem.signal_op(flag, 3, shmem.NVSHMEM_SIGNAL_ADD, peer)
    elif t == 32:
        shmem.wait_until(ivar, shmem.NVSHMEM_CMP_EQ, 17)
        while shmem.test(ivar, shmem.NVSHMEM_CMP_GE, 17) == 0:
            pass
        shmem.signal_wait_until(flag, shmem.NVSHMEM_CMP_EQ, 3)
        st(out, shmem.signal_fetch(flag) + ld(ivar, "sys", "acquire"))
    __syncthreads()
    shmem.barrier_all_block()


@triton_dist.jit
def copies(dest, source, back, all_dest, n):
    """Every second element to every third of the next rank and back; then blocks of n to all."""
    peer = (shmem.my_pe() + 1) % shmem.n_pes()
    shmem.iput(dest, source, 3, 2, n, peer)
    shmem.barrier_all()
    shmem.iget(back, dest, 1, 3, n, peer)
    shmem.alltoall_block(shmem.NVSHMEM_TEAM_WORLD, all_dest, source, n)
    shmem.barrier_all()


@triton_dist.jit
def locked(lock, count):
    """A counter at rank 0 that only who holds the lock may change."""
    for _ in range(4):
        shmem.set_lock(lock)
        if tid(0) == 0:
            shmem.p(count, shmem.g(count, 0) + 1, 0)
        shmem.clear_lock(lock)
    shmem.barrier_all_block()


@triton_dist.jit
def reductions(dest, source, n):
    shmem.sum_reduce_block(shmem.NVSHMEM_TEAM_WORLD, dest, source, n)
    shmem.max_reduce(shmem.NVSHMEM_TEAM_WORLD, dest + n, source, n)
    shmem.min_reduce_warp(shmem.NVSHMEM_TEAM_WORLD, dest + 2 * n, source, n)


def symmetric(size: int, dtype, value) -> torch.Tensor:
    made = create_symm_tensor((size,), dtype)
    made.copy_(torch.as_tensor(value, dtype=dtype))
    return made


def launch(group, kernel, *args, **options) -> None:
    triton_dist.synchronize()
    group.barrier()
    kernel[(1,)](*args, **options)
    triton_dist.synchronize()
    group.barrier()


def words_of_programs(group, dtype) -> bool:
    words, out = symmetric(8, dtype, [0, 1, 1, 1, 7, 5, 0, 0]), torch.zeros(2, dtype=dtype, device=triton_dist.device())
    launch(group, by_program, words, out)
    before, peer = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    right = words.tolist() == [40 + before, 6, 2, 7, 3, 12, 70 + before, 0]
    return right and out.tolist() == [6, 70 + group.rank] and peer >= 0


def words_of_threads(group, dtype) -> bool:
    n = 4
    words, out = symmetric(8, dtype, 0), torch.full((n + 1,), -1, dtype=dtype, device=triton_dist.device())
    launch(group, by_thread, words, out, n)
    total = n * group.size
    drawn = sorted(x for part in group.all_gather_object(out.tolist()) for x in part[:n])
    swapped = sorted(part[n] for part in group.all_gather_object(out.tolist()))
    right = drawn == list(range(total)) and swapped == sorted({*range(group.size + 1)} - {words_at_0(group, words)[4]})
    return right and words_at_0(group, words)[:6] == [
        total, total, 2 * total, total, words_at_0(group, words)[4], (1 << group.size) - 1]


def words_at_0(group, words: torch.Tensor) -> list:
    return group.all_gather_object(words.tolist())[0]


def signals(group, dtype) -> bool:
    ivar, flag = symmetric(1, dtype, 0), symmetric(1, torch.int64, 0)
    out = torch.zeros(1, dtype=torch.int64, device=triton_dist.device())
    launch(group, flags, ivar, flag, out, num_warps=2)
    return out.item() == 20


def strided(group, dtype) -> bool:
    n, size = 5, group.size
    source, dest = symmetric(n * max(2, size), dtype, 0), symmetric(3 * n, dtype, -1)
    source.copy_((torch.arange(source.numel()) + 100 * group.rank).to(dtype))
    back, every = symmetric(n, dtype, 0), symmetric(n * size, dtype, 0)
    launch(group, copies, dest, source, back, every, n)
    before = (group.rank - 1) % size
    wanted = torch.full((3 * n,), -1, dtype=dtype)
    wanted[::3] = (2 * torch.arange(n) + 100 * before).to(dtype)
    gathered = torch.cat([(torch.arange(n) + n * group.rank + 100 * rank) for rank in range(size)]).to(dtype)
    own = (2 * torch.arange(n) + 100 * group.rank).to(dtype)
    return all(torch.equal(a.cpu(), b) for a, b in ((dest, wanted), (back, own), (every, gathered)))


def locks(group, dtype) -> bool:
    lock, count = symmetric(1, torch.int64, 0), symmetric(1, dtype, 0)
    launch(group, locked, lock, count)
    return words_at_0(group, count)[0] == 4 * group.size and words_at_0(group, lock)[0] == 0


def reduced(group, dtype) -> bool:
    if triton_dist.device().type != "cpu":
        return True
    n = 6
    source, dest = symmetric(n, dtype, 0), symmetric(3 * n, dtype, 0)
    every = torch.stack([((torch.arange(n) * 7 + 3 * rank) % 11).to(dtype) for rank in range(group.size)])
    source.copy_(every[group.rank])
    launch(group, reductions, dest, source, n)
    return torch.equal(dest, torch.cat([every.sum(0).to(dtype), every.amax(0), every.amin(0)]))


CASES = {f"{case.__name__} {dtype}": (case, dtype) for case, dtypes in (
    (words_of_programs, (torch.int32, torch.int64)), (words_of_threads, (torch.int32, torch.int64)),
    (signals, (torch.int32, torch.int64)), (strided, (torch.int8, torch.int16, torch.float32, torch.float64)),
    (locks, (torch.int32,)), (reduced, (torch.int32, torch.float32, torch.bfloat16))) for dtype in dtypes}


def run() -> dict:
    """{case: whether it was right on this rank in all turns}."""
    triton_dist.initialize_distributed()
    group = resolve()
    return {name: all([case(group, dtype) for _ in range(TURNS)]) for name, (case, dtype) in CASES.items()}


def test_words_on_emulated_ranks_of_one_and_two_nodes():
    from triton_dist.backends.emulator import run_ranks
    for nodes, mode in ((1, "late"), (2, "random")):
        for passed in run_ranks(run, 2, mode=mode, nodes=nodes, seed=1):
            assert not [name for name, right in passed.items() if not right]


def main() -> None:
    os.environ.setdefault("TRITON_DIST_HEAP", "nvshmem" if triton_dist.device().type == "cuda" else "auto")
    passed = run()
    group = resolve()
    answers = group.all_gather_object(passed)
    failed = [name for name in CASES if not all(answer[name] for answer in answers)]
    if group.rank == 0:
        for name in CASES:
            print(printable(f"{'❌' if name in failed else '✅'} {name}"))
        print(f"{len(CASES) - len(failed)} of {len(CASES)} pass on {group.size} x {triton_dist.device().type}")
    triton_dist.finalize_distributed()
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
