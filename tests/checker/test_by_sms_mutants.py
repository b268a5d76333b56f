# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps an ag_gemm right whose x SMs push is needed: with one statement deleted or weakened, the checker reports it."""
from unittest import mock

import pytest
from checking import MODES, SCHEDULES
from mutants import edited, load, source_of
from scenarios import AG, near_the_wrap, overtaking

from triton_dist.checker import check_kernel
from triton_dist.ops.ag_gemm import by_sms

KERNELS = "triton_dist.ops.ag_gemm.by_sms_kernels"
WAIT = 'dl.wait(arrived, pushers, "sys", "acquire", epoch)'
CLOSING = 'dl.wait(last, pushers, "sys", "acquire", epoch)'
NOTIFY = "dl.notify(first_flag(flags, epoch, number, index, world, MOST) + flag, peer, epoch)"
PUSHED = f'{NOTIFY}\n            dl.trace_stop("push", (hop - 1) * pieces + number)'
FLAG = "first_flag(flags, epoch, number, index, world, MOST) + flag"
MINE = "mine = gathered + (epoch & 1).to(tl.int64) * half"
HALF = "gathered += (epoch & 1).to(tl.int64) * half"


def calls():
    """A slow rank; numbers of programs and shapes that change, so that each meets both halves and other grids."""
    overtaking([AG(256, 24, 64, comm_sms=3), AG(64, 24, 8, comm_sms=1), AG(128, 24, 64, comm_sms=4)], slow=1, repeat=3)


def no_tiles():
    """Only rank 1 has columns: the others have nothing to wait for but the closing rule."""
    overtaking([AG(m, lambda r: 24 * (r == 1), 40, comm_sms=2) for m in (20, 40)], slow=1, repeat=4)


def past_zero():
    """The workspace grows between the epochs -1 and what follows it."""
    near_the_wrap([AG(20, 24, 40, comm_sms=2)], ["ag_gemm by SMs"], start=-2, repeat=1)
    overtaking([AG(200, 24, 40, comm_sms=2), AG(20, 24, 40, comm_sms=2)], slow=1, repeat=1)


MUTANTS = {  # name: (scenario, [(old, new)])
    "it does not wait": (calls, [(WAIT, "0")]),
    "it waits for one program less": (calls, [(WAIT, WAIT.replace("pushers", "pushers - 1"))]),
    "it waits for the wrong piece": (calls, [("tile_m // piece_tiles, chunk", "0 * tile_m, chunk")]),
    "it waits at gpu scope": (calls, [(WAIT, WAIT.replace("sys", "gpu"))]),
    "it waits relaxed": (calls, [(WAIT, WAIT.replace("acquire", "relaxed"))]),
    "its loads are not tied": (calls, [("dl.consume_token(gathered, token)", "gathered")]),
    "it ends before its peers have started": (no_tiles, [(CLOSING, "0")]),
    "it closes with one peer less": (no_tiles, [("for hop in range(1, world):\n            last", "for hop in range(2, world):\n"
                                                "            last")]),
    "data keeps to one half": (calls, [(MINE, "mine = gathered"), (HALF, "gathered += 0")]),
    "halves are placed by the shape": (calls, [(MINE, MINE.replace("half", "pitch * world")),
                                               (HALF, HALF.replace("half", "pitch * k * world"))]),
    "flags keep to one half": (calls, [("2 * piece + (epoch & 1)", "2 * piece")]),
    "a flag that is added to": (calls, [(NOTIFY, NOTIFY.replace("peer, epoch", 'peer, 1, "add"'))]),
    "a flag at gpu scope": (calls, [(NOTIFY, NOTIFY.replace("peer, epoch", 'peer, epoch, comm_scope="gpu"'))]),
    "a flag without the CTA barrier": (calls, [(NOTIFY, f'tl.atomic_xchg(dl.symm_at({FLAG}, peer), epoch, sem="release", '
                                                'scope="sys")')]),
    "no flag": (calls, [(NOTIFY, "None")]),
    "flags of programs alone": (calls, [("range(program, pushers, programs)", "range(program, programs, programs)")]),
    "an epoch for each program that pushes": (calls, [
        (f"{PUSHED}\n    count_call(control, epoch)", f"{PUSHED}\n    tl.store(control + tl.program_id(0), epoch)")]),
    "an epoch for each program of the GEMM": (calls, [
        (f"{CLOSING}\n    count_call(control, epoch)", f"{CLOSING}\n    tl.store(control + tl.program_id(0), epoch)")]),
}


def fewer_on_rank_1(plan, choice):
    """A rank may push by fewer programs than a piece has flags."""
    return -(-choice.comm_sms // 2) if plan.group.rank == 1 else choice.comm_sms


def check(kernels, scenario, schedules=12):
    """With pieces and blocks as small as tests need."""
    with mock.patch.object(by_sms, "push_kernel", kernels.push_kernel), \
            mock.patch.object(by_sms.Portable, "kernel", kernels.ag_gemm_by_sms_kernel), \
            mock.patch.multiple(by_sms, PIECE_BYTES=4096, _LEAST_BLOCK=512, programs_of=fewer_on_rank_1):
        return check_kernel(scenario, 3, schedules, modes=MODES)


@SCHEDULES
@pytest.mark.parametrize("scenario", [calls, no_tiles, past_zero])
def test_unchanged_it_is_clean(scenario, schedules, tmp_path):
    report = check(load("by_sms_kernels", source_of(KERNELS), tmp_path), scenario, schedules)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    scenario, edits = MUTANTS[name]
    kernels = load("by_sms_kernels", edited(source_of(KERNELS), edits), tmp_path)
    report = check(kernels, scenario)
    assert not report.clean and report.faults[0].kind in ("race", "deadlock"), str(report)
