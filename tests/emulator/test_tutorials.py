# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Every tutorial on four emulated ranks, by the command that it names."""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def launch(*words, **environ):
    """launch.sh on four emulated ranks, as a user types it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_DIST_")}
    environment.update(TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable, **environ)
    return subprocess.run(["bash", "launch.sh", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
                          check=False)


# What each prints, on every rank; in any order, since ranks share the terminal.
EXPECTED = {
    "01-ring-broadcast.py": lambda rank: rf"rank {rank} has 30 of rank 0",
    "02-ag-gemm.py": lambda rank: rf"rank {rank}: 4 x 96 rows gathered and multiplied, relative error 1\.\de-03",
    "03-hang.py --mend": lambda rank: rf"rank {rank}, call 2: got {200 + (rank - 1) % 4}",
    "04-packets.py": lambda rank: rf"rank {rank}: 5 of 5 sums are right",
    "05-train-gpt.py": lambda rank: rf"rank {rank} of 4: loss 3\.\d+, after 10 steps [012]\.\d+",
}


def test_no_tutorial_is_left_out():
    assert {command.split()[0] for command in EXPECTED} == {path.name for path in (ROOT / "tutorials").glob("*.py")}


@pytest.mark.parametrize("command", EXPECTED)
def test_tutorial(command):
    done = launch(*command.split())
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert re.search(EXPECTED[command](rank), done.stdout), done.stdout
    assert f"launch.sh {command.split()[0]}" in (ROOT / "tutorials" / command.split()[0]).read_text()


@pytest.mark.parametrize("command, flag, seen", [("tutorials/03-hang.py", "ring flag", "1"),
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
        assert len(rows) == 4 and all(f"call 1: got {100 + (rank - 1) % 4}" in done.stdout for rank in range(4))
