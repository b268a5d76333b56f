# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Streams, events and the copy engine, in every delivery mode."""
import pytest
import torch
from machine_helpers import MODES, launch, set_flag, step, wait_flag

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.memory import memory
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument

backend = EmulatorBackend()
every_mode = pytest.mark.parametrize("mode", MODES)


def alone(fn, mode="random", seed=0, **options):
    """Runs fn as the host script of a world of one."""
    return run_ranks(fn, 1, mode=mode, seed=seed, heap=False, **options)[0]


@every_mode
def test_two_streams_meet_through_events(mode):
    def script():
        log, a, b = [], backend.new_stream(), backend.new_stream()
        for round_ in range(3):
            with backend.use_stream(a):
                launch(lambda *_, r=round_: (step(), log.append(("a", r))), name="first")
            b.wait_event(a.record_event())
            with backend.use_stream(b):
                launch(lambda *_, r=round_: (step(), log.append(("b", r))), name="second")
            a.wait_stream(b)
        event = a.record_event()
        event.synchronize()
        assert event.query() and a.query() and b.query()
        return log
    for seed in range(10):
        assert alone(script, mode, seed) == [(s, r) for r in range(3) for s in "ab"]


@every_mode
def test_streams_without_events_overlap(mode):
    def script():
        flags = torch.zeros(2, dtype=torch.int32)
        memory.active().register(flags, "flags")
        a, b = backend.new_stream(), backend.new_stream()
        for stream, mine, other in ((a, 0, 1), (b, 1, 0)):
            with backend.use_stream(stream):
                launch(lambda *_, m=mine, o=other: (set_flag(flags.data_ptr() + 4 * m, 1),
                                                    wait_flag(flags.data_ptr() + 4 * o, 1)), name="meet")
        backend.synchronize()
        return flags.tolist()
    assert alone(script, mode) == [1, 1]


def push(rows, calls, late):
    """A copy and its flag on a side stream; a kernel on the default stream waits for the flag, then reads."""
    sources = [torch.arange(rows * 8, dtype=torch.int32) + 1000 * call for call in range(calls + 1)]
    target = torch.full((rows * 8, ), -1, dtype=torch.int32)
    flags, seen, side = torch.zeros(4, dtype=torch.int32), [], backend.new_stream()
    for call in range(1, calls + 1):
        side.wait_stream(backend.current_stream())
        backend.copy(target, sources[call], side)
        backend.write_value32(flags, 2, call, side)
        late.append(int(flags[2]) < call)

        def consume(*_):
            wait_flag(flags.data_ptr() + 8, call)
            seen.append(torch.equal(target, sources[call]))
        launch(consume)
    return all(seen) and len(seen) == calls and flags.tolist() == [0, 0, calls, 0]


@every_mode
def test_a_flag_comes_after_the_copy_before_it(mode):
    late = []
    for seed in range(25):
        assert alone(lambda: push(1 + seed % 5 * 7, 3, late), mode, seed), (mode, seed)
    assert any(late) == (mode != "eager")


def test_pieces_land_in_any_order():
    def script():
        source, target, partial = torch.ones(96, dtype=torch.uint8), torch.zeros(96, dtype=torch.uint8), set()
        side = backend.new_stream()
        backend.copy(target, source, side)

        def peek(*_):
            for _ in range(60):
                step()
                partial.add(tuple(target[::32].tolist()))
        launch(peek)
        side.synchronize()
        assert bool((target == 1).all())
        return partial
    found = set().union(*(alone(script, "random", seed) for seed in range(40)))
    assert len(found) > 5        # of the 2^3 states, in which the first or the last piece may be missing
    assert alone(script, "eager") == {(1, 1, 1)}


def test_late_copies_move_only_when_waited_for():
    def script():
        source, target = torch.ones(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
        side = backend.new_stream()
        backend.copy(target, source, side)
        before = []
        launch(lambda *_: before.extend(target.tolist()))
        side.synchronize()
        return sum(before), int(target.sum())
    assert alone(script, "late", 3) == (0, 64)
    assert alone(script, "eager", 3) == (64, 64)


def test_default_stream_is_drained_and_side_streams_are_not():
    def script():
        done, side = [], backend.new_stream()
        launch(lambda *_: (step(), done.append("default")), name="k")
        assert done == ["default"]
        with backend.use_stream(side):
            launch(lambda *_: (step(), done.append("side")), name="k")
            assert backend.current_stream() is side
        assert done == ["default"] and not side.query()
        side.synchronize()
        return done
    assert alone(script) == ["default", "side"]


@every_mode
def test_grids_of_two_streams_share_the_sms(mode):
    def script():
        resident, most = set(), []

        def body(name, x):
            resident.add((name, x))
            most.append(len(resident))
            for _ in range(5):
                step()
            resident.remove((name, x))
        for name in "ab":
            with backend.use_stream(backend.new_stream()):
                launch(lambda x, y, z, name=name: body(name, x), (4, 1, 1), name)
        backend.synchronize()
        return max(most), len(most)
    most, runs = alone(script, mode, num_sms=3)
    assert most <= 3 and runs == 8


def test_failure_on_a_side_stream():
    def script():
        side, ran = backend.new_stream(), []
        with backend.use_stream(side):
            launch(lambda *_: 1 // 0, name="bad")
            launch(lambda *_: ran.append("after"), name="after")
        with pytest.raises(ZeroDivisionError) as error:
            side.synchronize()
        assert any("kernel bad" in note for note in error.value.__notes__)
        assert not ran                              # it may have relied on what failed
        with backend.use_stream(side):
            launch(lambda *_: ran.append("again"), name="again")
        backend.synchronize()
        return ran
    assert alone(script) == ["again"]


def test_failure_elsewhere_ends_a_launch_that_waits_for_it():
    def script():
        flag, side = torch.zeros(1, dtype=torch.int32), backend.new_stream()
        memory.active().register(flag, "flag")
        with backend.use_stream(side):
            launch(lambda *_: (step(), 1 // 0), name="bad")
        with pytest.raises(ZeroDivisionError):
            launch(lambda *_: wait_flag(flag.data_ptr(), 1), name="waits")
        launch(lambda *_: flag.fill_(5), name="fine")
        return int(flag)
    assert alone(script) == 5


def test_hang_names_kernel_site_and_values():
    def script():
        flag = torch.full((1, ), 41, dtype=torch.int32)
        memory.active().register(flag, "flag")
        with pytest.raises(HangError, match=r"stuck +\(0, 0, 0\) +kernel.py:1 \(wait\) .*ge 42 +41 +a block store, or host code"):
            launch(lambda *_: wait_flag(flag.data_ptr(), 42), name="stuck")
        launch(lambda *_: flag.fill_(5), name="fine")
        return int(flag)
    assert alone(script) == 5


def test_copy_from_a_tensor_that_is_gone():
    def script():
        target, side = torch.zeros(64), backend.new_stream()
        backend.copy(target, torch.ones(64), side)
        with pytest.raises(DeviceFault, match="a copy's read of .* (been freed|outside every tensor)"):
            side.synchronize()
    alone(script, "late", 1)


def test_wrong_arguments():
    def script():
        x = torch.zeros(8, 8)
        with pytest.raises(InvalidArgument, match="contiguous"):
            backend.copy(x.t(), x, backend.current_stream())
        with pytest.raises(InvalidArgument, match="equal bytes"):
            backend.copy(x[:4], x, backend.current_stream())
        with pytest.raises(InvalidArgument, match="index 9"):
            backend.write_value32(torch.zeros(8, dtype=torch.int32), 9, 1, backend.current_stream())
        with pytest.raises(InvalidArgument, match="stream of rank 0"):
            with backend.use_stream(None):
                pass
    alone(script)
