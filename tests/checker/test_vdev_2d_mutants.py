# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps the all-to-alls of chunks right is needed: with a statement deleted or weakened, the checker or a result says so."""
from importlib import import_module

import pytest
from checking import check_edited, checks_of
from chunks import Chunks2d, Offsets2d
from scenarios import overtaking

op = import_module("triton_dist.ops.all_to_all_vdev_2d.op")
SIZES = "dl.ll_load(inbox + cell, epoch, valid)"
WAIT = 'dl.wait(arrived + peer * flags_source + t - 1, 1, "sys", "acquire", epoch)'
RELEASE = "        dl.notify_each(everyone + t, epoch, (rank < WORLD) & (first < mine))\n"
FITS = "tile = ((place < come) & (land < capacity))"

MUTANTS = {  # name: (old, new)
    "it does not wait for sizes": (SIZES, "tl.load(inbox + cell, mask=valid, other=0).to(tl.int32)"),
    "packets keep to one half": ("inbox = packets + (epoch & 1) * packets_half", "inbox = packets"),
    "rows keep to one half": ("rows_in = data + (epoch & 1).to(tl.int64) * half", "rows_in = data"),
    "flags keep to one half": ("arrived = flags + (epoch & 1) * flags_half", "arrived = flags"),
    "it does not wait for rows": (f"token = {WAIT}", "token = 0"),
    "a relaxed wait": (WAIT, WAIT.replace("acquire", "relaxed")),
    "a wait of this device": (WAIT, WAIT.replace('"sys"', '"gpu"')),
    "nothing is released": (RELEASE, ""),
    "all rounds have one flag": (RELEASE, RELEASE.replace("everyone + t", "everyone")),
    "rows lie where the first rank's do": ("(index.to(tl.int64) * most + place)", "place.to(tl.int64)"),
    "it stores what does not fit": (FITS, FITS.replace(" & (land < capacity)", "")),
    "it sends more than x has": ("giving = tl.minimum(end, m).to(tl.int32) - begin", "giving = wanted.to(tl.int32)"),
}


def calls():
    """A slow rank, shapes that change, several rounds, more rows than fit, and more than x has."""
    def beyond(rank, seed, rows, world, experts):
        return [[rows] * experts for _ in range(world)]

    def lopsided(rank, seed, rows, world, experts):
        return [[12, 2], [0, 6], [4, 0]]
    return overtaking([Chunks2d(24, 24, sizes=lopsided), Offsets2d(30, 40, capacity=9), Chunks2d(8, 16, sizes=beyond),
                       Chunks2d(24, 24, sizes=lopsided, capacity=11)], slow=1, repeat=2)


def check(edits, folder, schedules=12):
    return check_edited(op, "all_to_all_vdev_2d_kernel", edits, calls, folder, schedules, num_sms=1)


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A few rows a round."""
    monkeypatch.setattr(op, "TILE_BYTES", 128)


test_unchanged_it_is_clean, test_a_mutant_is_reported = checks_of(MUTANTS, check)
