# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bars, judged on made-up result files."""
import pytest

from triton_dist.bench import bars, command, results
from triton_dist.bench.shapes import parse

SETS = ("large", "medium", "small")


def row(op, shape, world, value=1.1, spread=0.05, **changes):
    """A row in which T*/T and all ratios are `value`, within `spread`."""
    ci95 = [value - spread, value + spread]
    ratio = {"ratio": value, "ci95": ci95}
    return {"op": op, "shape": shape.name, "m": shape.m, "n": shape.n, "k": shape.k, "dtype": "bfloat16", "world": world,
            "device": "NVIDIA H100 80GB HBM3", "graph": False, "rounds": 7, "date": "2026-01-31", "commit": "abc",
            "efficiency": value, "ci95": ci95, "ratios": {"seq": ratio, "torch": ratio, "best_peer": ratio},
            "ms_peers": {"torch": 1.0}, "ours": {"auto": {}}, **changes}


def everything(changed=lambda row: [row]):
    """{(op, world): rows} of every shape on both hosts; `changed` gives the rows in place of one."""
    return {(op, world): [new for shape in parse(list(SETS), op, world, emulated=False) for new in changed(row(op, shape, world))]
            for op in ("ag_gemm", "gemm_rs") for world in (4, 2)}


def written(folder, found):
    for (op, world), rows in found.items():
        results.save(folder / f"2026-01-31-{world}xH100-80GB", op, rows, {"kind": f"{world}xH100-80GB"})
    return folder


def at(op, name, **changes):
    """Replaces the row of `op` and the shape `name` on 4 GPUs by one with other figures."""
    def changed(old):
        if (old["op"], old["shape"], old["world"]) != (op, name, 4):
            return [old]
        return [row(op, parse([name], op, 4, emulated=False)[0], 4, **changes)]
    return changed


def verdicts(findings):
    return {(f.world, f.bar.op, f.bar.shapes, f.bar.figure, f.bar.over): f.verdict for f in findings}


def test_the_table_of_bars_is_that_of_the_issue():
    found = {(op, shapes): [(b.figure, b.over, b.least) for b in bars.BARS if (b.op, b.shapes) == (op, shapes)]
             for op in ("ag_gemm", "gemm_rs") for shapes in SETS}
    assert found == {
        ("ag_gemm", "large"): [("T*/T", "geomean", 1.0), ("T*/T", "each", 0.96), ("vs best_peer", "geomean", 1.02)],
        ("ag_gemm", "medium"): [("T*/T", "geomean", 0.94), ("T*/T", "each", 0.90), ("vs best_peer", "geomean", 1.05)],
        ("gemm_rs", "large"): [("T*/T", "geomean", 0.98), ("T*/T", "each", 0.92), ("vs best_peer", "geomean", 1.02)],
        ("gemm_rs", "medium"): [("T*/T", "geomean", 0.90), ("T*/T", "each", 0.82), ("vs best_peer", "geomean", 1.02)],
        ("ag_gemm", "small"): [("vs seq", "each", 0.98)], ("gemm_rs", "small"): [("vs seq", "each", 0.98)]}
    sizes = {name: {shape.m for shape in parse([name], "ag_gemm", 4, emulated=False)} for name in SETS}
    assert sizes == {"large": {8192, 16384}, "medium": {2048, 4096}, "small": {4, 8, 16, 32, 64, 128, 256, 512}}


def test_all_met(tmp_path, capsys):
    assert command.main(["--verify-bars", str(written(tmp_path, everything()))]) == 0
    printed = capsys.readouterr().out
    assert f"{2 * len(bars.BARS)} met" in printed and "not measured" not in printed and "abc" in printed
    assert "1.100" in printed and "1.050-1.150" in printed and "2026-01-31" in printed


def test_one_shape_below_its_interval_falls_short_and_is_named(tmp_path, capsys):
    folder = written(tmp_path, everything(at("gemm_rs", "8B@8192", value=0.80)))
    findings = bars.judge(folder)
    assert [key for key, verdict in verdicts(findings).items() if verdict != "met"] == [(4, "gemm_rs", "large", "T*/T", "each")]
    short, = [f for f in findings if f.verdict == "SHORT"]
    assert (short.shape, short.found.value, short.found.high) == ("8B@8192", 0.80, pytest.approx(0.85))
    assert command.main(["--verify-bars", str(folder)]) == 1
    assert "SHORT" in capsys.readouterr().out


def test_short_is_not_hidden_by_a_lower_shape_with_a_wide_interval(tmp_path):
    def changed(old):
        low = {"8B@8192": (0.80, 0.05), "70B@8192": (0.75, 0.30)}
        value, spread = low.get(old["shape"], (1.1, 0.05))
        return [row(old["op"], parse([old["shape"]], old["op"], 1, emulated=False)[0], old["world"], value, spread)]
    findings = bars.judge(written(tmp_path, everything(changed)))
    assert {f.shape for f in findings if f.verdict == "SHORT"} == {"8B@8192"}


def test_below_the_bar_with_an_interval_that_reaches_it_is_unclear_and_no_failure(tmp_path):
    findings = bars.judge(written(tmp_path, everything(at("ag_gemm", "8B@4", value=0.95))))
    assert verdicts(findings)[4, "ag_gemm", "small", "vs seq", "each"] == "unclear" and bars.status(findings) == 0


def test_a_mean_falls_short_though_no_shape_does(tmp_path):
    def changed(old):
        return at(old["op"], old["shape"], value=0.97, spread=0.04)(old) if old["m"] >= 8192 else [old]
    found = verdicts(bars.judge(written(tmp_path, everything(changed))))
    assert found[4, "ag_gemm", "large", "T*/T", "each"] == "met"
    assert found[4, "ag_gemm", "large", "T*/T", "geomean"] == "SHORT"       # 0.97 to 0.984, though each reaches 1.01


MISSED = {
    "no row": lambda old: [],
    "too few rounds": lambda old: [{**old, "rounds": 5}],
    "stragglers": lambda old: [{**old, "mode": "rank 1 late 2 ms on the host"}],
    "another device": lambda old: [{**old, "device": "NVIDIA A100-SXM4-80GB"}],
    "another dtype": lambda old: [{**old, "dtype": "float16"}],
}


@pytest.mark.parametrize("why", MISSED)
def test_what_does_not_count_is_not_measured(why, tmp_path, capsys):
    folder = written(tmp_path, everything(lambda old: MISSED[why](old) if (old["op"], old["shape"], old["world"]) == (
        "ag_gemm", "GPT3@4096", 2) else [old]))
    assert {key for key, verdict in verdicts(bars.judge(folder)).items() if verdict != "met"} == {
        (2, "ag_gemm", "medium", "T*/T", "geomean"), (2, "ag_gemm", "medium", "T*/T", "each"),
        (2, "ag_gemm", "medium", "vs best_peer", "geomean")}
    assert command.main(["--verify-bars", str(folder)]) == 2
    printed = capsys.readouterr().out
    assert "not measured (7 of 8 shapes)" in printed
    assert "triton-dist bench ag_gemm --nproc_per_node 2 --shapes GPT3@4096 --out" in printed


def test_without_peers_only_the_bars_on_peers_are_not_measured(tmp_path):
    findings = bars.judge(written(tmp_path, everything(lambda old: [{**old, "ms_peers": {}}])))
    assert {f.bar.figure for f in findings if f.verdict == "not measured"} == {"vs best_peer"}
    assert all(f.verdict == "met" for f in findings if f.bar.figure != "vs best_peer")


def test_a_failure_among_measured_shapes_counts_though_others_are_missing(tmp_path):
    def changed(old):
        return [] if old["shape"] == "70B@8192" else at("ag_gemm", "8B@8192", value=0.5)(old)
    findings = bars.judge(written(tmp_path, everything(changed)))
    assert verdicts(findings)[4, "ag_gemm", "large", "T*/T", "each"] == "SHORT"
    assert verdicts(findings)[4, "ag_gemm", "large", "T*/T", "geomean"] == "not measured" and bars.status(findings) == 1


def test_what_is_judged_is_auto_where_it_was_measured_and_the_newest(tmp_path):
    folder = written(tmp_path, everything(lambda old: [old, {**old, "ours": {"ws": {}}, "efficiency": 0.1, "ci95": [0.1, 0.1]}]))
    assert {f.verdict for f in bars.judge(folder)} == {"met"}
    shape, = parse(["8B@8192"], "ag_gemm", 4, emulated=False)
    results.save(folder / "2026-02-01-4xH100-80GB", "ag_gemm", [row("ag_gemm", shape, 4, value=0.2, date="2026-02-01")], {})
    short = [f for f in bars.judge(folder) if f.verdict == "SHORT"]
    assert {(f.world, f.bar.op, f.bar.shapes) for f in short} == {(4, "ag_gemm", "large")} and len(short) == 3


def test_no_results_at_all(tmp_path, capsys):
    assert command.main(["--verify-bars", str(tmp_path)]) == 2
    assert "expected folders such as" in capsys.readouterr().err
