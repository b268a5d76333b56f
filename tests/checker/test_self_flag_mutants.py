# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Each rule of self-flagged stores is needed: with one sentence of it broken, the checker reports it."""
from importlib import import_module
from unittest import mock

import pytest
import torch
from checking import MODES, SCHEDULES, check_edited
from quant_scenarios import QARN
from scenarios import AR, ARN, Moves, overtaking

from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.rebuild import primitives
from triton_dist.checker import check_kernel
from triton_dist.ops.exchange import collective

all_reduce_op = import_module("triton_dist.ops.all_reduce.op")        # triton_dist.ops.all_reduce is the function
norm_op = import_module("triton_dist.ops.all_reduce_rmsnorm.base")    # which has the plan of both


def one_hop():
    """A slow rank, and sizes that change, so that each meets both buffers and other grids."""
    made = [AR(n, "one_shot") for n in (2100, 40, 700)] + [Moves("reduce_scatter", 300, "one_shot"), AR(9, "one_shot")]
    return overtaking(made, slow=1, repeat=3)


class Cancelling(AR):
    """The first two ranks' terms cancel, so that words of the result are 0."""

    def term(self, index, seed):
        return torch.full((self.n,), (1.0, -1.0, 0.0)[index], dtype=self.dtype)


def two_hops():
    return overtaking([AR(2100, "two_shot"), Cancelling(40, "two_shot"), *[AR(n, "two_shot") for n in (700, 2100, 9)]], slow=1,
                      repeat=3)


def norm_one_hop():
    return overtaking([ARN(5, 40, "one_shot", residual="in place"), ARN(2, 130, "one_shot", bias=True),
                       ARN(12, 24, "one_shot")], slow=1, repeat=3)


def norm_two_hops():
    return overtaking([ARN(5, 40, "two_shot", residual="in place"), ARN(2, 130, "two_shot", bias=True),
                       ARN(9, 24, "two_shot")], slow=1, repeat=3)


def quantised_one_hop():
    """Rows of two groups, more programs than rows and fewer."""
    return overtaking([QARN(3, 136, "one_shot", "fp8_1x128", residual="in place"), QARN(2, 40, "one_shot", "fp8_row", bias=True),
                       QARN(5, 24, "one_shot", "fp8_tensor")], slow=1, repeat=2)


def quantised_two_hops():
    return overtaking([QARN(4, 136, "two_shot", "fp8_row", residual="in place"), QARN(2, 40, "two_shot", "fp8_1x128", bias=True),
                       QARN(5, 24, "two_shot", "fp8_tensor")], slow=1, repeat=2)


def loaded(take: str) -> str:
    """`take`, a call of dl.sf_take, as loads that wait for nothing and empty nothing."""
    place, mask = take.removeprefix("dl.sf_take(")[:-1].rsplit(", ", 1)
    return f"tl.load(({place})[:, None] + tl.arange(0, 4)[None, :], mask=({mask})[:, None], other=0)"


TERM = "dl.sf_take(places + r * step, inside & (index != r))"          # of all kernels, in ops/device/selfflag.py
PEER = "dl.sf_take(places + (1 - index) * step, inside)"               # the same of two ranks' sums
RESULT = "dl.sf_take(inbox + results + 4 * (source * part + at), inside)"
SUM = "dl.sf_take(outcome + 4 * (row * vectors + at), inside)"

# name: (calls, module, kernel, (old, new))
MUTANTS = {
    "one hop does not wait": (one_hop, collective, "one_hop_self_flagged", (TERM, loaded(TERM))),
    "one hop keeps to one buffer": (one_hop, collective, "one_hop_self_flagged", (
        "buffer = (epoch & 1) * half", "buffer = 0 * half")),
    "one hop has two senders for a slot": (one_hop, collective, "one_hop_self_flagged", (
        "outbox = slots + buffer + 4 * index * vectors", "outbox = slots + buffer")),
    "one hop sends words of 0": (one_hop, collective, "one_hop_self_flagged", (
        "own + (dl.sf_filled(load_vectors(mine, at, inside, n, WHOLE)), )",
        "own + (load_vectors(mine, at, inside, n, WHOLE), )")),
    "one hop leaves one peer's words": (one_hop, collective, "one_hop_self_flagged", (
        TERM, TERM.replace("(index != r)", "(index != r) & (r != 2)"))),
    "one hop of two ranks does not wait": (one_hop, collective, "one_hop_self_flagged", (PEER, loaded(PEER))),
    "one hop of two ranks takes its own place": (one_hop, collective, "one_hop_self_flagged", (
        PEER, PEER.replace("(1 - index)", "index"))),
    "two hops do not wait for terms": (two_hops, all_reduce_op, "two_hops_self_flagged", (TERM, loaded(TERM))),
    "two hops do not wait for results": (two_hops, all_reduce_op, "two_hops_self_flagged", (RESULT, loaded(RESULT))),
    "two hops keep to one buffer": (two_hops, all_reduce_op, "two_hops_self_flagged", (
        "inbox, results = slots + (epoch & 1) * half, ", "inbox, results = slots, ")),
    "two hops: results lie where terms do": (two_hops, all_reduce_op, "two_hops_self_flagged", (
        "half, 4 * WORLD * part", "half, 0 * WORLD * part")),
    "two hops send results of 0": (two_hops, all_reduce_op, "two_hops_self_flagged", (
        "total = dl.sf_filled(finished_words(terms, dtype, WORLD, OP))", "total = finished_words(terms, dtype, WORLD, OP)")),
    "the norm does not wait for a row": (norm_one_hop, norm_op, "one_hop_rmsnorm", (TERM, loaded(TERM))),
    "the norm of two ranks' rows does not wait": (norm_one_hop, norm_op, "one_hop_rmsnorm", (PEER, loaded(PEER))),
    "the norm does not wait for a sum": (norm_two_hops, norm_op, "two_hops_rmsnorm", (SUM, loaded(SUM))),
    "the quantised norm does not wait for a row": (quantised_one_hop, norm_op, "one_hop_rmsnorm", (TERM, loaded(TERM))),
    "the quantised norm does not wait for a sum": (quantised_two_hops, norm_op, "two_hops_rmsnorm", (SUM, loaded(SUM))),
    "the quantised norm keeps to one buffer": (quantised_one_hop, norm_op, "one_hop_rmsnorm", (
        "inbox = slots + (epoch & 1) * half\n    outbox", "inbox = slots\n    outbox")),
    "the norm has two owners of a place": (norm_two_hops, norm_op, "two_hops_rmsnorm", (
        "place = inbox + 4 * ((index * owned + row // WORLD) * vectors + at)",
        "place = inbox + 4 * ((row // WORLD) * vectors + at)")),
    "the norm's sums lie where terms do": (norm_two_hops, norm_op, "two_hops_rmsnorm", (
        "outcome = inbox + 4 * WORLD * owned * vectors", "outcome = inbox")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    calls, user, kernel, edit = MUTANTS[name]
    under = "triton_dist.ops.device.selfflag" if edit[0] in (TERM, PEER) else None
    world = 2 if edit[0] == PEER else 3
    assert not check_edited(user, kernel, [edit], calls, tmp_path, 12, under, world).clean, f"survived: {name}"


@SCHEDULES
@pytest.mark.parametrize("calls, world", [
    *((calls, 3) for calls in (one_hop, two_hops, norm_one_hop, norm_two_hops, quantised_one_hop, quantised_two_hops)),
    *((calls, 2) for calls in (one_hop, norm_one_hop)),                             # as mutants run
    *(pytest.param(calls, 2, marks=pytest.mark.full)
      for calls in (two_hops, norm_two_hops, quantised_one_hop, quantised_two_hops))])
def test_the_kernels_themselves_are_clean(calls, world, schedules):
    report = check_kernel(calls, world, schedules, modes=MODES)
    assert report.clean and report.accesses, str(report)


def test_a_taker_that_does_not_empty_is_reported():
    """The primitive itself without the stores of zeros."""
    take, store = primitives.SYMBOLS["tdist_sf_take_pair"], memory.Memory.store_points

    def kept(self, addresses, known, values, sem=None, scope=None):
        if sem != "emptied":
            store(self, addresses, known, values, sem, scope)
    with mock.patch.object(memory.Memory, "store_points", kept):
        report = check_kernel(one_hop, 3, 4, modes=MODES)
    assert take is primitives.SYMBOLS["tdist_sf_take_pair"]
    assert not report.clean and "not empty" in str(report)


def test_zeros_arrive_as_zeros():
    """A word of zeros travels as -0.0, which nobody sees."""
    def script():
        from triton_dist.ops import all_reduce
        for method in ("one_shot", "two_shot"):
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                out = all_reduce(torch.zeros(77, dtype=dtype), method=method)
                assert not bool(torch.signbit(out).any()) and not bool(out.any())
    assert check_kernel(script, 3, 2).clean
