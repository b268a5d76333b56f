# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What launch hooks, and so profilers, are told of kernels: names with shapes, constexprs, operations and bytes; and ranges."""
import threading

import pytest
import torch
import triton.language as tl
from triton import knobs

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime.jit import gluon_jit, jit
from triton_dist.runtime.launch_metadata import describe
from triton_dist.ops import (ag_gemm, all_gather, all_reduce, all_reduce_rmsnorm, gemm_ar, gemm_ar_rmsnorm, gemm_rs,
                             reduce_scatter, rmsnorm_gemm)

M, N, K = 32, 48, 64


@pytest.fixture
def told(monkeypatch):
    """What the hook was given, of all ranks."""
    found, lock = [], threading.Lock()

    def hook(lazy):
        with lock:
            found.append(lazy.get())
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [hook])
    return found


def operands(world: int, rows: int, columns: int = N):
    torch.manual_seed(0)
    return torch.randn(rows, K).to(torch.bfloat16), torch.randn(columns, K).to(torch.bfloat16)


@pytest.mark.parametrize("call, kernel, flops, nbytes", [
    (lambda: ag_gemm(*operands(2, M), method="portable"), "ag_gemm_kernel", 2.0 * 2 * M * N * K,
     2 * (2 * M * K + N * K + 2 * M * N)),
    (lambda: gemm_rs(*operands(2, 2 * M), method="portable"), "gemm_rs_kernel", 2.0 * 2 * M * N * K,
     2 * (2 * M * K + N * K + 2 * 2 * M * N)),
    (lambda: ag_gemm(*operands(2, M), method="ws"), "ag_gemm_ws_kernel", 2.0 * 2 * M * N * K,
     2 * (2 * M * K + N * K + 2 * M * N)),
    (lambda: gemm_ar(*operands(2, M), method="packets"), "gemm_ar_kernel", 2.0 * M * N * K, 2 * (M * K + N * K + 2 * 2 * M * N)),
    (lambda: gemm_ar_rmsnorm(*operands(2, M), torch.ones(N, dtype=torch.bfloat16), method="packets"), "gemm_ar_rmsnorm_kernel",
     2.0 * M * N * K, 2 * (M * K + N * K + (2 * 2 + 3) * M * N)),
    (lambda: rmsnorm_gemm(*operands(2, M), torch.ones(K, dtype=torch.bfloat16), act="silu_mul", method="portable"),
     "few_rows_kernel", 2.0 * M * N * K, 2 * (M * K + N * K + M * N // 2)),
])
def test_products_tell_their_work(told, call, kernel, flops, nbytes):
    run_ranks(call, 2)
    mine = [entry for entry in told if entry["name"].startswith(f"{kernel}(")]
    assert len(mine) == 2, "one launch a rank"
    assert mine[0]["flops16"] == flops and mine[0]["bytes"] == nbytes
    assert "=bf16[" in mine[0]["name"] and f"BLOCK_M={mine[0]['constexprs']['BLOCK_M']}" in mine[0]["name"]


@pytest.mark.parametrize("call, least", [
    (lambda: all_reduce(torch.ones(4096)), 2 * 4096), (lambda: all_gather(torch.ones(1024)), 2 * 1024),
    (lambda: reduce_scatter(torch.ones(2048)), 2048),
    (lambda: all_reduce_rmsnorm(torch.ones(4, 256), torch.ones(256)), 2 * 4 * 256)])
def test_exchanges_tell_their_bytes(told, call, least):
    run_ranks(call, 2)
    assert len(told) == 2 and all(entry["bytes"] >= 4 * least and "fp32[" in entry["name"] for entry in told)
    assert all(entry["constexprs"]["WORLD"] == 2 for entry in told)


def test_a_norm_of_rows_tells_its_bytes(told):
    """Without a residual x and the norm; with one x, the residual, their sum and the norm."""
    def script():
        x, weight = operands(1, M)
        ones = torch.ones(K, dtype=torch.bfloat16)
        rmsnorm_gemm(x, weight, ones, method="unfused")
        rmsnorm_gemm(x, weight, ones, residual=x.clone(), method="unfused")
    run_ranks(script, 1)
    assert [entry["bytes"] for entry in told if entry["name"].startswith("norm_rows_kernel(")] == [2 * 2 * M * K, 2 * 4 * M * K]


@triton_dist.jit
def users(x, out, n, BLOCK: tl.constexpr, NOTHING: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@triton_dist.jit(launch_metadata=lambda grid, metadata, args: {"name": f"mine on {grid[0]}", "bytes": args["n"]})
def users_own(x, n, BLOCK: tl.constexpr):
    pass


def test_a_users_kernel_is_described_and_keeps_its_own_words(told):
    def rank():
        users[(2, )](torch.zeros(3, 5), torch.zeros(15), 15, BLOCK=8, NOTHING=None)
        users_own[(3, )](torch.zeros(4), 77, BLOCK=4)
        triton_dist.synchronize()
    run_ranks(rank, 1)
    assert told[0]["name"] == "users(x=fp32[3,5], out=fp32[15], n=15, BLOCK=8)" and told[0]["constexprs"] == {"BLOCK": 8}
    assert told[1]["name"] == "mine on 3" and told[1]["bytes"] == 77


def test_a_kernel_without_words_of_its_own_is_described():
    """The decorators see to it, also for kernels of ops that are added."""
    def kernel():
        pass
    assert jit(kernel).launch_metadata is describe and gluon_jit(kernel).launch_metadata is describe


def test_an_op_is_a_range_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NVTX", "1")
    def rank():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(2):
                all_reduce(torch.ones(4096), method="unfused")
        return [event.name for event in profile.events() if event.name.startswith("triton_dist.")]
    assert run_ranks(rank, 1) == [["triton_dist.all_reduce unfused [4096]"] * 2]
    monkeypatch.setenv("TRITON_DIST_NVTX", "0")
    assert run_ranks(rank, 1) == [[]]
