# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls of grouped_gemm: each rank makes its own; repeated ones, ways that are measured, captures, and what is refused."""
import logging
from unittest import mock

import pytest
import remembered
import torch
from scenarios import captures_by_rank, graph  # noqa: F401  (a fixture)
from test_grouped_gemm import BF16, F16, F32, expected, given

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import grouped_gemm
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state
from triton_dist.testing import assert_matches, poisoned, random_tensor


def checked(how="by expert", method="auto", dtype=F32, k=32, act=None, weighted=False, **options):
    """One call, compared with the reference; rows of no expert keep what they had. Returns the whole result."""
    x, weight, told, rows = given(k, 24, dtype, how, act)
    shape = told["sources"].shape if how == "gathered" else x.shape[:-1]
    scale = random_tensor(shape.numel(), dtype=F32, seed=7) if weighted else None
    out = poisoned(*shape, 24, dtype=dtype)
    result = grouped_gemm(x, weight, **told, act=act, row_weights=scale, out=out, method=method, **options)
    assert result is out
    triton_dist.synchronize()
    flat, untouched = out.reshape(-1, 24), torch.ones(shape.numel(), dtype=torch.bool)
    for e, wanted in expected(x, weight, rows, act, scale).items():
        assert_matches(flat[rows[e][1]], wanted, k=k, roundings=4)
        untouched[rows[e][1]] = False
    assert flat[untouched].isnan().all(), "a row of no expert was written"
    return out


@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
@pytest.mark.parametrize("dtype, act, weighted", [(F32, None, True), (BF16, "silu_mul", False), (F16, "silu_mul", True)])
def test_the_loop_of_products_gives_the_same(how, dtype, act, weighted):
    run_ranks(checked, 1, how, "unfused", dtype, 32, act, weighted)


def test_ranks_need_not_call_alike_and_a_refused_call_harms_nobody():
    def script():
        rank = state().world.rank
        for _ in range(3 * rank):
            checked()
        if rank == 1:
            with pytest.raises(InvalidArgument, match="act: expected"):
                checked(act="gelu")
            checked("masked", k=40)
        x = torch.full((4,), float(rank))
        assert torch.equal(ops.all_reduce(x), torch.full((4,), 3.0))
        return len(remembered.plans("grouped_gemm"))
    assert run_ranks(script, 3) == [0, 2, 1]


def test_nothing_is_sent():
    """Not at a first use, not to measure, not for tables: only one of the ranks calls."""
    def script():
        if state().world.rank == 1:
            checked()
            print(ops.explain("grouped_gemm", 64, 32, 64))
    run_ranks(script, 2)
    report = check_kernel(lambda rank: checked() if rank == 0 else None, world_size=2, schedules=4)
    assert report.clean and "no bytes between ranks" in report.traffic()


@pytest.mark.parametrize("how", ["by expert", "masked", "gathered"])
@pytest.mark.parametrize("method", ["portable", "ws"])
def test_a_repeated_call_is_found_whatever_the_addresses(method, how):
    def script():
        if state().world.rank:
            return                                  # the patch below is seen by all ranks
        x, weight, told, rows = given(32, 24, BF16, how)
        grouped_gemm(x, weight, **told, method=method)
        with mock.patch.object(Calls, "_looked_at", side_effect=AssertionError("looked at again")):
            for seed in range(3):
                given_now = [torch.where(x.isnan(), x, x * (seed + 2)), weight.clone()]
                lists = {name: t.clone() for name, t in told.items()}
                out = grouped_gemm(*given_now, **lists, method=method).reshape(-1, 24)
                triton_dist.synchronize()
                for e, wanted in expected(*given_now, rows).items():
                    assert_matches(out[rows[e][1]], wanted, k=32)
        assert len(remembered.plans("grouped_gemm")) == 1
    run_ranks(script, 2)


@pytest.mark.parametrize("method", ["portable", "ws"])
def test_a_repeated_call_is_found_by_an_equal_alignment_only(method):
    """The lists of a dispatch lie in one tensor, so that their addresses are multiples of 4 bytes."""
    def at(address, told):
        """The lists at `address` bytes after a multiple of 16."""
        found = {}
        for name, t in told.items():
            room = torch.empty(t.numel() + 8, dtype=t.dtype)
            first = (address - room.data_ptr()) % 16 // t.element_size()
            found[name] = room[first:first + t.numel()].copy_(t)
            assert found[name].data_ptr() % 16 == address
        return found

    def script():
        x, weight, told, rows = given(32, 24, BF16, "by expert")
        grouped_gemm(x, weight, **at(4, told), method=method)
        with mock.patch.object(Calls, "_looked_at", side_effect=RuntimeError("looked at again")):
            for _ in range(2):
                out = grouped_gemm(x, weight, **at(4, told), method=method)
            with pytest.raises(RuntimeError, match="looked at again"):
                grouped_gemm(x, weight, **at(8, told), method=method)
        triton_dist.synchronize()
        for e, wanted in expected(x, weight, rows).items():
            assert_matches(out[rows[e][1]], wanted, k=32)
    run_ranks(script, 1)


def test_each_kind_of_call_is_logged_once_with_its_reason(caplog):
    caplog.set_level(logging.INFO, "triton_dist.plans")

    def script():
        for _ in range(2):
            checked()
            checked(method="unfused")
            checked(dtype=BF16, method="ws")
    run_ranks(script, 1)
    lines = [record.getMessage() for record in caplog.records if "grouped_gemm" in record.getMessage()]
    assert len(lines) == 3 and all("m=" in line and "experts=4" in line for line in lines)
    assert "runs by portable" in lines[0] and "fp16 and bf16" in lines[0]
    assert "runs by unfused, because it was asked for" in lines[1] and "runs by ws 64x64x32" in lines[2]


def test_explain_names_the_ways():
    def script():
        found = ops.explain("grouped_gemm", 96, 32, 64)
        refused = ops.explain("grouped_gemm", 96, 32, 60)
        return found.chosen, found.reason, refused.reason
    for chosen, reason, refused in run_ranks(script, 2):
        assert chosen == "portable" and reason == "it is what this device prefers" and "multiples of 16 bytes" in refused


def test_ways_are_measured_by_each_rank_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "1")

    def script():
        if state().world.rank == 0:
            return None
        checked(dtype=BF16)
        checked(dtype=BF16, act="silu_mul")
        plain, gated = remembered.decisions("grouped_gemm")
        assert plain.entry.place.world == 1 and {way.method for way in plain.entry.ms} == {"ws", "portable"}
        assert plain.shape != gated.shape, "an activation takes time of its own"
        return plain.shape.dtype
    assert run_ranks(script, 2)[1] == "bfloat16, 4 experts"


@pytest.mark.usefixtures("captures_by_rank")
@pytest.mark.parametrize("method", ["portable", "ws"])
@pytest.mark.parametrize("before", [True, False], ids=["called before", "first in the capture"])
def test_a_graph_follows_the_counts(method, before, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "1")                 # which a capture cannot do

    def script():
        x, weight, told, _ = given(32, 24, BF16, "by expert", align=1)
        x = torch.where(x.isnan(), 0.5, x)
        if before:
            grouped_gemm(x, weight, **told, method=method)
        with graph() as made:
            out = grouped_gemm(x, weight, **told, method=method)
        for counts in ([1, 30, 2, 40], [70, 0, 3, 3]):
            triton_dist.synchronize()
            begins = torch.tensor([0, *counts]).cumsum(0)
            told["offsets"].copy_(begins)
            told["counts"].copy_(torch.tensor(counts))
            made.replay()
            triton_dist.synchronize()
            for e in range(4):
                at = slice(int(begins[e]), int(begins[e + 1]))
                assert_matches(out[at], x[at].double() @ weight[e].double().t(), k=32)
    run_ranks(script, 1)


@pytest.mark.usefixtures("captures_by_rank")
def test_a_capture_refuses_what_the_host_waits_for():
    def script():
        with graph(), pytest.raises(InvalidArgument, match="graph capture needs 'ws' or 'portable'"):
            checked(method="unfused")
        checked(method="unfused")
    run_ranks(script, 1)


def test_outputs_that_cannot_be_written_are_refused():
    def script():
        x, weight, offsets = torch.ones(6, 8), torch.ones(2, 8, 8), torch.tensor([0, 3, 6])
        for says, options in (("out: expected shape", dict(out=torch.empty(5, 8))), ("out: expected torch.float32",
                                                                                    dict(out=torch.empty(6, 8, dtype=F16))),
                              ("out: must not overlap x", dict(out=x)), ("method: expected one of", dict(method="push"))):
            with pytest.raises(InvalidArgument, match=says):
                grouped_gemm(x, weight, offsets=offsets, **options)
        with pytest.raises(InvalidArgument, match="has no gradient"):
            grouped_gemm(x, weight.clone().requires_grad_(), offsets=offsets, out=torch.empty(6, 8))
    run_ranks(script, 1)
