# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Scripts that use published names only, unedited: on two emulated ranks, by the command that runs them on two GPUs."""
import os
import re
import subprocess
from pathlib import Path

import pytest
from launched import launch_sh

SAID = {
    "queue_between_ranks.py": "the queue passed 40 items", "simt_all_gather.py": "gathered 2 rows of 1000",
    "overlapped_ag_gemm.py": "gathered and multiplied 128 x 96 x 128",
    "low_latency_all_to_all.py": "four exchanges between 4 experts", "thread_scope.py": "2 threads met 3 times",
}
SHORT = ("thread_scope.py", )
LONG = [name if name in SHORT else pytest.param(name, marks=pytest.mark.full) for name in SAID]


def launch(*words: str, **environ: str) -> subprocess.CompletedProcess:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_DIST_")}
    kept.update(TRITON_DIST_BACKEND="emulator", **environ)
    return launch_sh(*words, environment=kept)


@pytest.mark.parametrize("name", LONG)
def test_script(name):
    done = launch("--published", "--nproc_per_node", "2", name)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(rf"^rank (\d): {SAID[name]}$", done.stdout, re.M)) == ["0", "1"], done.stdout


def test_no_script_is_left_out_and_none_uses_a_name_of_ours():
    scripts = [path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
    assert {path.name for path in scripts} == set(SAID)
    ours = re.compile(r"triton_dist\.(dropin|ops|runtime|backends|compat)|create_symm_tensor|triton_dist\.device")
    assert not [path.name for path in scripts if ours.search(path.read_text())]


def test_published_scripts_are_not_checked():
    done = launch("--published", "--check", "thread_scope.py")
    assert done.returncode == 2 and "cannot be checked" in done.stderr
