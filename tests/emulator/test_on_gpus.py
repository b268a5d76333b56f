# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""tests/on_gpus.py, by two processes that are emulated ranks: a test passes if it passes on both."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = '''
import pytest
import torch
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import all_reduce
from triton_dist.runtime.groups import resolve


def test_right():
    assert run_ranks(lambda: float(all_reduce(torch.ones(4))[0]), 2) == [2.0, 2.0]


def test_wrong_on_one():
    def script():
        all_reduce(torch.ones(4))
        assert resolve().rank == 0
    run_ranks(script, 2)


def test_again():
    run_ranks(lambda: all_reduce(torch.ones(4)), 2)


def test_of_three():
    run_ranks(lambda: all_reduce(torch.ones(4)), 3)
'''


@pytest.mark.full
def test_a_test_passes_if_it_passes_on_all_ranks(tmp_path):
    path = tmp_path / "test_few.py"
    path.write_text(TESTS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "tests/on_gpus.py", str(path)]
    env = {**os.environ, "TRITON_DIST_BACKEND": "emulator", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    lines = [line.split("::")[1].split() for line in done.stdout.splitlines() if "::" in line and "%]" in line]
    results = {words[0]: words[1] for words in lines}
    assert results == dict(test_right="PASSED", test_wrong_on_one="FAILED", test_again="PASSED", test_of_three="SKIPPED")
    assert "failed on other ranks: {1: " in done.stdout
