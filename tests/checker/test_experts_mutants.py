# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps dispatch and combine right is needed: with one statement deleted or weakened, the checker or a result says so."""
from importlib import import_module

import pytest
from checking import check_edited, clean_on_schedules
from experts import EP, combines_alone, to_one
from scenarios import overtaking

from triton_dist.ops.ep import chunks

dispatch, combine = import_module("triton_dist.ops.ep_dispatch.op"), import_module("triton_dist.ops.ep_combine.op")
MATRIX = "dl.ll_load(inbox + cells, epoch, known)"
ROWS = 'dl.wait(arrived + peer * flags_source + t, 1, "sys", "acquire", epoch)'
SENT = "(rank < WORLD) & ((rank != here) | (FIRST == 0)) & (t * ROUND < going))"
FITTING = "(place < come) & (land < limit), out + land * row"
BACK = 'dl.wait(arrived + r * flags_source + place // ROUND, 1, "sys", "acquire", epoch)'
GIVEN = "                dl.notify_each(everyone + t, epoch, (rank < WORLD) & (rank != index) & (t * ROUND < giving))\n"

DISPATCH = {  # name: (old, new)
    "it does not wait for the matrix": (MATRIX, "tl.load(inbox + cells, mask=known, other=0).to(tl.int32)"),
    "packets keep to one half": ("inbox = packets + (epoch & 1) * packets_half", "inbox = packets"),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
    "words keep to one half": ("words_in = meta + (epoch & 1).to(tl.int64) * meta_half", "words_in = meta"),
    "flags keep to one half": ("arrived = flags + (epoch & 1) * flags_half", "arrived = flags"),
    "it does not wait for rows": (ROWS, "0"),
    "a relaxed wait": (ROWS, ROWS.replace("acquire", "relaxed")),
    "a wait of this device": (ROWS, ROWS.replace('"sys"', '"gpu"')),
    "nothing is released": (f"        dl.notify_each(everyone + t, epoch, {SENT}\n", ""),
    "all rounds have one flag": (f"dl.notify_each(everyone + t, epoch, {SENT}", f"dl.notify_each(everyone, epoch, {SENT}"),
    "rows lie where the first rank's do":
    ("base = (source * slots + slot).to(tl.int64)\n", "base = (slot + 0 * slots).to(tl.int64)\n"),
    "it stores what does not fit": (FITTING, FITTING.replace(" & (land < limit)", "")),
}
COMBINE = {
    "it does not hear of all":
    ("dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == senders * chunks))\n", "pass\n"),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
    "flags keep to one half": ("arrived = flags + (epoch & 1) * flags_half", "arrived = flags"),
    "it does not wait for rows": (BACK, "0"),
    "a relaxed wait": (BACK, BACK.replace("acquire", "relaxed")),
    "a wait of this device": (BACK, BACK.replace('"sys"', '"gpu"')),
    "it waits for the first round": (BACK, BACK.replace(" + place // ROUND", "")),
    "it waits for half of the rounds": (BACK, BACK.replace("ROUND", "(2 * ROUND)")),
    "nothing is released": (GIVEN, ""),
    "rows lie where the first rank's do":
    ("index * slots + of(first_slot, peer)", "of(first_slot, peer)"),
}


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A row a round of a dispatch, two rows a round of a combine."""
    monkeypatch.setattr(chunks, "MOVED", chunks.Pieces(128, 128))
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(64, 256))


def dispatches():
    """A slow rank, shapes that change, rows that do not fit, several rounds, a call that brings somebody nothing."""
    return overtaking([
        EP(6, 24, combine=False),
        EP(5, 40, capacity=5, combine=False),
        EP(4, 16, routing=to_one, combine=False),
        EP(6, 24, combine=False)
    ],
                      slow=1,
                      repeat=2)


def combines():
    combines_alone(6, "push")


def check(module, kernel, calls, edits, folder, schedules=12):
    return check_edited(module, kernel, edits, calls, folder, schedules, num_sms=1)


def test_unchanged_they_are_clean(tmp_path):
    for module, kernel, calls in ((dispatch, "ep_dispatch_kernel", dispatches), (combine, "ep_combine_kernel",
                                                                                 combines)):
        report = check(module, kernel, calls, [], tmp_path, 1)
        assert report.clean, str(report)


@pytest.mark.parametrize("name", DISPATCH)
def test_a_mutant_of_dispatch_is_reported(name, tmp_path):
    assert not check(dispatch, "ep_dispatch_kernel", dispatches, [DISPATCH[name]], tmp_path).clean


@pytest.mark.parametrize("name", COMBINE)
def test_a_mutant_of_combine_is_reported(name, tmp_path):
    assert not check(combine, "ep_combine_kernel", combines, [COMBINE[name]], tmp_path).clean


CALLS = [
    EP(5, 24, layout="expert"),
    EP(6, 16, layout="masked", capacity=3),
    EP(3, 24, layout="indexed", combine=False),
    EP(lambda rank: 4 * (rank == 1), 24, max_tokens=4),
    EP(4, 128, quant="fp8_1x128")
]


test_all_layouts_are_clean_on_many_schedules, test_some_layouts_are_clean = clean_on_schedules(CALLS, 3)
