# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every tutorial on four emulated ranks, by the command that it names."""
import os
import re
import time
from pathlib import Path

import pytest
from launched import launch_sh

ROOT = Path(__file__).resolve().parents[2]


def launch(*words, **environ):
    """launch.sh on four emulated ranks, as a user types it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_DIST_")}
    environment.update(TRITON_DIST_BACKEND="emulator", **environ)
    return launch_sh(*words, environment=environment)


# What each prints, on every rank; in any order, since ranks share the terminal.
EXPECTED = {
    "00-ring-broadcast.py": lambda rank: rf"rank {rank} has 30 of rank 0",
    "01-queue.py": lambda rank: rf"rank {rank}: 3 of 3 calls passed 32 items",
    "02-intra-node-all-gather.py": lambda rank: rf"rank {rank}: 6 of 6 gathers are right",
    "03-inter-node-all-gather.py": lambda rank: rf"rank {rank}: 4 of 4 gathers over 2 nodes are right",
    "04-low-latency-all-to-all.py": lambda rank: rf"rank {rank}: 16 of 16 parts have arrived",
    "05-reduce-scatter.py": lambda rank: rf"rank {rank}: 6 of 6 sums are right",
    "06-ag-gemm.py": lambda rank: rf"rank {rank}: 4 x 96 rows gathered and multiplied, relative error 1\.\de-03",
    "07-gemm-rs.py": lambda rank: rf"rank {rank}: sums are right, relative error 1\.\de-03",
    "08-on-amd.py": lambda rank: r"07-gemm-rs.py:gemm_rs for gfx942: \d+ instructions, release right, acquire right",
    "09-first-race.py": lambda rank: (
        r"(?s)let the reader notify the writer.*the checker found race in the broken kernel, and 0 faults in the fixed one"),
    "10-gluon.py": lambda rank: rf"rank {rank}: 4 of 4 sums are right",
    "11-hang.py --fix": lambda rank: rf"rank {rank}, call 2: got {200 + (rank - 1) % 4}",
    "12-packets.py": lambda rank: rf"rank {rank}: 5 of 5 sums are right",
    "13-train-gpt.py": lambda rank: rf"rank {rank} of 4: loss 3\.\d+, after 10 steps [012]\.\d+",
    "14-hugging-face.py": lambda rank: (
        rf"(?s)(?=.*rank {rank} of 4: logits differ by \d\.\de-0[67] from one rank's, the same 8 tokens)"
        r".*loss 4\.\d+, after a step (3\.\d+); saved, and loaded on one rank: \1"),
}
NODES = {"03-inter-node-all-gather.py": "2x2"}
OFTEN = ("06", "11")          # the rest under --full
COMMANDS = [command if command.startswith(OFTEN) else pytest.param(command, marks=pytest.mark.full) for command in EXPECTED]
NEEDS = {"14-hugging-face.py": "transformers"}


def test_no_tutorial_is_left_out():
    assert {command.split()[0] for command in EXPECTED} == {path.name for path in (ROOT / "tutorials").glob("*.py")}


@pytest.mark.parametrize("command", COMMANDS)
def test_tutorial(command):
    name = command.split()[0]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = launch(*command.split(), **({"TRITON_DIST_NODES": NODES[name]} if name in NODES else {}))
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert re.search(EXPECTED[command](rank), done.stdout), done.stdout
    text = (ROOT / "tutorials" / name).read_text()
    assert re.search(rf"launch\.sh .*{name}", text)
    if "# %%" in text:                                 # prose between code, as Triton's tutorials have it
        assert text.count("# %%") >= 2 and text.count("# ---") >= 2


@pytest.mark.full
def test_a_package_that_a_tutorial_needs_is_named(tmp_path):
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError(\"No module named 'transformers'\")")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = launch("--nproc_per_node", "1", "14-hugging-face.py", PYTHONPATH=paths)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"No module named 'transformers'; install it by: \S*python\S* -m pip install transformers", done.stderr)


@pytest.mark.full
def test_a_reduce_scatter_over_nodes():
    done = launch("05-reduce-scatter.py", TRITON_DIST_NODES="2x2")
    assert done.returncode == 0 and done.stdout.count("2 of 2 sums are right") == 4, done.stderr


@pytest.mark.parametrize("command, flag, seen", [("tutorials/11-hang.py", "ring flag", "1"),
                                                 ("tests/nvidia/hang.py", "ready", "0")])
def test_hang_on_purpose_is_explained_and_ends(command, flag, seen):
    """Both scripts end with an error and a table that names flag, line, and values, well within time-out plus ten seconds."""
    begun = time.monotonic()
    done = launch(command, TRITON_DIST_WAIT_TIMEOUT="2")
    assert time.monotonic() - begun < 2 + 10 + 20, "with the start of four processes"
    assert done.returncode != 0 and "must not be reached" not in done.stderr
    rows = [line for line in done.stderr.splitlines() if f"flag {flag} + 0, of rank" in line]
    assert rows, done.stderr
    source = (ROOT / command).read_text().splitlines()
    for row in rows:
        place = re.search(rf"{Path(command).name}:(\d+)", row)
        assert "dl.wait(" in source[int(place[1]) - 1]
        assert row.split()[0] == re.search(r"of rank (\d)", row)[1]
    assert {re.search(r"eq \d\s+(\d)", row)[1] for row in rows} == {seen}
    if command.startswith("tutorials"):
        of_rank_0, = (" ".join(row.split()) for row in rows if row.startswith("0"))
        assert of_rank_0 in " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split()), "the page shows this row"
        assert len(rows) == 4 and all(f"call 1: got {100 + (rank - 1) % 4}" in done.stdout for rank in range(4))
