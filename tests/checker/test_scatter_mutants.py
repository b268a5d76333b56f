# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps gemm_rs by "scatter" right is needed: with one statement deleted, weakened or moved, the checker reports it."""
from unittest import mock

import pytest
from checking import MODES, SCHEDULES
from mutants import edited, load, source_of
from mutation import mutants
from scenarios import RS, near_the_wrap, overtaking

from triton_dist.checker import check_kernel
from triton_dist.checker.chiplets import ChipletDetector
from triton_dist.ops.gemm_rs import fused

SOURCE = source_of("triton_dist.ops.gemm_rs.scatter_kernel")
WAIT = 'dl.wait(arrivals, peers, "sys", "acquire", epoch)'
STORE = "tl.store(slot + where, acc.to(slots.dtype.element_ty), mask=inside)"
NOTIFY = "dl.notify(arrivals + place, owner, epoch)"
HALF = "slots += (epoch & 1).to(tl.int64) * half"


class Scatter(RS):
    method = "scatter"


def overtaken():
    overtaking([Scatter(40, 40, 64), Scatter(20, 24, 64)], slow=0, repeat=4)


def shapes():
    """An odd number of calls, repeated, so that each shape meets both halves."""
    calls = [Scatter(70, 40, 96), Scatter(9, 40, 50), Scatter(40, 72, 64), Scatter(70, 20, 96), Scatter(1, 8, 16)]
    overtaking(calls, slow=1, repeat=2)


def past_zero():
    """The workspace grows between the epochs -1 and what follows it."""
    near_the_wrap([Scatter(20, 24, 40)], ["gemm_rs scatter"], start=-2, repeat=1)
    overtaking([Scatter(200, 24, 40), Scatter(20, 24, 40)], slow=1, repeat=1)


def check(source, folder, scenarios=(overtaken, shapes), schedules=8, **options):
    """The first report that is not clean, else the last."""
    kernel = load("scatter_kernel", source, folder).gemm_rs_scatter_kernel
    with mock.patch.object(fused.Scatter, "kernel", kernel):
        for scenario in scenarios:
            report = check_kernel(scenario, 3, schedules, modes=MODES, **options)
            if not report.clean:
                break
    return report


CALLS = {f"{mutant.line} {mutant}": mutant.source for mutant in mutants(SOURCE)}
EDITS = {
    "it waits for one peer less": [(WAIT, WAIT.replace("peers", "peers - 1"))],
    "it waits for another tile": [(WAIT, WAIT.replace("arrivals", "flags + (epoch & 1) * peers"))],
    "the flag comes before the data": [(f"{STORE}\n            {NOTIFY}", f"{NOTIFY}\n            {STORE}")],
    "data keeps to one half": [(HALF, "slots += 0")],
    "halves are placed by the shape": [(HALF, HALF.replace("half", "peers * pitch * n"))],
    "flags keep to one half": [("(2 * tile + (epoch & 1)) * peers", "2 * tile * peers")],
    "all sources have one slot": [("slots, owner) + place.to", "slots, owner) + 0 * place.to")],
    "an epoch for each program": [("    count_call(control, epoch)", "    tl.store(control + tl.program_id(0), epoch)")],
}


def assert_reported(source, folder):
    report = check(source, folder)
    assert not report.clean, "survived"
    assert report.faults[0].kind in ("race", "deadlock"), str(report)
    assert any("mutant" in file for file, *_ in report.faults[0].where), report.faults[0].where


@pytest.mark.parametrize("name", CALLS)
def test_mutant_of_a_synchronising_call_is_reported(name, tmp_path):
    assert_reported(CALLS[name], tmp_path)


@pytest.mark.parametrize("name", EDITS)
def test_mutant_of_an_order_a_place_or_an_epoch_is_reported(name, tmp_path):
    assert_reported(edited(SOURCE, EDITS[name]), tmp_path)


def test_there_are_mutants():
    assert len(CALLS) == 9, list(CALLS)            # four of the wait, its token, five of the notify


@SCHEDULES
@pytest.mark.parametrize("detector", [None, ChipletDetector])
def test_the_kernel_itself_is_clean(detector, schedules, tmp_path):
    options = {} if detector is None else {"detector": detector}
    report = check(SOURCE, tmp_path, (overtaken, shapes, past_zero), schedules, **options)
    assert report.clean and report.programs and report.accesses, str(report)
