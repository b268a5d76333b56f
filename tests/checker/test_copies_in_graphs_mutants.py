# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps an ag_gemm right whose copies a graph holds is needed: with a statement deleted or weakened, the checker reports it.

Calls are eager here, by the plan that captures have: every call copies to the same addresses and stores the same values.
"""
from unittest import mock

import pytest
from checking import MODES
from mutants import edited, load, source_of
from scenarios import AG, back_to_back, near_the_wrap, overtaking, two_groups

from triton_dist.checker import check_kernel
from triton_dist.checker.chiplets import ChipletDetector
from triton_dist.ops.ag_gemm import gather, in_graphs

KERNEL, KIND = "triton_dist.ops.ag_gemm.enter_kernel", "ag_gemm in graphs"
CLEAR = "tl.store(arrivals + flag, 0, mask=flag < count)"
NOTIFY = "dl.notify(entered + index, dl.team_world_rank(team, (index + hop) % world), epoch)"
WAIT = 'dl.wait(entered + (index + hop) % world, 1, "sys", "acquire", epoch)'
LOOP = "for hop in range(1, world):\n        "


def calls():
    """A slow rank, and shapes of other numbers of pieces."""
    overtaking([AG(256, 24, 16), AG(64, 24, 8), AG(128, 24, 16)], slow=1, repeat=2)


def no_tiles():
    """Only rank 1 has columns."""
    overtaking([AG(m, lambda r: 24 * (r == 1), 40) for m in (20, 40)], slow=1, repeat=4)


def past_zero():
    """The workspace grows between the epochs -1 and what follows it."""
    near_the_wrap([AG(20, 24, 40)], [KIND], start=-2, repeat=1)
    overtaking([AG(200, 24, 40), AG(20, 24, 40)], slow=1, repeat=1)


class Core(AG):
    method = "ws"


MUTANTS = {  # name: [(old, new)]. A relaxed wait would do, since the kernel's end is a fence before the copies that follow it.
    "flags are not cleared": [(CLEAR, "None")],
    "flags are cleared too late": [(f"    {CLEAR}\n", ""), (WAIT, f"{WAIT}\n    {CLEAR}")],
    "some flags are not cleared": [(CLEAR, CLEAR.replace("flag < count", "flag < count // 4"))],
    "no rank is told": [(NOTIFY, "None")],
    "one rank is not told": [(LOOP + NOTIFY, (LOOP + NOTIFY).replace("(1,", "(2,"))],
    "a rank is told at gpu scope": [(NOTIFY, NOTIFY.replace("epoch)", 'epoch, comm_scope="gpu")'))],
    "a rank is told the last epoch": [(NOTIFY, NOTIFY.replace("epoch)", "epoch - 1)"))],
    "it does not wait": [(WAIT, "None")],
    "it waits for one rank less": [(LOOP + WAIT, (LOOP + WAIT).replace("(1,", "(2,"))],
    "it waits for the last epoch": [(WAIT, WAIT.replace("epoch)", "epoch - 1)"))],
    "it waits at gpu scope": [(WAIT, WAIT.replace("sys", "gpu"))],
    "it does not count": [("    count_call(control, epoch, 1)\n", "")],
}


def check(kernel, scenario, schedules=12, world=3, **options):
    """Eager calls by the captured ones' plan, with pieces as small as tests need."""
    with mock.patch.object(in_graphs, "enter_kernel", kernel), mock.patch.object(gather, "PIECE_BYTES", 1024), \
            mock.patch.object(gather, "PushesByCopies", in_graphs.PushesInGraphs):
        return check_kernel(scenario, world, schedules, modes=MODES, **options)


@pytest.mark.parametrize("scenario", [calls, no_tiles, past_zero])
def test_unchanged_it_is_clean(scenario):
    report = check(in_graphs.enter_kernel, scenario, 2)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("every", [[AG(70, 40, 96, bias=True), AG(9, 41, 50)], [Core(136, 40, 64), Core(16, 72, 160, bias=True)]],
                         ids=["portable", "core"])
def test_other_ways_and_worlds_are_clean(every, world):
    report = check(in_graphs.enter_kernel, lambda: back_to_back(every, repeat=2), 2, world)
    assert report.clean and report.accesses, str(report)


def test_groups_and_barriers_that_leave_stores_under_way():
    report = check(in_graphs.enter_kernel, lambda: two_groups([AG(20, 24, 40)]), 1, world=4)
    assert report.clean and report.accesses, str(report)
    report = check(in_graphs.enter_kernel, calls, 1, detector=ChipletDetector)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    kernel = load("enter_kernel", edited(source_of(KERNEL), MUTANTS[name]), tmp_path).enter_kernel
    report = check(kernel, calls)
    assert not report.clean and report.faults[0].kind in ("race", "deadlock"), str(report)
