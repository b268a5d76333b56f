# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What reports say: each names the cause and, in one line, what to do."""
import functools

import pytest
import torch
import triton
import triton.language as tl
from suite.registry import CASES, load

import triton_dist
import triton_dist.language as dl
from triton_dist.checker import check_kernel
from triton_dist.language.extra import libshmem_device as shmem
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve

N = 64


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")


def tensors(flag_type=torch.int64):
    make = triton_dist.create_symm_tensor
    return (make((N,), torch.float32, name="x"), make((N,), torch.float32, name="inbox"),
            make((4,), flag_type, name="flag"), torch.zeros(N))


def checked(host, world=2, **options):
    report = check_kernel(host, world, **{"schedules": 7, **options})
    assert report.faults, "nothing was found"
    return report.faults[0].kind, str(report.faults[0])


def launched(kernel, *more, programs=1, flag_type=torch.int64):
    def host(rank):
        kernel[(programs,)](*tensors(flag_type), *more)
        triton_dist.synchronize()
        resolve().barrier()
    return host


# -- puts and gets -------------------------------------------------------------------------------------------------------
@triton_dist.jit
def transfer(x, inbox, flag, out, HOW: tl.constexpr):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        if HOW == "reuse":
            shmem.putmem_nbi_block(inbox, x, 256, 1)
            tl.store(x + i, i.to(tl.float32))
        elif HOW == "get" or HOW == "get, fence":
            shmem.getmem_nbi_block(inbox, x, 256, 1)
            if HOW == "get, fence":
                shmem.fence()
            tl.store(out + i, tl.load(inbox + i))
        else:
            shmem.putmem_nbi_block(inbox, x, 256, 1)
            if HOW == "notify, fence":
                shmem.fence()
            if HOW == "signal":
                shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_SET, 1)
            else:
                dl.notify(flag, 1)
    elif HOW == "notify" or HOW == "notify, fence" or HOW == "signal":
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(inbox + i))


@pytest.mark.parametrize("how, missing, fix", [
    ("notify", "quiet() is missing: putmem_nbi_block returns before its data have arrived", "fix: call quiet() between"),
    ("notify, fence", "fence() does not wait for putmem_nbi_block", "fix: call quiet() instead of fence()"),
    ("signal", "fence() is missing: the signal may arrive before the data", "fix: put fence() between the put and signal_op"),
    ("reuse", "putmem_nbi_block may still read its source", "fix: call quiet() before the source is written again"),
    ("get", "its data are there after quiet() only", "fix: call quiet() after the get"),
    ("get, fence", "fence() orders puts and signals and waits for no get", "fix: call quiet() after the get"),
])
def test_a_transfer_that_is_under_way(how, missing, fix):
    kind, text = checked(launched(transfer, how))
    assert kind == "race" and missing in text and fix in text


@triton_dist.jit
def two_programs(x, inbox, flag, out):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        if tl.program_id(0) == 0:
            shmem.putmem_nbi_block(inbox, x, 256, 1)
            dl.notify(flag + 1, 0)
        else:
            dl.wait(flag + 1, 1, "gpu", "acquire")
            shmem.quiet()                                            # the other's
            dl.notify(flag, 1)
    elif tl.program_id(0) == 0:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(inbox + i))


def test_the_quiet_of_another_program():
    kind, text = checked(launched(two_programs, programs=2))
    assert kind == "race" and "# the other's is of another program, and waits only for what that program has sent" in text
    assert "fix: call quiet() in the program that has issued putmem_nbi_block" in text


@triton_dist.jit
def three_ranks(x, inbox, flag, out):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        shmem.putmem_nbi_block(inbox, x, 256, 1)
        shmem.fence()
        shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_SET, 2)
    elif dl.rank() == 2:
        dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(dl.symm_at(inbox, 1) + i))


def test_a_fence_orders_what_goes_to_one_rank():
    kind, text = checked(launched(three_ranks), world=3)
    assert kind == "race" and "fence() orders only what goes to one PE" in text and "PE 1, the signal to PE 2" in text


@triton_dist.jit
def put_past_the_end(x, inbox, flag, out):
    shmem.putmem_nbi_block(inbox + 64, x, 128, 1 - shmem.my_pe())    # the put
    shmem.quiet()


@pytest.mark.parametrize("mode", ["eager", "late", "random"])
def test_a_put_out_of_bounds_names_its_line_and_its_argument(mode):
    kind, text = checked(launched(put_past_the_end), modes=[mode])
    assert kind == "out-of-bounds" and "libshmem_device.putmem_nbi_block: dest of 128 bytes" in text
    assert "past the end of inbox" in text and "test_words.py" in text and "(put_past_the_end)" in text and "host" not in text


@pytest.mark.parametrize("name, missing, fix", [
    ("flag-before-the-flush", "the TMA store is still under way", "put flush_tma_stores()"),
    ("staging-overwritten-under-a-store", "the TMA store may still read its buffer", "put tma.store_wait(0)"),
])
def test_a_tma_store_that_nobody_has_waited_for(name, missing, fix):
    load()
    case = CASES[f"gluon/{name}"]
    kind, text = checked(lambda: case(), case.world)
    assert kind == "race" and missing in text and fix in text


# -- waits and flags -----------------------------------------------------------------------------------------------------
@triton_dist.jit
def call(x, inbox, flag, out, value, want):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        tl.store(dl.symm_at(inbox, 1) + i, tl.load(x + i))
        dl.notify(flag, 1, value)                                    # the release
    else:
        dl.wait(flag, 1, "sys", "acquire", want, "ge")               # the wait
        tl.store(out + i, tl.load(inbox + i))


def test_a_wait_that_an_older_value_ends():
    def host(rank):
        given = tensors()
        for value in (1, 2):
            call[(1,)](*given, value, 1)
            triton_dist.synchronize()
            resolve().barrier()
    kind, text = checked(host)
    assert kind == "race" and "# the wait passed on an older value, 1, which rank 0, program call(0, 0, 0)" in text
    assert "# the release; that release does not cover this access" in text and "fix: release the flag after" in text


def test_a_wait_that_needs_no_release():
    def host(rank):
        given = tensors()
        given[2].fill_(1)
        resolve().barrier()
        call[(1,)](*given, 1, 1)
        triton_dist.synchronize()
    kind, text = checked(host)
    assert kind == "race" and "# the wait passed on 1, which no release has stored" in text


def test_an_exact_value_that_is_over():
    def host(rank):
        given = tensors()
        if rank == 0:
            for value in (1, 2):
                call[(1,)](*given, value, 1)
        triton_dist.synchronize()
        resolve().barrier()
        if rank == 1:
            exactly[(1,)](given[2])
        triton_dist.synchronize()
    kind, text = checked(host)
    assert kind == "deadlock" and "the flag holds 2 already, which is beyond 1" in text and 'fix: wait with cmp "ge"' in text


@triton_dist.jit
def exactly(flag):
    dl.wait(flag, 1, "sys", "acquire", 1)


@triton_dist.jit
def swap(x, inbox, flag, out):
    if dl.rank() == 0:
        tl.atomic_cas(dl.symm_at(flag, 1), 5, 1, sem="release", scope="sys")         # fails
    else:
        dl.wait(flag, 1, "sys", "acquire")


def test_a_compare_and_swap_that_fails():
    kind, text = checked(launched(swap, flag_type=torch.int32))
    assert kind == "deadlock" and "# fails found another value and failed: it has stored nothing" in text
    assert "fix: repeat it until it succeeds" in text


def test_host_code_that_overwrites_a_flag():
    def beside(rank):
        given = tensors()
        if rank == 1:
            given[2].zero_()
        call[(1,)](*given, 1, 1)
        triton_dist.synchronize()
    kind, text = checked(beside)
    assert kind == "race" and "host code overwrites a flag" in text and "fix: clear flags before a barrier" in text

    def later(rank):
        given = tensors()
        if rank == 0:
            call[(1,)](*given, 1, 1)
        triton_dist.synchronize()
        resolve().barrier()
        if rank == 1:
            given[2].zero_()                                         # too late
            call[(1,)](*given, 1, 1)
        triton_dist.synchronize()
    kind, text = checked(later)
    assert kind == "deadlock" and "# too late has overwritten this flag after rank 0" in text


def test_groups_in_a_circle():
    def host(rank):
        groups = [resolve().new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]
        for number in {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]:
            groups[number].barrier()
    kind, text = checked(host, world=3)
    assert kind == "collective-mismatch" and "rank 0 waits for rank 1 waits for rank 2 waits for rank 0" in text
    assert "fix: call the collectives and ops of all groups in the same order" in text


# -- launches ------------------------------------------------------------------------------------------------------------
@triton.jit
def plain(flag):
    dl.notify(flag, 1 - dl.rank())


@triton.jit
def plain_shmem(flag):
    shmem.signal_op(flag, 1, shmem.NVSHMEM_SIGNAL_SET, 1)


@triton.jit
def plain_of_nothing(flag):
    tl.store(flag, 1)


def test_a_plain_kernel_that_needs_the_device_runtime():
    for kernel in (plain, plain_shmem):
        kind, text = checked(functools.partial(lambda kernel, rank: kernel[(1,)](tensors()[2]), kernel))
        assert kind == "error" and "decorate the kernel with @triton_dist.jit instead of @triton.jit" in text.split("\n")[0]
    assert check_kernel(lambda: plain_of_nothing[(1,)](torch.zeros(1)), 1, schedules=1).clean


@triton_dist.jit
def queue(flag):
    if tl.program_id(0) < 4:
        dl.wait(flag, 1, "gpu", "acquire")
    else:
        dl.notify(flag, dl.rank())


def test_programs_without_an_sm():
    def host(rank):
        queue[(5,)](tensors()[2])
        triton_dist.synchronize()
    kind, text = checked(host, num_sms=4)
    assert kind == "residency" and "an SM: all 4 (TRITON_DIST_EMULATOR_SMS) are held" in text
    assert "set TRITON_DIST_EMULATOR_SMS" in text


# -- left signals, and one schedule again --------------------------------------------------------------------------------
@triton_dist.jit
def late_reader(x, inbox, flag, out):
    i = tl.arange(0, 64)
    if dl.rank() == 0:
        dl.notify(flag + 1, 1)                                       # nobody looks
        tl.store(dl.symm_at(inbox, 1) + i, tl.load(x + i))
    elif tl.atomic_add(flag + 1, 0, sem="relaxed", scope="sys") == 0:
        tl.store(out + i, tl.load(inbox + i))


def test_a_left_signal_hides_no_race_of_another_schedule():
    """In some orders the reader comes too late to do anything wrong, and only the signal is left over."""
    host = launched(late_reader)
    report = check_kernel(host, 2, schedules=14)
    assert report.faults[0].kind == "race"


def test_a_left_signal_alone_is_reported_at_the_end():
    def host(rank):
        given = tensors()
        if rank == 0:
            call[(1,)](*given, 1, 1)
        triton_dist.synchronize()
    report = check_kernel(host, 2, schedules=5)
    assert [fault.kind for fault in report.faults] == ["left-signal"] and report.schedules == 5


def test_a_token_runs_one_schedule_again():
    host = launched(transfer, "notify")
    first = check_kernel(host, 2, schedules=20, seed=3)
    again = check_kernel(host, 4, replay=first.faults[0].token)
    assert again.schedules == 1 and str(again.faults[0]) == str(first.faults[0])
    with pytest.raises(InvalidArgument, match="replay token"):
        check_kernel(host, replay="eager")
