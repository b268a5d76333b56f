# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The segment map when the garbage collector ends storages at any moment."""
import ctypes
import gc
import itertools

import numpy as np
import torch

from triton_dist.backends.emulator.memory.memory import Memory, Segment


def test_a_segment_dropped_while_the_map_changes_stays_dropped():
    mem = Memory()
    old = mem.add_segment(0x10000, 64, "old")

    def change(bases, segments):
        mem.drop_segment(old)                # as the collector would, in the middle; idempotent
        return [*bases, 0x20000], [*segments, Segment(0x20000, 64, "new", 0)]
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


# -- storages that change while they live ------------------------------------------------------------------------------
def arena(nbytes):
    """Memory in which a test lays out storages as it likes: (function that makes a storage of it, its first address)."""
    raw = (ctypes.c_uint8 * nbytes)()
    return (lambda start, stop: torch.frombuffer(raw, dtype=torch.uint8, offset=start, count=stop - start)), ctypes.addressof(raw)


def accessible(mem, base, nbytes):
    return [mem.at(base + i) is not None for i in range(nbytes)]


def test_a_storage_that_was_resized_does_not_hide_one_that_now_has_its_memory():
    """FSDP empties a parameter's storage and fills it again elsewhere; the allocator gives its memory to another tensor."""
    mem = Memory()
    held = torch.zeros(512, dtype=torch.uint8)
    mem.register(held, "resized")
    before = held.data_ptr()
    held.untyped_storage().resize_(0)
    assert held.untyped_storage().data_ptr() != before
    stale = mem.at(before)
    assert stale is not None and stale.name == "resized"

    whole = torch.from_numpy(np.ctypeslib.as_array((ctypes.c_uint8 * 768).from_address(before - 128)))   # what malloc may give
    mem.register(whole, "taken over")
    assert mem.at(before) is mem.at(before + 600) and mem.at(before).name == "taken over"
    held.untyped_storage().resize_(64 << 20)   # so large that malloc maps new pages: 512 bytes might come back where they were
    mem.register(held, "resized")
    assert mem.at(held.data_ptr()).name == "resized" and mem.find(before - 128, 768).name == "taken over"


def test_storages_that_share_memory_are_accessible_as_long_as_one_of_them_lives():
    for order in itertools.permutations([(0, 256), (64, 128), (192, 320)]):
        mem, (make, base) = Memory(), arena(384)
        tensors = [(make(*place), place) for place in order]
        for tensor, place in tensors:
            mem.register(tensor, str(place))
        while tensors:
            inside = [any(start <= i < stop for _, (start, stop) in tensors) for i in range(384)]
            assert accessible(mem, base, 384) == inside, (order, len(tensors))
            segments = mem._map[1]
            assert all(one.end <= two.base for one, two in itertools.pairwise(segments))
            del tensor
            tensors.pop(0)
            tensor = None
        assert not any(accessible(mem, base, 384))
