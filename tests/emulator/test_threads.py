# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Code for single threads (language_extra) in the emulator: branches and loops by thread, what is refused, what races."""
import pytest
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.backends.emulator import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.language.extra import language_extra as thread
from triton_dist.language.extra.language_extra import __ballot_sync as ballot
from triton_dist.language.extra.language_extra import __shfl_down_sync_i32 as shuffle_down
from triton_dist.language.extra.language_extra import __shfl_sync_i32 as shuffle
from triton_dist.language.extra.language_extra import __shfl_up_sync_i32 as shuffle_up
from triton_dist.language.extra.language_extra import __shfl_xor_sync_i32 as shuffle_xor
from triton_dist.language.extra.language_extra import __syncthreads, atomic_add, atomic_cas, ld, num_threads, st, tid
from triton_dist.language import kernels_of_threads
from triton_dist.language.kernels_of_threads import of_threads
from triton_dist.runtime.errors import DeviceFault, InvalidArgument

THREADS = 64          # of two warps


def launch(kernel, *args, grid: int = 1, **options):
    kernel[(grid,)](*args, num_warps=THREADS // 32, **options)
    triton_dist.synchronize()


@triton.jit
def doubled_or_negative(x, n):
    if x < n:
        y = x * 2
    else:
        y = -x
    return y


@triton_dist.jit
def branches(out, n):
    t = tid(0)
    chosen = 7
    if t == 0:
        chosen = 100
    elif t < n:
        if t % 2 == 0:
            chosen = t
    st(out + t, chosen)
    st(out + 64 + t, doubled_or_negative(t, n))
    st(out + 128 + t, min(t, n))
    st(out + 192 + t, 1 if t > n else 0)


def test_each_thread_takes_its_own_branch():
    out, t, n = torch.zeros(256, dtype=torch.int32), torch.arange(THREADS), 9
    launch(branches, out, n)
    chosen = torch.where((t < n) & (t % 2 == 0), t, 7)
    chosen[0] = 100
    expected = [chosen, torch.where(t < n, 2 * t, -t), t.clamp(max=n), (t > n).int()]
    assert torch.equal(out, torch.cat(expected).int())


@triton_dist.jit
def loops(out, x, counts, n):
    """A strided copy, a loop whose length is the thread's, and a while loop with a break-off by value."""
    t = tid(0)
    for i in range(t, n, num_threads()):
        st(out + i, ld(x + i) * 2)
    total = 0
    for i in range(t % 4):
        total += i + 1
    st(counts + t, total)
    steps, left = 0, t
    while left > 0:
        left = left // 2
        steps += 1
    st(counts + 64 + t, steps)


def test_each_thread_loops_as_often_as_it_must():
    x, out, counts = torch.randn(150), torch.zeros(160), torch.zeros(128, dtype=torch.int32)
    launch(loops, out, x, counts, 150)
    assert torch.equal(out[:150], x * 2) and not out[150:].any()
    assert counts[:64].tolist() == [sum(range(1, t % 4 + 1)) for t in range(THREADS)]
    assert counts[64:].tolist() == [t.bit_length() for t in range(THREADS)]


@triton_dist.jit
def words(out, small, big, half, seen):
    t = tid(0)
    st(small + t, t + 250)                      # uint8: wraps
    st(half + t, t * 0.5)
    old = atomic_add(out, 2)
    st(seen + t, old)
    if t < 10:
        while atomic_cas(out + 1, t, t + 1) != t:
            pass
    if t == 3:
        thread.atomic_exch(big, -5, "sys", "acq_rel")
    thread.st_vector(out + 64 + 4 * t, thread.ld_vector(half + t - t % 4, 4))


def test_accesses_of_all_widths_and_atomics():
    out, small, half = torch.zeros(64 + 256, dtype=torch.int32), torch.zeros(64, dtype=torch.uint8), torch.zeros(64).half()
    big, seen = torch.zeros(1, dtype=torch.int64), torch.zeros(64, dtype=torch.int32)
    launch(words, out, small, big, half, seen)
    assert small.tolist() == [(t + 250) % 256 for t in range(64)] and half.tolist() == [t / 2 for t in range(64)]
    assert out[0] == 128 and sorted(seen.tolist()) == list(range(0, 128, 2))
    assert out[1] == 10 and big.item() == -5
    assert out[64:].tolist() == [int(x / 2) for t in range(64) for x in range(t - t % 4, t - t % 4 + 4)]


@triton_dist.jit
def warps(out):
    t = tid(0)
    lane = thread.laneid()
    st(out + t, shuffle(-1, t, 5))
    st(out + 64 + t, shuffle_up(-1, t, 2))
    st(out + 128 + t, shuffle_down(-1, t, 3))
    st(out + 192 + t, shuffle_xor(-1, t, 1))
    st(out + 256 + t, ballot(-1, lane % 3 == 0))
    if lane < 4:
        st(out + 320 + t, shuffle(15, t + 1, 2))
    st(out + 384 + t, thread.atomic_add_per_warp(out + 448, 1))


def test_shuffles_stay_inside_a_warp():
    out, t = torch.zeros(449, dtype=torch.int32), torch.arange(THREADS)
    launch(warps, out)
    lane, first = t % 32, t - t % 32
    rows = out[:448].view(-1, 64)
    assert torch.equal(rows[0], (first + 5).int())
    assert torch.equal(rows[1], torch.where(lane >= 2, t - 2, t).int())
    assert torch.equal(rows[2], torch.where(lane < 29, t + 3, t).int())
    assert torch.equal(rows[3], (t ^ 1).int())
    bits = sum(1 << k for k in range(0, 32, 3))
    assert rows[4].tolist() == [bits - (1 << 32) if bits >> 31 else bits] * 64
    assert torch.equal(rows[5], torch.where(lane < 4, first + 3, 0).int())
    assert sorted({*rows[6, :32].tolist()} | {*rows[6, 32:].tolist()}) == [0, 1] and out[448] == 2


@triton_dist.jit
def met(flags, out, value):
    """All ranks meet: thread t tells rank t and waits for it."""
    with dl.simt_exec_region() as (t, threads):
        if t < dl.num_ranks():
            st(dl.symm_at(flags + dl.rank(), t), value, scope="sys", semantic="release")
            while ld(flags + t, scope="sys", semantic="acquire") != value:
                pass
    __syncthreads()
    tl.store(out, tl.sum(tl.load(flags + tl.arange(0, 4)), 0))


@pytest.mark.parametrize("mode", ["eager", "random", "late"])
def test_threads_of_several_ranks_meet(mode):
    def script():
        triton_dist.initialize_distributed()
        flags, out = triton_dist.create_symm_tensor((4,), torch.int32), torch.zeros(1, dtype=torch.int32)
        for value in (1, 2, 3):
            launch(met, flags, out, value)
        return out.item()
    assert run_ranks(script, 3, mode=mode) == [9, 9, 9]


@triton_dist.jit
def grid_wide(counter, x, out):
    st(x + tl.program_id(0), tl.program_id(0) + 1)
    thread.sync_grid(counter)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + tl.arange(0, 4)), 0))
    thread.sync_grid(counter)


def test_a_grid_meets_again_and_again():
    counter, x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    for _ in range(2):
        launch(grid_wide, counter, x, out, grid=4, launch_cooperative_grid=True)
    assert out.tolist() == [10] * 4 and counter.item() == 0


@triton_dist.jit
def misuse(x, flag, WHAT: tl.constexpr):
    t = tid(0)
    if WHAT == "barrier":
        if t < 3:
            __syncthreads()
    elif WHAT == "block":
        offsets = tl.arange(0, 16)
        if t == 0:
            tl.store(x + offsets, 1)
    elif WHAT == "new block":
        if t == 0:
            tl.store(x + tl.arange(0, 16), 1)
    elif WHAT == "store":
        if t == 1:
            tl.store(x, 1)
    elif WHAT == "wait":
        if t == 0:
            dl.wait(flag, 1, "sys", "acquire", 0)
    elif WHAT == "atomic":
        if t == 0:
            tl.atomic_add(x, 1)


@triton_dist.jit
def returns(x):
    if tid(0) != 0:
        return
    st(x, 1)


@pytest.mark.parametrize("what, error, words", [
    ("barrier", DeviceFault, "a barrier of the program in code that only some of its threads run"),
    ("block", InvalidArgument, "a block in code that only some threads of the program run"),
    ("new block", InvalidArgument, "tl.arange in code that only some threads"),
    ("store", InvalidArgument, "done by the program's first thread alone.*use language_extra.st"),
    ("wait", InvalidArgument, "dl.wait in code that only some threads"),
    ("atomic", InvalidArgument, "tl.atomic_add in code that only some threads")])
def test_what_would_hang_or_be_lost_on_a_gpu_is_refused(what, error, words):
    with pytest.raises(error, match=words):
        launch(misuse, torch.zeros(16, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), WHAT=what)


def test_a_return_by_thread_is_refused():
    with pytest.raises(InvalidArgument, match="a return under a condition that differs from thread to thread"):
        launch(returns, torch.zeros(1, dtype=torch.int32))


@triton_dist.jit
def hand_over(x, out, SYNC: tl.constexpr):
    """Thread 0 stores; all threads load."""
    if tid(0) == 0:
        st(x, 5)
    if SYNC:
        __syncthreads()
    tl.store(out + tl.arange(0, 64), tl.load(x + tl.zeros((64,), tl.int32)))


@pytest.mark.parametrize("sync", [True, False])
def test_the_checker_finds_a_missing_barrier_between_threads(sync):
    def script():
        launch(hand_over, torch.zeros(1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32), SYNC=sync)
    report = check_kernel(script, 1, schedules=3)
    assert [fault.kind for fault in report.faults] == ([] if sync else ["race"])


def test_a_kernel_of_threads_is_known_by_what_it_reaches():
    assert of_threads(branches) and of_threads(grid_wide) and not of_threads(doubled_or_negative)


def test_both_answers_are_kept(monkeypatch):
    """They are asked for at each launch."""
    answers = [of_threads(kernel) for kernel in (branches, grid_wide, doubled_or_negative)]
    monkeypatch.setattr(kernels_of_threads, "_named", None)             # what looks through a function
    assert [of_threads(kernel) for kernel in (branches, grid_wide, doubled_or_negative)] == answers
