# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_gather, reduce_scatter and all_to_all_single on virtual worlds. What all collectives share is in test_all_reduce.py."""
import pytest
import remembered
import torch
from scenarios import AR, BF16, F16, F32, Moves, back_to_back, near_the_wrap, overtaking, side_stream, two_groups

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace
from triton_dist.testing import poisoned, random_tensor

OPS = ["all_gather", "reduce_scatter", "all_to_all_single"]
OURS = ["one_shot", "push"]
KINDS = {"one_shot": "packets", "push": "pushes in one hop"}


@pytest.mark.every("op", "world")
@pytest.mark.every("method", "world")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", [*OURS, "unfused", "auto"])
@pytest.mark.parametrize("op", OPS)
def test_sizes_back_to_back(op, world, method):
    run_ranks(lambda: back_to_back([Moves(op, n, method) for n in (1, 7, 64, 515)]), world, seed=world)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("method", [*OURS, "unfused"])
@pytest.mark.parametrize("op", OPS)
def test_dtypes_places_and_alignment(op, method, dtype):
    calls = [Moves(op, n, method, dtype, in_place, skip) for n in (48, 101) for in_place in (False, True) for skip in (0, 1)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("mode", MODES)
def test_ops_methods_and_shapes_in_turn_and_a_slow_rank(mode):
    """All of them share two workspaces, and packets with all_reduce."""
    calls = [Moves(op, n, method) for op, n, method in (
        ("all_gather", 300, "one_shot"), ("reduce_scatter", 31, "push"), ("all_to_all_single", 200, "one_shot"),
        ("all_gather", 2000, "push"), ("reduce_scatter", 9, "one_shot"), ("all_to_all_single", 77, "push"))]
    for slow in (0, 2):
        run_ranks(lambda: overtaking([*calls, AR(90, "two_shot")], slow=slow, repeat=3), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("op", OPS)
def test_more_words_than_threads_and_more_blocks_than_programs(op):
    calls = [Moves(op, 2 * 4096 * 3 + 5, "push"), Moves(op, 9000, "one_shot"), Moves(op, 64, "push")]
    run_ranks(lambda: back_to_back(calls, repeat=2), 2, num_sms=1)


@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize("op", OPS)
def test_groups_streams_and_the_wrap(op, method):
    calls = [Moves(op, 200, method), Moves(op, 33, method)]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)
    for start in (2**31 - 3, -3):
        run_ranks(lambda: near_the_wrap(calls, [KINDS[method]], start=start), 3, mode="late")


def test_rows_of_any_shape_and_a_new_output():
    def script():
        world = resolve().size
        x = torch.arange(world * 2.0 * 3 * 5).view(world * 2, 3, 5)
        for method in (*OURS, "unfused"):
            gathered = ops.all_gather(x, method=method)
            kept = ops.reduce_scatter(x.transpose(1, 2), method=method)
            swapped = ops.all_to_all_single(x, method=method)
            triton_dist.synchronize()
            assert torch.equal(gathered, x.repeat(world, 1, 1))
            mine = x[2 * resolve().rank:2 * resolve().rank + 2]
            assert torch.equal(kept, world * mine.transpose(1, 2)) and kept.is_contiguous()
            assert torch.equal(swapped, mine.repeat(world, 1, 1))
    run_ranks(script, 3)


@pytest.mark.parametrize("op", OPS)
def test_no_rows_touch_nothing(op):
    def script():
        out = getattr(ops, op)(torch.empty(0, 4), method="push")
        assert list(out.shape) == [0, 4]
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    run_ranks(script, 2)


# -- all_to_all_single by lists ----------------------------------------------------------------------------------------
def rows_for(sender, receiver):
    return (3 * sender + receiver) % 4 * (sender != 2)              # rank 2 sends nothing


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_unequal_parts_that_hosts_know(world):
    def script():
        group = resolve()
        ranks = range(group.size)
        every = [random_tensor(sum(rows_for(sender, to) for to in ranks), 2, 5, dtype=BF16, seed=sender) for sender in ranks]
        given, expected = ([rows_for(group.rank, to) for to in ranks], [rows_for(sender, group.rank) for sender in ranks])
        for out in (None, poisoned(sum(expected), 2, 5, dtype=BF16)):
            got = ops.all_to_all_single(every[group.rank], output_split_sizes=expected, input_split_sizes=given, out=out)
            assert out is None or got is out
            parts = [x.split([rows_for(sender, to) for to in ranks])[group.rank] for sender, x in enumerate(every)]
            assert torch.equal(got, torch.cat(parts))
    run_ranks(script, world)


def test_parts_that_differ_from_call_to_call_push_no_plan_out():
    """Each call of a router has its own lists."""
    def script():
        x = torch.ones(8, 4, dtype=BF16)
        ops.all_reduce(x)
        kept = remembered.plans()
        for rows in range(5):
            parts = [8 - rows, rows][::-1 if resolve().rank else 1]         # the own part stays, the other one is exchanged
            ops.all_to_all_single(x, output_split_sizes=parts, input_split_sizes=parts)
        assert remembered.plans() == kept
    run_ranks(script, 2)


def test_debug_mode_compares_what_is_sent_with_what_is_expected(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_DEBUG", "1")

    def script():
        expected = [2, 3] if resolve().rank == 0 else [2, 2]
        with pytest.raises(InvalidArgument, match="rank 0 expects 3 rows of rank 1, whose input_split_sizes have 2 for it"):
            ops.all_to_all_single(torch.ones(4, 8), output_split_sizes=expected, input_split_sizes=[2, 2])
        ops.all_to_all_single(torch.ones(4, 8), output_split_sizes=[2, 2], input_split_sizes=[2, 2])
    run_ranks(script, 2)
