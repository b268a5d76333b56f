# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Symmetric tensors of the emulated heap lie apart, so that who runs out of one is seen; no byte of the heap is lost by it."""
import pytest
import torch

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime.errors import OutOfHeap
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import ALIGNMENT, RESERVED, heap


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "2M")


def offset(tensor):
    return tensor.tdist_allocation.offset


def test_neighbours_have_a_gap_and_equal_offsets_on_all_ranks():
    def host():
        made = [triton_dist.create_symm_tensor((n,), torch.int8) for n in (256, 100, 70_000, 1)]
        if resolve().rank < 2:
            pair = resolve().new_group([0, 1])
            made.append(triton_dist.create_symm_tensor((512,), torch.int8, pair))
        return [(offset(x), x.numel()) for x in made]
    places = run_ranks(host, 3)
    assert places[0] == places[1] and places[0][:4] == places[2]
    for (start, nbytes), (following, _) in zip(places[0], places[0][1:]):
        assert following - (start + nbytes) >= heap_gap() > 0
    assert places[0][0][0] - RESERVED >= heap_gap()


def heap_gap():
    return run_ranks(lambda: heap().arena.gap, 1)[0]


def test_a_heap_is_used_to_its_last_byte():
    def host():
        room = (2 << 20) - RESERVED
        made = [triton_dist.create_symm_tensor((room - 40 * ALIGNMENT,), torch.int8)]
        made += [triton_dist.create_symm_tensor((ALIGNMENT,), torch.int8) for _ in range(40)]
        with pytest.raises(OutOfHeap, match=f"{ALIGNMENT} bytes needed, the largest free range is 0 of"):
            triton_dist.create_symm_tensor((1,), torch.int8)
        assert len({offset(x) for x in made}) == len(made)
        for x in made:
            triton_dist.free_symm_tensor(x)
        return triton_dist.create_symm_tensor((room,), torch.int8).numel() == room
    assert run_ranks(host, 2) == [True, True]
