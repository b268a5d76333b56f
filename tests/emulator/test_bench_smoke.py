# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Benchmark and stress test on emulated ranks: started as a user does, and with ops that are wrong on purpose."""
import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from launched import launch_sh, python

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.bench import command, dispatch_rows, problems, results, rows
from triton_dist.bench.collective import measure as collective_measure, problem as collective_problem
from triton_dist.bench.collective import outside
from triton_dist.bench.collective.gemm_ar import GemmAr
from triton_dist.bench.collective.norm import Norm
from triton_dist.bench.late import Late, Lateness
from triton_dist.bench.measure import Settings, measure
from triton_dist.bench.run import run
from triton_dist.bench.shapes import Shape
from triton_dist.runtime.groups import resolve

ROOT = Path(__file__).resolve().parents[2]
QUICK = Settings(rounds=2, iterations=1, methods=("portable",), peers=("torch",))


def started(run, *words: str) -> str:
    environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", TRITON_DIST_PYTHON=sys.executable,
                       OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT / "python"))
    done = run(*words, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def bench(monkeypatch, capsys):
    """Runs the command on virtual ranks: what it prints."""
    def run_command(*words: str, ranks: int = 2) -> str:
        monkeypatch.setenv("RANK", "0")         # of a rank that has been started
        assert run_ranks(lambda: command.main(list(words)), ranks, heap=False) == [0] * ranks
        return capsys.readouterr().out
    return run_command


def test_bench_starts_its_ranks_and_writes_a_result(tmp_path):
    printed = started(python, "-m", "triton_dist.bench", "ag_gemm", "--nproc_per_node", "2", "--shapes",
                      "48,40,64", "--rounds", "2", "--iters", "1", "--out", str(tmp_path))
    folder, = tmp_path.iterdir()
    row, = json.loads((folder / "ag_gemm.json").read_text())
    assert folder.name.endswith("-2xemulator") and "emulated" in printed
    assert (row["m"], row["n"], row["k"], row["world"], row["rounds"], row["method"]) == (48, 40, 64, 2, 2, "portable")
    assert set(row["ours"]) == {"auto", "ws", "portable"} and row["ms_peers"] == {"torch": None}
    assert all(found["relative_error"] < 1e-2 for found in row["ours"].values())
    assert json.loads((folder / "host.json").read_text())["comparable"] is False


def test_bench_of_a_collective(tmp_path, bench):
    printed = bench("all_reduce", "--sizes", "256:1K", "102", "--methods", "auto,push", "--rounds", "2", "--iters", "1",
                    "--out", str(tmp_path))
    folder, = tmp_path.iterdir()
    rows = json.loads((folder / "all_reduce.json").read_text())
    assert [row["bytes"] for row in rows] == [256, 512, 1024, 100]
    assert "all_reduce on 2 x emulator" in printed and "busbw" in printed
    assert all(set(row["ours"]) == {"auto", "push"} and row["ratios"]["nccl"]["ratio"] > 0 for row in rows)
    assert all(found["relative_error"] < 1e-2 for row in rows for found in row["ours"].values())
    assert "symmetric memory needs GPUs" in rows[0]["skipped"]["peer:symm_one_shot"]
    assert rows[0]["us_peers"]["symm_one_shot"] is None


def test_bench_of_gemm_ar(tmp_path, bench):
    """Of rows that are not divisible by the world size, too."""
    printed = bench("gemm_ar", "--shapes", "1,72,64", "3,104,96", "--methods", "auto,unfused", "--rounds", "2",
                    "--iters", "3", "--out", str(tmp_path))
    folder, = tmp_path.iterdir()
    rows = json.loads((folder / "gemm_ar.json").read_text())
    assert [(row["m"], row["n"], row["k"]) for row in rows] == [(1, 72, 64), (3, 104, 96)]
    assert "gemm_ar on 2 x emulator" in printed and "gemm us" in printed and "geometric mean" in printed
    for row in rows:
        assert row["method"] == "packets" and set(row["ours"]) == {"auto", "unfused"} and row["us_beside"]["gemm"] > 0
        assert all(found["relative_error"] < 1e-2 for found in row["ours"].values()) and row["ratios"]["nccl"]["ratio"] > 0
        assert row["us_peers"]["symm_two_shot"] is None


def test_bench_of_the_norm(tmp_path, bench):
    printed = bench("all_reduce_rmsnorm", "--shapes", "2,40", "3,24,16", "--rounds", "2", "--iters", "2",
                    "--quant", "fp8_row,fp8_tensor", "--out", str(tmp_path))
    folder, = tmp_path.iterdir()
    rows = json.loads((folder / "all_reduce_rmsnorm.json").read_text())
    assert [(row["m"], row["n"], row["k"], set(row["us_beside"])) for row in rows] == [
        (2, 40, 0, {"fp8_row", "fp8_tensor"}), (3, 24, 16, {"gemm", "gemm_ar_rmsnorm", "fp8_row", "fp8_tensor"})]
    assert "fp8_row us" in printed and all(us > 0 for row in rows for us in row["us_beside"].values())
    assert "all_reduce_rmsnorm on 2 x emulator" in printed and all(row["method"] == "one_shot" for row in rows)


PEERS = """
import torch
import triton_dist
from triton_dist import ops
from triton_dist.runtime.groups import resolve

class Sum:
    def __init__(self, m, n, dtype):
        self.x = torch.empty(m, n, dtype=dtype, device=triton_dist.device())

    def all_reduce(self):
        return ops.all_reduce(self.x)

class Fused(Sum):
    def all_reduce_rmsnorm(self, residual, weight, eps):
        return ops.all_reduce_rmsnorm(self.x, weight, residual=residual, eps=eps)

class Wrong(Sum):
    def all_reduce(self):
        return self.x

class Absent(Sum):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        if resolve().rank:
            raise ImportError("no such library")            # the others would wait for it

PEERS = dict(sum=Sum, fused=Fused, wrong=Wrong, absent=Absent)
"""


@pytest.mark.parametrize("words", [("all_reduce", "--sizes", "1K"), ("gemm_ar", "--shapes", "3,40,64"),
                                   ("all_reduce_rmsnorm", "--shapes", "2,40", "3,24,16")], ids=lambda words: words[0])
def test_peers_of_a_file_are_timed_and_checked(words, tmp_path, bench, monkeypatch):
    (tmp_path / "peers.py").write_text(PEERS)
    monkeypatch.setenv("RANK", "0")
    found = run_ranks(lambda: command.main([*words, "--rounds", "1", "--iters", "1", "--peers", "nccl", "--peer-path",
                                            str(tmp_path / "peers.py"), "--out", str(tmp_path / "out")]), 2, heap=False)
    assert found == [1, 1], "a wrong result"
    folder, = (tmp_path / "out").iterdir()
    for row in json.loads((folder / f"{words[0]}.json").read_text()):
        assert {name for name, us in row["us_peers"].items() if us} == {"nccl", "sum", "fused"}
        assert set(row["ratios"]) == {"nccl", "sum", "fused", "best_peer", "best_outside"}
        assert row["ratios"]["best_peer"] == row["ratios"]["nccl"]
        assert "no such library" in row["skipped"]["peer:absent"] and "expected" in row["skipped"]["peer:wrong"]


@pytest.mark.parametrize("text, said", [
    (None, "found none"), ("PEERS = {}", "expected PEERS"), ("PEERS = dict(mine=int)", "expected PEERS"),
    (PEERS + "PEERS[3] = Sum", "expected PEERS"), (PEERS + "PEERS['nccl'] = Sum", "no peers of, found nccl")])
def test_files_without_peers_are_refused(text, said, tmp_path):
    if text is not None:
        (tmp_path / "peers.py").write_text(text)
    with pytest.raises(ValueError, match=said):
        outside.loaded(tmp_path / "peers.py")


def test_every_candidate_of_gemm_ar_is_checked(monkeypatch):
    settings = collective_measure.Settings(rounds=1, iterations=1, methods=("auto", "ring", "unfused"), peers=("nccl",),
                                           graph=False)

    def script():
        return collective_measure.measure(GemmAr(Shape("x", 6, 24, 32), torch.bfloat16, resolve()), settings)
    for found in run_ranks(script, 2):
        assert set(found.us) == {"gemm", "auto", "ring", "unfused", "peer:nccl"} and not found.failed
    monkeypatch.setattr(GemmAr, "reference", lambda self: torch.zeros_like(self.out[0], dtype=torch.float64))
    for found in run_ranks(script, 2):
        assert set(found.us) == {"gemm"} and set(found.failed) == {"auto", "ring", "unfused", "peer:nccl"}


@pytest.mark.parametrize("k", [0, 16])
def test_every_candidate_of_the_norm_is_checked(k, monkeypatch):
    """Alone, and after a product."""
    ours = ("auto", "one_shot", "two_shot", "unfused")
    settings = collective_measure.Settings(rounds=1, iterations=1, methods=ours, peers=("nccl", "parts"), graph=False)

    def script():
        return collective_measure.measure(Norm(Shape("x", 3, 40, k), torch.bfloat16, resolve(), sets=2), settings)
    peers = {"peer:nccl", "peer:parts"}
    for found in run_ranks(script, 2):
        assert set(found.us) == {*ours, *peers, *(["gemm", "gemm_ar_rmsnorm"] if k else [])} and not found.failed
    monkeypatch.setattr(Norm, "reference", lambda self: torch.zeros_like(self.out[0], dtype=torch.float64))
    for found in run_ranks(script, 2):
        assert set(found.failed) == {*ours, *peers}


@pytest.mark.parametrize("command", ["all_gather", "reduce_scatter", "all_to_all"])
def test_every_candidate_of_a_collective_is_checked(command, monkeypatch):
    settings = collective_measure.Settings(rounds=1, iterations=1, methods=("one_shot", "push", "two_shot"), peers=("nccl",),
                                           graph=False)

    def script():
        return collective_measure.measure(collective_problem.Problem(command, 600, torch.bfloat16, resolve()), settings)
    for found in run_ranks(script, 3):
        assert set(found.us) == {"one_shot", "push", "peer:nccl"} and not found.failed
        assert "expected one of auto, one_shot, push, unfused" in found.skipped["two_shot"]
    monkeypatch.setattr(collective_problem.Problem, "reference", lambda self: torch.zeros_like(self.out[0], dtype=torch.float64))
    for found in run_ranks(script, 3):
        assert not found.us and set(found.failed) == {"one_shot", "push", "peer:nccl"}


@pytest.mark.full
def test_bench_as_a_script_of_the_launcher_with_a_late_rank(tmp_path):
    printed = started(launch_sh, "--nproc_per_node", "2", "benchmarks/bench.py", "gemm_rs", "--shapes",
                      "24,40,50", "--methods", "portable", "--rounds", "1", "--iters", "1", "--dtype", "float16",
                      "--late", "1:3", "--out", str(tmp_path))
    row, = json.loads(next(tmp_path.glob("*/gemm_rs.json")).read_text())
    assert "gemm_rs float16 on 2 x emulator" in printed and "mean lateness" in printed
    assert row["mode"] == "rank 1 late 3 ms on the host" and not results.headline([row])


@pytest.mark.full
def test_stress_as_a_script_of_the_launcher(tmp_path):
    log = tmp_path / "stress.txt"
    printed = started(launch_sh, "--nproc_per_node", "2", "tests/nvidia/stress.py", "--calls", "80", "--seed",
                      "5", "--wrap", "--log-file", str(log))
    assert "✅ stress passed" in printed and "80 calls, seed 5" in printed
    assert re.search(r"; [1-9]\d* of \d+ epochs passed 2\^31, [1-9]\d* 0; 0 kinds of calls differ", printed)
    assert log.read_text().rstrip().endswith("passed")


@pytest.mark.full
def test_graphs_of_torch_as_a_script_of_the_launcher():
    printed = started(launch_sh, "--nproc_per_node", "2", "tests/nvidia/graphs_of_torch.py", "--parts", "train", "callables")
    assert "✅ train" in printed and "✅ callables" in printed


class Wrong(problems.GemmRs):
    """gemm_rs with one wrong element on the last rank."""

    def ours(self, s: int, method: str) -> torch.Tensor:
        out = super().ours(s, method)
        if self.group.rank == self.group.size - 1:
            out.view(-1)[0] += 100
        return out


class Fickle(problems.AgGemm):
    """ag_gemm whose result changes in its last bits from the `after`-th call on."""

    calls, after = 0, 1

    def ours(self, s: int, method: str) -> torch.Tensor:
        self.calls += 1
        out = super().ours(s, method)
        return out.mul_(1 + 2**-7) if self.calls > self.after else out


def measured(kind: type, after: int = 0, settings: Settings = QUICK):
    def script():
        problem = kind(Shape("x", 16, 24, 32), torch.bfloat16, resolve())
        problem.after = after
        return measure(problem, settings)
    return run_ranks(script, 2)


def test_a_wrong_result_on_one_rank_is_dropped_on_all_and_gives_no_row():
    for found in measured(Wrong):
        assert found.failed == ["portable"] and "rank 1: AssertionError: element 0" in found.skipped["portable"]
        assert set(found.milliseconds) == {"gemm", "comm", "seq"}
        with pytest.raises(rows.NoResult, match="portable: rank 1"):
            rows.build({}, found, QUICK)


@pytest.mark.parametrize("after", [1, 4])                # at once, or only while it is timed
def test_a_result_that_does_not_repeat_gives_no_row(after):
    for found in measured(Fickle, after):
        assert found.failed == ["portable"] and "differ from the first" in found.skipped["portable"]
        assert "portable" not in found.milliseconds


@pytest.mark.parametrize("kind", [problems.AgGemm, problems.GemmRs])
@pytest.mark.parametrize("lateness, mean", [(Lateness(1, 5.0), (5.0, 5.0)), (Lateness(None, 5.0, "device"), (1.5, 3.5))])
def test_stragglers_cost_time_and_change_no_bit(kind, lateness, mean):
    settings = dataclasses.replace(QUICK, iterations=4, lateness=lateness)
    for found in measured(kind, settings=settings):
        assert not found.failed and mean[0] <= found.late_ms <= mean[1]
        row = rows.build({"op": kind.op}, found, settings)
        assert row["mode"] == str(lateness) and set(row["late"]["costs"]) == {"seq", "portable"}
        # All ranks are threads under one token here: nobody's sleep is hidden, and with jitter both ranks' add up.
        assert all(cost["ms"] > mean[0] for cost in row["late"]["costs"].values())


def test_a_result_that_lateness_breaks_gives_no_row():
    settings = dataclasses.replace(QUICK, lateness=Lateness(0, 1.0))
    calls = 2 + (1 + 3) + 2 * 2 + (1 + 3) + 2 * 2 + 1       # admitted, tried and timed on time, then late, then repeated
    for found in measured(Fickle, calls, settings):
        assert found.failed == ["portable"] and "differ from the first" in found.skipped["portable"]
        assert "portable" not in found.milliseconds and "portable, late" not in found.milliseconds


def test_every_candidate_meets_the_same_lateness():
    waits = [[], []]
    for mine in waits:
        call = Late(lambda s: s, Lateness(None, 5.0), 1, mine.append)
        assert [call(s) for s in range(20)] == list(range(20))
    assert waits[0] == waits[1] and len(set(waits[0])) == 20 and all(0 <= ms <= 5 for ms in waits[0])


def test_a_late_rank_that_is_not_there_is_an_error():
    def script():
        with pytest.raises(ValueError, match="--late 2:3: expected a rank below 2"):
            run(command.parser().parse_args(["ag_gemm", "--late", "2:3"]), resolve())
        return True
    assert run_ranks(script, 2) == [True, True]


def test_a_method_that_this_device_lacks_is_skipped_without_being_a_failure():
    def script():
        problem = problems.AgGemm(Shape("x", 16, 24, 32), torch.float32, resolve())
        return measure(problem, Settings(rounds=1, iterations=1, methods=("ws", "portable"), peers=()))
    for found in run_ranks(script, 2):
        assert "ws" in found.skipped and not found.failed and "portable" in found.milliseconds


@pytest.mark.full
def test_host_time_of_calls(tmp_path):
    printed = started(python, "-m", "triton_dist.bench", "dispatch", "--nproc_per_node", "2", "--out", str(tmp_path))
    folder, = tmp_path.iterdir()
    found = {row["call"]: row for row in json.loads((folder / "dispatch.json").read_text())}
    assert set(found) == set(dispatch_rows.CALLS) and "Host time of eager calls on 2 x emulator" in printed
    for name, row in found.items():
        assert row["us"] > 0 and row["ci95"][0] <= row["us"] <= row["ci95"][1]
        assert (row["floor_us"] is None) == (name in dispatch_rows.BASELINES)
    assert found["ag_gemm"]["us"] < 100, "an emulated kernel takes longer: the plan has been run"
    assert all(found[name]["floor_us"] > 100 for name in dispatch_rows.KERNELS)


def test_host_time_where_an_op_is_no_kernel(bench):
    printed = bench("dispatch", "--calls", "all_reduce", "gemm_rs", "--rounds", "2", ranks=1)
    assert "gemm_rs" in printed and "all_reduce" not in printed
