# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every wait, arrival, fence, store wait, flush and flag statement of the Hopper core is needed, in both ops."""
from contextlib import ExitStack
from itertools import product
from unittest import mock

import pytest
from checking import MODES, SCHEDULES
from gluon_core import AG, BLOCK_K, RS, back_to_back, small_core
from mutants import load, source_of
from mutation import mutants

from triton_dist.checker import check_kernel
from triton_dist.cores.hopper import cores

pytestmark = pytest.mark.usefixtures("small_core")
HOPPER = "triton_dist.cores.hopper"
# op: {what makes the arguments of a kernel: the kernel's name}
KERNELS = {"ag_gemm_ws": {cores._AgGemm: "ag_gemm_ws_kernel", cores._AgGemmBySms: "ag_gemm_by_sms_ws_kernel"},
           "gemm_rs_ws": {cores._GemmRs: "gemm_rs_ws_kernel"}}

# K above and below the three stages
ABOVE, BELOW, EMPTY = ([RS(72, 40, k * BLOCK_K) for k in (8, 5, 8)], [RS(136, 40, k * BLOCK_K) for k in (1, 2, 3)],
                       [RS(72, 40, 0)] * 3)
SCENARIOS = {
    "ag_gemm_ws": [[AG(136, 40, 4 * BLOCK_K)] * 3, [AG(136, 40, BLOCK_K)] * 3, [AG(136, 40, 4 * BLOCK_K, comm_sms=1)] * 3,
                   [AG(136, 48, 4 * BLOCK_K, act="silu_mul")] * 2],
    "gemm_rs_ws": [ABOVE, BELOW, EMPTY],
}
# Mutants that are right, and why: (op, how they begin, which of those that read alike)
CLOSING = "a rank that has columns waits for every piece anyhow, and one that has none runs the portable kernel"
EQUIVALENT = {
    ("ag_gemm_ws", "deletion of mbarrier.wait(s.free.index(0), (lap & 1) ^ 1)", 2): "K = 0 reaches the core in gemm_rs only",
    **{("ag_gemm_ws", f"{what} of dl.wait({flags}", 1): CLOSING for flags in ("last, index,", "last + index + 1,")
       for what in ("deletion", "another form (its semantic)", "another form (the epoch it waits for)")},
    **{("ag_gemm_ws", f"{what} of dl.wait(last, pushers,", 1): CLOSING for what in ("deletion", "another form (its semantic)")},
}


def all_mutants():
    """[(op, file, mutant)]; those of the shared core for both ops."""
    return [(op, file, mutant) for file in ("gemm_ws", "ag_gemm_ws", "gemm_rs_ws")
            for mutant in mutants(source_of(f"{HOPPER}.{file}")) for op in (KERNELS if file == "gemm_ws" else [file])]


def is_equivalent(entry):
    op, file, mutant = entry
    same = [m for o, f, m in ALL if (o, f) == (op, file) and str(m) == str(mutant)]
    return any(op == o and str(mutant).startswith(text) and same.index(mutant) == nth - 1 for o, text, nth in EQUIVALENT)


ALL = all_mutants()
EQUALS = [entry for entry in ALL if is_equivalent(entry)]
REPORTED = [entry for entry in ALL if entry not in EQUALS]
# What no value can show: proxy fences and memory orders. tests/emulator/test_gluon_mutants.py has the other hand-overs.
SHORT = [entry for entry in REPORTED if "fence" in entry[2].text or "flush" in entry[2].text or "scope" in entry[2].what]


def names(entries):
    return [f"{op}: {mutant.line} {mutant}" for op, _, mutant in entries]


def kernels_of(op, file, source, folder):
    """The module of an op's kernels with another source of one file: its own, or of the core under it."""
    module = load(file, source, folder)
    if file == "gemm_ws":
        own, line = source_of(f"{HOPPER}.{op}"), f"from {HOPPER}.gemm_ws import"
        assert own.count(line) == 1
        module = load(op, own.replace(line, f"from {module.__name__} import"), folder)
    return module


def check_core(op, module, schedules=8):
    """The first report that is not clean, else the last. Most mutants show in the first schedule of some scenario."""
    with ExitStack() as patches:
        for maker, name in KERNELS[op].items():
            patches.enter_context(mock.patch.object(maker, "kernel", getattr(module, name)))
        for count, calls in product(sorted({1, schedules}), SCENARIOS[op]):
            report = check_kernel(lambda: back_to_back(calls), 2, count, modes=MODES, num_sms=2)
            if not report.clean:
                break
    return report


def assert_reported(op, file, mutant, folder):
    report = check_core(op, kernels_of(op, file, mutant.source, folder))
    assert not report.clean, f"survived: {mutant}"
    refused = "CompilationError" in report.faults[0].text              # Triton itself says no
    assert report.faults[0].kind in ("race", "deadlock", "barrier-misuse", "uninitialized-read") or refused, str(report)


@pytest.mark.parametrize("op, file, mutant", SHORT, ids=names(SHORT))
def test_a_fence_or_a_scope_that_is_missing_is_reported(op, file, mutant, tmp_path):
    assert_reported(op, file, mutant, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("op, file, mutant", REPORTED, ids=names(REPORTED))
def test_every_mutant_is_reported(op, file, mutant, tmp_path):
    assert_reported(op, file, mutant, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("op, file, mutant", EQUALS, ids=names(EQUALS))
def test_a_mutant_that_is_right_is_clean(op, file, mutant, tmp_path):
    report = check_core(op, kernels_of(op, file, mutant.source, tmp_path))
    assert report.clean, str(report)


@SCHEDULES
@pytest.mark.parametrize("op", KERNELS)
def test_the_core_itself_is_clean(op, schedules, tmp_path):
    report = check_core(op, kernels_of(op, op, source_of(f"{HOPPER}.{op}"), tmp_path), schedules)
    assert report.clean and report.accesses, str(report)


def test_only_what_is_explained_is_excused():
    assert len(EQUALS) == len(EQUIVALENT) and len(ALL) > 60
