# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What keeps rmsnorm_gemm right is needed: with one statement moved or weakened, the checker reports it."""
from importlib import import_module

import pytest
import torch
from checking import SCHEDULES, check_edited

import triton_dist
from triton_dist.ops import rmsnorm_gemm
from triton_dist.testing import random_tensor

MODULES = {"norm_rows_kernel": import_module("triton_dist.ops.norm_rows.launch"),
           "few_rows_kernel": import_module("triton_dist.ops.rmsnorm_gemm.plan")}
F32 = torch.float32
TURN = "    dl.gdc_wait()\n    dl.gdc_launch_dependents()\n"
ROW, PRODUCT = "    row = tl.program_id(0)\n", "    dl.trace_start(\"mma\", 0, -1)\n"

MUTANTS = {  # name: (kernel, edits)
    "the norm reads before its turn": ("norm_rows_kernel", [
        (TURN + ROW, ROW), ("    if NORM:\n        store_normed", f"{TURN}    if NORM:\n        store_normed")]),
    "the product reads rows before its turn": ("few_rows_kernel", [
        (TURN + PRODUCT, f"    early = tl.load(x)\n{TURN}{PRODUCT}")]),
    "the product reads weights before its turn": ("few_rows_kernel", [
        (TURN + PRODUCT, f"    early = tl.load(w_line)\n{TURN}{PRODUCT}")]),
    "the product writes before its turn": ("few_rows_kernel", [(TURN + PRODUCT, f"    tl.store(out, 0.0)\n{TURN}{PRODUCT}")]),
    "rows of the sum overlap": ("norm_rows_kernel", [("(total + offset,", "(total + offset - row * 8,")]),
    "rows of the norm overlap": ("norm_rows_kernel", [("given, out, quantised", "given, out - row * 8, quantised")]),
    "tiles overlap": ("few_rows_kernel", [("    column = tl.program_id(0) * COLUMNS + ",
                                           "    column = tl.program_id(0) * (COLUMNS - 1) + ")]),
}


def calls():
    """Each call reads what the one before it wrote, as rows, residual and weights."""
    x, weight = (random_tensor(96, 96, dtype=F32, seed=seed) for seed in (1, 2))
    norm, residual = random_tensor(96, dtype=F32, seed=3), random_tensor(96, 96, dtype=F32, seed=4)
    for _ in range(2):
        x, residual = rmsnorm_gemm(x, weight, norm, residual=residual, method="portable")
        x, residual = rmsnorm_gemm(x, weight, residual=residual, method="portable")
        weight = rmsnorm_gemm(x, weight, norm, method="portable")
        x = rmsnorm_gemm(x, weight, method="portable")
    triton_dist.synchronize()


def check(kernel, edits, folder, schedules=4):
    return check_edited(MODULES[kernel], kernel, edits, calls, folder, schedules, world=1)


@SCHEDULES
def test_unchanged_it_is_clean(schedules, tmp_path):
    report = check("few_rows_kernel", [], tmp_path, schedules)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    assert {fault.kind for fault in check(*MUTANTS[name], tmp_path).faults} == {"race"}
