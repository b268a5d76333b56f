# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps gemm_ar_rmsnorm right is needed: with one statement deleted or weakened, the checker reports it."""
from dataclasses import replace
from importlib import import_module
from unittest import mock

from checking import check_edited, checks_of
from normed_products import GARN
from scenarios import overtaking

op = import_module("triton_dist.ops.gemm_ar_rmsnorm.op")            # triton_dist.ops.gemm_ar_rmsnorm is the function
packets = import_module("triton_dist.ops.gemm_ar_rmsnorm.packets")
TERMS = "dl.ll_load_pair(inbox + 2 * ((row * TERMS + term) * words + word), epoch, (word < words) & (term < TERMS))"
SQUARES = "dl.ll_load(told + thread, epoch, thread < per_row).to(tl.float32, bitcast=True)"
TELLING = "dl.ll_store(told + part + thread, square.to(tl.int32, bitcast=True), epoch, thread == 0)"

MUTANTS = {  # name: (old, new)
    "it does not wait for terms": (TERMS, TERMS.replace("dl.ll_load_pair", "tl.load").replace(
        "epoch, (word < words) & (term < TERMS)", "mask=(word < words) & (term < TERMS), other=0")),
    "it does not wait for sums of squares": (SQUARES, SQUARES.replace("dl.ll_load", "tl.load").replace(
        "epoch, thread < per_row).to(tl.float32", "mask=thread < per_row, other=0).to(tl.int32).to(tl.float32")),
    "packets keep to one half": ("inbox = slots + (epoch & 1) * half", "inbox = slots"),
    "sums of squares lie where terms do": ("squares_told = inbox + 2 * TERMS * words * m", "squares_told = inbox"),
    "pieces of a tile share a row": ("index * SPLIT + piece % SPLIT", "index * SPLIT"),
    "programs of a row share a sum of squares": (TELLING, TELLING.replace("told + part", "told")),
    "sums of squares keep to one half": ("squares_told = inbox", "squares_told = slots"),
    "it tells no sum of squares": (TELLING, "pass"),
}


def calls():
    """A slow rank, and shapes that change, so that each meets both halves, other grids, and larger and smaller calls after it."""
    return overtaking([GARN(2, 270, 72), GARN(3, 260, 72), GARN(1, 530, 40, bias=True)], slow=1, repeat=2)


def check(edits, folder, schedules=12):
    """With tiles in two pieces."""
    usual = op.tiling
    with mock.patch.object(op, "tiling", lambda *args: replace(usual(*args), split=2)):
        return check_edited(packets, "gemm_ar_rmsnorm_kernel", edits, calls, folder, schedules)


test_unchanged_it_is_clean, test_a_mutant_is_reported = checks_of(MUTANTS, check)
