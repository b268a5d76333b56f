# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps the collectives right is needed: with one statement deleted or weakened, the checker reports it."""
from importlib import import_module
from unittest import mock

import pytest
from mutants import edited, load, source_of
from scenarios import AR, near_the_wrap, overtaking

from triton_dist.checker import check_kernel

op = import_module("triton_dist.ops.all_reduce.op")        # triton_dist.ops.all_reduce is the function
KERNELS, PIECES = "triton_dist.ops.all_reduce.kernels", "triton_dist.ops._packets"
NAMES = ("one_shot_kernel", "two_shot_kernel", "push_kernel")
MODES = ("late", "random", "skew", "priority")


def calls(method):
    """A slow rank, and sizes that change, so that each meets both halves and other grids."""
    sizes = (40, 30000, 2000, 9) if method == "push" else (2100, 40, 700, 2100, 9)
    return overtaking([AR(n, method) for n in sizes], slow=1, repeat=3)


def past_zero(method):
    """The workspace grows between the epochs -1 and what follows it."""
    near_the_wrap([AR(40, method)], ["packets"], start=-2, repeat=1)
    return overtaking([AR(9000, method), AR(40, method)], slow=1, repeat=1)


HALF = "inbox = slots + (epoch & 1) * half", "inbox = slots"
SUMMING = 'dl.wait(arrived + (t - 1) * programs * WORLD, WORLD, "sys", "acquire", epoch)'
TAKING = 'dl.wait(summed + (t - 2) * programs * WORLD, WORLD, "sys", "acquire", epoch)'
RELEASE = 'tl.atomic_xchg(flags, tl.zeros_like(mask).to(tl.int32) + epoch, mask=mask, sem="release", scope="sys")'

BY_SHAPE = [("dl.consume_token(data, token) + half", "dl.consume_token(data, token) + WORLD * part"),
            ("outboxes[i - 1] + half + offs", "outboxes[i - 1] + WORLD * part + offs")]

# name: (method, module, old, new) or (method, module, edits)
MUTANTS = {
    "two_shot ends before its peers' sums are there": (
        "two_shot", KERNELS, "theirs = dl.ll_load_pair(inbox + sums + 2 * (rank * part + word), epoch, send)",
        "theirs = tl.load(inbox + sums + 2 * (rank * part + word), mask=send, other=0)"),
    "packets with the flag of the last call": (
        "one_shot", KERNELS, "(rank * words + word), epoch, peer & inside)", "(rank * words + word), epoch - 2, peer & inside)"),
    "push does not wait for terms": ("push", KERNELS, SUMMING, "0"),
    "push waits for the terms of one rank less": ("push", KERNELS, SUMMING, SUMMING.replace("WORLD, WORLD", "WORLD, WORLD - 1")),
    "push waits for terms at gpu scope": ("push", KERNELS, SUMMING, SUMMING.replace("sys", "gpu")),
    "push waits for terms relaxed": ("push", KERNELS, SUMMING, SUMMING.replace("acquire", "relaxed")),
    "push does not tie its loads of terms": (
        "push", KERNELS, "here = dl.consume_token(data, token)\n            total", "here = data\n            total"),
    "push does not wait for sums": ("push", KERNELS, TAKING, "0"),
    "push waits for sums at gpu scope": ("push", KERNELS, TAKING, TAKING.replace("sys", "gpu")),
    "push places sums by the shape": ("push", KERNELS, BY_SHAPE),
    "a release without the CTA barrier": ("push", PIECES, "    tl.debug_barrier()                          # Triton 3.6",
                                          "    # Triton 3.6"),
    "a relaxed release": ("push", PIECES, RELEASE, RELEASE.replace('"release"', '"relaxed"')),
    "a release at gpu scope": ("push", PIECES, RELEASE, RELEASE.replace('"sys"', '"gpu"')),
    "the epoch is a constant": ("one_shot", PIECES, "return tl.where(epoch == 0, 2, epoch)", "return epoch - epoch + 1"),
    "an epoch for each program": ("one_shot", PIECES, "mask=copy < _COPIES)", "mask=copy == tl.program_id(0))"),
}
HANG_OR_RACE = {  # what a run shows that fails without a race: (method, module, old, new)
    "one_shot keeps to one half": ("one_shot", KERNELS, HALF),
    "two_shot keeps to one half": ("two_shot", KERNELS, HALF),
}


def of(source: str, module: str, folder) -> object:
    """The kernels, of which the module `module` has the text `source`."""
    if module == KERNELS:
        return load("collective_kernels", source, folder)
    pieces = load("collective_pieces", source, folder)
    return load("collective_kernels", edited(source_of(KERNELS), [(f"from {PIECES} import", f"from {pieces.__name__} import")]),
                folder)


def check(kernels, scenario, schedules=12):
    with mock.patch.multiple(op, **{name: getattr(kernels, name) for name in NAMES}):
        return check_kernel(scenario, 3, schedules, modes=MODES)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_reported(name, tmp_path):
    method, module, *edits = MUTANTS[name]
    edits = edits[0] if len(edits) == 1 else [tuple(edits)]
    report = check(of(edited(source_of(module), edits), module, tmp_path), lambda: calls(method))
    assert not report.clean, f"survived: {name}"


@pytest.mark.parametrize("name", HANG_OR_RACE)
def test_mutant_in_both_places_is_reported(name, tmp_path):
    method, module, (old, new) = HANG_OR_RACE[name]
    source = source_of(module)
    assert source.count(old) == 2                       # one in each packet kernel
    report = check(of(source.replace(old, new), module, tmp_path), lambda: calls(method))
    assert not report.clean, f"survived: {name}"


def test_epoch_zero_is_what_fresh_memory_looks_like(tmp_path):
    source = edited(source_of(PIECES), [("return tl.where(epoch == 0, 2, epoch)", "return epoch")])
    report = check(of(source, PIECES, tmp_path), lambda: past_zero("one_shot"))
    assert not report.clean
    assert check(import_module(KERNELS), lambda: past_zero("one_shot")).clean


@pytest.mark.parametrize("method", ["one_shot", "two_shot", "push"])
def test_the_kernels_themselves_are_clean(method):
    report = check(import_module(KERNELS), lambda: calls(method), schedules=6)
    assert report.clean and report.accesses, str(report)
