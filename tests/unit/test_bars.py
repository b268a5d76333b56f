# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Bars, judged on made-up result files."""
import pytest

from tools.perf import bars
from tools.perf.__main__ import main
from triton_dist.bench import command, dispatch_rows, results
from triton_dist.bench.collective import sizes
from triton_dist.bench.shapes import parse

SETS = ("large", "medium", "small")
JUDGED = sum(len(bar.worlds) for bar in bars.BARS)


def row(op, shape, world, value=1.1, spread=0.05, **changes):
    """A row in which T*/T and all ratios are `value`, within `spread`."""
    ci95 = [value - spread, value + spread]
    ratio = {"ratio": value, "ci95": ci95}
    seq = ratio if world < 8 else {"ratio": 1.4, "ci95": [1.35, 1.45]}
    return {"op": op, "shape": shape.name, "m": shape.m, "n": shape.n, "k": shape.k, "dtype": "bfloat16", "world": world,
            "device": "NVIDIA H100 80GB HBM3", "graph": False, "rounds": 7, "date": "2026-01-31", "commit": "abc",
            "efficiency": value, "ci95": ci95, "ratios": {"seq": seq, "torch": ratio, "best_peer": ratio},
            "ms_peers": {"torch": 1.0}, "ours": {"auto": {}}, **changes}


def everything(changed=lambda row: [row]):
    """{(op, world): rows} of every shape on both hosts; `changed` gives the rows in place of one."""
    return {(op, world): [new for shape in parse(list(SETS), op, world, emulated=False) for new in changed(row(op, shape, world))]
            for op in ("ag_gemm", "gemm_rs") for world in (8, 4, 2)}


def size_row(op, nbytes, world, us=2.0, busbw=400.0, ratio=2.5, spread=0.05, **changes):
    """A row of a collective in which each figure is within `spread` of itself, relatively."""
    def around(value):
        return [value * (1 - spread), value * (1 + spread)]
    found = {"ratio": ratio, "ci95": around(ratio)}
    peers = sizes.PEERS if op == "all_reduce" else ("nccl",)
    return {"op": op, "bytes": nbytes, "dtype": "bfloat16", "world": world, "device": "NVIDIA H100 80GB HBM3", "graph": True,
            "rounds": 9, "date": "2026-01-31", "commit": "abc", "us": us, "ci95": around(us), "busbw": busbw,
            "ratios": dict.fromkeys(("nccl", "best_peer", "best_outside"), found), "us_peers": dict.fromkeys(peers, 5.0),
            "ours": {"auto": {}}, **changes}


def collectives(changed=lambda row: [row]):
    """{(op, world): rows} of every size on both hosts; `changed` gives the rows in place of one."""
    found = {(op, world): [new for nbytes in sizes.parse(["1K:256M"], False) for new in changed(size_row(op, nbytes, world))]
             for op in sizes.COMMANDS for world in (4, 2)}
    return found | {("gemm_ar", world): [gemm_ar_row(shape, world) for shape in parse(["serving"], "gemm_ar", world, False)]
                    for world in (4, 2)}


def gemm_ar_row(shape, world, **changes):
    """As that of a collective, of a shape."""
    found = size_row("all_reduce", 1024, world, **changes)
    del found["bytes"]
    return {**found, "op": "gemm_ar", "shape": shape.name, "m": shape.m, "n": shape.n, "k": shape.k}


def call_row(name, world, us=1.5, above=4.0, spread=0.05, **changes):
    """A row of host time; an op that is no kernel has no floor."""
    floor = {} if name in dispatch_rows.BASELINES else {"floor_us": 3.5, "above_us": above,
                                                        "above_ci95": [above * (1 - spread), above * (1 + spread)]}
    return {"op": "dispatch", "call": name, "dtype": "bfloat16", "world": world, "device": "NVIDIA H100 80GB HBM3",
            "graph": False, "rounds": 60, "date": "2026-01-31", "commit": "abc", "us": us,
            "ci95": [us * (1 - spread), us * (1 + spread)], "floor_us": None, **floor, "ours": {"auto": {}}, **changes}


def host_times(changed=lambda row: [row]):
    """{("dispatch", world): rows} of every call on both hosts; `changed` gives the rows in place of one."""
    return {("dispatch", world): [new for name in dispatch_rows.CALLS for new in changed(call_row(name, world))]
            for world in (4, 2)}


def written(folder, shaped, sized=None, called=None):
    for (op, world), rows in {**shaped, **(collectives() if sized is None else sized),
                              **(host_times() if called is None else called)}.items():
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
    return {(f.world, f.bar.op, f.bar.problems, f.bar.figure, f.bar.over): f.verdict for f in findings}


def test_the_table_of_bars_is_that_of_the_issue():
    found = {(op, shapes): [(b.figure, b.over, b.bound) for b in bars.BARS if (b.op, b.problems) == (op, shapes)]
             for op in ("ag_gemm", "gemm_rs") for shapes in SETS}
    assert found == {
        ("ag_gemm", "large"): [("T*/T", "geomean", 1.0), ("T*/T", "each", 0.96), ("vs best_peer", "geomean", 1.02)],
        ("ag_gemm", "medium"): [("T*/T", "geomean", 0.94), ("T*/T", "each", 0.90), ("vs best_peer", "geomean", 1.05)],
        ("gemm_rs", "large"): [("T*/T", "geomean", 0.98), ("T*/T", "each", 0.92), ("vs best_peer", "geomean", 1.02)],
        ("gemm_rs", "medium"): [("T*/T", "geomean", 0.90), ("T*/T", "each", 0.82), ("vs best_peer", "geomean", 1.02)],
        ("ag_gemm", "small"): [("vs seq", "each", 0.98)], ("gemm_rs", "small"): [("vs seq", "each", 0.98)]}
    on_eight = {(b.op, b.problems, b.figure, b.over, b.bound) for b in bars.BARS if 8 in b.worlds}
    assert on_eight == {("ag_gemm", "large", "T*/T", "geomean", 1.0), ("gemm_rs", "large", "T*/T", "geomean", 0.98),
                        *((op, "8B@8192 70B@8192", "vs seq", "each", 1.3) for op in ("ag_gemm", "gemm_rs"))}
    sizes = {name: {shape.m for shape in parse([name], "ag_gemm", 4, emulated=False)} for name in SETS}
    assert sizes == {"large": {8192, 16384}, "medium": {2048, 4096}, "small": {4, 8, 16, 32, 64, 128, 256, 512}}


def test_all_met(tmp_path, capsys):
    assert main(["bars", str(written(tmp_path, everything()))]) == 0
    printed = capsys.readouterr().out
    assert f"{JUDGED} met" in printed and "not measured" not in printed and "abc" in printed
    assert "1.100" in printed and "1.050-1.150" in printed and "2026-01-31" in printed


def test_one_shape_below_its_interval_falls_short_and_is_named(tmp_path, capsys):
    folder = written(tmp_path, everything(at("gemm_rs", "8B@8192", value=0.80)))
    findings = bars.judge(folder)
    assert [key for key, verdict in verdicts(findings).items() if verdict != "met"] == [(4, "gemm_rs", "large", "T*/T", "each")]
    short, = [f for f in findings if f.verdict == "SHORT"]
    assert (short.problem, short.found.value, short.found.high) == ("8B@8192", 0.80, pytest.approx(0.85))
    assert main(["bars", str(folder)]) == 1
    assert "SHORT" in capsys.readouterr().out


def test_short_is_not_hidden_by_a_lower_shape_with_a_wide_interval(tmp_path):
    def changed(old):
        low = {"8B@8192": (0.80, 0.05), "70B@8192": (0.75, 0.30)}
        value, spread = low.get(old["shape"], (1.1, 0.05))
        return [row(old["op"], parse([old["shape"]], old["op"], 1, emulated=False)[0], old["world"], value, spread)]
    findings = bars.judge(written(tmp_path, everything(changed)))
    assert {f.problem for f in findings if f.verdict == "SHORT"} == {"8B@8192"}


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
    assert main(["bars", str(folder)]) == 2
    printed = capsys.readouterr().out
    assert "not measured (7 of 8 shapes)" in printed
    assert "triton-dist bench ag_gemm --nproc_per_node 2 --shapes GPT3@4096 --out" in printed


def test_without_peers_only_the_bars_on_peers_are_not_measured(tmp_path):
    findings = bars.judge(written(tmp_path, everything(lambda old: [{**old, "ms_peers": {}}])))
    missed = {(f.bar.op, f.bar.figure) for f in findings if f.verdict == "not measured"}
    assert missed == {("ag_gemm", "vs best_peer"), ("gemm_rs", "vs best_peer")}
    assert all(f.verdict == "met" for f in findings if (f.bar.op, f.bar.figure) not in missed)


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
    assert {(f.world, f.bar.op, f.bar.problems) for f in short} == {(4, "ag_gemm", "large")} and len(short) == 3


def test_the_table_of_the_collectives_is_that_of_the_issue():
    best, nccl = ("vs best_peer", "each"), ("vs nccl", "each")
    by_nccl = [("1K:256K", *nccl, 2.0, (4, 2)), ("512K:2M", *nccl, 1.4, (4, 2)), ("4M:128M", *nccl, 1.05, (4, 2))]
    found = {op: [(b.problems, b.figure, b.over, b.bound, b.worlds) for b in bars.BARS if b.op == op] for op in sizes.COMMANDS}
    assert found == {
        "all_reduce": [("1K:8K", "us", "each", 2.6, (4,)), ("1K:64K", "us", "each", 3.5, (4,)),
                       ("1K:64K", "us", "each", 3.0, (2,)), ("1K:64K", *best, 2.0, (4, 2)),
                       ("128K:1M", *best, 1.3, (4, 2)), ("2M:128M", *best, 1.0, (4, 2)),
                       ("2M:128M", "vs best_peer", "geomean", 1.03, (4, 2)),
                       ("8K:256K", "vs best_outside", "each", 1.05, (2,)), ("512K:16M", "vs best_outside", "each", 1.02, (2,))],
        "all_gather": by_nccl, "reduce_scatter": by_nccl,
        "all_to_all": [("64K:256M", *nccl, 1.0, (4, 2)), ("64M:256M", "busbw", "each", 340.0, (4, 2))]}


def test_the_bars_of_gemm_ar_are_those_of_the_issue(tmp_path):
    found = [(b.problems, b.figure, b.over, b.bound, b.worlds) for b in bars.BARS if b.op == "gemm_ar"]
    assert found == [("serving", "vs best_peer", "geomean", 1.3, (4, 2)), ("serving", "vs best_peer", "each", 1.0, (4, 2)),
                     ("serving", "vs best_outside", "each", 1.0, (2,))]
    shapes = parse(["serving"], "gemm_ar", 4, False)
    assert {shape.m for shape in shapes} == {1, 16, 64, 256, 1024, 2048} and len(shapes) == 24

    def rows(world, low):
        return [gemm_ar_row(shape, world, ratio=0.9 if shape.name == low else 1.25) for shape in shapes]
    mine = {("gemm_ar", 4): rows(4, "70B@16"), ("gemm_ar", 2): rows(2, "")[1:]}
    folder = written(tmp_path, everything(), {**collectives(), **mine})
    assert {key: verdict for key, verdict in verdicts(bars.judge(folder)).items() if verdict != "met"} == {
        (4, "gemm_ar", "serving", "vs best_peer", "geomean"): "SHORT", (4, "gemm_ar", "serving", "vs best_peer", "each"): "SHORT",
        (2, "gemm_ar", "serving", "vs best_peer", "geomean"): "not measured",
        (2, "gemm_ar", "serving", "vs best_peer", "each"): "not measured",
        (2, "gemm_ar", "serving", "vs best_outside", "each"): "not measured"}
    printed = bars.text(bars.judge(folder))
    assert "triton-dist bench gemm_ar --nproc_per_node 2 --graph --shapes 8B@1 --out" in printed


@pytest.mark.parametrize("us, spread, verdict", [(2.6, 0.1, "met"), (2.75, 0.1, "unclear"), (3.0, 0.1, "SHORT")])
def test_a_time_is_to_be_at_most_its_bar(us, spread, verdict, tmp_path, capsys):
    def changed(old):
        return [size_row("all_reduce", 4096, 4, us=us, spread=spread)] if (old["bytes"], old["world"]) == (4096, 4) else [old]
    folder = written(tmp_path, everything(), collectives(changed))
    finding, = [f for f in bars.judge(folder) if (f.world, f.bar.op, f.bar.problems) == (4, "all_reduce", "1K:8K")]
    assert (finding.verdict, finding.problem, finding.found.value) == (verdict, "4K", us)
    assert main(["bars", str(folder)]) == (verdict == "SHORT")
    assert "at most 2.60" in capsys.readouterr().out


def test_the_bar_on_a_time_depends_on_the_world(tmp_path):
    findings = bars.judge(written(tmp_path, everything(), collectives(lambda old: [{**old, "us": 3.5, "ci95": [3.4, 3.6]}])))
    assert {(f.world, f.bar.bound): f.verdict for f in findings if (f.bar.op, f.bar.figure) == ("all_reduce", "us")} == {
        (4, 2.6): "SHORT", (4, 3.5): "met", (2, 3.0): "SHORT"}


def test_large_sizes_are_judged_one_by_one_and_by_their_mean(tmp_path):
    def changed(old):
        return [size_row(old["op"], old["bytes"], old["world"], ratio=1.01, spread=0.015) if old["bytes"] > 1 << 20 else old]
    found = verdicts(bars.judge(written(tmp_path, everything(), collectives(changed))))
    assert found[4, "all_reduce", "2M:128M", "vs best_peer", "each"] == "met"
    assert found[4, "all_reduce", "2M:128M", "vs best_peer", "geomean"] == "SHORT"
    assert found[2, "all_gather", "4M:128M", "vs nccl", "each"] == "SHORT"                  # 1.01 to 1.025, of 1.05
    assert found[2, "reduce_scatter", "1K:256K", "vs nccl", "each"] == "met"
    assert found[2, "all_to_all", "64K:256M", "vs nccl", "each"] == "met"


def test_the_interval_of_a_bandwidth_is_that_of_its_time(tmp_path):
    def changed(old):
        return [{**old, "busbw": 330.0, "us": 100.0, "ci95": [96.0, 110.0]} if old["bytes"] == 128 << 20 else old]
    findings = bars.judge(written(tmp_path, everything(), collectives(changed)))
    finding = next(f for f in findings if f.bar.figure == "busbw")
    assert (finding.verdict, finding.problem) == ("unclear", "128M")
    assert (finding.found.low, finding.found.high) == (pytest.approx(300.0), pytest.approx(343.75))


NOT_COUNTED = {
    "no row": lambda old: [],
    "eager": lambda old: [{**old, "graph": False}],
    "too few rounds": lambda old: [{**old, "rounds": 5}],
    "another dtype": lambda old: [{**old, "dtype": "float32"}],
}


@pytest.mark.parametrize("why", NOT_COUNTED)
def test_sizes_that_do_not_count_are_not_measured(why, tmp_path, capsys):
    folder = written(tmp_path, everything(), collectives(lambda old: NOT_COUNTED[why](old) if (
        old["op"], old["bytes"], old["world"]) == ("all_reduce", 2048, 2) else [old]))
    assert {key for key, verdict in verdicts(bars.judge(folder)).items() if verdict != "met"} == {
        (2, "all_reduce", "1K:64K", "us", "each"), (2, "all_reduce", "1K:64K", "vs best_peer", "each")}
    assert main(["bars", str(folder)]) == 2
    printed = capsys.readouterr().out
    assert "not measured (6 of 7 sizes)" in printed
    assert "triton-dist bench all_reduce --nproc_per_node 2 --graph --sizes 2K --out" in printed


@pytest.mark.parametrize("peers, ratios", [({"nccl": 5.0}, None), (dict.fromkeys(sizes.PEERS), {})])
def test_best_of_peers_needs_every_peer_tried_and_nccl_timed(peers, ratios, tmp_path):
    def changed(old):
        new = {**old, "us_peers": peers, "ratios": old["ratios"] if ratios is None else ratios}
        return [new if old["op"] == "all_reduce" else old]
    found = verdicts(bars.judge(written(tmp_path, everything(), collectives(changed))))
    assert {(op, figure) for (_, op, _, figure, _), verdict in found.items() if verdict == "not measured"} == {
        ("all_reduce", "vs best_peer"), *({("all_reduce", "vs best_outside")} if ratios == {} else ())}


def test_without_files_of_collectives_their_bars_are_not_measured_and_the_commands_are_printed(tmp_path, capsys):
    folder = written(tmp_path, everything(), {})
    assert main(["bars", str(folder)]) == 2
    printed = capsys.readouterr().out
    lacking = sum(f.bar.op in sizes.BESIDE_PEERS for f in bars.judge(folder))
    assert f"{lacking} not measured" in printed and "not measured (0 of 4 sizes)" in printed
    line = next(line for line in printed.splitlines() if "bench all_gather --nproc_per_node 4" in line)
    words = line.partition("#")[0].split()[2:]                       # the command can be read by the bench itself
    args = command.parser().parse_args(words)
    assert args.graph and sizes.parse(args.sizes, False) == sizes.parse(["1K:128M"], False)


def test_no_results_at_all(tmp_path, capsys):
    assert main(["bars", str(tmp_path)]) == 2
    assert "expected folders such as" in capsys.readouterr().err


def test_host_times_are_judged_by_call(tmp_path, capsys):
    slow = {"gemm_rs": dict(us=2.6), "gemm_ar": dict(above=10.2), "all_gather": dict(above=12.0)}

    def changed(old):
        return [call_row(old["call"], old["world"], **slow.get(old["call"], {}))] if old["world"] == 4 else (
            [] if old["call"] in ("ag_gemm", "all_reduce") else [old])
    folder = written(tmp_path, everything(), called=host_times(changed))
    found = {(f.world, f.bar.figure): (f.verdict, f.problem) for f in bars.judge(folder) if f.bar.op == "dispatch"}
    assert found == {(4, "us"): ("SHORT", "gemm_rs"), (4, "us above floor"): ("SHORT", "all_gather"),
                     (2, "us"): ("not measured", "gemm_rs"), (2, "us above floor"): ("not measured", "all_gather")}
    assert main(["bars", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "at most 10.00" in printed
    assert "triton-dist bench dispatch --nproc_per_node 2 --calls ag_gemm all_reduce --out" in printed
