# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps dispatch and combine of few tokens right is needed: with one sentence broken, the checker or a result says so."""
from importlib import import_module

import pytest
from checking import check_edited, clean_on_schedules
from experts import EP, combines_alone, to_one
from scenarios import overtaking
from test_self_flag_mutants import loaded

from triton_dist.ops.ep.self_flagged import METHOD

dispatch = import_module("triton_dist.ops.ep_dispatch.self_flagged")
combine = import_module("triton_dist.ops.ep_combine.self_flagged")

TOLD = "dl.ll_load(tl.where(what == 3, keys + step * rank, place), epoch, there)"
KEY = "dl.ll_load(head + META - PIECES + number + 0 * vector, epoch, at < vectors)"
ROW = "dl.sf_take(rows_in + 4 * (slot * vectors + at), at < vectors)"
SLOT = "slot = index * slots_of_source + chunk * most + place\n"
NONE = "if (tl.max(sent_to(to, peer), 0) == 0) & (part < PIECES):"
FITS = "spread_words(words, at, vectors, land, fits, spots, out, K, EXPANDED)\n                        keep_choices("
BESIDE = "dl.ll_load(head + word, epoch, beside)"
HEARD = "dl.ll_load(inbox + rank * PITCH, epoch, (rank < WORLD) & (pid == 0))\n"
SUM = "dl.sf_take(rows_in + 4 * ((r * slots_of_rank + begin + place) * vectors + at), at < vectors)"
GIVEN = "dl.sf_store(outbox + 4 * (slot * vectors + at), dl.sf_filled(words), at < vectors)"


def unawaited(load: str) -> str:
    """`load`, a call of dl.ll_load, as a load that waits for nothing."""
    place, _, mask = load.removeprefix("dl.ll_load(")[:-1].rsplit(", ", 2)
    return f"tl.load({place}, mask={mask}, other=0).to(tl.int32)"


DISPATCH = {  # name: (old, new)
    "it does not wait for the numbers of rows": (TOLD, unawaited(TOLD)),
    "packets keep to one half": ("inbox = packets + (epoch & 1) * packets_half", "inbox = packets"),
    "rows keep to one half": ("rows_in = slots + (epoch & 1) * half", "rows_in = slots"),
    "it does not wait for the key": (KEY, unawaited(KEY)),
    "it does not wait for a row": (ROW, loaded(ROW)),
    "it does not wait for what is beside a row": (BESIDE, unawaited(BESIDE)),
    "it leaves rows that do not fit": (ROW, ROW.replace("at < vectors)", "(at < vectors) & fits)")),
    "it leaves the rows of one rank": (ROW, ROW.replace("at < vectors)", "(at < vectors) & (peer != 2))")),
    "rows lie where the first rank's do": (SLOT, "slot = chunk * most + place\n"),
    "it stores what does not fit": (FITS, FITS.replace("fits, spots", "True, spots")),
    "it does not say that no row comes": (NONE, NONE.replace("== 0", "== 2")),
    "the key is not sent": (" | (word == META - PIECES + number))", ")"),
    "a row is sent without a key": ("words ^ key, at < vectors)", "words, at < vectors)"),
    "the key is a word of the row":
    ("key = key_of(words, at < vectors, QUANT)\n", "key = of(tl.sum(words * (at == 0)[:, None], 0), 0)\n"),
}
COMBINE = {
    "it does not hear of all": (HEARD, "pass\n"),
    "rows keep to one half": ("rows_in = slots + (epoch & 1) * half", "rows_in = slots"),
    "it does not wait for a row": (SUM, loaded(SUM)),
    "it leaves the rows of one rank": (SUM, SUM.replace("at < vectors)", "(at < vectors) & (r != 2))")),
    "words of 0 are sent": (GIVEN, GIVEN.replace("dl.sf_filled(words)", "words")),
    "rows lie where the first rank's do":
    ("slot = index * slots_of_rank + of(first_slot, peer) + t", "slot = of(first_slot, peer) + t"),
}


def few(*args, **more):
    return EP(*args, method=METHOD, **more)


def dispatches():
    """A slow rank, shapes that change, rows that do not fit, a call that brings somebody nothing."""
    return overtaking([
        few(4, 24, combine=False),
        few(3, 40, capacity=3, combine=False),
        few(3, 16, routing=to_one, combine=False),
        few(4, 24, combine=False)
    ],
                      slow=1,
                      repeat=2)


def combines():
    combines_alone(4, METHOD)


def check(module, kernel, calls, edits, folder, schedules=12):
    return check_edited(module, kernel, edits, calls, folder, schedules, num_sms=1)


CASES = [*(pytest.param(dispatch, "ep_dispatch_self_flagged", dispatches, edit, id=f"dispatch: {name}")
           for name, edit in DISPATCH.items()),
         *(pytest.param(combine, "ep_combine_self_flagged", combines, edit, id=f"combine: {name}")
           for name, edit in COMBINE.items())]


@pytest.mark.parametrize("module, kernel, calls, edit", CASES)
def test_a_mutant_is_reported(module, kernel, calls, edit, tmp_path):
    assert not check(module, kernel, calls, [edit], tmp_path).clean


def test_unchanged_they_are_clean(tmp_path):
    for module, kernel, calls in ((dispatch, "ep_dispatch_self_flagged", dispatches),
                                  (combine, "ep_combine_self_flagged", combines)):
        report = check(module, kernel, calls, [], tmp_path, 1)
        assert report.clean and report.accesses, str(report)


CALLS = [
    few(2, 16, layout="expert"),
    few(2, 24, capacity=3),
    few(6, 16, layout="masked", capacity=3),
    few(3, 24, layout="indexed"),
    few(lambda rank: 4 * (rank == 1), 24, max_tokens=4),
    few(4, 128, quant="fp8_1x128")
]


test_all_layouts_are_clean_on_many_schedules, test_some_layouts_are_clean = clean_on_schedules(CALLS, 2)
