# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which items run every time (tests/conftest.py): of each family one mode and two sizes, the same in each run; mutants all."""
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FILE = '''
import pytest

@pytest.mark.parametrize("mode", ["eager", "random", "late", "skew", "priority", "pct", "round-robin"])
@pytest.mark.parametrize("call", [print, object(), 3])
def test_modes(call, mode):
    pass

@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_worlds(world):
    pass

@pytest.mark.parametrize("mode", ["flat", "steep"])
def test_modes_of_something_else(mode):
    pass

@pytest.mark.parametrize("mode", ["eager", "random", "late"])
def test_mutant(mode):
    pass
'''


def selected(folder, *words):
    done = subprocess.run([sys.executable, "-m", "pytest", "--co", "-q", *words, "-c", str(folder / "pytest.ini"), str(folder)],
                          capture_output=True, text=True, timeout=120, check=True, cwd=folder)
    return sorted(line.split("::")[1] for line in done.stdout.splitlines() if "::" in line)


def test_one_mode_and_two_sizes_of_each_family(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    full: all of it\n")
    for name in ("conftest.py", "process_state.py"):
        (tmp_path / name).write_text((TESTS / name).read_text())
    (tmp_path / "test_some.py").write_text(FILE)
    found = selected(tmp_path, "-m", "not full")
    assert found == selected(tmp_path, "-m", "not full") and len(selected(tmp_path)) == 21 + 5 + 2 + 3
    names = [name.split("[")[0] for name in found]
    assert names.count("test_modes") == 3 and names.count("test_mutant") == 3
    assert names.count("test_modes_of_something_else") == 2
    worlds = {name for name in found if name.startswith("test_worlds")}
    assert "test_worlds[2]" in worlds and 1 <= len(worlds) <= 2 and "test_worlds[8]" not in worlds
