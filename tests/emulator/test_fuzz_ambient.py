# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Runs of fuzz_ambient.py: random ops in random states of torch."""
import os
from pathlib import Path

import pytest
from launched import launch_sh

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("rounds, seed", [(5, 1), pytest.param(500, 2026, marks=pytest.mark.full)])
def test_calls_in_random_states_are_right_or_refused_and_later_ones_right(rounds, seed):
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", PYTHONPATH=str(HERE))
    done = launch_sh("--nproc_per_node", "2", str(HERE / "fuzz_ambient.py"), "--rounds", str(rounds), "--seed", str(seed),
                     environment=environment, seconds=600)
    assert done.returncode == 0 and done.stdout.startswith(f"{rounds} rounds of seed {seed}, "), done.stderr
