# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The benchmark's arithmetic, its files and its command line, on made-up numbers."""
import json
import random
import statistics

import pytest

from tools.perf import plot
from tools.perf.__main__ import main
from triton_dist.bench import command, host, late, measure, results, rows, shapes, stats, table

FACTS = {"op": "ag_gemm", "shape": "8B@2048", "dtype": "bfloat16", "world": 4, "device": "NVIDIA H100 80GB HBM3",
         "m": 2048, "n": 28672, "k": 4096, "commit": "abc", "date": "2026-01-31"}
DRIFT = [1.0, 1.1, 0.9, 1.3, 1.05, 0.95, 1.2]           # clocks of seven rounds


def measurement(**overrides):
    """Seven rounds in which everything drifts alike: T* = 2, ours 2.5 (auto) and 4, sequential 3, torch 5."""
    base = {"gemm": 2.0, "comm": 1.0, "seq": 3.0, "auto": 2.5, "portable": 4.0, "torch": 5.0, **overrides}
    times = {name: [ms * factor for factor in DRIFT] for name, ms in base.items() if ms is not None}
    return measure.Measurement(milliseconds=times, host_us={name: 12.3456789 for name in times},
                               iterations={name: 10 for name in times}, errors={name: 1e-3 for name in times},
                               skipped={name: "rank 1: no" for name, ms in base.items() if ms is None}, chosen="ws")


def settings(**changes):
    return measure.Settings(**{"rounds": 7, "methods": ("auto", "portable"), "peers": ("torch",), **changes})


def row(**changes):
    return rows.build({**FACTS, **changes}, measurement(), settings())


# -- statistics --------------------------------------------------------------------------------------------------------

def test_interval_of_the_median_by_order_statistics():
    assert [stats.interval_rank(n) for n in (1, 5, 6, 7, 8, 9, 12, 15, 25)] == [1, 1, 1, 1, 1, 2, 3, 4, 8]
    found = stats.estimate([9, 1, 8, 2, 7, 3, 6, 4, 5])
    assert (found.value, found.low, found.high) == (5, 2, 8)


def test_interval_covers_the_true_median_of_a_skewed_distribution():
    draw, hits = random.Random(0), 0
    for _ in range(2000):
        found = stats.estimate([draw.expovariate(1.0) for _ in range(9)])
        hits += found.low <= 0.6931 <= found.high
    assert 0.94 < hits / 2000 < 0.98                    # (1 - 2 * 10 / 512) = 0.961


def test_no_rounds_and_unequal_rounds_are_errors():
    with pytest.raises(ValueError, match="at least one round"):
        stats.estimate([])
    with pytest.raises(ValueError, match="equal numbers"):
        stats.ratio([1, 2], [1])


def test_ratios_are_formed_inside_a_round():
    found = stats.ratio([2 * factor for factor in DRIFT], DRIFT)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert stats.estimate([2 * f for f in DRIFT]).high > 2.5
    assert stats.smallest([1, 5], [2, 3]) == [1, 3] and stats.largest([1, 5], [2, 3]) == [2, 5]
    assert stats.geomean([0.5, 2.0]) == pytest.approx(1.0)


def test_interval_of_a_geometric_mean():
    one = stats.Estimate(1.0, 0.9, 1.3)
    assert vars(stats.geomean_of([one])) == pytest.approx(vars(one))
    four = stats.geomean_of([one] * 4)                  # four independent figures: half the distance, on the log scale
    assert (four.value, four.low, four.high) == pytest.approx((1.0, 0.9**0.5, 1.3**0.5))


def test_interval_of_a_geometric_mean_covers_it():
    draw, hits, medians = random.Random(0), 0, [0.8, 0.9, 1.0, 1.1]
    for _ in range(1000):
        found = stats.geomean_of([stats.estimate([true * draw.lognormvariate(0, 0.02 + 0.02 * i) for _ in range(9)])
                                  for i, true in enumerate(medians)])
        hits += found.low <= stats.geomean(medians) <= found.high
    assert hits > 950


def test_batches_fill_their_time_within_bounds():
    assert [measure.batch_length(ms, 20.0) for ms in (0.0, 0.01, 0.5, 1.0, 10.0)] == [200, 200, 40, 20, 10]


# -- rows --------------------------------------------------------------------------------------------------------------

def test_row_has_every_column_and_speaks_of_the_first_method():
    found = row()
    columns = {"op", "dtype", "world", "device", "m", "n", "k", "ms_gemm", "ms_comm", "ms_seq", "ms_peers", "ms",
               "ms_limit", "efficiency", "method", "graph", "rounds", "ci95"}
    assert columns <= set(found)
    assert found["efficiency"] == pytest.approx(0.8) and found["ci95"] == pytest.approx([0.8, 0.8])
    assert found["ms"] == pytest.approx(2.5 * statistics.median(DRIFT)) and found["method"] == "ws"
    assert found["ms_peers"] == {"torch": pytest.approx(5.25)} and found["graph"] is False and found["rounds"] == 7
    assert {name: r["ratio"] for name, r in found["ratios"].items()} == pytest.approx(
        {"seq": 1.2, "torch": 2.0, "best_peer": 1.2})
    assert found["ours"]["portable"]["efficiency"] == pytest.approx(0.5)
    assert set(found["all_ms"]) == {"gemm", "comm", "seq", "auto", "portable", "torch"}
    json.dumps(found, allow_nan=False)


def test_limit_is_the_larger_of_both_round_by_round():
    found = measurement()
    found.milliseconds["comm"] = [10.0] * 3 + [0.1] * 4
    limit = statistics.median([10.0] * 3 + [2 * factor for factor in DRIFT[3:]])
    assert rows.build(FACTS, found, settings())["ms_limit"] == pytest.approx(limit, rel=1e-4)


def test_a_peer_that_cannot_run_is_null_with_its_reason():
    found = rows.build(FACTS, measurement(torch=None), settings())
    assert found["ms_peers"] == {"torch": None} and found["skipped"] == {"torch": "rank 1: no"}
    assert found["ratios"]["best_peer"]["ratio"] == pytest.approx(1.2) and "torch" not in found["ratios"]


def test_without_the_first_method_figures_speak_of_the_next():
    found = rows.build(FACTS, measurement(auto=None), settings())
    assert found["method"] == "portable" and found["efficiency"] == pytest.approx(0.5)


@pytest.mark.parametrize("gone", [{"auto": None, "portable": None}, {"seq": None}])
def test_no_row_without_a_method_or_the_baseline(gone):
    with pytest.raises(rows.NoResult, match="rank 1: no"):
        rows.build(FACTS, measurement(**gone), settings())


# -- shapes ------------------------------------------------------------------------------------------------------------

def test_default_shapes_are_the_six_of_each_op():
    for op, first in (("ag_gemm", (8192, 28672, 4096)), ("gemm_rs", (8192, 4096, 14336))):
        found = shapes.parse([], op, 4, emulated=False)
        assert [s.name for s in found] == ["8B@8192", "70B@8192", "GPT3@8192", "405B@8192", "8B@2048", "70B@2048"]
        assert (found[0].m, found[0].n, found[0].k) == first


def test_names_sets_and_sizes():
    found = shapes.parse(["8B", "405B@16384", "8192,8192,29568", "8B@8192"], "gemm_rs", 2, emulated=False)
    assert [(s.m, s.n, s.k) for s in found] == [(8192, 4096, 14336), (16384, 16384, 53248), (8192, 8192, 29568)]
    small = shapes.parse(["small"], "ag_gemm", 4, emulated=False)
    assert {s.m for s in small} == {4, 8, 16, 32, 64, 128, 256, 512}
    odd, = shapes.parse(["8B@3"], "gemm_ar", 2, emulated=True)
    assert (odd.name, odd.m, odd.n, odd.k) == ("8B@3", 3, 4096, 14336)
    assert all(s.m <= 128 for s in shapes.parse([], "ag_gemm", 3, emulated=True))


@pytest.mark.parametrize("word, world, says", [
    ("9B", 1, "expected 8B"), ("8B@0", 1, "expected 8B"), ("1,2", 1, "expected 8B"), ("0,8,8", 1, "expected 8B"),
    ("8B", 3, "be divisible by the 3 ranks")])
def test_bad_shapes(word, world, says):
    with pytest.raises(ValueError, match=says):
        shapes.parse([word], "ag_gemm", world, emulated=False)


# -- files -------------------------------------------------------------------------------------------------------------

def test_a_second_run_replaces_its_cells_and_keeps_the_others(tmp_path):
    folder = tmp_path / "2026-01-31-4xH100-80GB"
    results.save(folder, "ag_gemm", [row(), row(world=2)], {"kind": "4xH100-80GB"})
    path = results.save(folder, "ag_gemm", [row(m=64), row(commit="def")], {"kind": "4xH100-80GB", "commit": "def"})
    found = results.load(path)
    assert [(r["world"], r["m"], r["commit"]) for r in found] == [(4, 2048, "def"), (2, 2048, "abc"), (4, 64, "abc")]
    assert json.loads((folder / "host.json").read_text())["commit"] == "def"
    assert sorted(p.name for p in folder.iterdir()) == ["ag_gemm.json", "host.json"]


def test_rows_of_another_mode_or_method_are_other_cells():
    plain, ws = row(), rows.build(FACTS, measurement(auto=None), settings())
    old = {name: value for name, value in plain.items() if name != "mode"}          # written before there were modes
    late = {**plain, "mode": "rank 1 late 2 ms on the host"}
    assert results.merge([old, ws, late], [dict(plain, commit="new")]) == [dict(plain, commit="new"), ws, late]


def test_headline_is_what_users_get():
    auto, ws = row(), rows.build({**FACTS, "commit": "new"}, measurement(auto=None), settings())
    late, other = {**row(commit="late"), "mode": "jitter 2 ms on the host"}, row(m=64)
    assert results.headline([ws, auto, late, other]) == results.headline([auto, ws, other]) == [auto, other]
    assert results.headline([ws, late]) == [ws]


def test_newest_rows_of_each_kind_over_all_dates(tmp_path):
    for date, kind, new in (("2026-01-31", "4xH100-80GB", [row(), row(m=64)]), ("2026-02-01", "4xH100-80GB", [row(commit="def")]),
                            ("2026-01-01", "2xH100-80GB", [row(world=2)])):
        results.save(tmp_path / f"{date}-{kind}", "ag_gemm", new, {"kind": kind, "date": date})
    found = results.newest(tmp_path, "ag_gemm")
    assert {kind: [(r["world"], r["m"], r["commit"]) for r in new] for kind, (new, _) in found.items()} == {
        "4xH100-80GB": [(4, 2048, "def"), (4, 64, "abc")], "2xH100-80GB": [(2, 2048, "abc")]}
    assert found["4xH100-80GB"][1]["date"] == "2026-02-01" and results.newest(tmp_path, "gemm_rs") == {}


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = results.save(tmp_path, "ag_gemm", [row()], {})
    with pytest.raises(ValueError):
        results.save(tmp_path, "ag_gemm", [row(m=64, k=float("nan"))], {})
    assert len(results.load(path)) == 1 and sorted(p.name for p in tmp_path.iterdir()) == ["ag_gemm.json", "host.json"]


def test_load_refuses_other_json(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match="list of benchmark rows"):
        results.load(tmp_path / "x.json")


@pytest.mark.parametrize("name, gib, short", [
    ("NVIDIA H100 80GB HBM3", 79.2, "H100-80GB"), ("NVIDIA H200", 139.8, "H200-140GB"),
    ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"), ("AMD Instinct MI300X", 192, "MI300X-192GB")])
def test_host_kind_says_what_not_which(name, gib, short):
    assert host.short_name(name, int(gib * 2**30)) == short


def test_commit_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_COMMIT", "0123abc")
    assert host.commit() == "0123abc"


# -- table and picture -------------------------------------------------------------------------------------------------

def test_table_has_a_line_a_shape_with_dashes_for_what_is_missing():
    other = rows.build({**FACTS, "shape": "8B@8192", "m": 8192}, measurement(torch=None, portable=None), settings())
    header, first, second = table.cells([row(), other])
    assert len(header) == len(first) == len(second)
    line = dict(zip(header, second))
    assert line["torch"] == line["ours:portable"] == line["vs torch"] == "-" and line["T*/T"] == "0.800"
    printed = table.text([row(), other])
    assert "geometric mean 0.800" in printed and "4 x NVIDIA H100" in printed


def test_table_of_stragglers():
    found = measurement()
    found.milliseconds |= {"auto, late": [ms + 3.0 for ms in found.milliseconds["auto"]],
                           "seq, late": [ms + 1.5 for ms in found.milliseconds["seq"]]}
    found.late_ms = 2.0
    mode = late.Lateness(1, 2.0)
    slow = rows.build(FACTS, found, settings(lateness=mode))
    assert slow["mode"] == str(mode) == "rank 1 late 2 ms on the host" and slow["efficiency"] == row()["efficiency"]
    assert set(slow["all_ms"]) == set(row()["all_ms"]) and "late" not in row()
    header, *lines = table.late_cells([slow])
    assert [[dict(zip(header, line))[name] for name in ("candidate", "cost", "95 %", "beyond")] for line in lines] == [
        ["seq", "1.500", "1.500 to 1.500", "-0.500"], ["auto", "3.000", "3.000 to 3.000", "+1.000"]]
    assert "rank 1 late" in table.text([slow]) and "late" not in table.text([row()])


def test_picture_from_json(tmp_path):
    pytest.importorskip("matplotlib")
    results.save(tmp_path, "ag_gemm", [row(), row(m=8192, shape="8B@8192"), row(world=2)], {})
    assert plot.draw(tmp_path) == [tmp_path / "ag_gemm.png"]
    results.save(tmp_path, "gemm_rs", [{**row(op="gemm_rs"), "mode": "jitter 2 ms on the host"}], {})
    assert plot.draw(tmp_path) == [tmp_path / "ag_gemm.png"]
    picture = (tmp_path / "ag_gemm.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 300_000


def test_curves_of_a_row():
    assert {label: value for label, (value, _, _) in plot.curves(row()).items()} == pytest.approx(
        {"in sequence": 2 / 3, "torch, fused": 0.4, "triton_dist, auto": 0.8, "triton_dist, portable": 0.5}, rel=1e-4)


# -- command line ------------------------------------------------------------------------------------------------------

def test_command_line_defaults_and_lists():
    args = command.parser().parse_args(["ag_gemm"])
    assert (args.methods, args.peers) == (("auto", "ws", "portable"), ("torch",))
    assert (args.dtype, args.shapes) == ("bfloat16", [])
    args = command.parser().parse_args(["gemm_rs", "--shapes", "8B", "1,2,3", "--methods", "ws", "--peers", "none"])
    assert args.shapes == ["8B", "1,2,3"] and args.methods == ("ws",) and args.peers == ()


@pytest.mark.parametrize("argv, says", [(["ag_gemm", "--methods", "fast"], "expected some of auto"),
                                        (["ag_gemm", "--rounds", "0"], "at least 1"), (["nothing"], "invalid choice"),
                                        (["ag_gemm", "--shapes", "9B"], "expected 8B")])
def test_bad_command_lines(argv, says, capsys):
    with pytest.raises(SystemExit):
        command.main(argv)
    assert says in capsys.readouterr().err


def test_outside_torchrun_it_starts_its_ranks(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.delenv("TRITON_DIST_BACKEND", raising=False)
    started = []
    monkeypatch.setattr(command.os, "execve", lambda *call: started.append(call))
    command.main(["ag_gemm", "--shapes", "8B", "--nproc_per_node", "2"])
    words = started[0][1]
    assert "--nproc-per-node=2" in words and words[words.index("-m", 3):] == [
        "-m", "--", "triton_dist.bench", "ag_gemm", "--shapes", "8B", "--nproc_per_node", "2"]


def test_plot_of_an_empty_folder_says_what_is_missing(tmp_path, capsys):
    assert main(["plot", str(tmp_path)]) == 2
    assert "expected result files" in capsys.readouterr().err


def test_triton_dist_without_a_tool_names_them(monkeypatch, capsys):
    from triton_dist.cli.main import TOOLS, main as command_line
    monkeypatch.setattr("sys.argv", ["triton-dist", "--help"])
    with pytest.raises(SystemExit) as ended:
        command_line()
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "bench" in TOOLS and all(f"  {name} " in printed for name in TOOLS)
    monkeypatch.setattr("sys.argv", ["triton-dist", "benhc"])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 2 and "'benhc'" in capsys.readouterr().err


def test_triton_dist_hands_words_on(monkeypatch):
    from triton_dist.cli.main import main as command_line
    seen = []
    monkeypatch.setattr(command, "main", lambda argv: seen.append(argv) or 3)
    monkeypatch.setattr("sys.argv", ["triton-dist", "bench", "ag_gemm", "--shapes", "8B", "--rounds=7"])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 3 and seen == [["ag_gemm", "--shapes", "8B", "--rounds=7"]]
