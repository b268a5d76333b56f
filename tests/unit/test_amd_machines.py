# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the AMD backend knows of its GPUs, and what ops make of it."""
import pytest
import torch

from triton_dist.backends.amd import machines
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import explain
from triton_dist.ops.tuning import model

MODELS = list(machines.MODELS.values())


@pytest.mark.parametrize("machine", MODELS)
def test_rates_are_marked_as_published_and_say_so_in_explain(monkeypatch, machine):
    monkeypatch.setattr(EmulatorBackend, "machine_model", lambda self: machine)
    for op in ("ag_gemm", "gemm_rs", "gemm_ar"):
        for found in run_ranks(lambda op=op: explain(op, 8192, 8192, 29568, dtype=torch.bfloat16), 2):
            rows = [row for row in found.candidates if row.predicted is not None]
            assert rows and all("published" in row.note for row in rows)


def test_the_model_gives_the_order_that_publications_report():
    """Eight MI300X, M N K = 8192 8192 29568: the GEMM alone takes about 0.8 ms, and what one link carries takes longer."""
    config = machines.gemm_config(torch.bfloat16, 1024)
    assert model.library_gemm_us(machines.MI300X, 8192, 1024, 29568, 2) == pytest.approx(820, rel=0.25)
    found = {e.method: e.ms for e in model.ag_gemm_estimates(machines.MI300X, 1024, 1024, 29568, 8, 2, config, False)}
    assert found["unfused"] == pytest.approx(2.1, rel=0.25)
    faster = {e.method: e.ms for e in model.ag_gemm_estimates(machines.MI355X, 1024, 1024, 29568, 8, 2, config, False)}
    assert all(faster[method] < found[method] for method in found)


def test_only_a_gemm_is_told_which_matrix_instruction_to_take():
    tiles = machines.gemm_config(torch.bfloat16, 1024).options()
    assert machines.options(tiles)["matrix_instr_nonkdim"] == 16
    assert machines.options(dict(tiles, matrix_instr_nonkdim=32))["matrix_instr_nonkdim"] == 32
    assert machines.options(dict(BLOCK=4096, num_warps=8)) == dict(BLOCK=4096, num_warps=8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m", [1, 64, 128, 4096])
def test_the_usual_tiling_is_the_first_to_be_measured(dtype, m):
    found = machines.gemm_configs(dtype, m)
    assert found[0] == machines.gemm_config(dtype, m) and len(set(found)) == len(found)
