# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""gemm_ar_rmsnorm on virtual worlds: shapes, dtypes, what is added, methods, cuts of rows, streams, epochs, capture."""
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from unittest import mock

import pytest
import torch
from normed_products import GARN
from scenarios import (AR, BF16, F16, F32, FIVE_ON, GAR, back_to_back, captures_by_rank, capturing, overtaking,
                       past_the_wrap_and_zero, side_stream, two_groups)
from test_gemm_ar import hopper

import triton_dist
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import explain, gemm_ar, gemm_ar_rmsnorm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.heap import SymmetricHeap, heap
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import MAX_PROGRAMS, CountedWorkspace, workspace
from triton_dist.testing import assert_matches, gemm_ar_rmsnorm_float64, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
op = import_module("triton_dist.ops.gemm_ar_rmsnorm.op")          # triton_dist.ops.gemm_ar_rmsnorm is the function
SHAPES = [(1, 530, 40), (9, 41, 50), (20, 33, 70), (2, 1, 1), (1, 64, 64)]


@contextmanager
def cut(split=None, boxes=True):
    """Tilings with so many pieces of a tile; operands by descriptor where they can be read so, or by pointer."""
    usual = op.tiling

    def tiling(*args):
        found = usual(*args)
        return replace(found, split=split or found.split)
    with mock.patch.object(op, "tiling", tiling), mock.patch.object(EmulatorBackend, "copies_boxes", lambda self: boxes):
        yield


@pytest.mark.every("world")
@pytest.mark.parametrize("world, boxes", [(1, True), (2, True), (3, True), (3, False), (4, True), (8, True)])
def test_ragged_shapes_back_to_back(world, boxes):
    """Some can be read by descriptor; of some each row has several programs."""
    shapes = SHAPES if world < 4 else SHAPES[:2]
    with cut(boxes=boxes):
        run_ranks(lambda: back_to_back([GARN(*shape) for shape in shapes]), world, seed=world, num_sms=8 if world < 8 else 2)


@pytest.mark.parametrize("method", ["ring", "unfused", "auto"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_other_methods(world, method):
    calls = [GARN(m, n, k, method, bias=bias, residual=residual, norm_weight_bias=more) for m, n, k, bias, residual, more in (
        (8, 33, 40, False, None, 1.0), (16, 64, 64, True, "apart", 0.0), (68, 20, 24, False, "in place", 0.0))]
    run_ranks(lambda: back_to_back(calls), world)


@pytest.mark.one
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_dtypes_bias_and_residual(dtype):
    calls = [GARN(m, n, 96, dtype=dtype, bias=bias, residual=residual, norm_weight_bias=more)
             for m, n, bias, residual, more in (
                 (20, 72, False, None, 0.0), (5, 72, True, "apart", 1.0), (2, 530, True, "in place", 0.0),
                 (3, 33, True, None, -0.5), (3, 33, False, "strided", 0.0))]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.one
@pytest.mark.parametrize("split", [2, 4])
@pytest.mark.parametrize("world, boxes", [(2, True), (2, False), (3, True)])
def test_tiles_in_pieces(world, split, boxes):
    """More pieces than blocks of K, too, and none at all on some ranks."""
    calls = [GARN(5, 70, 700, bias=True), GARN(17, 40, 136, residual="apart"), GARN(1, 300, lambda rank: 600 * (rank == 1))]
    with cut(split, boxes):
        run_ranks(lambda: back_to_back(calls, repeat=2), world, seed=split)


def test_ranks_without_columns():
    calls = [GARN(20, 24, lambda rank: 40 * (rank == 1), bias=True), GARN(9, 72, lambda rank: 0, residual="apart"),
             GARN(3, 8, lambda rank: 5 * rank)]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.one
@pytest.mark.parametrize("slow, split", [(0, 1), (2, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_ops_in_turn_and_a_slow_rank(mode, slow, split):
    """all_reduce and gemm_ar use the same workspace, which holds other things at the same places in each call."""
    calls = [GARN(3, 130, 40), AR(700, "one_shot"), GARN(1, 530, 30, bias=True), GAR(6, 24, 40)]
    with cut(split):
        run_ranks(lambda: overtaking(calls, slow=slow, repeat=2), 3, mode=mode, seed=slow, num_sms=4)


@pytest.mark.one
@pytest.mark.parametrize("sms", [1, 2, 5])
def test_more_rows_and_tiles_than_programs(sms):
    """Then a program has whole rows, several of them in turn, or a part of one."""
    run_ranks(lambda: back_to_back([GARN(35, 130, 40, bias=True), GARN(2, 530, 40), GARN(1, 530, 40)]), 2, num_sms=sms)


@pytest.mark.parametrize("m, n, world, sms, expected", [
    (1, 8192, 2, 132, (128, 32, 1)), (8, 8192, 2, 132, (128, 16, 2)), (32, 8192, 2, 132, (128, 4, 8)),
    (64, 8192, 2, 132, (128, 2, 16)), (1, 4096, 2, 132, (128, 16, 1)), (5, 4096, 2, 132, (128, 16, 1)),
    (1, 8192, 8, 132, (128, 128, 1)), (64, 8192, 2, 16, (16, 1, 16)), (3, 24, 2, 132, (8, 1, 1)), (1, 8192, 2, 7, (7, 4, 4)),
    (33, 8192, 2, 132, (128, 2, 16))])
def test_a_row_has_as_many_programs_as_there_are(m, n, world, sms, expected):
    """(programs, programs of a row, words that a thread holds), on Hopper. Programs that share rows all run at once."""
    with hopper(), mock.patch.object(EmulatorBackend, "num_sms", lambda self: sms):
        found = op.cut_rows(m, n, BF16, op.tiling(m, n, BF16, world), world)
    assert (found.programs, found.parts, found.each) == expected
    assert found.parts == 1 or m * found.parts <= found.programs <= sms


@pytest.mark.parametrize("split", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("mode", ["random", "late"])
def test_every_rank_and_every_schedule_has_the_same_bits(split, mode):
    def script():
        return torch.cat([out.flatten() for out in back_to_back([
            GARN(2, 72, 136, dtype=BF16, bias=True, residual="apart"), GARN(1, 530, 136, dtype=BF16)])])
    with cut(split):
        first = run_ranks(script, 3, mode="eager")
        assert all(torch.equal(out, first[0]) for out in first)
        assert all(torch.equal(out, first[0]) for out in run_ranks(script, 3, mode=mode, seed=7))


@pytest.mark.parametrize("split", [1, 2])
def test_the_sum_is_that_of_gemm_ar_to_the_bit(split):
    def script():
        for m, n, k in ((1, 530, 136), (9, 72, 136)):
            x, w = (random_tensor(rows, k, dtype=BF16, seed=resolve().rank + seed) for rows, seed in ((m, 0), (n, 10)))
            bias, residual = random_tensor(n, dtype=BF16, seed=20), random_tensor(m, n, dtype=BF16, seed=21)
            norm = random_tensor(n, dtype=BF16, seed=22)
            total = gemm_ar_rmsnorm(x, w, norm, bias=bias, residual=residual, method="packets")[1]
            expected = gemm_ar(x, w, bias=bias, residual=residual, method="packets")
            triton_dist.synchronize()
            assert torch.equal(total, expected)
    gemm_ar_op, usual = import_module("triton_dist.ops.gemm_ar.op"), op.tiling

    def tiling(*args):
        return replace(usual(*args), split=split, two_shot=False)
    with mock.patch.object(op, "tiling", tiling), mock.patch.object(gemm_ar_op, "tiling", tiling):
        run_ranks(script, 2)


def test_bias_and_residual_are_added_before_the_one_rounding_and_the_norm_is_of_what_is_rounded():
    """1 + 2^-8 + 2^-8 is a number of bfloat16; either step alone would round to 1. 1 + 2^-9 is none."""
    def script():
        x, weight = torch.eye(4, 16, dtype=BF16), torch.ones(8, 16, dtype=BF16) * (resolve().rank == 0)
        norm = torch.full((8,), 128.0, dtype=BF16)
        small = torch.full((4, 8), 2.0**-8, dtype=BF16)
        out, total = gemm_ar_rmsnorm(x, weight, norm, bias=small[0], residual=small, eps=0.0, method="packets")
        triton_dist.synchronize()
        assert bool((total.float() == 1 + 2.0**-7).all()) and bool((out.float() == 128).all())
        tiny = small / 2
        tiny[:, 4:] = 0
        out, total = gemm_ar_rmsnorm(x, weight, norm, residual=tiny, eps=0.0, method="packets")
        triton_dist.synchronize()
        assert bool((total.float() == 1).all()) and bool((out.float() == 128).all())
    run_ranks(script, 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(value):
    def script():
        x, w = torch.zeros(3, 8), torch.ones(600, 8)
        x[1, 0] = value if resolve().rank else 1.0
        out, total = gemm_ar_rmsnorm(x, w, torch.ones(600), residual=torch.ones(3, 600), method="packets")
        triton_dist.synchronize()
        assert bool((total[1].isnan() if value != value else total[1].isinf()).all()) and bool(out[1].isnan().all())
        assert bool((total[::2] == 1).all()) and bool(out[::2].isfinite().all())
    run_ranks(script, 2)


@pytest.mark.full
def test_two_groups_and_two_streams():
    calls = [GARN(9, 70, 40, bias=True), GARN(2, 1030, 24)]
    with cut(2):
        run_ranks(lambda: two_groups(calls), 4, seed=3)
        run_ranks(lambda: side_stream(calls), 3, seed=5)


@pytest.mark.one
@pytest.mark.parametrize("start", FIVE_ON)
def test_epochs_pass_the_wrap_and_zero(start):
    calls, growing = [GARN(3, 40, 24), GARN(1, 300, 24)], [GARN(4, 100 * (i + 1), 8) for i in range(5)]
    run_ranks(lambda: past_the_wrap_and_zero(calls, growing, "packets", start), 3, mode="late", num_sms=4)


def test_what_is_left_between_calls_and_what_is_allocated():
    """Every copy of the epoch is the same, whatever the grids were. A second call allocates nothing symmetric."""
    def script():
        calls = [GARN(20, 72, 136), GARN(1, 530, 136), GARN(9, 70, 40)]
        back_to_back(calls)
        live = set(heap()._live)
        back_to_back(calls)
        assert workspace(resolve(), "packets").control.tolist() == [6] * MAX_PROGRAMS and set(heap()._live) == live
    with cut(4):
        run_ranks(script, 2, num_sms=5)


@pytest.mark.parametrize("m, n", [(0, 24), (5, 0)])
def test_nothing_to_do(m, n):
    def script():
        for method in ("packets", "unfused", "auto"):
            out, total = gemm_ar_rmsnorm(torch.ones(m, 8), torch.ones(n, 8), torch.ones(n), method=method)
            assert out.shape == total.shape == (m, n)
        back_to_back([GARN(4, 24, 40)])
    run_ranks(script, 2)


def test_strided_operands_and_new_outputs():
    def script():
        x = random_tensor(12, 64, dtype=F16, seed=resolve().rank)[:, 8:40]
        w = random_tensor(64, 24, dtype=F16, seed=9 + resolve().rank)[:32].t()
        norm = random_tensor(24, dtype=F16, seed=3)
        for method in ("packets", "ring", "unfused"):
            out, total = gemm_ar_rmsnorm(x, w, norm, eps=None, method=method)
            expected, summed = gemm_ar_rmsnorm_float64(x, w, norm, resolve(), eps=torch.finfo(torch.float32).eps)
            assert_matches(total, summed, k=64, roundings=4)
            assert_matches(out, expected, k=64, roundings=8)
    run_ranks(script, 2)


# -- capture -----------------------------------------------------------------------------------------------------------
def test_capture_uses_what_has_run_before_and_else_is_unfused_or_an_error():
    def script():
        with capturing():
            back_to_back([GARN(8, 40, 24, "auto")])
            with pytest.raises(InvalidArgument, match="'packets' is not possible here: it has not run with these arguments"):
                gemm_ar_rmsnorm(torch.ones(4, 8), torch.ones(8, 8), torch.ones(8), method="packets")
        assert (resolve().key, "packets") not in state().workspaces
        ran = GARN(8, 40, 300, "auto")
        back_to_back([ran])
        with capturing():
            back_to_back([ran, ran])
        assert workspace(resolve(), "packets").calls_begun() == 3
    run_ranks(script, 2)


# -- choice ------------------------------------------------------------------------------------------------------------
def test_auto_takes_packets_for_few_rows():
    def script():
        group, chosen = resolve(), {}
        for m, n in ((1, 8192), (8, 4096), (9, 8192), (8, 16384), (2048, 8192), (2047, 8192)):
            chosen[m, n] = explain("gemm_ar_rmsnorm", m, n, 4096, dtype=BF16, group=group).chosen
        return chosen
    with hopper():
        found, of_four = run_ranks(script, 2)[0], run_ranks(script, 4)[0]
    assert found == {(1, 8192): "packets", (8, 4096): "packets", (9, 8192): "unfused", (8, 16384): "packets",
                     (2048, 8192): "ring", (2047, 8192): "unfused"}
    assert of_four[1, 8192] == "packets" and of_four[8, 4096] == "unfused", "which needs two hops"


def test_a_row_that_registers_do_not_hold_is_refused():
    def script():
        with pytest.raises(InvalidArgument, match="holds a row in registers, at most 16 words of it a thread"):
            gemm_ar_rmsnorm(torch.ones(4, 8), torch.ones(8192, 8), torch.ones(8192), method="packets")
        back_to_back([GARN(4, 8192, 8, "auto"), GARN(3, 24, 40)])
    run_ranks(script, 2, num_sms=4)


def test_a_group_whose_memory_is_not_reachable_takes_its_own_collective():
    def script():
        back_to_back([GARN(8, 40, 24, "auto")])
        with pytest.raises(InvalidArgument, match="can load and store each other's memory; use 'auto' or 'unfused'"):
            gemm_ar_rmsnorm(torch.ones(4, 8), torch.ones(8, 8), torch.ones(8), method="packets")
        assert not any(isinstance(space, CountedWorkspace) for space in state().workspaces.values())
    with mock.patch.object(SymmetricHeap, "reachable", lambda self, group: False):
        run_ranks(script, 2)
