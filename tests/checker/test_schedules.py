# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Schedules: what runs, tokens, exhaustive enumeration; hangs, and what a report says of them."""
import _thread
import gc
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.checker import check_kernel
from triton_dist.checker.exhaustive import following
from triton_dist.checker.faults import Faults
from triton_dist.checker.report import Report
from triton_dist.checker.run import run_schedule
from triton_dist.checker.schedules import parse, schedules
from triton_dist.runtime.errors import InvalidArgument


def test_every_mode_has_its_turn():
    found = list(schedules(14, 3, 2, 8))
    assert len({s.mode for s in found[:7]}) == 7 and [s.seed for s in found] == [3] * 7 + [4] * 7
    assert all(parse(s.token) == s for s in found)


def test_a_token_keeps_the_choices_of_an_exhaustive_run():
    token = "exhaustive.s0.w2.m8.c0-1-2"
    assert parse(token).choices == (0, 1, 2) and parse(token).token == token


@pytest.mark.parametrize("call", [
    lambda: parse("late"), lambda: parse("lazy.s0.w2.m8"), lambda: list(schedules(0, 0, 2, 8)),
    lambda: list(schedules(2, 0, 0, 8)),
    lambda: list(schedules(2, 0, 2, 8, ["lazy"])), lambda: list(schedules(2, 0, 2, 8, ["exhaustive", "late"]))])
def test_what_makes_no_sense_is_refused(call):
    with pytest.raises(InvalidArgument, match="expected|alone"):
        call()


def test_all_orders_of_two_actors_with_two_steps():
    """Each step is a choice among those left: 6 interleavings, of which 2 need no preemption and 4 at most one."""
    def runs(preemptions):
        choices, found = (), []
        while choices is not None:
            left, last, trail, order = {"a": 2, "b": 2}, None, [], []
            while any(left.values()):
                ready = [k for k in ("a", "b") if left[k]]
                ready.sort(key=lambda k: k != last)
                at = len(trail)
                chosen = choices[at] if at < len(choices) else 0
                if len(ready) > 1:
                    trail.append((2, chosen, last in ready))
                else:
                    chosen = 0
                last = ready[chosen]
                left[last] -= 1
                order.append(last)
            found.append("".join(order))
            choices = following(trail, preemptions)
        return found
    assert sorted(runs(9)) == ["aabb", "abab", "abba", "baab", "baba", "bbaa"]
    assert sorted(runs(0)) == ["aabb", "bbaa"] and sorted(runs(1)) == ["aabb", "abba", "baab", "bbaa"]


@triton_dist.jit
def dekker(words, out, FIRST: tl.constexpr):
    """Of two programs that announce themselves, then look for the other, at most one can find nobody."""
    me = tl.program_id(0)
    if FIRST:
        tl.atomic_add(words + me, 1, sem="acq_rel", scope="gpu")
    seen = tl.atomic_add(words + 1 - me, 0, sem="acq_rel", scope="gpu")
    if not FIRST:
        tl.atomic_add(words + me, 1, sem="acq_rel", scope="gpu")
    if seen == 0:
        tl.store(out, me)


def test_exhaustive_proves_and_finds():
    def script(first):
        def host(rank):
            words, out = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
            dekker[(2, )](words, out, FIRST=first)
            triton_dist.synchronize()
        return host
    right = check_kernel(script(True), world_size=1, schedules=10_000, modes=["exhaustive"])
    assert right.clean and 2 < right.schedules < 10_000            # it came to its end
    wrong = check_kernel(script(False), world_size=1, schedules=10_000, modes=["exhaustive"])
    assert [fault.kind for fault in wrong.faults] == ["race"]
    again = Faults()
    run_schedule(lambda: script(False)(0), parse(wrong.faults[0].token), again, Report())
    assert again.found[0].text == wrong.faults[0].text


# -- hangs -------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def wait_then_pass_on(flag, ORDER: tl.constexpr):
    successor = (dl.rank() + 1) % dl.num_ranks()
    if ORDER == "start" and dl.rank() == 0:
        dl.notify(flag, successor)
    dl.wait(flag, 1, "sys", "acquire")        # for the rank before
    if ORDER != "start" or dl.rank() != 0:
        if ORDER != "silent":
            dl.notify(flag, successor)            # to the next one


def around(order):
    def host(rank):
        flag = triton_dist.create_symm_tensor((1, ), torch.int32, name="token")
        wait_then_pass_on[(1, )](flag, ORDER=order)
        triton_dist.synchronize()
    return host


def test_a_ring_that_somebody_starts_is_clean():
    assert check_kernel(around("start"), world_size=4, schedules=7).clean


def test_the_cycle_of_a_ring_deadlock_is_shown():
    report = check_kernel(around("nobody starts"), world_size=4)
    assert [fault.kind for fault in report.faults] == ["deadlock"]
    text = report.faults[0].text
    ring = next(line for line in text.splitlines() if line.startswith("cycle:"))
    names = ring.removeprefix("cycle: ").split(" -> ")
    assert names[0] == names[-1] and {f"rank {r} wait_then_pass_on(0, 0, 0)" for r in range(4)} == set(names)
    assert "which stores this flag at test_schedules.py" in text and "token" in text


def test_a_signal_that_nobody_sends_is_said_so():
    report = check_kernel(around("silent"), world_size=3)
    assert report.faults[0].kind == "deadlock" and "no program would store this flag" in report.faults[0].text
    assert "cycle" not in report.faults[0].text


@triton_dist.jit
def ask_for_two(flag):
    dl.notify(flag, 1 - dl.rank(), 1)
    dl.wait(flag, 1, "sys", "acquire", 2, "ge")


def test_a_signal_with_the_wrong_value_is_named_with_its_writer():
    def host(rank):
        ask_for_two[(1, )](triton_dist.create_symm_tensor((1, ), torch.int32))
        triton_dist.synchronize()
    text = check_kernel(host, world_size=2).faults[0].text
    assert "rank 0 ask_for_two(0, 0, 0): rank 1 ask_for_two(0, 0, 0) has stored 1, and no program would store ge 2" in text


@pytest.fixture
def heeds_ctrl_c():
    """A process that a shell has started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def sleep():
    for _ in range(1000):
        time.sleep(0.01)


@pytest.mark.parametrize("then", [sleep, dist.barrier, None], ids=["sleeps", "waits", "ends"])
@pytest.mark.parametrize("wakes", [True, False])
def test_ctrl_c_ends_the_script_that_runs_and_is_no_fault(heeds_ctrl_c, wakes, then):
    """wakes: the signal interrupts the main thread, which waits. Else it is only marked as pending, and interrupts no thread."""
    went_on = []

    def host(rank):
        if rank == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT) if wakes else _thread.interrupt_main()
            if then is not None:
                then()
                went_on.append(True)
    with pytest.raises(KeyboardInterrupt):
        check_kernel(host, world_size=2, schedules=1)
    assert not went_on


@triton_dist.jit
def read_and_answer(box, ack, BLOCK: tl.constexpr):
    dl.ll_load(box + tl.arange(0, BLOCK), 1)
    if dl.rank() == 1:
        dl.notify(ack, 0)
    else:
        dl.wait(ack, 1, "sys", "acquire")


def test_who_answers_behind_a_block_of_packets_is_found():
    """Rank 1 would answer, if the packets that nobody sends it were there: each of them is a wait of its own."""
    def host(rank):
        box = triton_dist.create_symm_tensor((16, ), torch.int64)
        ack = triton_dist.create_symm_tensor((1, ), torch.int32, name="ack")
        if rank == 0:
            box.fill_(1 << 32)
        read_and_answer[(1, )](box, ack, BLOCK=16)
        triton_dist.synchronize()
    text = check_kernel(host, world_size=2).faults[0].text
    zero, one = (f"rank {rank} read_and_answer(0, 0, 0)" for rank in (0, 1))
    assert f"{zero} waits for {one}, which stores this flag at test_schedules.py" in text
    assert f"{one}: no program would store this flag" in text


@triton_dist.jit
def last_one_signals(flag, count):
    if tl.program_id(0) == count - 1:
        dl.notify(flag, dl.rank(), comm_scope="gpu")
    else:
        dl.wait(flag, 1, "gpu", "acquire")


@pytest.mark.parametrize("programs, kind", [(4, None), (5, "residency")])
def test_programs_that_do_not_fit(programs, kind):
    def host(rank):
        last_one_signals[(programs, )](triton_dist.create_symm_tensor((1, ), torch.int32), programs)
        triton_dist.synchronize()
    report = check_kernel(host, world_size=1, schedules=7, num_sms=4)
    assert [fault.kind for fault in report.faults] == ([kind] if kind else [])
    assert kind is None or "4 SMs" in report.faults[0].text


@triton_dist.jit
def spins(word):
    while tl.load(word) == 0:
        pass


def test_a_livelock_ends():
    report = check_kernel(lambda rank: spins[(1, )](torch.zeros(1, dtype=torch.int32)), world_size=1)
    assert [fault.kind for fault in report.faults] == ["livelock"] and "tl.load(word) == 0" in report.faults[0].text


def test_what_the_caller_has_frozen_stays_frozen():
    already = gc.get_freeze_count()
    if not already:
        gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        assert check_kernel(around("start"), world_size=4, schedules=1).clean and frozen
        assert frozen - 100 < gc.get_freeze_count() <= frozen           # a few have ended meanwhile
    finally:
        if not already:
            gc.unfreeze()
