# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps all_to_all_vdev right is needed: with one statement deleted or weakened, the checker reports it."""
from importlib import import_module

from checking import check_edited, checks_of
from scenarios import V, overtaking

op = import_module("triton_dist.ops.all_to_all_vdev.op")        # triton_dist.ops.all_to_all_vdev is the function
MATRIX = "dl.ll_load_pair(matrix + 2 * cell, epoch, valid)"
WAIT = 'dl.wait(arrived + (t - 1) * programs * WORLD + peer, 1, "sys", "acquire", epoch)'
RELEASE = ("        dl.notify_each(everyone + t * programs * WORLD, epoch, "
           "(rank < WORLD) & (rank != index) & (first < going * width))\n")

MUTANTS = {  # name: (old, new)
    "it does not wait for the matrix": (MATRIX, "tl.load(matrix + 2 * cell, mask=valid, other=0)"),
    "packets keep to one half": ("matrix = slots + (epoch & 1) * slots_half", "matrix = slots"),
    "rows keep to one half": ("inbox = data + (epoch & 1).to(tl.int64) * half", "inbox = data"),
    "it does not wait for rows": (f"token = {WAIT}", "token = 0"),
    "a relaxed wait": (WAIT, WAIT.replace("acquire", "relaxed")),
    "a wait of this device": (WAIT, WAIT.replace('"sys"', '"gpu"')),
    "nothing is released": (RELEASE, ""),
    "flags of all rounds are one": (RELEASE + "        for", RELEASE.replace(" + t * programs * WORLD", "") + "        for"),
    "rows lie where the first rank's do": ("of(place, peer) * width", "0 * of(place, peer)"),
    "capacity is what comes": ("tl.minimum(tl.maximum(capacity - places, 0), counts)", "counts"),
    "more than x has": ("tl.minimum(ends, m) - begins", "wanted"),
}


def calls():
    """A slow rank, shapes that change, more rows than fit, more splits than rows, and several rounds."""
    much = V(64, 300, splits=lambda rank, seed, world: [20, 30, 10])
    return overtaking([V(16, 40), V(9, 24, capacity=5), much, V(16, 40, splits=lambda rank, seed, world: [9] * world), much],
                      slow=1, repeat=2)


def check(edits, folder, schedules=12):
    return check_edited(op, "all_to_all_vdev_kernel", edits, calls, folder, schedules, num_sms=1)


test_unchanged_it_is_clean, test_a_mutant_is_reported = checks_of(MUTANTS, check)
