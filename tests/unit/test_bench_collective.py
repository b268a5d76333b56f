# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The benchmark of collectives on made-up numbers: sizes, bandwidths, tables, files, pictures, the command line."""
import json
from types import SimpleNamespace

import pytest

from tools.perf import peers_plot as peer_plot, plot
from triton_dist.bench import command, results
from triton_dist.bench.collective import rows, sizes
from triton_dist.bench.collective.measure import Measurement, Settings

FACTS = {"op": "all_reduce", "dtype": "bfloat16", "world": 4, "device": "NVIDIA H100 80GB HBM3", "commit": "abc",
         "date": "2026-01-31"}
SETTINGS = Settings(rounds=3, iterations=None, methods=("auto", "push"), peers=("nccl", "symm_one_shot"), graph=True)


def row(nbytes=1 << 20, auto=(10.0, 11.0, 12.0), nccl=(20.0, 22.0, 24.0), one_shot=(15.0, 22.0, 30.0), **facts):
    us = {"auto": auto, "push": tuple(2 * t for t in auto), "peer:nccl": nccl, "peer:symm_one_shot": one_shot}
    found = Measurement(us={name: list(times) for name, times in us.items() if times}, errors={"auto": 1e-3, "push": 2e-3},
                        iterations={}, skipped={} if one_shot else {"peer:symm_one_shot": "no"}, chosen="two_shot")
    problem = SimpleNamespace(beside={}, about=lambda: {"bytes": nbytes, "count": nbytes // 2},
                              rates=lambda us: {"algbw": nbytes / us / 1e3, "busbw": 1.5 * nbytes / us / 1e3})
    return rows.build({**FACTS, **facts}, problem, found, SETTINGS)


def test_sizes_double_from_the_first_to_the_last():
    assert sizes.parse(["1K:8k", "999", "2M", "4K"], False) == [1024, 2048, 4096, 8192, 999, 2 << 20]
    assert sizes.parse(["3:20"], False) == [3, 6, 12]
    assert sizes.parse([], False)[-1] == 128 << 20 and max(sizes.parse([], True)) <= 4096
    assert [sizes.text(n) for n in (65536, 1 << 30, 3 << 20, 1000, 1536)] == ["64K", "1G", "3M", "1000", "1536"]


@pytest.mark.parametrize("word", ["", "K", "64KB", "-1", "0", "1K:", ":1K", "2K:1K", "1K:2K:4K", "5G", "1.5K"])
def test_other_words_are_refused_with_what_is_expected(word, capsys):
    with pytest.raises(ValueError, match="--sizes .*expected"):
        sizes.parse([word], False)
    with pytest.raises(SystemExit):
        command.main(["all_reduce", "--sizes", word])
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    (["all_gather", "--peers", "symm_one_shot"], "expected some of nccl, none"),
    (["all_reduce", "--methods", "ws"], "expected some of auto, one_shot, two_shot, push, unfused"),
    (["all_reduce", "--shapes", "8B"], "unrecognized arguments"),
    (["all_to_all_single"], "invalid choice")])
def test_the_command_line_refuses_by_name(words, said, capsys):
    with pytest.raises(SystemExit):
        command.main(words)
    assert said in capsys.readouterr().err


def test_bandwidths_are_those_of_nccl_tests():
    found = row()
    assert found["us"] == 11.0 and found["method"] == "two_shot"
    assert found["algbw"] == pytest.approx((1 << 20) / 11e-6 / 1e9, rel=1e-4)
    assert found["busbw"] == pytest.approx(1.5 * found["algbw"], rel=1e-4)


def test_ratios_are_formed_in_a_round_and_against_the_best_peer_of_each():
    found = row()
    assert found["ratios"]["nccl"]["ratio"] == 2.0
    assert found["ratios"]["best_peer"] == {"ratio": 2.0, "ci95": [1.5, 2.0]}      # 15 / 10, 22 / 11, 24 / 12
    assert found["ours"]["push"]["ratios"]["nccl"]["ratio"] == 1.0


def test_a_peer_that_is_not_there_has_no_figure():
    found = row(one_shot=None)
    assert found["us_peers"] == {"nccl": 22.0, "symm_one_shot": None} and found["ratios"]["best_peer"]["ratio"] == 2.0
    line = rows.text([found]).splitlines()[3]
    assert line.split()[:6] == ["1M", "1048576", "524288", "bfloat16", "two_shot", "11.00"] and " - " in line


def test_without_our_methods_there_is_no_row():
    with pytest.raises(rows.NoResult, match="auto: not timed"):
        rows.build(FACTS, SimpleNamespace(), Measurement(), SETTINGS)


def test_a_size_has_a_cell_of_its_own_in_the_file(tmp_path):
    results.save(tmp_path, "all_reduce", [row(1024), row(2048)], {})
    path = results.save(tmp_path, "all_reduce", [row(2048, auto=(5.0, 5.0, 5.0)), row(4096)], {})
    assert [(found["bytes"], found["us"]) for found in json.loads(path.read_text())] == [(1024, 11.0), (2048, 5.0), (4096, 11.0)]


def test_shapes_have_cells_columns_and_panels_of_their_own(tmp_path):
    def shaped(m, n=4096, k=14336):
        found = row(op="gemm_ar", shape=f"8B@{m}", m=m, n=n, k=k)
        for name in ("bytes", "count", "algbw", "busbw"):
            del found[name]
        return {**found, "us_beside": {"gemm": 9.0}}
    path = results.save(tmp_path, "gemm_ar", [shaped(16), shaped(1), shaped(16, 8192, 28672)], {})
    header, *lines = rows.cells(results.load(path))
    assert header == ["shape", "M", "N", "K", "type", "method", "time us", "push us", "gemm us", "nccl us", "symm_one_shot us",
                      "vs best", "95 %"]
    assert lines[1] == ["8B@1", "1", "4096", "14336", "bfloat16", "two_shot", "11.00", "22.00", "9.00", "22.00", "22.00", "2.000",
                        "1.500-2.000"]
    assert "geometric mean 2.000" in rows.text(results.load(path)) and [p.name for p in plot.draw(tmp_path)] == ["gemm_ar.png"]
    alike, = peer_plot.alike(results.load(path))
    assert peer_plot.curves(alike[:2])["gemm, then nccl"] == [(1, 22.0), (16, 22.0)]
    assert peer_plot.fingerprint(alike) != peer_plot.fingerprint(alike[:2])


def test_a_picture_for_each_world_and_dtype(tmp_path):
    results.save(tmp_path, "all_reduce", [row(1024), row(2048), row(2048, world=2), row(2048, dtype="float32")], {})
    assert [path.name for path in plot.draw(tmp_path)] == ["all_reduce.png", "all_reduce-2.png", "all_reduce-3.png"]
    assert all(path.stat().st_size > 5000 for path in tmp_path.glob("*.png"))
