# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs of fuzz_ambient.py: random ops in random states of torch."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("rounds, seed", [(20, 1), pytest.param(500, 2026, marks=pytest.mark.full)])
def test_calls_in_random_states_are_right_or_refused_and_later_ones_right(rounds, seed):
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, OMP_NUM_THREADS="1",
                       PYTHONPATH=str(HERE))
    done = subprocess.run(["bash", "launch.sh", "--nproc_per_node", "2", str(HERE / "fuzz_ambient.py"), "--rounds", str(rounds),
                           "--seed", str(seed)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0 and done.stdout.startswith(f"{rounds} rounds of seed {seed}, "), done.stderr
