# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar on virtual worlds: shapes, dtypes, what is added, methods, tilings, groups, streams, epochs, capture."""
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from unittest import mock

import pytest
import torch
from scenarios import (AR, BF16, F16, F32, FIVE_ON, GAR, RS, back_to_back, captures_by_rank, capturing, overtaking,
                       past_the_wrap_and_zero, side_stream, two_groups)

import triton_dist
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.backends.nvidia.backend import NvidiaBackend
from triton_dist.layers import GemmAR
from triton_dist.ops import OPS, all_gather, all_reduce, explain, gemm_ar, gemm_rs
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import SymmetricHeap, heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, workspace
from triton_dist.testing import assert_matches, gemm_ar_float64, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
op = import_module("triton_dist.ops.gemm_ar.op")          # triton_dist.ops.gemm_ar is the function
SHAPES = [(1, 64, 64), (9, 41, 50), (34, 33, 130), (2, 1, 1), (17, 72, 136)]


@contextmanager
def cut(split=None, two_shot=None, boxes=True):
    """Tilings with so many pieces of a tile and so many hops; operands by descriptor where they can be read so, or by pointer."""
    usual = op.tiling

    def tiling(*args):
        found = usual(*args)
        return replace(found, split=split or found.split, two_shot=found.two_shot if two_shot is None else two_shot)
    with mock.patch.object(op, "tiling", tiling), mock.patch.object(EmulatorBackend, "copies_boxes", lambda self: boxes):
        yield


@pytest.mark.every("world")
@pytest.mark.parametrize("world, boxes", [(1, True), (2, True), (3, True), (3, False), (4, True), (8, True)])
@pytest.mark.parametrize("two_shot", [False, True])
def test_ragged_shapes_back_to_back(world, two_shot, boxes):
    """Some can be read by descriptor."""
    shapes = SHAPES if world < 8 else SHAPES[1:4:2]
    with cut(two_shot=two_shot, boxes=boxes):
        run_ranks(lambda: back_to_back([GAR(*shape) for shape in shapes]), world, seed=world)


@pytest.mark.parametrize("method", ["ring", "unfused", "auto"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_other_methods(world, method):
    calls = [GAR(m, n, k, method, bias=bias, residual=residual) for m, n, k, bias, residual in (
        (8, 33, 40, False, None), (16, 64, 64, True, "apart"), (68, 20, 24, False, "in place"), (4, 20, 24, True, None))]
    run_ranks(lambda: back_to_back(calls), world)


def test_a_ring_plans_its_two_ops_with_itself_and_anew_where_their_buffers_have_moved(monkeypatch):
    """They are not looked at as calls of their own, and each counts as one. Other rows are known from their second call on."""
    seen, usual = [], Calls._looked_at

    def noted(self, *args):
        if resolve().rank == 0:
            seen.append(self.name)
        return usual(self, *args)
    monkeypatch.setattr(Calls, "_looked_at", noted)

    def script():
        group = resolve()
        x, w, large = (random_tensor(rows, 16, dtype=F32, seed=7 * group.rank + rows) for rows in (24, 40, 1 << 14))

        def right(rows):
            torch.testing.assert_close(gemm_ar(x[:rows], w, method="ring"), all_reduce(x[:rows] @ w.T), rtol=1e-4, atol=1e-4)
        for rows in (24, 8, 24, 8):
            right(rows)
        plans = list(state().records[OPS["gemm_ar"]][None].plans.values())
        gemm_rs(large, w[:4])
        all_gather(large, method="push")
        assert all(plan.moved() for plan in plans)
        count = state().calls[group.key][0]
        for rows in (8, 24):
            right(rows)
        assert state().calls[group.key][0] == count + 2 * (3 + 1)
        assert [each.agreed.op for each in plans[0].with_parts()] == ["gemm_ar", "gemm_rs", "all_gather"]
    run_ranks(script, 2)
    assert seen.count("gemm_rs") == seen.count("all_gather") == 1 and seen.count("gemm_ar") == 5


@pytest.mark.one
@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_dtypes_bias_and_residual(dtype, two_shot):
    calls = [GAR(m, n, 96, dtype=dtype, bias=bias, residual=residual) for m, n, bias, residual in (
        (20, 72, False, None), (5, 72, True, "apart"), (5, 72, True, "in place"), (3, 33, True, None),
        (3, 33, False, "strided"))]
    with cut(two_shot=two_shot):
        run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.one
@pytest.mark.parametrize("two_shot", [False, True])
@pytest.mark.parametrize("split", [2, 4])
@pytest.mark.parametrize("world, boxes", [(2, True), (2, False), (3, True)])
def test_tiles_in_pieces(world, split, two_shot, boxes):
    """More pieces than blocks of K, too, and none at all on some ranks."""
    calls = [GAR(5, 70, 700, bias=True), GAR(17, 40, 136, residual="apart"), GAR(1, 64, lambda rank: 600 * (rank == 1))]
    with cut(split, two_shot, boxes):
        run_ranks(lambda: back_to_back(calls, repeat=2), world, seed=split)


def test_ranks_without_columns():
    calls = [GAR(20, 24, lambda rank: 40 * (rank == 1), bias=True), GAR(9, 72, lambda rank: 0), GAR(3, 8, lambda rank: 5 * rank)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.one
@pytest.mark.parametrize("slow, split, two_shot", [(0, 1, False), (2, 2, True)])
@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_ops_in_turn_and_a_slow_rank(mode, slow, split, two_shot):
    """all_reduce uses the same workspace, gemm_rs another one."""
    calls = [GAR(9, 70, 40), AR(700, "one_shot"), GAR(1, 64, 30, bias=True), RS(6, 24, 40), GAR(20, 70, 16), AR(40, "two_shot")]
    with cut(split, two_shot):
        run_ranks(lambda: overtaking(calls, slow=slow, repeat=2), 3, mode=mode, seed=slow)


@pytest.mark.parametrize("two_shot", [False, pytest.param(True, marks=pytest.mark.full)])
def test_more_tiles_than_programs(two_shot):
    with cut(two_shot=two_shot):
        run_ranks(lambda: back_to_back([GAR(34, 130, 40, bias=True), GAR(3, 300, 40)], repeat=2), 2, num_sms=2)


@pytest.mark.parametrize("split, two_shot", [
    (4, False), *(pytest.param(1, two_shot, marks=pytest.mark.full) for two_shot in (False, True))])
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_every_rank_and_every_schedule_has_the_same_bits(split, two_shot, mode):
    def script():
        return back_to_back([GAR(20, 40, 136, dtype=BF16, bias=True, residual="apart")])[0]
    with cut(split, two_shot):
        first = run_ranks(script, 3, mode="eager")
        assert all(torch.equal(out, first[0]) for out in first)
        assert all(torch.equal(out, first[0]) for out in run_ranks(script, 3, mode=mode, seed=7))


@pytest.mark.parametrize("two_shot", [False, True])
def test_bias_and_residual_are_added_before_the_one_rounding(two_shot):
    """1 + 2^-8 + 2^-8 is a number of bfloat16; either step alone would round to 1."""
    def script():
        x, weight = torch.eye(4, 16, dtype=BF16), torch.ones(8, 16, dtype=BF16) * (resolve().rank == 0)
        small = torch.full((4, 8), 2.0**-8, dtype=BF16)
        out = gemm_ar(x, weight, bias=small[0], residual=small, method="packets")
        triton_dist.synchronize()
        assert bool((out.float() == 1 + 2.0**-7).all())
    with cut(two_shot=two_shot):
        run_ranks(script, 2)


@pytest.mark.parametrize("two_shot", [True, pytest.param(False, marks=pytest.mark.full)])
def test_two_groups_and_two_streams(two_shot):
    calls = [GAR(9, 40, 40, bias=True), GAR(3, 33, 24)]
    with cut(2, two_shot):
        run_ranks(lambda: two_groups(calls, repeat=1), 4, seed=3)
        run_ranks(lambda: side_stream(calls), 3, seed=5)


@pytest.mark.one
@pytest.mark.parametrize("start", FIVE_ON)
@pytest.mark.parametrize("two_shot", [False, True])
def test_epochs_pass_the_wrap_and_zero(two_shot, start):
    calls, growing = [GAR(9, 40, 24), GAR(1, 70, 24)], [GAR(4, 64 * (i + 1), 8) for i in range(5)]
    with cut(two_shot=two_shot):
        run_ranks(lambda: past_the_wrap_and_zero(calls, growing, "packets", start), 3, mode="late", num_sms=4)


def test_what_is_left_between_calls():
    """Every copy of the epoch is the same, whatever the grids were."""
    def script():
        back_to_back([GAR(20, 200, 300), GAR(1, 24, 300), GAR(9, 70, 40)])
        assert workspace(resolve(), "packets").control.tolist() == [3] * MAX_PROGRAMS
    with cut(4):
        run_ranks(script, 2, num_sms=16)


def test_the_second_call_allocates_nothing_symmetric():
    def script():
        calls = [GAR(20, 72, 40), GAR(1, 24, 40)]
        back_to_back(calls)
        live = set(heap()._live)
        back_to_back(calls, repeat=2)
        assert set(heap()._live) == live
    run_ranks(script, 2)


@pytest.mark.parametrize("m, n", [(0, 24), (5, 0)])
@pytest.mark.parametrize("method", ["packets", "ring", "unfused", "auto"])
def test_nothing_to_do(method, m, n):
    def script():
        if method != "ring" or m == 0:
            assert gemm_ar(torch.ones(m, 8), torch.ones(n, 8), method=method).shape == (m, n)
        back_to_back([GAR(4, 24, 40)])
    run_ranks(script, 2)


def test_strided_operands_and_a_new_output():
    def script():
        x = random_tensor(12, 64, dtype=F16, seed=resolve().rank)[:, 8:40]
        w = random_tensor(64, 24, dtype=F16, seed=9 + resolve().rank)[:32].t()
        for method in ("packets", "ring", "unfused"):
            assert_matches(gemm_ar(x, w, method=method), gemm_ar_float64(x, w, resolve()), k=64, roundings=4)
    run_ranks(script, 2)


# -- layer -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("residual", [False, True])
def test_layer(residual):
    def script():
        group = resolve()
        torch.manual_seed(0)
        full, x = torch.nn.Linear(33, 24).requires_grad_(False), torch.randn(5, 33)
        r = torch.randn(5, 24) if residual else None
        mine = x.tensor_split(group.size, dim=1)[group.rank]
        expected = full(x).double() + (0 if r is None else r.double())
        layer = GemmAR.from_full(full)
        assert_matches(layer(mine, residual=r), expected, k=33, roundings=4)
        shard = torch.nn.Linear(1, 24)
        shard.weight, shard.bias = layer.weight, full.bias
        out = torch.empty(5, 24)
        assert GemmAR.from_shard(shard)(mine, residual=r, out=out) is out
        assert_matches(out, expected, k=33, roundings=4)
    run_ranks(script, 3)


# -- capture -----------------------------------------------------------------------------------------------------------
def test_capture_uses_what_has_run_before_and_keeps_its_memory():
    def script():
        ran = GAR(9, 40, 300)
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran, ran])
        before = workspace(resolve(), "packets").data
        back_to_back([GAR(16, 600, 40)])
        assert workspace(resolve(), "packets").data is not before
        assert before.tdist_allocation.live, "a captured graph still stores there"
        back_to_back([ran])
    with cut(2):
        run_ranks(script, 2, num_sms=32)


def test_capture_of_what_has_not_run_is_unfused_or_an_error():
    def script():
        with capturing():
            back_to_back([GAR(9, 40, 24, "auto")])
            with pytest.raises(InvalidArgument, match="'packets' is not possible here: it has not run with these arguments"):
                gemm_ar(torch.ones(4, 8), torch.ones(8, 8), method="packets")
        assert (resolve().key, "packets") not in state().workspaces
        back_to_back([GAR(9, 40, 24, "auto"), GAR(9, 40, 24, "auto")])
        assert workspace(resolve(), "packets").calls_begun() == 2
        with capturing():
            back_to_back([GAR(128, 8, 24, "auto"), GAR(128, 8, 24, "ring")])
    run_ranks(script, 2)


# -- choice ------------------------------------------------------------------------------------------------------------
def test_auto_takes_packets_for_few_rows():
    def script():
        group, chosen = resolve(), {}
        for m, n in ((1, 8192), (16, 4096), (17, 4096), (18, 4096), (16, 65536), (16, 65544), (2048, 8192), (2047, 8192)):
            chosen[m, n] = explain("gemm_ar", m, n, 4096, dtype=BF16, group=group).chosen
        return chosen
    with hopper():
        found = run_ranks(script, 2)[0]
    assert found == {(1, 8192): "packets", (16, 4096): "packets", (17, 4096): "unfused", (18, 4096): "ring",
                     (16, 65536): "packets", (16, 65544): "ring", (2048, 8192): "ring", (2047, 8192): "unfused"}


@pytest.mark.parametrize("n, block_n, split", [(8192, 128, 2), (4096, 64, 2), (16384, 128, 1), (12288, 64, 2), (2048, 64, 4),
                                               (1024, 64, 8), (64, 32, 8)])
def test_tilings_keep_the_device_busy(n, block_n, split):
    """On 132 SMs."""
    with hopper():
        for m, block_m, block_k, stages in ((1, 16, 128, 5), (16, 16, 128, 5), (17, 32, 128, 5), (64, 64, 64, 8)):
            found = op.tiling(m, n, BF16, 4)
            c = found.config
            assert (c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps) == (block_m, block_n, block_k, stages, 8)
            assert found.split == split and found.two_shot == (m * n * 2 * split > 64 << 10)


def test_many_ranks_take_fewer_pieces():
    with hopper():
        assert [op.tiling(1, 2048, BF16, world).split for world in (2, 8, 12, 16, 64)] == [4, 4, 2, 2, 1]


@contextmanager
def hopper():
    """Tilings as on one."""
    with mock.patch.object(EmulatorBackend, "num_sms", lambda self: 132), \
            mock.patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)), \
            mock.patch.object(NvidiaBackend, "device", lambda self: None), \
            mock.patch.object(EmulatorBackend, "few_rows_config", NvidiaBackend().few_rows_config):
        yield


def test_a_group_whose_memory_is_not_reachable_takes_its_own_collective():
    def script():
        back_to_back([GAR(9, 40, 24, "auto")])
        with pytest.raises(InvalidArgument, match="can load and store each other's memory; use 'auto' or 'unfused'"):
            gemm_ar(torch.ones(4, 8), torch.ones(8, 8), method="packets")
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    with mock.patch.object(SymmetricHeap, "reachable", lambda self, group: False):
        run_ranks(script, 2)
