# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_reduce on virtual worlds: sizes, dtypes, places, methods, groups, streams, epochs, capture."""
from unittest import mock

import pytest
import torch
from bad_input import over
from scenarios import (AR, BF16, F16, F32, FIVE_ON, back_to_back, captures_by_rank, capturing, overtaking,
                       past_the_wrap_and_zero, side_stream, two_groups)

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import all_reduce
from triton_dist.ops import OPS
from triton_dist.ops.exchange.sizes import by_size
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import SymmetricHeap, heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import CountedWorkspace, SelfFlaggedWorkspace, workspace

pytestmark = pytest.mark.usefixtures("captures_by_rank")
OURS = ["one_shot", "two_shot", "push"]
SIZES = [1, 7, 64, 515, 2000]
KINDS = {"one_shot": "self-flagged", "two_shot": "self-flagged", "push": "pushes in two hops"}


@pytest.mark.every("world", "method")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", [*OURS, "unfused", "auto"])
def test_sizes_back_to_back(world, method):
    run_ranks(lambda: back_to_back([AR(n, method) for n in SIZES]), world, seed=world)


@pytest.mark.one
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("method", OURS)
def test_dtypes_places_and_alignment(method, dtype):
    calls = [AR(n, method, dtype, in_place, skip) for n in (48, 101) for in_place in (False, True) for skip in (0, 1)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("mode", MODES)
def test_methods_and_shapes_in_turn_and_a_slow_rank(mode):
    calls = [AR(n, method) for n, method in ((700, "one_shot"), (31, "push"), (200, "two_shot"), (2000, "push"), (9, "one_shot"))]
    for slow in (0, 2):
        run_ranks(lambda: overtaking(calls, slow=slow, repeat=4), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("method", OURS)
def test_more_words_than_threads_and_more_blocks_than_programs(method):
    """One SM: programs take several turns, and push several rounds."""
    n = 2 * 2 * 4096 * 3 + 5
    run_ranks(lambda: back_to_back([AR(n if method == "push" else 9000, method), AR(64, method)], repeat=2), 2, num_sms=1)


@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_every_rank_and_every_schedule_has_the_same_bits(method, mode):
    def script():
        return back_to_back([AR(1001, method)])[0]
    first = run_ranks(script, 4, mode="eager")
    assert all(torch.equal(out, first[0]) for out in first)
    assert all(torch.equal(out, first[0]) for out in run_ranks(script, 4, mode=mode, seed=7))


@pytest.mark.one
@pytest.mark.parametrize("method", OURS)
def test_two_groups_and_two_streams(method):
    calls = [AR(200, method), AR(33, method)]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)


@pytest.mark.one
@pytest.mark.parametrize("start", FIVE_ON)
@pytest.mark.parametrize("method", OURS)
def test_epochs_pass_the_wrap_and_zero(method, start):
    growing = [AR(3000 * (i + 1), method) for i in range(5)]
    run_ranks(lambda: past_the_wrap_and_zero([AR(64, method), AR(30, method)], growing, KINDS[method], start), 3, mode="late")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 5)])
def test_any_shape(shape):
    def script():
        group = resolve()
        x = torch.full(shape, float(group.rank + 1))
        for method in (*OURS, "unfused"):
            out = all_reduce(x, method=method)
            triton_dist.synchronize()
            assert out.shape == x.shape and bool((out == 6).all())
    run_ranks(script, 3)


def test_strided_input_and_a_new_output():
    def script():
        x = torch.arange(24.0).view(4, 6).t()
        out = all_reduce(x, method="two_shot")
        triton_dist.synchronize()
        assert out.is_contiguous() and torch.equal(out, 2 * x)
    run_ranks(script, 2)


def test_every_copy_of_the_epoch_is_the_same_between_calls():
    """Whatever the grids were, so that a program that did not run in the last call continues from it (rule 9)."""
    def script():
        back_to_back([AR(n, "one_shot") for n in (3000, 8, 900)])
        copies = workspace(resolve(), "self-flagged").control
        assert set(copies.tolist()) == {3} and copies.numel() == SelfFlaggedWorkspace.control_words
    run_ranks(script, 2)


@pytest.mark.parametrize("method", OURS)
def test_the_second_call_allocates_nothing_symmetric(method):
    def script():
        back_to_back([AR(500, method), AR(100, method)])
        space = workspace(resolve(), KINDS[method])
        live, before = set(heap()._live), (space.data, space.flags)
        back_to_back([AR(500, method), AR(100, method)], repeat=3)
        assert set(heap()._live) == live and (space.data, space.flags) == before
    run_ranks(script, 2)


# -- capture -----------------------------------------------------------------------------------------------------------
def test_capture_uses_what_has_run_before_and_keeps_its_memory():
    def script():
        ran = AR(300, "one_shot")
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran, ran])
        before = workspace(resolve(), "self-flagged").data
        back_to_back([AR(40000, "one_shot")])
        assert workspace(resolve(), "self-flagged").data is not before
        assert before.tdist_allocation.live, "a captured graph still stores there"
        back_to_back([ran])
    run_ranks(script, 2)


def test_without_capture_outgrown_memory_is_freed():
    def script():
        back_to_back([AR(300, "one_shot")])
        before = workspace(resolve(), "self-flagged").data
        back_to_back([AR(40000, "one_shot")])
        assert not before.tdist_allocation.live
    run_ranks(script, 2)


def test_capture_of_what_has_not_run_is_nccl_or_an_error():
    def script():
        with capturing():
            back_to_back([AR(300, "auto")])
            with pytest.raises(InvalidArgument, match="'two_shot' is not possible here: it has not run with these arguments"):
                all_reduce(torch.ones(300), method="two_shot")
        assert (resolve().key, "self-flagged") not in state().workspaces
        back_to_back([AR(300, "auto"), AR(300, "auto")])
        assert workspace(resolve(), "self-flagged").calls_begun() == 2
    run_ranks(script, 2)


# -- choice and refusals -----------------------------------------------------------------------------------------------
STEPS = {name: op.steps for name, op in OPS.items() if hasattr(op, "steps")}


def chosen(op, world, nbytes):
    """The method that auto takes."""
    return by_size(STEPS[op], world, nbytes)[0]


def test_auto_takes_the_method_of_the_table():
    assert {"one_shot", "push", "unfused"} <= {chosen("all_reduce", 4, 1 << power) for power in range(10, 32)}
    for op, rows in STEPS.items():
        assert max(rows) == 64 and list(rows) == sorted(rows)
        for world, steps in rows.items():
            sizes = [most for most, _ in steps]
            assert sizes == sorted(sizes)
            assert [chosen(op, world, size) for size in sizes] == [method for _, method in steps]
            assert chosen(op, world, sizes[-1] + 1) == "unfused"
    assert chosen("all_reduce", 3, 1) == chosen("all_reduce", 4, 1)


@pytest.mark.parametrize("op, dtype, method", [
    ("all_reduce", torch.bfloat16, "two_shot"), ("all_reduce", torch.int32, "push"), ("all_reduce", torch.float64, "push"),
    ("reduce_scatter", torch.float32, "one_shot"), ("reduce_scatter", torch.int64, "push")])
def test_data_in_packets_is_pushed_from_fewer_bytes_on(op, dtype, method):
    """On 2 GPUs, 32 MiB: bf16 by two_shot 97 us, by push 103, and behind a matmul 130 and 160; a packet is half flag."""
    def script():
        return OPS[op].at(1, (32 << 20) // dtype.itemsize, 1, dtype, resolve()).method
    assert run_ranks(script, 2) == [method] * 2


def test_packets_refuse_what_their_addresses_cannot_reach():
    def script():
        with pytest.raises(InvalidArgument, match="carries at most 67108864 bytes, found 67108868; use 'push' or 'unfused'"):
            all_reduce(torch.ones(1).expand(2**24 + 1), method="one_shot")
    run_ranks(script, 2)


def test_ranks_that_called_different_sizes_cannot_go_on():
    """Each later call says so, also of another method."""
    def script():
        back_to_back([AR(64, "push"), AR(64, "one_shot")], repeat=3)
        with pytest.raises(InvalidArgument, match="n=64"):
            all_reduce(torch.ones(64 + 2 * resolve().rank), method="push")
            resolve().barrier()
        over("n=64", "n=66")
    run_ranks(script, 2)


def test_a_group_whose_memory_is_not_reachable_takes_its_own_collective():
    def script():
        back_to_back([AR(64, "auto")])
        with pytest.raises(InvalidArgument, match="can load and store each other's memory; use 'auto' or 'unfused'"):
            all_reduce(torch.ones(64), method="push")
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    with mock.patch.object(SymmetricHeap, "reachable", lambda self, group: False):
        run_ranks(script, 2)


@pytest.mark.one
@pytest.mark.parametrize("method", ["one_shot", "two_shot", "push"])
def test_a_call_after_one_that_ranks_differed_in_takes_none_of_its_packets(method):
    """Of 20 schedules none gives a result to it."""
    def differ_and_go_on():
        rank, said = resolve().rank, []
        for n, value in ((24, 1.0), (48, 1.0), (48 if rank == 0 else 24, 1.0), (24, 5.0)):
            try:
                said.append(all_reduce(torch.full((n,), value), method=method)[:2].tolist())
            except InvalidArgument:
                said.append("told")
        return said
    wanted = [[2.0, 2.0], [2.0, 2.0], "told", "told"]
    for seed in range(20):
        assert run_ranks(differ_and_go_on, 2, mode="random", seed=seed) == [wanted] * 2, seed
