# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_rs whose tiles go straight to the rank that sums them, on virtual worlds with and without a switch."""
from dataclasses import replace

import pytest
import torch
from scenarios import BF16, F16, F32, RS, back_to_back, captures_by_rank, near_the_wrap, overtaking, past_the_wrap_and_zero
from scenarios import side_stream, two_groups
from test_graphs import Static, captured, finish, replayed, warm_up

import triton_dist
from triton_dist.backends.amd.machines import MI300X
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import explain, gemm_rs
from triton_dist.ops.gemm_rs.op import GEMM_RS
from triton_dist.ops.tuning import model
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace
from triton_dist.testing import random_tensor

KIND = "gemm_rs scatter"
pytestmark = pytest.mark.usefixtures(captures_by_rank.__name__)


class Scatter(RS):
    method = "scatter"


RAGGED = [Scatter(70, 40, 96, bias=True), Scatter(9, 41, 50, dtype=BF16), Scatter(20, 24, lambda rank: 40 * (rank == 1)),
          Scatter(40, 72, 64, hop_dtype=F32), Scatter(33, 130, lambda rank: 7 + 30 * rank, dtype=F32, bias=True),
          Scatter(1, 1, 1)]


def without_switch(monkeypatch, **changes):
    """Emulated ranks are on a machine whose peers have a link each."""
    machine = replace(MI300X, fuse_scatter_bytes=0, **changes)
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: machine)


@pytest.mark.every("world")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_ragged_shapes_back_to_back(world):
    run_ranks(lambda: back_to_back(RAGGED, repeat=1 if world == 8 else 2), world, mode="late", seed=world)


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_overtaken_and_shapes_that_change(mode):
    calls = [Scatter(70, 40, 96), Scatter(9, 40, 50), Scatter(40, 72, 64), Scatter(70, 20, 96), Scatter(1, 8, 16)]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=2), 3, mode=mode, seed=1)


def test_no_rank_has_columns():
    """Each K is 0: the sum is the bias, and the calls take part all the same."""
    calls = [Scatter(20, 24, lambda rank: 0, bias=True), Scatter(9, 24, 40), Scatter(20, 24, lambda rank: 0)]
    run_ranks(lambda: overtaking(calls, slow=0, repeat=2), 3, mode="skew")


def test_two_groups_with_a_ring_between():
    """The ring has other flags and slots, so that calls of both may follow each other."""
    run_ranks(lambda: two_groups([Scatter(20, 24, 40), RS(20, 24, 40), Scatter(70, 40, 96, bias=True)]), 4, mode="late")


def test_streams_take_turns():
    run_ranks(lambda: side_stream([Scatter(20, 24, 40), Scatter(70, 40, 96)]), 3, mode="late")


@pytest.mark.parametrize("start", [2**31 - 3, -3])
def test_epochs_pass_the_wrap_and_zero(start):
    run_ranks(lambda: near_the_wrap([Scatter(20, 24, 40), Scatter(40, 16, 40)], [KIND], start=start), 3, mode="late")
    run_ranks(lambda: past_the_wrap_and_zero([Scatter(20, 24, 40)], [Scatter(20 + 64 * i, 24, 40) for i in range(5)], KIND,
                                             start), 2)


@pytest.mark.parametrize("hop_dtype", [None, F32])
@pytest.mark.parametrize("mode", ["random", "skew", "priority"])
def test_the_same_inputs_give_the_same_bits(hop_dtype, mode):
    """In any order of arrival, in fp16, where another order of the sum would give other bits."""
    def script():
        return back_to_back([Scatter(70, 40, 96, bias=True, hop_dtype=hop_dtype)])[0]
    first = run_ranks(script, 4, mode="late")
    assert all(torch.equal(a, b) for a, b in zip(first, run_ranks(script, 4, mode=mode, seed=3)))


def test_the_sum_begins_with_the_owner_and_goes_on_in_the_order_of_ranks():
    """Products of 1 x 1 in fp32: ((p2 + p3) + p0) + p1 for rank 2 of 4, then the bias."""
    def script():
        group = resolve()
        x = random_tensor(4, 1, dtype=F32, seed=group.rank)
        every = torch.empty(16, 1)
        group.all_gather_tensor(every, x)
        got = gemm_rs(x, torch.ones(1, 1), bias=torch.full((1,), 0.3), method="scatter")
        triton_dist.synchronize()
        expected = torch.zeros(1)
        for index in range(group.rank, group.rank + 4):
            expected += every[4 * (index % 4) + group.rank]
        assert torch.equal(got, (expected + 0.3).view(1, 1))
    run_ranks(script, 4)


def test_partial_sums_in_fp32_do_not_overflow():
    """Products of 128,000 overflow fp16; in float32 they cancel."""
    def script():
        x = torch.full((4, 64), 100.0, dtype=F16)
        w = torch.full((4, 64), 20.0 if resolve().rank == 0 else -20.0, dtype=F16)
        assert gemm_rs(x, w, hop_dtype=F32, method="scatter").abs().max() == 0
    run_ranks(script, 2)


# -- graphs ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", [1, 2, 3])
def test_replays_with_eager_calls_between(world):
    run_ranks(lambda: replayed("gemm_rs", None, "scatter", slow=world - 1), world, mode="late", seed=world)


def test_replays_pass_zero():
    def script():
        group = resolve()
        calls = [Static("gemm_rs", *shape, 1, group, "scatter") for shape in ((40, 24, 64), (9, 40, 64), (70, 40, 96))]
        warm_up(calls)
        made = captured(calls)
        workspace(group, KIND).set_epoch(-6)
        for call in calls:
            call.out.fill_(float("nan"))
        group.barrier()
        for _ in range(4):
            made.replay()
        finish(calls)
        return workspace(group, KIND).calls_begun()
    assert run_ranks(script, 3, mode="late") == [8] * 3                 # twelve calls on; 2 follows -1


# -- where it is taken -------------------------------------------------------------------------------------------------
class Auto(RS):
    method = "auto"


def kinds():
    return {kind for _, kind in state().workspaces}


def test_auto_takes_it_where_there_is_no_switch(monkeypatch):
    def script():
        back_to_back([Auto(70, 40, 96, bias=True), Auto(9, 41, 50)])
        return kinds()
    assert run_ranks(script, 3) == [{"gemm_rs"}] * 3
    without_switch(monkeypatch)
    assert run_ranks(script, 3) == [{KIND}] * 3
    without_switch(monkeypatch, switched=True)
    assert run_ranks(script, 3) == [{"gemm_rs"}] * 3


def test_explain_and_measuring_have_all_ways_where_there_is_no_switch(monkeypatch):
    def script():
        group = resolve()
        ways = GEMM_RS.candidates(GEMM_RS.at(512, 256, 512, BF16, group), group)
        return [way.method for way in ways], explain("gemm_rs", 8192, 8192, 29568, dtype=BF16)
    methods, found = run_ranks(script, 2)[0]
    assert "scatter" not in methods and found.chosen == "portable"
    without_switch(monkeypatch)
    methods, found = run_ranks(script, 2)[0]
    assert {*methods} == {"ws", "scatter", "portable", "unfused"} and found.chosen == "scatter"
    assert "no switch" in found.reason and {row.choice.method for row in found.candidates} == {*methods}
    assert all(row.predicted > 0 for row in found.candidates)


def test_small_calls_stay_unfused_there(monkeypatch):
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: MI300X)
    assert run_ranks(lambda: explain("gemm_rs", 16, 4096, 14336).chosen, 2) == ["unfused"] * 2


def test_the_model_gives_it_all_links_of_a_machine_without_a_switch():
    """8 ranks, bf16, so little K that bytes take the time: a seventh of what a ring over one link takes."""
    config = EmulatorBackend.gemm_config(None, F16, 1024)
    found = {e.method: e.ms for e in model.gemm_rs_estimates(MI300X, 1024, 8192, 16, 8, 2, config, False)}
    one_link = 1024 * 8192 * 2 / (MI300X.link_gbs * 1e6)
    assert found["scatter"] == pytest.approx(one_link, rel=0.15) and found["portable"] >= 7 * one_link
    switched = replace(MI300X, switched=True)
    found = {e.method: e.ms for e in model.gemm_rs_estimates(switched, 1024, 8192, 16, 8, 2, config, False)}
    assert found["scatter"] >= 7 * one_link


def test_it_is_refused_over_nodes():
    def script():
        with pytest.raises(InvalidArgument, match="'scatter' is not possible here: not all of ranks .* use 'auto'"):
            back_to_back([Scatter(20, 24, 40)])
        back_to_back([RS(20, 24, 40)])
    run_ranks(script, 4, nodes=2)


def test_auto_over_nodes_runs_rings_without_a_switch_too(monkeypatch):
    without_switch(monkeypatch)

    def script():
        back_to_back([Auto(20, 24, 40)])
        return kinds()
    assert run_ranks(script, 4, nodes=2) == [{"gemm_rs"}] * 4


def test_a_hang_report_names_the_peer_that_writes_a_flag():
    def script():
        group = resolve()
        back_to_back([Scatter(70, 40, 96)])
        space = workspace(group, KIND)
        return [space.flags.tdist_allocation.writer(4 * flag) for flag in range(6)]
    found = run_ranks(script, 4)
    assert found == [[(rank + 1 + flag % 3) % 4 for flag in range(6)] for rank in range(4)]
