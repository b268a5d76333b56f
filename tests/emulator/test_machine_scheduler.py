# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The scheduler by itself: turns, waits, SMs, failures, replay."""
import pytest

from triton_dist.backends.emulator.engine.scheduler import (MODES, Actor, Crew, Cta, Scheduler, Waiting, activated,
                                                            active)
from triton_dist.runtime.errors import HangError, InvalidArgument, NotInitialized, WaitTimeout


def program(i, n, rank=0, crew=None):
    return Actor(f"k({i}, 0, 0)", rank, "program", Cta((i, 0, 0), (n, 1, 1), "k"), crew)


def trace(mode, seed):
    log = []
    with activated(Scheduler(seed, mode, num_sms=3)) as engine:
        def body(i):
            for step in range(4):
                engine.point()
                log.append((i, step))
        crew = Crew(0, "k")
        for i in range(6):
            engine.spawn(program(i, 6, crew=crew), body, i)
        engine.run_until(lambda: crew.done)
    return log


@pytest.mark.parametrize("mode", MODES)
def test_same_seed_same_order(mode):
    assert trace(mode, 3) == trace(mode, 3)
    assert sorted(trace(mode, 3)) == sorted(trace(mode, 4))


def test_seeds_give_different_orders():
    assert len({tuple(trace("random", seed)) for seed in range(8)}) > 4


@pytest.mark.parametrize("mode", MODES)
def test_programs_share_the_sms_in_order(mode):
    started, resident, most = [], set(), []
    with activated(Scheduler(1, mode, num_sms=2)) as engine:
        def body(i):
            started.append(i)
            resident.add(i)
            most.append(len(resident))
            for _ in range(9):
                engine.point()
            resident.remove(i)
        crew = Crew(0, "k")
        for i in range(7):
            engine.spawn(program(i, 7, crew=crew), body, i)
        engine.run_until(lambda: crew.done)
    assert max(most) <= 2
    for position, i in enumerate(started):       # at most one lower program has an SM and has not had its first turn
        assert len(set(range(i)) - set(started[:position])) <= 1


def wait_for_one(num_sms):
    done = []
    with activated(Scheduler(0, "random", num_sms=num_sms)) as engine:
        def body(i):
            if i == 0:
                engine.block("go", lambda: done, Waiting("flag", 0, 1, "ge", lambda: len(done), "k.py:3 (k)"))
            done.append(i)
            engine.wake("go")
        crew = Crew(0, "k")
        for i in range(2):
            engine.spawn(program(i, 2, crew=crew), body, i)
        engine.run_until(lambda: crew.done)
    return done


def test_program_waits_for_a_later_one():
    assert wait_for_one(2) == [1, 0]


def test_too_few_sms_is_a_hang_that_names_both():
    with pytest.raises(HangError) as error:
        wait_for_one(1)
    text = str(error.value)
    assert "(0, 0, 0)" in text and "(1, 0, 0)" in text and "an SM" in text and "k.py:3" in text
    assert "TRITON_DIST_EMULATOR_SMS" in text


def test_failure_ends_the_crew_and_leaves_the_scheduler_usable():
    cleaned = []
    with activated(Scheduler(0, "random")) as engine:
        def body(i):
            try:
                engine.point()
                if i == 2:
                    raise ValueError("bad tile")
                engine.block("never", lambda: False, Waiting("flag"))
            finally:
                cleaned.append(i)
        crew = Crew(0, "k")
        for i in range(3):
            engine.spawn(program(i, 3, crew=crew), body, i)
        engine.run_until(lambda: crew.done)
        assert isinstance(crew.error, ValueError) and not engine.blocked()
        assert 2 in cleaned
        again = engine.spawn(program(0, 1), lambda: cleaned.append("again"))
        engine.run_until(lambda: again.done)
    assert cleaned[-1] == "again"


def test_failure_without_a_crew_reaches_the_host():
    with activated(Scheduler()) as engine:
        actor = engine.spawn(Actor("a", 0, "partition"), lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            engine.run_until(lambda: actor.done)


@pytest.mark.parametrize("mode", MODES)
def test_asynchronous_steps(mode):
    for seed in range(20):
        log = []
        with activated(Scheduler(seed, mode)) as engine:
            def body():
                copy = engine.issue(Actor("copy", 0, "copy"), lambda: log.append("read"), lambda: log.append("write"))
                if mode == "eager":
                    assert log == ["read", "write"]
                log.append("issued")
                engine.block(copy, lambda: copy.done, Waiting("copy"))
                log.append("waited")
            crew = Crew(0, "k")
            engine.spawn(program(0, 1, crew=crew), body)
            engine.run_until(lambda: crew.done)
        assert log.index("read") < log.index("write") < log.index("waited")
        assert mode not in ("late", "skew") or log.index("write") > log.index("issued") or seed


def test_a_spinning_program_does_not_starve_a_copy():
    for mode in MODES:
        with activated(Scheduler(0, mode)) as engine:
            landed = []

            def body():
                engine.issue(Actor("copy", 0, "copy"), lambda: None, lambda: landed.append(1))
                while not landed:
                    engine.point()
            crew = Crew(0, "k")
            engine.spawn(program(0, 1, crew=crew), body)
            engine.run_until(lambda: crew.done)
            assert landed and crew.error is None


def test_bounded_wait(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_WAIT_TIMEOUT", "0.05")
    with activated(Scheduler()) as engine:
        def spin():
            while True:
                engine.point()
        crew = Crew(0, "k")
        engine.spawn(program(0, 2, crew=crew), spin)
        engine.spawn(program(1, 2, crew=crew),
                     lambda: engine.block(1, lambda: False, Waiting("flag", 64, 7, "ge", lambda: 3, "k.py:9 (k)")))
        with pytest.raises(WaitTimeout, match=r"k.py:9 \(k\).*ge 7 +3"):
            engine.run_until(lambda: crew.done)


def test_active_and_context():
    with activated(Scheduler()) as engine:
        assert active() is engine
        with pytest.raises(NotInitialized, match="rank 3"):
            active().context_of(3)
        engine.set_context(3, "context")
        assert active().context_of(3) == "context"
    with pytest.raises(InvalidArgument, match="eager, random, late, skew"):
        Scheduler(mode="fast")
