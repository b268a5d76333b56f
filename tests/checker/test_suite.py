# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The labelled suite: its cases are what their labels say, as far as running shows it; what the checker makes of them."""
import inspect
import zlib
from pathlib import Path

import freeze
import pytest
import torch
from suite.registry import _MARK, CASES, KINDS, load

from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.engine.order import MODES

ALL = load()
CLEAN = [case for case in ALL if not case.faulty]
FAULTY = [case for case in ALL if case.faulty]


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "2M")


# -- the suite itself --------------------------------------------------------------------------------------------------
def test_there_are_enough_of_each():
    assert len(ALL) >= 130 and 0.4 <= len(FAULTY) / len(ALL) <= 0.6
    assert {case.label for case in FAULTY} == set(KINDS) - {"error"}
    assert {f"field/{number:02}" for number in range(1, 14)} == {name[:8] for name in CASES if name.startswith("field/")}
    assert sum(case.name.startswith("gluon/") for case in FAULTY) >= 12


@each(FAULTY)
def test_a_faulty_case_differs_from_its_twin_by_the_mend(case):
    twin = CASES[case.twin]
    assert not twin.faulty and twin.fn is case.fn and twin.how != case.how
    assert (twin.world, twin.num_sms) == (case.world, case.num_sms)
    assert case.why.endswith(".") and len(case.doc) > len(case.why) and set(case.also) <= set(KINDS) - {case.label}
    assert case.fault_lines()


@each(CLEAN)
def test_a_clean_case_is_described_and_excuses_nothing(case):
    assert inspect.getdoc(case.fn) and case.classes and not (case.why or case.also or case.twin)


def test_every_mark_belongs_to_a_case():
    marked = {(str(path), number) for path in Path(freeze.SUITE).glob("*.py") if path.name != "registry.py"
              for number, line in enumerate(path.read_text().splitlines(), 1) if _MARK.search(line)}
    assert marked == {(str(Path(file)), line) for case in FAULTY for file, line in case.fault_lines()}


def test_labels_are_frozen():
    digests, _ = freeze.frozen()
    assert digests == freeze.digests(), "the suite has changed: say why with tests/checker/freeze.py"


# -- without a checker -------------------------------------------------------------------------------------------------
def runs_right(case, attempts):
    for mode, seed in attempts:
        for rank, found in enumerate(run_ranks(case, case.world, mode=mode, seed=seed, num_sms=case.num_sms)):
            for number, (got, expected) in enumerate(found):
                assert torch.equal(got, expected), f"{mode}, seed {seed}: rank {rank}, result {number}: {got}"


@each(CLEAN)
def test_a_clean_case_runs_right(case):
    """In one mode, which a hash of its name picks."""
    runs_right(case, [(MODES[zlib.crc32(case.name.encode()) % len(MODES)], 0)])


@pytest.mark.full
@each(CLEAN)
def test_a_clean_case_runs_right_on_more_schedules(case):
    runs_right(case, [(mode, seed) for mode in MODES for seed in range(12)])


# -- with it -----------------------------------------------------------------------------------------------------------
FEW_POINTS = 4_000            # after which programs that do not end are a livelock; 100 000 under --full, as for users


def judge(case, schedules, tally):
    from triton_dist.checker import check_kernel
    report = check_kernel(case, world_size=case.world, schedules=max(schedules, case.schedules), num_sms=case.num_sms)
    lines = {(str(Path(file)), line) for fault in report.faults if fault.kind in case.kinds for file, line, *_ in fault.where}
    right = bool(lines & {(str(Path(file)), line) for file, line in case.fault_lines()}) if case.faulty else False
    tally.append((case, schedules, bool(report.faults), right))
    if case.faulty:
        assert not report.clean and report.faults, f"not found: {case.why}"
        kinds = {fault.kind for fault in report.faults}
        assert kinds & set(case.kinds), f"expected {' or '.join(case.kinds)}, found {kinds}: {report}"
        assert right, f"no report names a marked line: expected one of {sorted(case.fault_lines())}, found {sorted(lines)}"
    else:
        assert report.clean and not report.faults, f"false alarm: {report}"


@each(ALL)
def test_the_checker_agrees_with_the_label(case, tally, monkeypatch):
    monkeypatch.setattr("triton_dist.checker.detector._MOST_POINTS", FEW_POINTS)
    monkeypatch.setattr("triton_dist.backends.emulator.twins.memory._OF_ALL", FEW_POINTS // 2)
    judge(case, 3, tally)


@pytest.mark.full
@each(ALL)
def test_the_checker_agrees_with_the_label_on_twenty_schedules(case, tally):
    judge(case, 20, tally)
