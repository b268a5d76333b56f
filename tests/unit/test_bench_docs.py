# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""docs/performance.md: that it is what the result files say."""
import json
import re
import shutil
from pathlib import Path

import pytest

from triton_dist.bench import command, docs, plot, results
from triton_dist.bench.shapes import OPS

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"


def test_the_committed_page_is_what_the_results_give():
    assert PAGE.read_text() == docs.page(RESULTS, PAGE), "run: triton-dist bench docs"


def test_the_committed_pictures_show_the_rows_of_the_page():
    image = pytest.importorskip("PIL.Image")
    linked = [PAGE.parent / name for name in re.findall(r"!\[.*\]\((.*)\)", PAGE.read_text())]
    assert linked and sorted(linked) == sorted((PAGE.parent / "performance").iterdir()), "run: triton-dist bench docs"
    for op in OPS:
        for kind, (rows, _) in results.newest(RESULTS, op).items():
            picture = PAGE.parent / "performance" / f"{kind}-{op}.png"
            assert image.open(picture).text["Source"] == plot.fingerprint(results.headline(rows)), "run: triton-dist bench docs"
            assert picture.stat().st_size < 300_000


def test_the_page_is_written_twice_alike_and_follows_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    folder, page = tmp_path / "results", tmp_path / "page.md"
    shutil.copytree(RESULTS, folder)
    (folder / "notes_gemm_rs.md").write_text("**Learned.** Nothing yet.\n")
    say = ["docs", "--results", str(folder), "--out", str(page)]
    assert command.main(say) == 0
    once = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert command.main(say) == 0
    assert once == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "**Learned.** Nothing yet." in page.read_text()

    path = next(folder.glob("*-4xH100-80GB")) / "ag_gemm.json"
    rows = results.load(path)
    late = {**rows[0], "mode": "jitter 2 ms on the device", "late": {"mean_ms": 1.0, "costs": {"seq": {
        "ms": 4.0, "cost_ms": 1.25, "ci95": [1.0, 1.5]}}}}
    emulated = folder / "2026-01-01-4xemulator"
    results.save(emulated, "ag_gemm", [rows[0]], {"comparable": False})
    path.write_text(json.dumps([{**rows[0], "ms": 0.4321}, *rows[1:], late]))
    text = docs.page(folder, page)
    assert "**0.4321**" in text and "4xemulator" not in text
    assert "jitter 2 ms on the device | 1.000 | seq |" in text and "| 1.250 | 1.000 to 1.500 | +0.250 |" in text


def test_every_table_of_the_page_is_whole():
    lines = PAGE.read_text().splitlines()
    tables = [[line for line in block.splitlines()] for block in "\n".join(lines).split("\n\n") if block.startswith("|")]
    assert len(tables) >= 2 and all(len({line.count("|") for line in table}) == 1 for table in tables)
