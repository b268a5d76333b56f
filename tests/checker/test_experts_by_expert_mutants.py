# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps rows that go straight to their places by expert right is needed: without it the checker or a result says so."""
from importlib import import_module

import pytest
from checking import check_edited, checks_of
from experts import EP, anywhere
from scenarios import overtaking

from triton_dist.checker import check_kernel
from triton_dist.ops.ep import chunks

by_expert = import_module("triton_dist.ops.ep_dispatch.by_expert")
KERNELS = "triton_dist.ops.ep_dispatch.kernels"
ROWS = 'dl.wait(arrived + peer * flags_source + t, 1, "sys", "acquire", epoch)'
SENT = "(rank < WORLD) & ((rank != here) | (FIRST == 0)) & (t * ROUND < going))"
MUTANTS = {  # name: (old, new)
    "it does not hear of all":
    ("    dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == PARTS * chunks))\n", ""),
    "packets keep to one half": ("inbox = packets + (epoch & 1) * packets_half", "inbox = packets"),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
    "scales keep to one half": ("words_in = meta + (epoch & 1).to(tl.int64) * meta_half", "words_in = meta"),
    "flags keep to one half": ("arrived = flags + (epoch & 1) * flags_half", "arrived = flags"),
    "it does not wait for rows": (ROWS, "0"),
    "a relaxed wait": (ROWS, ROWS.replace("acquire", "relaxed")),
    "a wait of this device": (ROWS, ROWS.replace('"sys"', '"gpu"')),
    "it waits for the first round": (ROWS, ROWS.replace(" + t,", ",")),
    "own rows are left out": ("if FIRST == 1:", "if FIRST == 2:"),
    "own rows lie where the first rank's do": ("landing, index)", "landing, 0)"),
    "gaps are not cleared": ("        if not MASKED:", "        if MASKED:"),
}
OF_ROWS = {
    "nothing is released": (f"        dl.notify_each(everyone + t, epoch, {SENT}\n", ""),
    "all rounds have one flag": (f"dl.notify_each(everyone + t, epoch, {SENT}", f"dl.notify_each(everyone, epoch, {SENT}"),
}


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A row a round."""
    for name in ("MOVED", "PLACED", "ROUNDED"):
        monkeypatch.setattr(chunks, name, chunks.Pieces(128, 128))


def apart(rank, seed, tokens, k, experts):
    """Ranks 1 and 2 send each other nothing."""
    found = anywhere(rank, seed, tokens, k, experts)
    return found if rank == 0 else found.where((found < experts // 3) | (found // (experts // 3) == rank), 0)


def calls():
    """A slow rank, ranks that do not hear from each other by rows, several rounds, gaps, scales.

    An odd number of launches that count epochs, so that rows use either half in turn.
    """
    return overtaking([
        EP(3, 40, layout="masked", capacity=3, routing=apart, combine=False),
        EP(5, 24, layout="expert", align=4, scales=2, routing=apart, combine=False),
        EP(5, 24, scales=2, weights=False, combine=False)
    ], slow=1, repeat=2)


def check(edits, folder, schedules=12, under=None):
    return check_edited(by_expert, "rows_by_expert_kernel", edits, calls, folder, schedules, under, num_sms=1)


test_unchanged_it_is_clean, test_a_mutant_is_reported = checks_of(MUTANTS, check)


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_mutant_of_what_sends_is_reported(name, tmp_path):
    assert not check([OF_ROWS[name]], tmp_path, under=KERNELS).clean, f"survived: {name}"


@pytest.mark.full
def test_it_is_clean_on_many_schedules():
    some = [EP(5, 24, layout="expert", align=4), EP(4, 128, layout="expert", quant="fp8_1x128"),
            EP(lambda rank: 4 * (rank == 1), 24, layout="masked", max_tokens=4, capacity=3)]
    report = check_kernel(lambda: overtaking(some, slow=0, repeat=1), 3, 50)
    assert report.clean and report.schedules == 50, str(report)
