# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm and gemm_rs in graphs, and ag_gemm whose x SMs push, in graphs and outside, on virtual worlds."""
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from gluon_core import small_tiles
from graph_calls import Static, captured, finish, replayed, replayed_on_two_streams, statics, warm_up
from scenarios import AG, BF16, F16, F32, RS, back_to_back, captures_by_rank, capturing, dawdle, graph, near_the_wrap, overtaking
from scenarios import capture_invalid_on, side_stream, two_groups

import triton_dist
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.backends.nvidia.backend import H100
from triton_dist.layers import AGGemm
from triton_dist import prepare_graphs
from triton_dist.ops import ag_gemm
from triton_dist.ops.ag_gemm import by_sms
from triton_dist.ops.calls import possible
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import MAX_PROGRAMS, workspace
from triton_dist.testing import ag_gemm_float64, assert_matches

pytestmark = pytest.mark.usefixtures("captures_by_rank")
KINDS = {"ag_gemm": "ag_gemm by SMs", "gemm_rs": "gemm_rs"}
WAYS = [("ag_gemm", None), ("ag_gemm", 1), ("ag_gemm", 3), ("gemm_rs", None)]


@pytest.mark.one
@pytest.mark.parametrize("world, method", [(1, "portable"), (2, "ws"), (3, "portable"), (4, "portable")])
@pytest.mark.parametrize("name, comm_sms", WAYS)
def test_replay_after_replay_with_eager_calls_between(name, comm_sms, world, method):
    run_ranks(lambda: replayed(name, comm_sms, method), world, mode="late", seed=world)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KINDS)
def test_replays_and_a_rank_that_is_overtaken(name, mode):
    run_ranks(lambda: replayed(name, 2 if name == "ag_gemm" else None, "portable", slow=1), 3, mode=mode, seed=5)


@pytest.mark.parametrize("start", [2**31 - 6, -6, -2**31 + 9])
@pytest.mark.parametrize("name", KINDS)
def test_replays_pass_the_wrap_and_zero(name, start):
    def script():
        group = resolve()
        calls = statics(name, None, "portable", group)
        warm_up(calls)
        made = captured(calls[:3])
        workspace(group, KINDS[name]).set_epoch(start)
        for call in calls:
            call.out.fill_(float("nan"))
        group.barrier()
        for _ in range(4):
            made.replay()
        triton_dist.synchronize()
        for call in calls[:3]:
            call.verify()
        return workspace(group, KINDS[name]).calls_begun()
    after = {2**31 - 6: -2**31 + 6, -6: 8, -2**31 + 9: -2**31 + 21}[start]         # twelve calls on; 2 follows -1
    assert run_ranks(script, 3, mode="late") == [after] * 3


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", ["late", "skew", "random"])
def test_ranks_without_tiles_or_terms(name, mode):
    def script():
        group, some = resolve(), lambda rank: 24 * (rank == 1)
        shape = (20, some, 40) if name == "ag_gemm" else (20, 24, some)
        calls = [Static(name, *shape, 1, group), Static(name, 20, 24, 40, 2, group)]
        warm_up(calls)
        made = captured([*calls, calls[0]])
        for _ in range(3):
            if group.rank == 1:
                dawdle()
            made.replay()
        finish(calls)
    run_ranks(script, 3, mode=mode)


def test_two_groups_and_a_replay_on_another_stream():
    def script():
        world = resolve()
        halves = [world.new_group([0, 1]), world.new_group([2, 3])]
        calls = [Static(name, 20, 24, 64, seed, group, comm_sms=sms) for seed, (name, sms) in enumerate(WAYS)
                 for group in (world, halves[world.rank // 2])]
        warm_up(calls)
        replayed_on_two_streams(calls)
    run_ranks(script, 4, mode="late")


# -- what capture needs ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", [AG, RS])
def test_what_has_not_run_is_captured_unfused_or_refused(call):
    """And a later call makes a plan of its own."""
    kinds = {"ag_gemm": ("ag_gemm", "ag_gemm by SMs"), "gemm_rs": ("gemm_rs",)}[call.kind]

    class Auto(call):
        method = "auto"

    def script():
        with capturing():
            with pytest.warns(RuntimeWarning, match="runs unfused: it has not run with these arguments before"):
                back_to_back([Auto(9, 40, 64)])
            with pytest.raises(InvalidArgument, match="'portable' is not possible here: it has not run with these arguments"):
                call(9, 40, 64)(0, resolve())
        assert not any((resolve().key, kind) in state().workspaces for kind in kinds)
        with prepare_graphs():
            back_to_back([Auto(9, 40, 64)])
        with capturing():
            back_to_back([Auto(9, 40, 64)] * 2)
        return [workspace(resolve(), kind).calls_begun() for kind in kinds]
    assert run_ranks(script, 1) == [[1, 2] if call is AG else [3]]


@pytest.mark.parametrize("name", KINDS)
def test_a_call_like_it_that_has_run_is_enough(name):
    """With another weight, and after a capture that came too early."""
    def script():
        group = resolve()
        one, other = (Static(name, 16, 64, 64, seed, group, "auto") for seed in range(2))
        with capturing(), pytest.warns(RuntimeWarning, match="runs unfused"):
            one()
        warm_up([other])
        finish([one, other])
        before = workspace(group, KINDS[name]).calls_begun()
        with capturing():
            one()
        return workspace(group, KINDS[name]).calls_begun() - before
    assert run_ranks(script, 1) == [1]


@pytest.mark.parametrize("call", [AG, RS])
def test_a_larger_call_between_does_not_keep_one_from_being_captured(call):
    """Buffers have moved; what a graph uses is never freed."""
    def script():
        small, large = call(9, 40, 64), call(200, 300, 600)
        with prepare_graphs():
            back_to_back([small])
        with capturing():
            back_to_back([small])
        before = workspace(resolve(), KINDS[call.kind]).data
        with prepare_graphs():
            back_to_back([large])
        assert workspace(resolve(), KINDS[call.kind]).data is not before and before.tdist_allocation.live
        live = set(heap()._live)
        with capturing():
            back_to_back([small, large, small])
        assert set(heap()._live) == live
    run_ranks(script, 2)


@pytest.mark.parametrize("before, after", [(32, 64), (32, 0), (0, 32)])
def test_columns_change_on_one_rank_alone(before, after, monkeypatch):
    """The other rank's call is one that it has prepared, so it takes part in no exchange of sizes. Each has its own programs."""
    monkeypatch.setattr(by_sms, "programs_of", lambda plan, choice: choice.comm_sms // (1 + plan.group.rank))

    def script():
        group = resolve()
        for n in (before, after):
            x, weight = torch.ones(8, 16), torch.ones(before if group.rank else n, 16)
            with prepare_graphs():
                out = ag_gemm(x, weight, method="portable")
            triton_dist.synchronize()
            assert_matches(out, ag_gemm_float64(x, weight, group), k=16)
    run_ranks(script, 2)


def test_where_the_heap_has_no_room_for_captures_calls_still_run(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "4M")

    def script():
        with prepare_graphs():
            back_to_back([AG(128, 8, 1024, dtype=F32)], repeat=2)
        with capturing(), pytest.raises(InvalidArgument, match="'portable' is not possible here"):
            AG(128, 8, 1024, dtype=F32)(0, resolve())
    run_ranks(script, 2)


def test_over_nodes_nothing_is_captured():
    def script():
        with capturing():
            for call in (AG(9, 40, 64), RS(9, 40, 64)):
                with pytest.raises(InvalidArgument, match="not possible here: it cannot be captured over nodes"):
                    call(0, resolve())
    with mock.patch.object(possible, "across_nodes", lambda group: True):
        run_ranks(script, 2)


# -- SMs that push, outside of graphs ----------------------------------------------------------------------------------
@contextmanager
def small_pieces():
    with mock.patch.object(by_sms, "PIECE_BYTES", 4096), mock.patch.object(by_sms, "_LEAST_BLOCK", 512):
        yield


@pytest.mark.one
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_ragged_shapes_back_to_back(world, dtype):
    calls = [AG(*shape, dtype=dtype, bias=True, comm_sms=sms) for shape in ((64, 64, 64), (1, 1, 1), (9, 10, 50), (70, 33, 130))
             for sms in (1, 3)]
    with small_pieces():
        run_ranks(lambda: back_to_back(calls), world, seed=world)


@pytest.mark.parametrize("mode", MODES)
def test_pieces_programs_and_shapes_change_between_calls(mode):
    """A flag belongs to one writer for good, however many programs push and pieces a call has (rule 7)."""
    calls = [AG(256, 24, 64, comm_sms=3), AG(64, 24, 8, comm_sms=1), AG(128, 24, 64, comm_sms=32), AG(20, 24, 64),
             AG(40, lambda r: 24 * (r == 1), 40, comm_sms=2)]
    with small_pieces():
        for slow in (0, 2):
            run_ranks(lambda: overtaking(calls, slow=slow), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("mode", ["late", "random", "skew"])
def test_the_core_and_tiles_split_for_the_sms_that_are_left(mode):
    """6 tiles on 8 SMs of which 4 push: the last two are split."""
    class Core(AG):
        method = "ws"
    with small_tiles(), small_pieces():
        calls = [Core(136, 24, 64, comm_sms=4), Core(40, 40, 48, bias=True, comm_sms=2), Core(136, 24, 64)]
        run_ranks(lambda: back_to_back(calls, repeat=2), 2, mode=mode)


def test_as_many_sms_as_the_device_has():
    """Then the GEMM waits for the push, which waits for nobody."""
    run_ranks(lambda: back_to_back([AG(40, 24, 64, comm_sms=2), AG(9, 40, 64, comm_sms=3)], repeat=2), 2, num_sms=2)


def test_groups_streams_and_epochs():
    calls = [AG(20, 40, 64, comm_sms=3), AG(33, 17, 64, comm_sms=1)]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)
    run_ranks(lambda: near_the_wrap(calls, ["ag_gemm by SMs"]), 3, mode="late")


def test_gathered_input_is_returned():
    def script():
        for call in (AG(20, 30, 40, comm_sms=3), AG(70, 30, 56, comm_sms=1)):
            for verify in [call(seed, resolve(), return_gathered=True) for seed in range(3)]:
                verify()
    run_ranks(script, 3)


def test_what_is_left_between_calls():
    """Every copy of the epoch is the same, whatever the grids were (rule 9); the second call allocates nothing."""
    def script():
        calls = [AG(70, 200, 64, comm_sms=3), AG(9, 10, 50, comm_sms=1), AG(20, 30, 40, comm_sms=8)]
        back_to_back(calls)
        space, live = workspace(resolve(), "ag_gemm by SMs"), set(heap()._live)
        assert space.control.tolist() == [3] * 2 * MAX_PROGRAMS
        back_to_back(calls)
        assert set(heap()._live) == live
    run_ranks(script, 2)


def test_no_stream_memory_operations_are_needed():
    with mock.patch.object(EmulatorBackend, "has_stream_memory_ops", lambda self: False):
        run_ranks(lambda: back_to_back([AG(20, 24, 40, comm_sms=2)]), 2)


def test_auto_with_comm_sms_is_fused_where_auto_would_not_be():
    """A collective of few bytes is left to a collective and a matmul, unless it was asked for."""
    class Auto(AG):
        method = "auto"

    def script():
        back_to_back([Auto(20, 24, 64)])
        assert not any("ag_gemm" in kind for _, kind in state().workspaces)
        back_to_back([Auto(20, 24, 64, comm_sms=2)] * 2)
        return workspace(resolve(), "ag_gemm by SMs").calls_begun()
    with mock.patch.object(EmulatorBackend, "machine_model", lambda self: H100):
        assert run_ranks(script, 2) == [2] * 2


def test_layer():
    def script():
        group = resolve()
        full, x = torch.nn.Linear(64, 24).requires_grad_(False), torch.randn(5, 64)
        out = AGGemm.from_full(full)(x, comm_sms=2)
        assert (group.key, "ag_gemm by SMs") in state().workspaces
        assert_matches(out, ag_gemm_float64(x, full.weight, group, full.bias), k=64)
    run_ranks(script, 1)


@pytest.mark.parametrize("name", KINDS)
def test_a_launch_that_fails_inside_a_capture_harms_no_later_call(name):
    """Nothing was sent, also where it fails on one rank alone."""
    def script():
        group = resolve()
        calls = statics(name, None, "portable", group)[:2]
        warm_up(calls)
        with capture_invalid_on(1):
            calls[0]()
        finish(calls)
        for call in calls:
            call.out.fill_(float("nan"))
            call()
        finish(calls)
        made = captured(calls)
        for call in calls:
            call.out.fill_(float("nan"))
        group.barrier()
        made.replay()
        finish(calls)
    run_ranks(script, 2, mode="late")


def test_no_symmetric_tensor_is_made_inside_a_capture():
    """The host would wait for a stream that is captured, when the heap has already changed."""
    def script():
        before = heap().largest_free()
        with graph(), pytest.raises(InvalidArgument, match="inside graph capture; call it before"):
            triton_dist.create_symm_tensor((64,), F32)
        assert heap().largest_free() == before
        assert triton_dist.create_symm_tensor((64,), F32).sum() == 0
    run_ranks(script, 2)
