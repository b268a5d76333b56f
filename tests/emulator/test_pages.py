# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Whole scripts of docs/porting.md and docs/training.md print what the pages show."""
import os
import re
from pathlib import Path

import pytest
from launched import launch_sh

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.full
@pytest.mark.parametrize("page, words", [("porting", ["--published", "before.py"]), ("porting", ["after.py"]),
                                         ("training", ["train.py"]), ("training", ["--nproc_per_node", "1", "train.py"])])
def test_a_script_prints_what_its_page_shows(tmp_path, page, words):
    text = (DOCS / f"{page}.md").read_text()
    code, = [code for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if code.startswith(f"# {words[-1]}\n")]
    shown = re.search(r"^```console\n\$ bash launch\.sh [^\n]*\n(.*?)^```$", text, re.M | re.S)[1].splitlines()
    assert len(shown) == 4
    (tmp_path / words[-1]).write_text(code)
    done = launch_sh(*words, environment=dict(os.environ, TRITON_DIST_BACKEND="emulator"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = 1 if "1" in words else 4
    assert sorted(done.stdout.splitlines()) == shown[:ranks], "the same loss on any number of ranks"
