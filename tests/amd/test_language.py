# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device language on every rank: `bash launch_amd.sh tests/amd/test_language.py`.

The kernels and the checks are those of tests/nvidia/test_language.py: one source serves both vendors.
"""
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "nvidia" / "test_language.py"


def test_packets_and_the_barrier_on_emulated_ranks():
    from triton_dist.backends.emulator.worlds.virtual import run_ranks
    script = runpy.run_path(str(SCRIPT))
    for name in ("check_packets", "check_barrier"):
        assert len(run_ranks(script[name], 3)) == 3


if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
