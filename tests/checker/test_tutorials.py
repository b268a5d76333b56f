# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Kernels of the tutorials under the checker, by calls that their scripts do not make."""
import importlib.util
from pathlib import Path

import pytest
import torch

import triton_dist
from triton_dist.checker import check_kernel

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
SIZES, MOST = (96, 32, 64, 96, 32), 96


def tutorial(stem):
    spec = importlib.util.spec_from_file_location("checked_" + stem.replace("-", "_"), TUTORIALS / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def symmetric(elements, dtype):
    return triton_dist.create_symm_tensor((elements,), dtype)


def ring(kernel, rank, fixed):
    inbox, arrived = symmetric(2 * 2 * MOST, torch.float32), symmetric(2 * 3, torch.int32)
    for call, n in enumerate(SIZES, 1):
        kernel[(n // 32,)](torch.ones(2, n), torch.empty(n), inbox, arrived, n, MOST if fixed else n, call, BLOCK=32, PARTS=3)


def gemm_rs(kernel, rank, fixed):
    inbox, flags = symmetric(2 * 2 * 3 * 256, torch.float32), symmetric(2 * 3, torch.int32)
    for call, n in enumerate(SIZES, 1):
        x, weight, out = torch.ones(2 * 16, 16), torch.ones(n // 2, 16), torch.empty(16, n // 2)
        kernel[(1,)](x, weight, out, inbox, flags, 3 if fixed else n // 32, call, 16, n // 2, 16,
                     BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)


def gluon(kernel, rank, fixed):
    inbox, flags = symmetric(2 * 2 * MOST, torch.float32), symmetric(3 * 2, torch.int32)
    for call, n in enumerate(SIZES, 1):
        kernel[(3,)](torch.ones(n), inbox, flags, torch.empty(n), n, MOST if fixed else n, call, BLOCK=32, num_warps=1)


def packets(kernel, rank, fixed):
    words = symmetric(2 * 2 * MOST, torch.int64)
    for call, n in enumerate(SIZES, 1):
        kernel[(3,)](torch.ones(n), words, torch.empty(n), call, n, MOST if fixed else n, BLOCK=32)


@pytest.mark.parametrize("calls, stem, name", [(ring, "05-reduce-scatter", "ring"), (gemm_rs, "07-gemm-rs", "gemm_rs"),
                                               (gluon, "10-gluon", "all_reduce"), (packets, "12-packets", "all_reduce")])
def test_halves_stay_where_they_are_from_size_to_size(calls, stem, name):
    """Rule 10: calls of other sizes may follow each other without a barrier. Halves placed by the size of a call are reported."""
    kernel = getattr(tutorial(stem), name)
    report = check_kernel(lambda rank: calls(kernel, rank, fixed=True), world_size=2, schedules=7)
    assert report.clean, str(report)
    broken = check_kernel(lambda rank: calls(kernel, rank, fixed=False), world_size=2, schedules=7)
    assert {fault.kind for fault in broken.faults} == {"race"}, str(broken)


@pytest.mark.parametrize("closed", [True, False])
def test_a_queue_is_drained_before_it_goes(closed):
    queue = tutorial("01-queue").Queue

    def host(rank):
        pipe = queue(n_slots=2, block=32, workers=1)
        pipe(torch.ones(4, 32))
        if closed:
            pipe.close()

    report = check_kernel(host, world_size=2, schedules=2)
    assert {fault.kind for fault in report.faults} == (set() if closed else {"left-signal"}), str(report)
