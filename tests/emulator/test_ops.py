# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm and gemm_rs on virtual worlds: shapes, dtypes, options, groups and streams."""
import pytest
import remembered
import torch
from scenarios import AG, BF16, F16, F32, RS, back_to_back, side_stream, two_groups

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks

WORLDS = [1, 2, 3, 4, 8]
SHAPES = [(64, 64, 64), (1, 1, 1), (9, 10, 50), (70, 33, 130), (3, 200, 17)]


@pytest.mark.every("world", "op")
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("op", [AG, RS])
def test_ragged_shapes_back_to_back(world, op):
    run_ranks(lambda: back_to_back([op(*shape) for shape in SHAPES]), world, seed=world)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("op", [AG, RS])
def test_dtypes_and_bias(dtype, op):
    run_ranks(lambda: back_to_back([op(40, 72, 96, dtype=dtype, bias=True)], repeat=2), 3)


@pytest.mark.parametrize("op", [AG, RS])
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_same_inputs_give_the_same_bits_under_any_schedule(op, mode):
    def script():
        return back_to_back([op(40, 72, 96, dtype=BF16)])[0]
    first = run_ranks(script, 4, seed=0, mode="eager")
    for got, expected in zip(run_ranks(script, 4, seed=7, mode=mode), first):
        assert torch.equal(got, expected)


def test_hop_dtype_float32_rounds_once():
    run_ranks(lambda: back_to_back([RS(40, 72, 96, dtype=BF16, hop_dtype=F32)], repeat=3), 4)


def test_hop_dtypes_alternate_on_one_workspace():
    run_ranks(lambda: back_to_back([RS(40, 72, 96, dtype=BF16, hop_dtype=h) for h in (F32, None, F32)], repeat=2), 3)


def test_gathered_input_is_returned():
    def script():
        from triton_dist.runtime.groups import resolve
        for verify in [AG(20, 30, 40)(seed, resolve(), return_gathered=True) for seed in range(3)]:
            verify()
    run_ranks(script, 3)


@pytest.mark.parametrize("world", [2, 3])
def test_rows_of_a_wider_tensor_need_no_copy_by_the_caller(world):
    def script():
        from triton_dist.ops import ag_gemm, gemm_rs
        from triton_dist.runtime.groups import resolve
        from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, random_tensor
        group = resolve()
        x = random_tensor(12, 64, dtype=F16, seed=group.rank)[:, 8:40]
        w = random_tensor(64, 24, dtype=F16, seed=9 + group.rank)[:32].t()
        assert_matches(ag_gemm(x, w), ag_gemm_float64(x, w, group), k=32)
        assert_matches(gemm_rs(x, w), gemm_rs_float64(x, w, group), k=32 * world, roundings=world)
    run_ranks(script, world)


@pytest.mark.parametrize("op", [AG, RS])
def test_two_groups_at_once(op):
    run_ranks(lambda: two_groups([op(20, 40, 50), op(33, 17, 64)]), 4, seed=3)


@pytest.mark.parametrize("op", [AG, RS])
def test_side_stream(op):
    run_ranks(lambda: side_stream([op(20, 40, 50), op(33, 17, 64)]), 3, seed=5)


def test_unfused_method_agrees():
    def script():
        from triton_dist.ops import ag_gemm, gemm_rs
        from triton_dist.runtime.groups import resolve
        from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, random_tensor
        group = resolve()
        x, w, b = (random_tensor(*s, dtype=F32, seed=group.rank) for s in ((12, 32), (20, 32), (20,)))
        assert_matches(ag_gemm(x, w, bias=b, method="unfused"), ag_gemm_float64(x, w, group, b), k=32)
        b = random_tensor(20, dtype=F32, seed=77)
        assert_matches(gemm_rs(x, w, bias=b, method="unfused"), gemm_rs_float64(x, w, group, b), k=96, roundings=3)
    run_ranks(script, 3)


def test_the_tf32_switch_is_read_at_every_call():
    from unittest import mock

    from triton_dist.backends.emulator.backend import EmulatorBackend
    from triton_dist.runtime.state import state

    def script():
        back_to_back([RS(8, 8, 16, dtype=F32)])
        with mock.patch.object(EmulatorBackend, "allow_tf32", lambda self: True):
            back_to_back([RS(8, 8, 16, dtype=F32)])
        back_to_back([RS(8, 8, 16, dtype=F32)])
        return sorted(plan.call.options["PRECISION"] for plan in remembered.plans())
    assert run_ranks(script, 1) == [["ieee", "tf32"]]


@pytest.mark.parametrize("rows", [64, 20])
def test_gathered_input_outlives_the_workspace(rows):
    """Also where the chunks of the workspace lie without gaps, so that a view of it would do."""
    def script():
        from triton_dist.ops import ag_gemm
        ones = torch.ones(rows, 64)
        _, gathered = ag_gemm(ones, torch.eye(64), method="portable", return_gathered=True)
        for value in (2.0, 3.0):
            ag_gemm(torch.full((rows, 64), value), torch.eye(64), method="portable")
        triton_dist.synchronize()
        assert bool((gathered == 1).all())
    run_ranks(script, 2)


@pytest.mark.parametrize("mode", ["random", "late", "skew"])
@pytest.mark.parametrize("contiguous", [True, False])
def test_inputs_may_be_overwritten_once_the_op_has_returned(mode, contiguous):
    def script():
        from triton_dist.ops import ag_gemm
        from triton_dist.runtime.groups import resolve
        group = resolve()
        x = torch.full((16, 64), float(group.rank + 1)) if contiguous else torch.full((64, 16), float(group.rank + 1)).t()
        out = ag_gemm(x, torch.eye(64), method="portable")
        x.fill_(-5.0)
        triton_dist.synchronize()
        assert out[:, 0].tolist() == [1.0 + r for r in range(group.size) for _ in range(16)]
    run_ranks(script, 3, mode=mode)


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs"])
def test_a_workspace_that_found_no_room_starts_afresh(op, monkeypatch):
    from triton_dist.runtime.errors import OutOfHeap
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "4M")

    def script():
        call = AG if op == "ag_gemm" else RS
        back_to_back([call(16, 16, 32, dtype=F32)])
        with pytest.raises(OutOfHeap, match="raise TRITON_DIST_HEAP_SIZE"):
            back_to_back([call(2048, 1024, 1024, dtype=F32)])
        mine = triton_dist.create_symm_tensor((1 << 18,), torch.float32)
        mine.fill_(7.0)
        back_to_back([call(64, 16, 64, dtype=F32)], repeat=3)
        assert bool((mine == 7).all())
    run_ranks(script, 2)


def test_hop_dtype_holds_for_the_unfused_method_too():
    """Partial sums of 128,000 overflow fp16; in float32 they cancel."""
    def script():
        from triton_dist.ops import gemm_rs
        from triton_dist.runtime.groups import resolve
        x = torch.full((4, 64), 100.0, dtype=F16)
        w = torch.full((4, 64), 20.0 if resolve().rank == 0 else -20.0, dtype=F16)
        for method in ("portable", "unfused"):
            assert gemm_rs(x, w, hop_dtype=F32, method=method).abs().max() == 0
    run_ranks(script, 2)


def test_empty_calls_keep_their_place_on_a_side_stream():
    def script():
        from triton_dist.ops import ag_gemm
        out, side = torch.empty(32, 64), triton_dist.new_stream()
        with triton_dist.use_stream(side):
            ag_gemm(torch.ones(16, 64), torch.eye(64), out=out, method="portable")
            ag_gemm(torch.empty(16, 0), torch.empty(64, 0), out=out, method="portable")
        triton_dist.synchronize()
        assert out.abs().max() == 0
    run_ranks(script, 2)
