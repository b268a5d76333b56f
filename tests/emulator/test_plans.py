# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Models by plan, on ranks that are processes, since torch's DeviceMesh needs torch.distributed."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def launched(world, script, *arguments):
    """What a script prints on `world` ranks."""
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    command = ["bash", "launch.sh", "--nproc_per_node", str(world), str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_plan_gives_what_one_rank_gives_and_its_checkpoint_loads_on_other_numbers_of_ranks(tmp_path):
    assert "save on 2: right" in launched(2, "plans.py", "save", tmp_path)
    for world in (1, 3):
        assert f"load on {world}: right" in launched(world, "plans.py", "load", tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_decoder_of_transformers_is_divided(name, tmp_path):
    """Logits, gradients, generate(), and what it saves, as those of one rank."""
    assert f"{name} on 2: right" in launched(2, "decoders.py", name, tmp_path)


def test_groups_of_torch_in_graphs_and_fsdp_on_the_other_dimension_of_a_mesh():
    assert "2 x 2: right" in launched(4, "meshes.py")
