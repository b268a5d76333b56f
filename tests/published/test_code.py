# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The scripts' kernels compiled for sm_90, as `launch.sh --published` compiles them on a GPU. Needs no GPU."""
import json
import os
import re
import sys
from pathlib import Path

import pytest
from launched import python

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "compile"))

# script, kernel, its parameters, what its code has in this order, and how many barriers of a program.
KERNELS = {
    "queue": ("queue_between_ranks", "queue_kernel", dict(
        source="*fp32", out="*fp32", queue="*fp32", flags="*i64", items="i32", rank="i32", ranks="i32", SLOTS=8, BLOCK=128,
        PRODUCERS=16, CONSUMERS=4),
        [r"ld\.relaxed\.sys\.global\.b64", r"fence\.(acquire|acq_rel)\.sys", r"st\.global\.b32", r"bar\.sync",
         r"(atom\.global\.sys\.release\.exch\.b64|st\.relaxed\.sys\.global\.b64)"]),
    "all-gather": ("simt_all_gather", "push_kernel", dict(
        row="*fp32", gathered="*fp32", flags="*i32", counter="*i32", rank="i32", ranks="i32", elements="i32", call="i32",
        BLOCK=256),
        [r"%tid\.x", r"st\.global", r"bar\.sync", r"st\.release\.sys\.global\.b32", r"ld\.acquire\.sys\.global\.b32",
         r"bar\.sync", r"atom\.relaxed\.gpu\.global\.add\.u32"]),
    "copy by threads": ("simt_all_gather", "thread_copy_kernel", dict(source="*fp32", out="*fp32", elements="i32"),
                        [r"%tid\.x", r"ld\.relaxed\.gpu\.global\.b32", r"st\.relaxed\.gpu\.global\.b32"]),
    "ag_gemm": ("overlapped_ag_gemm", "gemm_kernel", dict(
        gathered="*fp16", weight="*fp16", out="*fp16", M="i32", N="i32", K="i32", ready="*i32", rank="i32", ranks="i32",
        BLOCK_M=64, BLOCK_N=64, BLOCK_K=64),
        [r"ld\.relaxed\.sys\.global\.b32", r"fence\.(acquire|acq_rel)\.sys", r"cp\.async\.bulk\.tensor", r"wgmma\.mma_async"]),
    "all-to-all": ("low_latency_all_to_all", "exchange_kernel", dict(
        send="*bf16", recv="*bf16", counts="*i32", recv_counts="*i32", signals="*i64", begins="*i32", rank="i32", ranks="i32",
        call="i32", MAX_ROWS=16, HIDDEN=64, EXPERTS=2),
        [r"MARK nvshmemx_putmem_nbi_block", r"bar\.sync", r"MARK nvshmem_fence", r"MARK nvshmemx_signal_op",
         r"MARK nvshmem_signal_wait_until"]),
    "thread scope": ("thread_scope", "threads_kernel", dict(
        words="*i32", signals="*i64", row="*fp32", passed="*fp32", seen="*i32", meeting="*i32", rank="i32", ranks="i32",
        call="i32", N=48),
        [r"%tid\.x", r"MARK nvshmem_int_p", r"MARK nvshmem_fence", r"MARK nvshmemx_signal_op",
         r"MARK nvshmem_signal_wait_until", r"ld\.acquire\.sys", r"st\.relaxed\.gpu", r"bar\.sync",
         r"MARK nvshmem_putmem_signal_nbi", r"MARK nvshmem_signal_wait_until", r"bar\.sync",
         r"atom\.release\.sys\.global\.cas", r"atom\.acquire\.sys\.global\.cas"]),
}
LONG = [pytest.param(name, marks=pytest.mark.full) if name in ("queue", "copy by threads", "ag_gemm", "all-to-all") else name
        for name in KERNELS]


@pytest.mark.parametrize("name", LONG)
def test_kernel_compiles_to(name, tmp_path):
    import fake_nvshmem
    fake_nvshmem.write(tmp_path)
    script, kernel, given, wanted = KERNELS[name]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_DIST_")}
    environment.update(TRITON_DIST_BACKEND="emulator", NVSHMEM_HOME=str(tmp_path), TRITON_DIST_CACHE_DIR=str(tmp_path / "cache"))
    program = str(HERE.parent / "compile" / "compile_scripts.py")
    done = python(program, script, kernel, json.dumps(given), environment=environment)
    assert done.returncode == 0, done.stderr
    position = 0
    for pattern in wanted:
        found = re.compile(pattern).search(done.stdout, position)
        assert found, f"no {pattern} after {position} of\n{done.stdout}"
        position = found.end()
    if name == "thread scope":
        assert "bar.sync" not in done.stdout.partition("%tid.x")[2].partition("MARK nvshmem_signal_wait_until")[0]
