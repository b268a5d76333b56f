# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Numbers from the environment."""
import pytest
import torch

from triton_dist.runtime import world
from triton_dist.runtime.environment import number, wait_timeout
from triton_dist.runtime.errors import InvalidArgument


@pytest.mark.parametrize("environ, said", [
    ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=8"),
    ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}, None), ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}, None),
    ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2"), ({"PMI_SIZE": ""}, None), ({}, None)])
def test_processes_that_each_became_a_world_are_told_by_the_first(environ, said):
    words = world._alone_by_mistake(environ)
    assert words is None if said is None else f"but {said}; start torchrun or launch.sh" in words


@pytest.mark.parametrize("environ, said", [
    ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK=3: expected a number below WORLD_SIZE=2"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE='0': expected a whole number of at least 1"),
    ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "ssh"}, "MASTER_PORT='ssh': expected a whole number")])
def test_a_rank_that_cannot_be_does_not_wait_for_others(environ, said, monkeypatch):
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda *_, **__: pytest.fail("it went on"))
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, environ.get(name, ""))
    with pytest.raises(InvalidArgument, match=said):
        world._rendezvous.__wrapped__()


def test_numbers_and_defaults(monkeypatch):
    monkeypatch.delenv("TRITON_DIST_WAIT_TIMEOUT", raising=False)
    assert wait_timeout() == 0
    for text, seconds in (("", 0), (" 2 ", 2), ("0.25", 0.25), ("0", 0), ("1e300", 1e9)):
        monkeypatch.setenv("TRITON_DIST_WAIT_TIMEOUT", text)
        assert wait_timeout() == seconds
    monkeypatch.setenv("TRITON_DIST_EMULATOR_SEED", "-3")
    assert number("TRITON_DIST_EMULATOR_SEED", 0, kind=int) == -3


@pytest.mark.parametrize("text", ["soon", "-1", "inf", "nan", "1s"])
def test_what_is_no_number_is_named(monkeypatch, text):
    monkeypatch.setenv("TRITON_DIST_WAIT_TIMEOUT", text)
    with pytest.raises(InvalidArgument, match=f"TRITON_DIST_WAIT_TIMEOUT='{text}': expected a number of at least 0"):
        wait_timeout()


def test_whole_numbers(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_EMULATOR_SMS", "2.5")
    with pytest.raises(InvalidArgument, match="expected a whole number of at least 1"):
        number("TRITON_DIST_EMULATOR_SMS", 8, least=1, kind=int)
