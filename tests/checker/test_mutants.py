# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every synchronisation statement of the ops is needed: with one deleted or weakened, the checker reports it."""
from unittest import mock

import pytest
from checking import MODES, SCHEDULES
from mutants import edited, load, source_of
from mutation import mutants
from scenarios import AG, RS, near_the_wrap, overtaking
from scenarios import back_to_back as portable_calls

from triton_dist.checker import check_kernel
from triton_dist.ops.ag_gemm import gather
from triton_dist.ops.gemm_rs import fused

KERNELS = {"ag_gemm": "triton_dist.ops.ag_gemm.kernels", "gemm_rs": "triton_dist.ops.gemm_rs.kernels"}
PLACES = {"ag_gemm": gather.Portable, "gemm_rs": fused.Portable}


def overtaken(op):
    return overtaking([op(40, 40, 64), op(20, 24, 64)], slow=0, repeat=4)


def pieces():
    """Shards pushed in one, two and four pieces, in turn."""
    return overtaking([AG(256, 24, 64), AG(64, 24, 8), AG(128, 24, 64)], slow=1, repeat=3)


def no_tiles():
    """Only rank 1 has columns: the others have nothing to wait for but the closing rule."""
    return overtaking([AG(20, lambda r: 24 * (r == 1), 40), AG(40, lambda r: 24 * (r == 1), 40)], slow=1, repeat=4)


def shapes(op):
    """An odd number of calls, repeated, so that each shape meets both halves."""
    calls = [op(70, 40, 96), op(9, 40, 50), op(40, 72, 64), op(70, 20, 96), op(1, 8, 16)]
    return portable_calls(calls, repeat=2)


SCENARIOS = {"ag_gemm": [lambda: overtaken(AG), no_tiles, pieces], "gemm_rs": [lambda: overtaken(RS), lambda: shapes(RS)]}

# Mutants that are right, and why.
EQUIVALENT = {
    ("ag_gemm", "another form (its semantic) of dl.wait(last, index,"): "the end of a kernel is an acquire fence (rule 5)",
    ("ag_gemm", "another form (its semantic) of dl.wait(last + index + 1,"): "the end of a kernel is an acquire fence (rule 5)",
}
ALL = [(op, mutant) for op, module in KERNELS.items() for mutant in mutants(source_of(module))]
EQUALS = [(op, mutant) for op, mutant in ALL if any(op == o and str(mutant).startswith(text) for o, text in EQUIVALENT)]
RARE = [(op, mutant) for op, mutant in ALL if "dl.wait(last" in mutant.text]      # only a rank far ahead shows them


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)


def kernel_of(op, source, folder):
    return getattr(load(f"{op}_kernels", source, folder), f"{op}_kernel")


def check_op(op, kernel, scenarios, schedules=8):
    """The first report that is not clean, else the last."""
    with mock.patch.object(PLACES[op], "kernel", kernel):
        for scenario in scenarios:
            report = check_kernel(scenario, 3, schedules, modes=MODES)
            if not report.clean:
                break
    return report


def ids(found):
    return [f"{op}: {mutant.line} {mutant}" for op, mutant in found]


def assert_reported(op, mutant, folder):
    report = check_op(op, kernel_of(op, mutant.source, folder), SCENARIOS[op])
    assert not report.clean, f"survived: {mutant}"
    assert report.faults[0].kind in ("race", "deadlock"), str(report)
    assert any("mutant" in file for file, *_ in report.faults[0].where), report.faults[0].where


FEW = [pair for pair in ALL if pair not in EQUALS and pair not in RARE]


@pytest.mark.parametrize("op, mutant", FEW, ids=ids(FEW))
def test_mutant_of_a_portable_kernel_is_reported(op, mutant, tmp_path):
    assert_reported(op, mutant, tmp_path)


LONG = [pair for pair in RARE if pair not in EQUALS]


@pytest.mark.full
@pytest.mark.parametrize("op, mutant", LONG, ids=ids(LONG))
def test_mutant_that_few_schedules_show_is_reported(op, mutant, tmp_path):
    assert_reported(op, mutant, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("op, mutant", EQUALS, ids=ids(EQUALS))
def test_a_mutant_that_is_right_is_clean(op, mutant, tmp_path):
    report = check_op(op, kernel_of(op, mutant.source, tmp_path), SCENARIOS[op], schedules=20)
    assert report.clean, str(report)


@SCHEDULES
@pytest.mark.parametrize("op", KERNELS)
def test_the_kernel_itself_is_clean(op, schedules, tmp_path):
    report = check_op(op, kernel_of(op, source_of(KERNELS[op]), tmp_path), SCENARIOS[op], schedules)
    assert report.clean and report.programs and report.accesses, str(report)


def test_only_what_is_explained_is_excused():
    assert len(EQUALS) == len(EQUIVALENT) and len(ALL) > 20


# -- the eight of the issue --------------------------------------------------------------------------------------------
WAIT = 'dl.wait(flags + tile_m // piece_tiles * world + chunk, 1, "sys", "acquire", epoch, cmp="ge")'
SEND = "dl.notify(flags + 2 * (step * tiles + tile), successor, epoch)"
LOAD = "acc = matmul_tile(a, k, "
ADD = "acc += tl.load(slot + where"
HALVES = [("slots_in = slots + (epoch & 1).to(tl.int64) * half",
           "slots_in = slots + (epoch & 1).to(tl.int64) * (world - 1) * m * n"),
          ("slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * half",
           "slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * (world - 1) * m * n")]
OWN_EPOCHS = [("count_call(control, epoch)", "tl.store(control + tl.program_id(0), epoch)")]

# name: (op, edits, scenario, statements of which one is named, words of the report)
BARE = 'tl.atomic_xchg(dl.symm_at(flags + 2 * (step * tiles + tile), successor), epoch, sem="release", scope="sys")'
EIGHT = {
    "the wait is removed": ("ag_gemm", [(WAIT, "0")], lambda: overtaken(AG), (LOAD, ), "no signal"),
    "the scope is narrowed": ("ag_gemm", [(WAIT, WAIT.replace("sys", "gpu"))], lambda: overtaken(AG), ("token = dl.wait(", ),
                              "scope 'gpu'"),
    "the epoch is a constant": ("ag_gemm", [(WAIT, WAIT.replace("epoch", "1"))], lambda: overtaken(AG), (LOAD, ), "not ordered"),
    "no consume_token in the loop": ("ag_gemm", [("dl.consume_token(gathered, token)", "gathered")], lambda: overtaken(AG),
                                     (LOAD, ), "missing consume_token"),
    "no barrier before notify": ("gemm_rs", [(SEND, BARE)], lambda: overtaken(RS), (ADD, "tl.store(slot + where"),
                                 "release without the CTA barrier"),
    "halves placed by the shape": ("gemm_rs", HALVES, lambda: shapes(RS), (ADD, "tl.store(slot + where"), "not ordered"),
    "a flag that is added to": ("gemm_rs", [(SEND, SEND.replace("epoch)", '1, "add")'))], lambda: shapes(RS),
                                (ADD, "tl.store(slot + where", "token = dl.wait("), ""),
    "an epoch for each program": ("gemm_rs", OWN_EPOCHS, lambda: shapes(RS),
                                  (ADD, "tl.store(slot + where", "token = dl.wait("), ""),
}


@pytest.mark.parametrize("name", EIGHT)
def test_the_eight_mutants_are_reported_with_their_line(name, tmp_path):
    op, edits, scenario, statements, said = EIGHT[name]
    source = edited(source_of(KERNELS[op]), edits)
    report = check_op(op, kernel_of(op, source, tmp_path), [scenario], schedules=12)
    assert not report.clean
    lines = {number for number, line in enumerate(source.splitlines(), 1) if any(text in line for text in statements)}
    named = {line for fault in report.faults for file, line, _ in fault.where if "mutant" in file}
    assert lines & named, (sorted(lines), sorted(named), str(report))
    assert said in str(report)


@SCHEDULES
def test_epochs_near_the_wrap_are_clean(schedules):
    report = check_kernel(lambda: near_the_wrap([RS(20, 24, 40)], ["gemm_rs"]), 3, schedules, modes=MODES)
    assert report.clean, str(report)
