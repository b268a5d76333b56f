# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The pages of performance: that they are what the result files say."""
import json
import re
import shutil
from pathlib import Path

import pytest

from tools.perf import docs, speedup, summary
from tools.perf.table import narrow
from tools.perf.__main__ import main
from triton_dist.bench import results
from triton_dist.bench.collective.sizes import BESIDE_PEERS
from triton_dist.bench.shapes import OPS

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"


def test_the_committed_page_is_what_the_results_give():
    pages = docs.pages(RESULTS, PAGE)
    assert sorted(path.name for path in pages) == ["bars.md", "performance.md", "performance_rows.md"]
    for path, text in pages.items():
        assert path.read_text() == text, "run: python -m tools.perf docs"


def test_the_first_page_begins_with_pictures_and_its_tables_are_narrow():
    """The project's own bars are on the page for developers alone."""
    lines = PAGE.read_text().splitlines()
    first = {mark: next(at for at, line in enumerate(lines) if line.startswith(mark)) for mark in ("![", "|")}
    assert first["!["] < first["|"]
    assert max(line.count("|") - 1 for line in lines if line.startswith("|")) <= 8
    assert "SHORT" not in PAGE.read_text() and "| verdict |" in PAGE.with_name("bars.md").read_text()


def test_the_committed_pictures_show_the_rows_of_the_page():
    image = pytest.importorskip("PIL.Image")
    linked = [PAGE.parent / name for path in docs.pages(RESULTS, PAGE)
              for name in re.findall(r"!\[.*\]\((.*)\)", path.read_text())]
    for name in speedup.pictures(RESULTS):
        drawn = image.open(PAGE.parent / "performance" / summary.file(name)).text["Source"]
        assert drawn == speedup.fingerprint(RESULTS, name), "run: python -m tools.perf docs"
    assert linked and sorted(linked) == sorted((PAGE.parent / "performance").iterdir()), "run: python -m tools.perf docs"
    for section in [section for op in (*OPS, *BESIDE_PEERS) for section in docs.sections(RESULTS, op)]:
        picture = PAGE.parent / "performance" / section.picture
        assert image.open(picture).text["Source"] == section.plot.fingerprint(section.rows), "run: python -m tools.perf docs"
        assert picture.stat().st_size < 300_000


def test_the_page_is_written_twice_alike_and_follows_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    folder, page = tmp_path / "results", tmp_path / "page.md"
    measured = next(RESULTS.glob("*-4xH100-80GB"))
    shutil.copytree(measured, folder / measured.name)
    (folder / "notes_gemm_rs.md").write_text("**Learned.** Nothing yet.\n")
    say = ["docs", "--results", str(folder), "--out", str(page)]
    assert main(say) == 0
    once = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(say) == 0
    assert once == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert "**Learned.** Nothing yet." in page.with_name("page_rows.md").read_text()

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


def collective_row(op, nbytes, us, graph=True, symm=6.0, method="auto"):
    """A row as bench writes it; its peers differ from row to row where `symm` is left out."""
    best = {"ratio": 2.125, "ci95": [2.0, 2.25]}
    peers = {"nccl": 8.5, **({} if symm is None else {"symm_one_shot": symm})}
    return {"op": op, "bytes": nbytes, "count": nbytes // 2, "dtype": "bfloat16", "world": 2, "device": "NVIDIA H100 80GB HBM3",
            "graph": graph, "rounds": 9, "date": "2026-01-31", "commit": "abc", "us": us, "ci95": [us, us], "algbw": 1.25,
            "busbw": 1.75, "ratios": {"nccl": best, "best_peer": best}, "us_peers": peers, "method": "push",
            "ours": {method: {"us": us}}}


def section_of(text, title):
    """The lines between a heading and the next one."""
    return text.partition(f"### {title}\n")[2].partition("\n### ")[0].splitlines()


def test_collectives_have_a_section_where_they_were_measured(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder, page = tmp_path / "results", tmp_path / "page.md"
    host = json.loads(next(RESULTS.glob("*-2xH100-80GB/host.json")).read_text())
    found = [collective_row("all_reduce", 65536, 5.25), collective_row("all_reduce", 1024, 3.25, symm=None),
             collective_row("all_reduce", 1024, 30.0, graph=False)]
    results.save(folder / "2026-01-31-2xH100-80GB", "all_reduce", found, host)
    results.save(folder / "2026-01-31-2xemulator", "all_gather", [collective_row("all_gather", 512, 7.0)],
                 {**host, "comparable": False})
    assert main(["docs", "--results", str(folder), "--out", str(page)]) == 0
    text = page.with_name("page_rows.md").read_text()
    assert text.count("## Collectives\n") == 1 and "### all_gather" not in text and "### all_to_all" not in text

    end = "| 2.125 | 2.000-2.250 |"
    graph = section_of(text, "all_reduce on 2xH100-80GB, bfloat16, calls in a CUDA graph")
    assert "In all rows: type bfloat16, rounds 9, date 2026-01-31, commit abc." in graph
    assert [line for line in graph if line.startswith("| ")] == [
        "| size | bytes | count | method | time us | algbw | busbw | nccl us | symm_one_shot us | vs best | 95 % |",
        "| 1K | 1024 | 512 | push | 3.25 | 1.25 | 1.75 | 8.50 | - " + end,
        "| 64K | 65536 | 32768 | push | 5.25 | 1.25 | 1.75 | 8.50 | 6.00 " + end]
    eager = section_of(text, "all_reduce on 2xH100-80GB, bfloat16, calls back to back")
    assert [line.split(" | ")[5] for line in eager if line.startswith("| 1K")] == ["30.00"]

    pictures = {name: tmp_path / "page" / f"2xH100-80GB-all_reduce-bfloat16-{name}.png" for name in ("graph", "eager")}
    assert all(f"(page/{picture.name})" in text for picture in pictures.values())
    marks = {name: image.open(picture).text["Source"] for name, picture in pictures.items()}
    assert marks["graph"] != marks["eager"]
    found[0]["us"] = 5.5
    results.save(folder / "2026-01-31-2xH100-80GB", "all_reduce", found, host)
    now = {section.picture: section.plot.fingerprint(section.rows) for section in docs.sections(folder, "all_reduce")}
    assert now[pictures["graph"].name] != marks["graph"] and now[pictures["eager"].name] == marks["eager"]


def test_a_page_of_shapes_alone_names_no_collective(tmp_path):
    host = json.loads(next(RESULTS.glob("*-2xH100-80GB/host.json")).read_text())
    results.save(tmp_path / "2026-01-31-2xH100-80GB", "gemm_rs",
                 results.load(next(RESULTS.glob("*-2xH100-80GB/gemm_rs.json"))), host)
    text = docs.page(tmp_path, tmp_path / "page.md")
    assert "## gemm_rs" in text and "## Collectives" not in text


def test_every_table_of_the_page_is_whole():
    lines = PAGE.read_text().splitlines()
    tables = [[line for line in block.splitlines()] for block in "\n".join(lines).split("\n\n") if block.startswith("|")]
    assert len(tables) >= 2 and all(len({line.count("|") for line in table}) == 1 for table in tables)


def test_host_times_have_a_section_where_they_were_measured(tmp_path):
    host = json.loads(next(RESULTS.glob("*-2xH100-80GB/host.json")).read_text())
    row = {"op": "dispatch", "dtype": "bfloat16", "world": 2, "device": "NVIDIA H100 80GB HBM3", "graph": False, "rounds": 60,
           "date": "2026-01-31", "commit": "abc", "ours": {"auto": {}}, "us": 1.875, "ci95": [1.75, 2.0], "floor_us": None}
    kernel = {"call": "all_reduce", "us": 7.5, "ci95": [7.25, 8.0], "floor_us": 3.5, "above_us": 4.25, "above_ci95": [4.0, 4.5]}
    results.save(tmp_path / "2026-01-31-2xH100-80GB", "dispatch", [{**row, "call": "ag_gemm"}, {**row, **kernel}], host)
    results.save(tmp_path / "2026-01-31-2xemulator", "dispatch", [{**row, "call": "ag_gemm"}], {**host, "comparable": False})
    text = docs.page(tmp_path, tmp_path / "page.md")
    lines = section_of(text, "Host time on 2xH100-80GB")
    assert "| ag_gemm | 1.88 | 1.75-2.00 | - | - | - |" in lines
    assert "| all_reduce | 7.50 | 7.25-8.00 | 3.50 | 4.25 | 4.00-4.50 |" in lines
    assert "emulator" not in text


def test_a_column_that_says_one_thing_is_said_once():
    lines = [["size", "date", "us"], ["1K", "2026-01-31", "5"], ["2K", "2026-01-31", "5"]]
    assert narrow(lines) == "In all rows: date 2026-01-31.\n\n| size | us |\n|---|---|\n| 1K | 5 |\n| 2K | 5 |\n"
    assert narrow(lines[:2]).startswith("| size | date | us |")
