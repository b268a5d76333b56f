# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""GEMM-RS on the ranks of one node: `bash launch_amd.sh test_gemm_rs_intra_node.py M N K`.

The kernel, the checks and the arguments are those of tests/nvidia/test_gemm_rs.py: one source serves both vendors.
"""
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "nvidia" / "test_gemm_rs.py"


def test_gemm_rs_intra_node_on_emulated_ranks():
    import torch

    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    check = runpy.run_path(str(SCRIPT))["check"]
    for world in (2, 3):
        assert max(run_ranks(lambda: check(6 * world, 24, 40, torch.float16), world)) < 1e-2


if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
