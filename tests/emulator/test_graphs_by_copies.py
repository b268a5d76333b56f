# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm in graphs that hold the copy engine's pushes, on virtual worlds."""
from importlib import import_module
from unittest import mock

import pytest
import torch
from gluon_core import small_tiles
from graph_calls import Static, captured, finish, replayed, replayed_on_two_streams, statics, warm_up
from scenarios import AG, F32, back_to_back, captures_by_rank, capturing, dawdle

import triton_dist
from triton_dist import prepare_graphs
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import ag_gemm
from triton_dist.ops.ag_gemm import gather
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace

op = import_module("triton_dist.ops.ag_gemm.op")           # triton_dist.ops.ag_gemm is the function
KIND, BY_SMS = "ag_gemm in graphs", "ag_gemm by SMs"


@pytest.fixture(autouse=True)
def by_copies(monkeypatch, captures_by_rank):
    """Shards of any size are pushed by copies, in pieces as small as tests need."""
    monkeypatch.setattr(op, "_MOST_BY_SMS_IN_GRAPHS", -1)
    monkeypatch.setattr(gather, "PIECE_BYTES", 4096)


def calls_begun():
    """Of captured calls on the world, none of which SMs have pushed."""
    assert (resolve().key, BY_SMS) not in state().workspaces
    return workspace(resolve(), KIND).calls_begun()


@pytest.mark.parametrize("world, method", [(1, "portable"), (2, "ws"), (3, "portable"), (4, "portable")])
def test_replay_after_replay_with_eager_calls_between(world, method):
    """Two graphs in turn, of three calls and of one, and eager calls of the same kind."""
    def script():
        replayed("ag_gemm", None, method)
        return calls_begun()
    assert run_ranks(script, world, mode="late", seed=world) == [2 * (4 * 3 + 1)] * world


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_replays_and_a_rank_that_is_overtaken(mode, slow):
    run_ranks(lambda: replayed("ag_gemm", None, "portable", slow=slow), 3, mode=mode, seed=5)


@pytest.mark.parametrize("start", [2**31 - 6, -6])
def test_replays_pass_the_wrap_and_zero(start):
    def script():
        calls = statics("ag_gemm", None, "portable", resolve())
        warm_up(calls)
        made = captured(calls[:3])
        workspace(resolve(), KIND).set_epoch(start)
        for _ in range(4):
            made.replay()
        finish(calls)
        return calls_begun()
    assert run_ranks(script, 3, mode="late") == [{2**31 - 6: -2**31 + 6, -6: 8}[start]] * 3


@pytest.mark.parametrize("mode", ["late", "skew", "random"])
def test_ranks_without_tiles(mode):
    def script():
        group = resolve()
        calls = [Static("ag_gemm", 20, lambda rank: 24 * (rank == 1), 40, 1, group), Static("ag_gemm", 20, 24, 40, 2, group)]
        warm_up(calls)
        made = captured([*calls, calls[0]])
        for _ in range(3):
            if group.rank == 1:
                dawdle()
            made.replay()
        finish(calls)
        return calls_begun()
    assert run_ranks(script, 3, mode=mode) == [9] * 3


def test_two_groups_and_a_replay_on_another_stream():
    def script():
        world = resolve()
        halves = [world.new_group([0, 1]), world.new_group([2, 3])]
        calls = [Static("ag_gemm", 20, 24, 64, seed, group) for seed in range(2) for group in (world, halves[world.rank // 2])]
        warm_up(calls)
        replayed_on_two_streams(calls)
    run_ranks(script, 4, mode="late")


def test_several_pieces_and_a_link_to_each_peer(monkeypatch):
    """Shapes of other numbers of pieces in turn, on machines with a switch and without."""
    shapes = ((256, 24, 64), (64, 24, 8), (128, 24, 64))

    def script():
        calls = statics("ag_gemm", None, "portable", resolve(), shapes)
        warm_up(calls)
        made = captured([*calls, calls[0]])
        for call in calls:
            call.x.neg_()
        resolve().barrier()
        for _ in range(3):
            made.replay()
        finish(calls)
    for switched in (True, False):
        monkeypatch.setattr(gather, "switched", lambda switched=switched: switched)
        run_ranks(script, 3, mode="random", seed=3)


def test_the_core():
    def script():
        calls = statics("ag_gemm", None, "ws", resolve(), ((136, 24, 64), (40, 40, 48)))
        warm_up(calls)
        made = captured(calls)
        for _ in range(3):
            made.replay()
        finish(calls)
        return calls_begun()
    with small_tiles():
        assert run_ranks(script, 2, mode="late") == [6] * 2


def test_gathered_input_is_returned():
    def script():
        group, call = resolve(), AG(20, 30, 40)
        with prepare_graphs():
            back_to_back([call])
        with capturing():
            for verify in [call(seed, group, return_gathered=True) for seed in range(3)]:
                verify()
        return calls_begun()
    assert run_ranks(script, 3) == [3] * 3


def test_the_buffer_takes_half_of_what_eager_calls_have():
    """And moves as it grows, under a graph that goes on to use the smaller one."""
    def script():
        group = resolve()
        small, large = statics("ag_gemm", None, "portable", group, ((64, 24, 1024), (512, 24, 1024)))
        warm_up([small])
        made = captured([small])
        first = workspace(group, KIND).data
        assert 2 * first.numel() == workspace(group, "ag_gemm").data.numel() >= 2 * group.size * 64 * 1024 * 2
        warm_up([large])
        assert workspace(group, KIND).data is not first and first.tdist_allocation.live
        other = captured([small, large])
        for call in (small, large):
            call.out.fill_(float("nan"))
        for _ in range(2):
            made.replay()
            other.replay()
        finish([small, large])
    run_ranks(script, 2, mode="late")


# -- what pushes where ------------------------------------------------------------------------------------------------------
def test_small_gathers_are_pushed_by_sms_and_large_ones_by_copies(monkeypatch):
    monkeypatch.setattr(op, "_MOST_BY_SMS_IN_GRAPHS", 1 << 18)

    def script():
        small, large = AG(128, 8, 512), AG(160, 8, 512)                # 128 and 160 KiB
        for call, kind, other in ((large, KIND, BY_SMS), (small, BY_SMS, KIND)):
            with prepare_graphs():
                back_to_back([call])
            begun = workspace(resolve(), kind).calls_begun()
            with capturing():
                back_to_back([call])
            assert workspace(resolve(), kind).calls_begun() == begun + 1
            assert call is small or (resolve().key, other) not in state().workspaces
    run_ranks(script, 2)


def test_where_graphs_hold_no_copies_large_gathers_take_comm_sms(monkeypatch):
    monkeypatch.setattr(op, "_MOST_BY_SMS_IN_GRAPHS", 1 << 20)
    monkeypatch.setattr(EmulatorBackend, "captures_pushes", lambda self: False)

    class Auto(AG):
        method = "auto"

    def script():
        call, by_three = AG(4096, 8, 256), AG(4096, 8, 256, comm_sms=3)
        with prepare_graphs():
            back_to_back([call])
        assert not any((resolve().key, kind) in state().workspaces for kind in (BY_SMS, KIND))
        back_to_back([by_three])
        with capturing():
            back_to_back([by_three])
            with pytest.raises(InvalidArgument, match="not possible here: graphs cannot hold .* more than 1 MiB takes comm_sms"):
                call(0, resolve())
            with pytest.warns(RuntimeWarning, match="runs unfused: graphs cannot hold this device's copies"):
                back_to_back([Auto(4096, 8, 256)])
        back_to_back([AG(8192, 8, 256)])                    # the buffers move
        with capturing(), pytest.raises(InvalidArgument, match="takes comm_sms"):
            call(0, resolve())
        back_to_back([call])
    run_ranks(script, 1)


def test_where_the_heap_has_no_room_the_capture_says_so(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "4M")

    def script():
        call = AG(160, 8, 1024, dtype=F32)
        with prepare_graphs():
            back_to_back([call], repeat=2)
        with capturing(), pytest.raises(InvalidArgument, match="'portable' is not possible here: .* heap had no room"):
            call(0, resolve())
        back_to_back([call])
    run_ranks(script, 2)


def test_gradients_in_graphs_gather_by_copies():
    """The backward pass of a captured call is captured with it."""
    def script():
        x, weight = torch.ones(16, 64, requires_grad=True), torch.ones(24, 64, requires_grad=True)
        with prepare_graphs():
            ag_gemm(x, weight, method="portable").sum().backward()
        with capturing():
            ag_gemm(x, weight, method="portable").sum().backward()
        triton_dist.synchronize()
        assert torch.equal(x.grad, torch.full((16, 64), 2 * 24.0 * 2))
        assert torch.equal(weight.grad, torch.full((24, 64), 2 * 32.0))
        return calls_begun()
    assert run_ranks(script, 2) == [1] * 2
