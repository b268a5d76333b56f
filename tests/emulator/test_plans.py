# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Models by plan, meshes of two dimensions, FSDP2 and checkpoints, on virtual ranks; and once on ranks that are processes."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import gpt
import meshes
import plans
import pytest
import torch

from triton_dist.backends.emulator import run_ranks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture
def many_graphs():
    """Virtual ranks share torch.compile's cache, in which each has graphs of its own."""
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


def test_a_plan_gives_what_one_rank_gives_and_its_checkpoint_loads_on_other_numbers_of_ranks(tmp_path, many_graphs, capsys):
    for world, what in ((2, "save"), (1, "load"), (3, "load")):
        run_ranks(plans.main, world, what, tmp_path, heap=False)
        assert f"{what} on {world}: right" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("world", [2, *(pytest.param(world, marks=pytest.mark.full) for world in (1, 4))])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_decoder_of_transformers_is_divided(name, world, tmp_path, capsys):
    """Logits, gradients, generate(), and what it saves, as those of one rank."""
    import decoders
    run_ranks(decoders.main, world, name, tmp_path, heap=False)
    assert f"{name} on {world}: right" in capsys.readouterr().out


def test_groups_of_torch_in_graphs_and_fsdp_on_the_other_dimension_of_a_mesh(many_graphs, capsys):
    run_ranks(meshes.main, 4, heap=False)
    assert "2 x 2: right" in capsys.readouterr().out


@pytest.mark.parametrize("steps, checkpointed, compiled", [
    (3, None, False), *(pytest.param(*case, marks=pytest.mark.full) for case in (
        (30, None, False), (30, False, False), (3, True, False), (30, None, True), (30, False, True)))])
def test_a_gpt_by_tensor_parallelism_and_fsdp_has_the_losses_of_one_rank(steps, checkpointed, compiled, many_graphs):
    """FSDP2 empties and fills storages of parameters, whose memory other tensors get meanwhile."""
    expected = gpt.trained(gpt.GPT(), steps)
    for losses in run_ranks(meshes.gpt, 4, steps, checkpointed, compiled, heap=False):
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= 1e-5, (losses, expected)


@pytest.mark.full
@pytest.mark.parametrize("world, script, words, said", [
    (2, "plans.py", ("save", "checkpoint"), "save on 2: right"), (4, "meshes.py", (), "2 x 2: right")])
def test_on_ranks_that_are_processes(world, script, words, said, tmp_path):
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, OMP_NUM_THREADS="1")
    command = ["bash", str(ROOT / "launch.sh"), "--nproc_per_node", str(world), str(HERE / script), *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert said in done.stdout
