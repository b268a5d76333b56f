# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The script that checks and measures a whole host: what it plans, what it leaves out, how it goes on after it was cut off."""
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.perf import bars
from tools.perf.steps import ROOT, Step, planned, steps, unchanged
from triton_dist.bench import results
from triton_dist.bench.shapes import parse
from triton_dist.cli import forks

spec = importlib.util.spec_from_file_location("host_script", ROOT / "benchmarks" / "host.py")
host = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host)
OUT = Path("out")


def words(found: list, op: str) -> set:
    return {word for step in found if step.words[:2] == ("bench", op) for word in step.words}


@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_problem_of_every_bar_is_measured_once(world):
    found = steps(world, OUT)
    assert len({step.name for step in found}) == len(found)
    for bar in bars.BARS:
        assert set(bar.needed(world).values()) <= words(found, bar.op), bar
    shapes = [word for step in found if step.words[:2] == ("bench", "ag_gemm") for word in step.words if "@" in word]
    assert len(shapes) == len(set(shapes))


def test_scripts_exist_and_commands_take_their_words():
    from triton_dist.bench.command import parser as bench
    from triton_dist.tune.command import parser as tune
    for step in steps(4, OUT, peers=Path("peers.py")):
        if step.words[0].endswith(".py"):
            assert (ROOT / step.words[0]).is_file()
        else:
            {"bench": bench, "tune": tune}[step.words[0]]().parse_args(step.words[1:])
        assert all((ROOT / path).exists() for path in step.sources), step.sources


def test_rows_that_are_there_are_left_out_unless_their_code_has_changed(tmp_path):
    shape, other = parse(["8B@8192", "70B@8192"], "gemm_rs", 4, emulated=False)
    ratio = {"ratio": 1.1, "ci95": [1.0, 1.2]}
    row = {"op": "gemm_rs", "m": shape.m, "n": shape.n, "k": shape.k, "dtype": "bfloat16", "world": 4, "graph": False,
           "rounds": 9, "device": "NVIDIA H200", "date": "2026-01-31", "commit": "abc", "efficiency": 1.0, "ci95": [0.9, 1.1],
           "ratios": {"seq": ratio, "best_peer": ratio}, "ms_peers": {"torch": 1.0}, "ours": {"auto": {}}}
    results.save(tmp_path / "2026-01-31-4xH200-140GB", "gemm_rs", [row], {})
    seen = []

    def fresh(row, sources):
        seen.append((row["commit"], sources[0]))
        return True
    left = words(steps(4, OUT, tmp_path, fresh=fresh), "gemm_rs")
    assert shape.name not in left and other.name in left
    assert set(seen) == {("abc", "python/triton_dist/ops/gemm_rs")}
    assert shape.name in words(steps(4, OUT, tmp_path, fresh=lambda *_: False), "gemm_rs")
    assert shape.name in words(steps(2, OUT, tmp_path), "gemm_rs"), "the row is of four GPUs"


def test_what_fits_is_planned_in_order_and_what_failed_comes_last():
    found = [Step(name, (), seconds) for name, seconds in (("a", 50), ("b", 30), ("c", 40), ("d", 10))]
    assert [step.name for step in planned(found, {}, 100)] == ["a", "b", "d"]
    assert [step.name for step in planned(found, {"a": 0, "b": 1}, 60)] == ["c", "d"]
    assert [step.name for step in planned(found, {"a": 0, "b": 1}, 80)] == ["c", "d", "b"]


def test_code_is_unchanged_while_its_files_are(tmp_path):
    def git(*args):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True,
                       capture_output=True)
    git("init")
    for name in ("kernel.py", "other.py"):
        (tmp_path / name).write_text("1")
    git("add", "-A")
    git("commit", "-m", "first")
    (tmp_path / "other.py").write_text("2")
    assert unchanged("HEAD", ("kernel.py",), tmp_path) and not unchanged("HEAD", ("kernel.py", "other.py"), tmp_path)
    assert not unchanged("HEAD-dirty", ("kernel.py",), tmp_path) and not unchanged(None, ("kernel.py",), tmp_path)
    assert not unchanged("0123abc", ("kernel.py",), tmp_path), "git does not know the commit"


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """runs(steps) -> exit status of the script; each step's only word is code for Python."""
    monkeypatch.setattr(host, "command", lambda step, gpus: [sys.executable, "-c", step.words[0]])
    monkeypatch.setenv("TRITON_DIST_COMMIT", "abc")

    def runs(*made, options=()):
        monkeypatch.setattr(host, "steps", lambda *args: list(made))
        return host.main(["--out", str(tmp_path), "--gpus", "2", *options])
    return runs


def test_a_run_goes_on_where_the_last_one_ended(made_up, tmp_path, monkeypatch):
    good, bad = Step("good one", ("print('fine')",), 1), Step("bad", ("raise SystemExit(3)",), 1)
    assert made_up(good, bad) == 1
    said = json.loads((tmp_path / "steps.json").read_text())
    assert {name: entry["status"] for name, entry in said.items()} == {"good one": 0, "bad": 3}
    assert (tmp_path / "good_one.log").read_text() == "fine\n"
    (tmp_path / "good_one.log").unlink()
    mended = Step("bad", ("print('mended')",), 1)
    assert made_up(good, mended) == 0 and not (tmp_path / "good_one.log").exists()
    assert made_up(good, options=["--list"]) == 0 and not (tmp_path / "good_one.log").exists()
    monkeypatch.setenv("TRITON_DIST_COMMIT", "def")
    assert made_up(good) == 0 and (tmp_path / "good_one.log").exists(), "it ran at another commit"


def test_a_step_that_hangs_is_ended_and_the_next_one_runs(made_up, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "planned", lambda found, done, seconds: found)
    hangs = Step("hangs", ("import time; time.sleep(60)",), -14.9)          # twice this and 30 seconds: 0.2
    assert made_up(hangs, Step("next", ("pass",), 1)) == 1
    said = json.loads((tmp_path / "steps.json").read_text())
    assert said["hangs"]["status"] == 124 and said["hangs"]["seconds"] < 10 and said["next"]["status"] == 0


def test_a_step_of_other_words_or_on_other_gpus_is_not_the_one_that_has_run(made_up, tmp_path):
    step, log = Step("good", ("print('fine')",), 1), tmp_path / "good.log"
    for made, options in ((step, ()), (Step("good", ("print(2)",), 1), ()), (step, ("--gpus", "3"))):
        log.unlink(missing_ok=True)
        assert made_up(made, options=options) == 0 and log.exists()


def test_a_step_ends_with_the_script(made_up):
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    started = []

    def start(*args, Popen=subprocess.Popen, **options):
        started.append(Popen(*args, **options))
        return started[-1]
    code = f"import os, signal, time; os.kill({os.getpid()}, signal.SIGTERM); time.sleep(60)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.subprocess, "Popen", start)
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            host.leave_by_signals()
            with pytest.raises(SystemExit) as left:
                made_up(Step("ends", (code,), 1))
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
    assert left.value.code == 128 + signal.SIGTERM and started[0].returncode == -signal.SIGTERM
    assert host.PATIENCE > forks._PATIENCE, "a launcher that is killed leaves its ranks behind"


def test_folders_are_those_of_the_caller(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(host, "steps", lambda world, out, known=None, peers=None, fresh=None: seen.append((out, peers)) or [
        Step("one", (), 1)])
    host.main(["--out", "results", "--gpus", "2", "--peer-path", "peers.py", "--list"])
    assert seen[-1] == (tmp_path / "results", tmp_path / "peers.py")


@pytest.mark.parametrize("state, options, words", [
    ("{", [], "expected what this script writes"),
    ("[1]", [], "expected what this script writes"),
    ('{"stress": 0}', [], "expected what this script writes"),
    ("{}", ["--only", "al_reduce"], "--only al_reduce: no step has this name"),
    ("{}", ["--minutes", "nan"], "--minutes: expected a number above 0, found nan"),
])
def test_what_makes_no_sense_is_refused(tmp_path, capsys, state, options, words):
    (tmp_path / "steps.json").write_text(state)
    with pytest.raises(SystemExit):
        host.main(["--out", str(tmp_path), "--gpus", "2", "--list", *options])
    assert words in capsys.readouterr().err


def test_one_gpu_is_not_a_host_with_several(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(host.torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SystemExit):
        host.main(["--out", str(tmp_path)])
    assert "expected at least 2 GPUs, found 1" in capsys.readouterr().err
    assert host.main(["--out", str(tmp_path), "--list"]) == 0 and "stress, about 140 s" in capsys.readouterr().out
