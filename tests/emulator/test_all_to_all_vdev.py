# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev on virtual worlds: splits, capacities, dtypes, groups, streams, epochs, capture, debug mode."""
from unittest import mock

import pytest
import torch
from scenarios import (BF16, F16, F32, FIVE_ON, Moves, V, back_to_back, captures_by_rank, capturing, overtaking,
                       past_the_wrap_and_zero, side_stream, two_groups)

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import all_to_all_vdev
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import SymmetricHeap, heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace, workspace
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
METHODS = ["push", "unfused", "auto"]
SHAPES = [(1, 64), (9, 41), (30, 16), (5, 700)]


def all_to_one(rank, seed, world):
    return [12 * (index == seed % world) for index in range(world)]


def none_at_all(rank, seed, world):
    return [0] * world


def one_sender(rank, seed, world):
    return [(4 if rank == 1 else 0)] * world


def wrong(rank, seed, world):
    """Negative, and more than x has: read as 0, and cut off."""
    return [-3, *[7] * (world - 2), 2**40] if world > 1 else [-1]


@pytest.mark.every("world", "method")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", METHODS)
def test_ragged_shapes_back_to_back(world, method):
    run_ranks(lambda: back_to_back([V(*shape, method) for shape in SHAPES], repeat=2), world, seed=world)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("method", ["push", "unfused"])
@pytest.mark.parametrize("splits", [all_to_one, none_at_all, one_sender, wrong])
def test_uneven_splits(splits, method, world):
    calls = [V(16, 33, method, splits=splits), V(16, 33, method), V(16, 33, method, splits=splits)]
    run_ranks(lambda: back_to_back(calls), world, seed=world)


@pytest.mark.parametrize("capacity", [0, 1, 13, 40])
@pytest.mark.parametrize("method", ["push", "unfused"])
def test_what_does_not_fit_is_cut_off_and_told(method, capacity):
    calls = [V(16, 33, method, capacity=capacity, splits=splits) for splits in (None, all_to_one, one_sender)]
    run_ranks(lambda: back_to_back(calls, repeat=2), 3)


@pytest.mark.parametrize("dtype, kept", [(F16, torch.int64), (BF16, torch.int32), (F32, torch.int32)])
def test_dtypes(dtype, kept):
    run_ranks(lambda: back_to_back([V(12, row, dtype=dtype, kept=kept) for row in (48, 7)]), 3)


@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_capacities_in_turn_and_a_slow_rank(mode):
    calls = [V(9, 130), V(40, 8, capacity=30), V(3, 16, splits=none_at_all), Moves("all_to_all_single", 77, "push"),
             V(16, 24, splits=all_to_one), V(1, 700)]
    for slow in (0, 2):
        run_ranks(lambda: overtaking(calls, slow=slow, repeat=3), 3, mode=mode, seed=slow)


def test_more_blocks_than_programs():
    """Rounds, and ranks that have rows for others in some of them only."""
    calls = [V(64, 700), V(64, 700, splits=lambda rank, seed, world: [60, 1, 0] if rank else [0, 0, 64]), V(2, 16)]
    run_ranks(lambda: back_to_back(calls, repeat=2), 3, num_sms=1)


def test_two_groups_and_two_streams():
    calls = [V(20, 40), V(3, 33)]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)


@pytest.mark.parametrize("start", FIVE_ON)
def test_epochs_pass_the_wrap_and_zero(start):
    growing = [V(64, 64 * (i + 1)) for i in range(5)]
    run_ranks(lambda: past_the_wrap_and_zero([V(20, 40), V(3, 33)], growing, V.kind, start), 3, mode="late")


def test_the_second_call_allocates_nothing_symmetric():
    def script():
        calls = [V(20, 200), V(1, 24)]
        back_to_back(calls)
        live = set(heap()._live)
        back_to_back(calls, repeat=3)
        assert set(heap()._live) == live
    run_ranks(script, 2)


def test_outputs_are_allocated_and_rows_have_any_shape():
    def script():
        group = resolve()
        for shape in ((6, 2, 3, 5), (6,), (0, 4), (6, 0)):
            x, splits = random_tensor(*shape, dtype=F32, seed=group.rank), torch.tensor([shape[0] // 2] * 2, dtype=torch.int32)
            for capacity in (None, 9):
                out, told = all_to_all_vdev(x, splits, capacity=capacity)
                triton_dist.synchronize()
                assert out.shape == (capacity or 2 * shape[0], *shape[1:]) and told.dtype == torch.int32
                half = shape[0] // 2
                assert told.tolist() == [[half, half], [0, half]]
                every = [random_tensor(*shape, dtype=F32, seed=index)[group.rank * half:][:half] for index in range(2)]
                assert torch.equal(out[:2 * half], torch.cat(every))
    run_ranks(script, 2)


def test_strided_rows():
    def script():
        x = random_tensor(12, 64, dtype=F16, seed=resolve().rank)[:, 8:40]
        out, told = all_to_all_vdev(x, torch.tensor([4, 5]))
        triton_dist.synchronize()
        mine = slice(0, 4) if resolve().rank == 0 else slice(4, 9)
        expected = torch.cat([random_tensor(12, 64, dtype=F16, seed=index)[mine, 8:40] for index in range(2)])
        assert torch.equal(out[:len(expected)], expected)
    run_ranks(script, 2)


# -- capture, debug ----------------------------------------------------------------------------------------------------
def test_capture_uses_what_has_run_before_and_keeps_its_memory():
    def script():
        ran = V(20, 40)
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran, ran])
        data = workspace(resolve(), V.kind).data
        back_to_back([V(64, 600)])
        assert workspace(resolve(), V.kind).data is not data
        assert data.tdist_allocation.live, "a captured graph still stores there"
        back_to_back([ran])
    run_ranks(script, 2)


@pytest.mark.parametrize("method", METHODS)
def test_capture_of_what_has_not_run_is_an_error(method):
    def script():
        with capturing():
            with pytest.raises(InvalidArgument, match="before this graph capture|that this call has run before"):
                all_to_all_vdev(torch.ones(4, 8), torch.tensor([2, 2]), method=method)
        back_to_back([V(4, 8)])
    run_ranks(script, 2)


@pytest.mark.parametrize("splits, capacity, says", [([3, 3], 5, "capacity: expected room for all rows, found 5 for 6 rows"),
                                                    ([-1, 3], 9, r"in_splits: expected rows of x, .* 6, found \[-1, 3\]"),
                                                    ([3, 4], 9, r"in_splits: expected rows of x, .* 6, found \[3, 4\]")])
def test_debug_mode_tells_of_what_was_cut_off(splits, capacity, says, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_DEBUG", "1")

    def script():
        with pytest.raises(InvalidArgument, match=says):
            all_to_all_vdev(torch.ones(6, 8), torch.tensor(splits), capacity=capacity)
        back_to_back([V(4, 8, splits=lambda rank, seed, world: [2, 1])])
    run_ranks(script, 2)


def test_a_group_whose_memory_is_not_reachable_takes_its_own_collective():
    def script():
        back_to_back([V(9, 40, "auto")])
        with pytest.raises(InvalidArgument, match="can load and store each other's memory; use 'auto' or 'unfused'"):
            all_to_all_vdev(torch.ones(4, 8), torch.tensor([2, 2]), method="push")
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    with mock.patch.object(SymmetricHeap, "reachable", lambda self, group: False):
        run_ranks(script, 2)
