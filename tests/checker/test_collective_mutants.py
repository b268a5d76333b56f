# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps the collectives right is needed: with one statement deleted or weakened, the checker reports it."""
from contextlib import ExitStack
from importlib import import_module
from unittest import mock

import pytest
import torch
from checking import MODES, SCHEDULES
from mutants import edited, load, source_of
from scenarios import AR, Moves, near_the_wrap, overtaking

from triton_dist.checker import check_kernel
from triton_dist.ops.exchange import collective

F64 = torch.float64
all_reduce_op = import_module("triton_dist.ops.all_reduce.op")        # triton_dist.ops.all_reduce is the function
ONE_HOP, TWO_HOPS = "triton_dist.ops.exchange.kernels", "triton_dist.ops.all_reduce.kernels"
PIECES = "triton_dist.ops.device.packets"
USERS = {ONE_HOP: (collective, ("one_hop_packets", "one_hop_push")),
         TWO_HOPS: (all_reduce_op, ("two_shot_kernel", "push_kernel"))}


def calls(method):
    """A slow rank, and sizes that change, so that each meets both halves and other grids. Packets reduce fp64."""
    if method == "push":
        return overtaking([AR(n, method) for n in (40, 30000, 2000, 9)], slow=1, repeat=3)
    return overtaking([AR(n, method, F64) for n in (525, 10, 175, 525, 3)], slow=1, repeat=3)


def moves():
    """An odd number of calls, repeated, so that each meets both halves."""
    made = [Moves(op, n, "push") for op in ("reduce_scatter", "all_gather") for n in (40, 9000, 700)]
    return overtaking([*made, made[0]], slow=1, repeat=3)


def past_zero(method):
    """The workspace grows between the epochs -1 and what follows it."""
    near_the_wrap([AR(10, method, F64)], ["packets"], start=-2, repeat=1)
    return overtaking([AR(2250, method, F64), AR(10, method, F64)], slow=1, repeat=1)


SUMMING = 'dl.wait(arrived + (t - 1) * programs * WORLD, WORLD, "sys", "acquire", epoch)'
TAKING = 'dl.wait(summed + (t - 2) * programs * WORLD, WORLD, "sys", "acquire", epoch)'
RELEASE = "dl.notify_each(everyone + t * programs * WORLD, epoch, rank < WORLD)"
EXCHANGE = ('tl.atomic_xchg(everyone + t * programs * WORLD, tl.zeros((RANKS,), tl.int32) + epoch, mask=rank < WORLD, '
            'sem="release", scope="sys")')
BARRIER = "tl.debug_barrier()\n            "

BY_SHAPE = [("dl.consume_token(data, token) + half", "dl.consume_token(data, token) + WORLD * part"),
            ("outboxes[i - 1] + half + offs", "outboxes[i - 1] + WORLD * part + offs")]

HALF = "inbox = slots + (epoch & 1) * half", "inbox = slots"
DATA_HALF = "inbox = data + (epoch & 1).to(tl.int64) * half", "inbox = data"

# name: (scenario, module, edits)
MUTANTS = {
    "one_shot keeps to one half": (lambda: calls("one_shot"), ONE_HOP, [HALF]),
    "one_shot takes packets of the call before the last": (lambda: calls("one_shot"), ONE_HOP, [
        ("(rank * words + word), epoch, peer & inside)", "(rank * words + word), epoch - 2, peer & inside)")]),
    "two_shot keeps to one half": (lambda: calls("two_shot"), TWO_HOPS, [HALF]),
    "two_shot ends before its peers' sums are there": (lambda: calls("two_shot"), TWO_HOPS, [
        ("theirs = dl.ll_load_pair(inbox + sums + 2 * (rank * part + word), epoch, send)",
         "theirs = tl.load(inbox + sums + 2 * (rank * part + word), mask=send, other=0)")]),
    "push does not wait for terms": (lambda: calls("push"), TWO_HOPS, [(SUMMING, "0")]),
    "push waits for the terms of one rank less": (lambda: calls("push"), TWO_HOPS, [
        (SUMMING, SUMMING.replace("WORLD, WORLD", "WORLD, WORLD - 1"))]),
    "push waits for terms at gpu scope": (lambda: calls("push"), TWO_HOPS, [(SUMMING, SUMMING.replace("sys", "gpu"))]),
    "push waits for terms relaxed": (lambda: calls("push"), TWO_HOPS, [(SUMMING, SUMMING.replace("acquire", "relaxed"))]),
    "push does not tie its loads of terms": (lambda: calls("push"), TWO_HOPS, [
        ("here = dl.consume_token(data, token)\n            total", "here = data\n            total")]),
    "push does not wait for sums": (lambda: calls("push"), TWO_HOPS, [(TAKING, "0")]),
    "push waits for sums at gpu scope": (lambda: calls("push"), TWO_HOPS, [(TAKING, TAKING.replace("sys", "gpu"))]),
    "push places sums by the shape": (lambda: calls("push"), TWO_HOPS, BY_SHAPE),
    "a push in one hop does not wait": (moves, ONE_HOP, [(SUMMING, "0")]),
    "a push in one hop waits at gpu scope": (moves, ONE_HOP, [(SUMMING, SUMMING.replace("sys", "gpu"))]),
    "a push in one hop does not tie its loads": (moves, ONE_HOP, [("dl.consume_token(inbox, token)", "inbox")]),
    "a push in one hop keeps to one half": (moves, ONE_HOP, [DATA_HALF]),
    "a push in one hop places halves by the shape": (moves, ONE_HOP, [
        (DATA_HALF[0], DATA_HALF[0].replace("half", "WORLD * pitch"))]),
    "a release without the CTA barrier": (moves, ONE_HOP, [(RELEASE, EXCHANGE)]),
    "a relaxed release": (moves, ONE_HOP, [(RELEASE, BARRIER + EXCHANGE.replace('"release"', '"relaxed"'))]),
    "a release at gpu scope": (moves, ONE_HOP, [(RELEASE, BARRIER + EXCHANGE.replace('"sys"', '"gpu"'))]),
    "the epoch is a constant": (lambda: calls("one_shot"), PIECES, [
        ("return tl.where(epoch == 0, 2, epoch)", "return epoch - epoch + 1")]),
    "the epoch is read before the kernel ahead has ended": (lambda: calls("one_shot"), PIECES, [
        ("    dl.gdc_wait()\n    dl.gdc_launch_dependents()\n    return this_epoch(control)",
         "    epoch = this_epoch(control)\n    dl.gdc_wait()\n    return epoch")]),
    "an epoch for each program": (lambda: calls("one_shot"), PIECES, [
        ("mask=copy < COPIES)", "mask=copy == tl.program_id(0))")]),
    "epoch 0, what fresh memory looks like": (lambda: past_zero("one_shot"), PIECES, [
        ("return tl.where(epoch == 0, 2, epoch)", "return epoch")]),
}


def with_mutant(module: str, source: str, folder, patches) -> None:
    """Puts kernels in place, of which `module` has the text `source`."""
    renamed = []
    if module == PIECES:
        pieces = load("collective_pieces", source, folder)
        renamed = [(f"from {PIECES} import", f"from {pieces.__name__} import")]
    for kernels, (user, names) in USERS.items():
        if module in (PIECES, kernels):
            made = load("collective_kernels", edited(source_of(kernels), renamed) if renamed else source, folder)
            patches.enter_context(mock.patch.multiple(user, **{name: getattr(made, name) for name in names}))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_reported(name, tmp_path):
    scenario, module, edits = MUTANTS[name]
    with ExitStack() as patches:
        with_mutant(module, edited(source_of(module), edits), tmp_path, patches)
        report = check_kernel(scenario, 3, 12, modes=MODES)
    assert not report.clean, f"survived: {name}"


@SCHEDULES
@pytest.mark.parametrize("scenario", [lambda: calls("one_shot"), lambda: calls("two_shot"), lambda: calls("push"), moves,
                                      lambda: past_zero("one_shot")], ids=["one_shot", "two_shot", "push", "moves", "past zero"])
def test_the_kernels_themselves_are_clean(scenario, schedules):
    report = check_kernel(scenario, 3, schedules, modes=MODES)
    assert report.clean and report.accesses, str(report)
