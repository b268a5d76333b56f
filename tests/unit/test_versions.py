# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Supported ranges: stated once, checked at import."""
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from triton_dist.runtime import versions
from triton_dist.runtime.errors import UnsupportedFeature

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"Python": "3.12.1", "torch": "2.11.0+cu130", "triton": "3.6.0"}


@pytest.mark.parametrize("text, pair", [("2.11.0+cu130", (2, 11)), ("3.9", (3, 9)), ("3.10.0.dev1", (3, 10)), ("", (0, 0)),
                                        ("unknown", (0, 0))])
def test_versions_are_read(text, pair):
    assert versions.parse(text) == pair


@pytest.mark.parametrize("name, found, words", [
    ("triton", "3.5.1", ["triton 3.5.1", "3.6 or newer", "pip install 'triton>=3.6,<3.10'"]),
    ("torch", "2.5.0", ["torch 2.5.0", "2.11 or newer", "pip install 'torch>=2.11,<2.14'"]),
    ("Python", "3.10.2", ["Python 3.10.2", "3.11 or newer", "python3.11"]),
    ("triton", "", ["needs triton", "pip install 'triton>=3.6,<3.10'"]),
])
def test_too_old_or_missing_is_an_error_with_the_command(monkeypatch, name, found, words):
    monkeypatch.setattr(versions, "installed", lambda: {**GOOD, name: found})
    with pytest.raises(UnsupportedFeature) as error:
        versions.check()
    assert all(word in str(error.value) for word in words)


def test_newer_than_tested_is_a_warning(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda: {**GOOD, "triton": "3.10.0"})
    with pytest.warns(UserWarning, match=r"triton 3\.10\.0 is newer .* \(3\.6 to 3\.9\)"):
        versions.check()
    monkeypatch.setattr(versions, "installed", lambda: GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check()


def test_import_says_so(tmp_path):
    """With a Triton that lacks everything, the error is ours and no traceback into a missing name."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("__version__ = '3.2.0'\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.11.0'\n")
    done = subprocess.run([sys.executable, "-c", "import triton_dist"], capture_output=True, text=True, timeout=60, check=False,
                          env=dict(os.environ, PYTHONPATH=f"{tmp_path}:{ROOT / 'python'}"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("triton 3.2.0 is too old: triton_dist needs 3.6 or newer (tested up to 3.9); "
                                                 "pip install 'triton>=3.6,<3.10'")


def test_no_other_place_says_otherwise():
    """What pip, the set-up script and its pins know agrees with the ranges."""
    project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={'.'.join(map(str, versions.PYTHON.least))}"
    setenv = (ROOT / "scripts" / "setenv.sh").read_text()
    assert f"sys.version_info < {versions.PYTHON.least}" in setenv
    names = re.search(r"for name in python3 (.*);", setenv)[1].split()
    assert names == [f"python3.{minor}" for minor in range(versions.PYTHON.newest[1], versions.PYTHON.least[1] - 1, -1)]
    pins = dict(line.split("==") for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines() if "==" in line)
    assert versions.TORCH.least <= versions.parse(pins["torch"]) <= versions.TORCH.newest
    assert versions.parse(pins["triton"]) == versions.TRITON.least
    newest = re.search(r"^newest=(\S+)", (ROOT / "scripts" / "test.sh").read_text(), re.M)[1]
    assert versions.parse(newest) == versions.TRITON.newest
