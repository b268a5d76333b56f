# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps all_reduce_rmsnorm right is needed: with one statement deleted or weakened, the checker reports it."""
from importlib import import_module

import pytest
from checking import check_edited
from scenarios import ARN, overtaking

op = import_module("triton_dist.ops.all_reduce_rmsnorm.op")      # triton_dist.ops.all_reduce_rmsnorm is the function
TERMS = "dl.ll_load_pair(terms, epoch, arriving)"
SUMS = "dl.ll_load_pair(sums + 2 * (row * row_words + word), epoch, word < row_words)"

MUTANTS = {  # name: (old, new)
    "it does not wait for terms": (TERMS, "tl.load(terms, mask=arriving, other=0)"),
    "it does not wait for sums": (SUMS, SUMS.replace("dl.ll_load_pair", "tl.load").replace(
        "epoch, word < row_words", "mask=word < row_words, other=0")),
    "packets keep to one half": ("inbox = slots + (epoch & 1) * half", "inbox = slots"),
    "sums lie where terms do": ("sums = inbox + 2 * WORLD * each * row_words", "sums = inbox"),
    "a place in a row that is a peer's": ("each * row_words + at), epoch", "each * row_words + at + 1), epoch"),
    "a rank does not hear of others' rows": ("range(pid, m, programs)", "range(pid, tl.minimum(m, 1), programs)"),
}


def calls():
    """A slow rank, and shapes that change, so that each meets both halves and other grids."""
    return overtaking([ARN(5, 40, "two_shot", residual="in place"), ARN(2, 130, "one_shot", bias=True),
                       ARN(9, 24, "two_shot"), ARN(3, 600, "one_shot")], slow=1, repeat=3)


def check(edits, folder, schedules=12):
    return check_edited(op, "all_reduce_rmsnorm_kernel", edits, calls, folder, schedules)


def test_unchanged_it_is_clean(tmp_path):
    report = check([], tmp_path, 4)
    assert report.clean, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    assert not check([MUTANTS[name]], tmp_path).clean
