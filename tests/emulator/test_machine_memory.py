# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The segment map when the garbage collector ends storages at any moment."""
import gc

import torch

from triton_dist.backends.emulator.memory.memory import Memory, Segment


def test_a_segment_dropped_while_the_map_changes_stays_dropped():
    mem = Memory()
    old = mem.add_segment(0x10000, 64, "old")

    def change(segments):
        more = [*segments, Segment(0x20000, 64, "new", 0)]
        mem.drop_segment(old)                # as the collector would, in the middle; idempotent
        return more
    mem._replace(change)
    assert mem.at(0x10000) is None and mem.at(0x20000).name == "new"


def test_storages_in_cycles_leave_no_segment_behind():
    mem = Memory()
    threshold = gc.get_threshold()
    gc.set_threshold(2)                      # a collection at nearly every allocation
    try:
        for _ in range(200):
            cycle = [torch.empty(16)]
            cycle.append(cycle)
            mem.register(cycle[0], "in a cycle")
    finally:
        gc.set_threshold(*threshold)
    address = cycle[0].data_ptr()
    assert mem.at(address) is not None
    del cycle
    gc.collect()
    assert mem.at(address) is None and not mem._map[1]
