# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps dispatch_grouped_gemm right is needed: with one statement changed, the checker or a result says so."""
from unittest import mock

import pytest
from checking import MODES, SCHEDULES, check_edited
from experts import EP
from mutants import edited, load, source_of
from scenarios import overtaking
from test_dispatch_grouped_gemm import BF16, Product, small_tiles  # noqa: F401

from triton_dist.backends.emulator import backend as emulator
from triton_dist.checker import check_kernel
from triton_dist.cores.hopper.cores import cores
from triton_dist.ops.dispatch_grouped_gemm import op, plan
from triton_dist.ops.ep import chunks

pytestmark = pytest.mark.usefixtures("small_tiles")
WAIT = 'dl.wait(arrived + peer * flags_source + chunk, 1, "sys", "acquire", epoch)'
RELEASE = "        dl.notify_each(everyone + chunk, epoch, (rank < WORLD) & (rank != index))\n"
COUNTED = "        going = counts_of(to, WORLD, RANKS)\n"

EXCHANGE = {  # name: [(old, new)]
    "it does not wait": [(WAIT, "0")],
    "a relaxed wait": [(WAIT, WAIT.replace("acquire", "relaxed"))],
    "a wait of this device": [(WAIT, WAIT.replace('"sys"', '"gpu"'))],
    "it waits for the first chunk": [(WAIT, WAIT.replace(" + chunk", ""))],
    "nothing is released": [(RELEASE, "")],
    "all chunks have one flag": [(RELEASE, RELEASE.replace("everyone + chunk", "everyone"))],
    "rows are released before they are sent": [(RELEASE, ""), (COUNTED, COUNTED + RELEASE)],
    "rows keep to one half": [("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data")],
    "flags keep to one half": [("arrived = flags + (epoch & 1) * flags_half", "arrived = flags")],
    "rows lie where the first rank's do": [("at = (index * slots + chunk * each + place)", "at = (chunk * each + place)")],
}
OWN = {
    "rows of earlier ranks are taken for own ones": [("tl.sum(tl.where(rank // near < group, rows, 0), 0)", "0")],
    "rows of later ranks are taken for own ones": [("tl.where(rank // near == group", "tl.where(rank // near >= group")],
}
STEPS = {
    "halves are sent in the other order": ("exchange_rows_kernel", [("!= index // near) == FAR, of(going",
                                                                     "== index // near) == FAR, of(going")]),
    "halves are taken in the other order": ("exchange_rows_kernel", [("!= index // near) == FAR, of(coming",
                                                                      "== index // near) == FAR, of(coming")]),
    "rows of the other half are multiplied first": ("own_rows_kernel", OWN["rows of later ranks are taken for own ones"]),
}
STREAMS = {
    "rows travel before it is known where they go": [("            side.wait_stream(current)\n", "")],
    "the second product does not wait for the rows": [("            current.wait_stream(side)\n", "")],
}


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch):
    """Several rounds of rows in a chunk; two programs share the chunks."""
    monkeypatch.setattr(plan, "PIECES", chunks.Pieces(128, 128))
    monkeypatch.setattr(op, "COMM_SMS", (2, ))


def calls():
    """A slow rank, shapes that change, and a dispatch between, so that rows travel in calls of odd and of even numbers."""
    alone = dict(back=False, whole=False)
    given = [Product(40, 8, 4, **alone), EP(3, 8, combine=False), Product(33, 16, 4, **alone), Product(25, 8, 4, **alone)]
    return overtaking(given, slow=1, repeat=1)


def check(kernel, edits, folder, schedules=12):
    return check_edited(plan, kernel, edits, calls, folder, schedules, num_sms=3)


def test_unchanged_it_is_clean(tmp_path):
    report = check("exchange_rows_kernel", [], tmp_path, 1)
    assert report.clean and report.accesses, str(report)


@pytest.mark.full
def test_it_is_clean_on_many_schedules():
    report = check_kernel(calls, 3, 30, num_sms=3)
    assert report.clean and report.schedules == 30, str(report)


def by_core():
    return overtaking([Product(150, 32, 16, 4, dtype=BF16, method="ws", back=False, whole=False)], slow=0, repeat=1)


def test_with_the_core_it_is_clean():
    report = check_kernel(by_core, 2, 1, modes=MODES, num_sms=3)
    assert report.clean and report.accesses, str(report)


def in_turn():
    alone = dict(method="unfused", dtype=BF16, back=False, whole=False)
    return overtaking([Product(20, 32, 16, 4, **alone), Product(9, 24, 8, **alone)], slow=0, repeat=1)


@SCHEDULES
def test_in_turn_with_the_core_that_gathers_it_is_clean(schedules, monkeypatch):
    found = cores(emulator._core_tiles, preferred=True)
    monkeypatch.setattr(emulator.EmulatorBackend, "core", lambda self, name: found.get(name))
    report = check_kernel(in_turn, 2, schedules, modes=MODES, num_sms=3)
    assert report.clean and report.accesses, str(report)


def test_tiles_of_the_core_that_are_not_whole_are_reported(tmp_path):
    """TMA would read rows that come from others at the same time."""
    changed = load("own", edited(source_of(plan.own_rows_kernel.__module__), [
        ("high = (high - begin) // BLOCK_M * BLOCK_M", "high = high - begin")]), tmp_path)
    with mock.patch.object(plan, "own_rows_kernel", changed.own_rows_kernel):
        assert not check_kernel(by_core, 2, 8, modes=MODES, num_sms=3).clean


@pytest.fixture
def two_steps(monkeypatch):
    monkeypatch.setattr(plan, "near_of", lambda choice, world: world // 2)


def in_two_steps():
    alone = dict(back=False, whole=False)
    given = [Product(40, 8, 4, **alone), EP(3, 8, combine=False), Product(33, 16, 4, **alone)]
    return overtaking(given, slow=1, repeat=1)


@SCHEDULES
def test_in_two_steps_it_is_clean(two_steps, schedules):
    report = check_kernel(in_two_steps, 4, schedules, modes=MODES, num_sms=3)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", STEPS)
def test_a_mutant_of_two_steps_is_reported(name, two_steps, tmp_path):
    kernel, edits = STEPS[name]
    changed = load(kernel, edited(source_of(getattr(plan, kernel).__module__), edits), tmp_path)
    with mock.patch.object(plan, kernel, getattr(changed, kernel)):
        assert not check_kernel(in_two_steps, 4, 8, modes=MODES, num_sms=3).clean


@pytest.mark.parametrize("name", EXCHANGE)
def test_a_mutant_of_the_exchange_is_reported(name, tmp_path):
    assert not check("exchange_rows_kernel", EXCHANGE[name], tmp_path).clean


@pytest.mark.parametrize("name", OWN)
def test_a_mutant_of_own_rows_is_reported(name, tmp_path):
    assert not check("own_rows_kernel", OWN[name], tmp_path).clean


@pytest.mark.parametrize("name", STREAMS)
def test_streams_that_do_not_wait_are_reported(name, tmp_path):
    changed = load("plan", edited(source_of(plan.__name__), STREAMS[name]), tmp_path)
    with mock.patch.object(op, "Fused", changed.Fused):
        assert not check_kernel(calls, 3, 12, modes=MODES, num_sms=3).clean
