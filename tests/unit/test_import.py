# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Importing costs little beyond torch and triton, and pulls in nothing that a machine may lack."""
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "python"
SCRIPT = """
import json, sys, time
import torch, triton, triton.language
before, start = set(sys.modules), time.process_time()
import triton_dist, triton_dist.language, triton_dist.layers, triton_dist.ops
print(json.dumps([time.process_time() - start, sorted(set(sys.modules) - before)]))
"""
HEAVY = ("greenlet", "click", "matplotlib", "torch._dynamo", "torch._inductor", "torch.distributed._symmetric_memory",
         "triton.experimental", "triton_dist.backends", "triton_dist.bench", "triton_dist.cli", "triton_dist.testing")


def imported() -> tuple[float, list]:
    """(CPU seconds that our import adds, modules that it adds)."""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120,
                          check=True)
    return tuple(json.loads(done.stdout))


def test_import_is_cheap_and_alone():
    runs = [imported() for _ in range(3)]
    assert statistics.median(seconds for seconds, _ in runs) < 0.5, [seconds for seconds, _ in runs]
    extra = [name for name in runs[0][1] if f"{name}.".startswith(tuple(f"{heavy}." for heavy in HEAVY))]
    assert not extra, f"import triton_dist also imports {extra}"
