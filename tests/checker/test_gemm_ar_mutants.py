# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps gemm_ar right is needed: with one statement deleted or weakened, the checker reports it."""
from dataclasses import replace
from importlib import import_module
from unittest import mock

from checking import check_edited, checks_of
from scenarios import GAR, overtaking

op = import_module("triton_dist.ops.gemm_ar.op")            # triton_dist.ops.gemm_ar is the function
packets = import_module("triton_dist.ops.gemm_ar.packets")
TERMS = "dl.ll_load_pair(inbox + 2 * (part * (piece * TERMS + term) + word), epoch, inside & (term < TERMS))"
SUMS = "dl.ll_load_pair(sums + 2 * (part * (piece * WORLD + rank) + word), epoch, inside)"

MUTANTS = {  # name: (old, new)
    "it does not wait for terms": (TERMS, TERMS.replace("dl.ll_load_pair", "tl.load").replace(
        "epoch, inside & (term < TERMS)", "mask=inside & (term < TERMS), other=0")),
    "it does not wait for sums": (SUMS, SUMS.replace("dl.ll_load_pair", "tl.load").replace(
        "epoch, inside", "mask=inside, other=0")),
    "packets keep to one half": ("inbox = slots + (epoch & 1) * half", "inbox = slots"),
    "sums lie where terms do": ("sums = inbox + 2 * TERMS * part * pieces", "sums = inbox"),
    "pieces of a tile share a row": ("index * SPLIT + piece % SPLIT", "index * SPLIT"),
}


def calls():
    """A slow rank, and shapes that change, so that each meets both halves and other grids."""
    return overtaking([GAR(9, 40, 300), GAR(1, 130, 300, bias=True), GAR(20, 24, 40), GAR(3, 64, 600)], slow=1, repeat=3)


def check(edits, folder, schedules=12):
    """With tiles in two pieces and two hops."""
    usual = op.tiling
    with mock.patch.object(op, "tiling", lambda *args: replace(usual(*args), split=2, two_shot=True)):
        return check_edited(packets, "gemm_ar_kernel", edits, calls, folder, schedules)


test_unchanged_it_is_clean, test_a_mutant_is_reported = checks_of(MUTANTS, check)
