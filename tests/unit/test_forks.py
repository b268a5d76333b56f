# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Emulated ranks that are forks of one process: each finds what torchrun gives a rank, and ends as under torchrun."""
import ast
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from triton_dist.cli import forks, launch

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = "--max_restarts=0"           # an option of torchrun, which therefore starts the ranks
REPORT = """
import atexit, inspect, json, os, pickle, random, signal, sys, threading
import numpy, torch
import triton_dist

class Box:
    pass

def here():
    return inspect.getsource(here)

rank = os.environ["RANK"]
out = sys.argv[1] + "/" + rank
threads = len(os.listdir("/proc/self/task"))
files = sorted(entry.name for entry in os.scandir("/proc/self/fd") if os.path.exists(entry.path))
triton_dist.initialize_distributed()
for i in range(100):
    print("rank", rank, "line", i, "x" * 60)
report = {
    "environ": dict(os.environ), "globals": {name: type(value).__name__ for name, value in globals().items()},
    "argv": sys.argv, "words": sys.orig_argv, "path": sys.path, "source": here(),
    "main": pickle.loads(pickle.dumps(Box())).__module__,
    "specification": repr(__spec__), "file": __file__, "doc": __doc__,
    "session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)],
    "buffer": type(sys.stdout.buffer).__name__, "threads": threads,
    "bad fork": torch.cuda._is_in_bad_fork(), "main thread": threading.current_thread() is threading.main_thread(),
    "omp": torch.get_num_threads(), "command": open("/proc/self/cmdline").read(),
    "files": files,
    "drawn": [random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()],
    "heap": triton_dist.create_symm_tensor((4,), torch.float32).data_ptr(),
}
json.dump(report, open(out, "w"))
torch.ones(2, requires_grad=True).sum().backward()
atexit.register(lambda: open(out + ".end", "a").write(str(os.getpid()) + "\\n"))
"""


def started(script, *words, ranks=2, options=(), **environ):
    """launch.py on a script, as a shell starts it in the foreground."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "PET_"))}
    env.update(TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", **environ)
    command = [sys.executable, launch.__file__, f"--nproc_per_node={ranks}", *options, str(script), *map(str, words)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process):
    out, err = process.communicate(timeout=120)
    return SimpleNamespace(status=process.returncode, out=out, err=err)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """From "forks" or "torchrun", which starts the ranks, to what they report by rank, what they print, and the folder."""
    @functools.cache
    def of(who):
        folder = tmp_path_factory.mktemp(who)
        (folder / "temporary").mkdir()
        script = folder / "report.py"
        script.write_text(REPORT)
        options = (TORCHRUN, ) if who == "torchrun" else ()
        done = finished(started(script, folder, options=options, TMPDIR=str(folder / "temporary")))
        assert done.status == 0 and done.err == "", done.err
        return [json.loads((folder / str(rank)).read_text()) for rank in range(2)], done.out, folder
    return of


@pytest.mark.full
def test_a_rank_finds_what_torchrun_gives_it(reports):
    """Environment, __main__, arguments, session, signals, threads and files."""
    forked, others = (reports(who)[0] for who in ("forks", "torchrun"))
    assert all("forks.py" in report["command"] for report in forked)
    assert not any("forks.py" in report["command"] for report in others)
    folders = [str(reports(who)[2]) for who in ("forks", "torchrun")]
    for ours, theirs in zip(forked, others):
        differ = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
        assert set(ours["environ"]) == set(theirs["environ"]) >= differ | {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
        for report in (ours, theirs):
            assert report["environ"]["MASTER_PORT"].isdecimal()
            assert report["environ"]["TORCHELASTIC_ERROR_FILE"].endswith(f"/{report['environ']['RANK']}/error.json")
            for name in differ:
                del report["environ"][name]
            del report["command"]
        drawn = ("drawn", "heap")
        ours, theirs = ({key: value for key, value in report.items() if key not in drawn} for report in (ours, theirs))
        assert json.loads(json.dumps(ours).replace(*folders)) == theirs


@pytest.mark.parametrize("who", ["forks", pytest.param("torchrun", marks=pytest.mark.full)])
def test_what_differs_between_processes_differs_between_forks(who, reports):
    """Unseeded generators, and addresses: a pointer that a peer has sent must not be one of this rank by chance."""
    for of_all in zip(*(report["drawn"] for report in reports(who)[0])):
        assert len({*of_all}) == 2, who
    heaps = sorted(report["heap"] for report in reports(who)[0])
    assert min(b - a for a, b in zip(heaps, heaps[1:])) > 1 << 30


def test_a_fork_is_a_session_of_its_own_with_one_thread(reports):
    for rank, report in enumerate(reports("forks")[0]):
        assert "forks.py" in report["command"] and report["environ"]["RANK"] == str(rank)
        assert not report["bad fork"] and report["threads"] == 1 and report["session"] and report["main thread"]


def test_lines_of_ranks_stay_whole(reports):
    expected = sorted(f"rank {rank} line {i} {'x' * 60}" for rank in range(2) for i in range(100))
    assert sorted(reports("forks")[1].splitlines()) == expected


def test_handlers_at_exit_run_once_and_nothing_is_left(reports):
    ends = [(reports("forks")[2] / f"{rank}.end").read_text().split() for rank in range(2)]
    assert [len(end) for end in ends] == [1, 1] and len({end[0] for end in ends}) == 2
    assert not list((reports("forks")[2] / "temporary").iterdir())


ENDS = """
import os, signal, subprocess, sys, time
import torch

def fail(how):
    if how == "error":
        raise ValueError("as asked")
    if how == "status":
        sys.exit(7)
    if how == "interrupt":
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    while not os.path.exists(sys.argv[2] + "/child"):
        time.sleep(0.01)
    fail(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[2] + "/told", "w").close(), sys.exit(0)))
child = subprocess.Popen(["sleep", "100"])
with open(sys.argv[2] + "/writing", "w") as out:
    out.write(str(child.pid))
os.rename(sys.argv[2] + "/writing", sys.argv[2] + "/child")
time.sleep(100)
"""


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how, status, words", [
    ("error", 1, "rank 1 failed with exit code 1"), *(pytest.param(*case, marks=pytest.mark.full) for case in (
        ("kill", 137, "rank 1 was ended by SIGKILL"),
        ("status", 7, "rank 1 failed with exit code 7"), ("interrupt", 130, "rank 1 was ended by SIGINT")))])
def test_a_rank_that_fails_ends_the_others(how, status, words, tmp_path):
    """Its traceback is that of a plain run. The others get SIGTERM, and what they have started as well."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    begun = time.monotonic()
    done = finished(started(script, how, tmp_path))
    child = int((tmp_path / "child").read_text())
    (tmp_path / "torch.py").touch()                    # in place of torch, whose import takes a second; beside the script
    plain = subprocess.run([sys.executable, str(script), how, str(tmp_path)], env=dict(os.environ, RANK="1"),
                           capture_output=True, text=True, timeout=60, check=False)
    assert (done.status, done.err) == (status, f"{plain.stderr}launch.sh: {words}\n")
    assert ("ValueError: as asked" in plain.stderr) == (how == "error")
    assert (tmp_path / "told").exists() and not lives(child) and time.monotonic() - begun < 25


@pytest.mark.parametrize("ignored", [False, True])
def test_signals_of_the_launcher(ignored, tmp_path):
    """Ctrl-C, held down, is a line and 130. In a background job it is ignored; SIGTERM then ends all."""
    script = tmp_path / "waits.py"
    script.write_text("import time\nimport torch\nprint('ready', flush=True)\ntime.sleep(100)\n")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        process = started(script)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
        for _ in range(5):
            process.send_signal(signal.SIGINT)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.terminate()
        done = finished(process)
    finally:
        process.kill()
    expected = (143, "launch.sh: ended by SIGTERM\n") if ignored else (130, "launch.sh: interrupted\n")
    assert (done.status, done.err, done.out) == (*expected, "")


PATCHED = """
import os, sys
from triton_dist.cli import forks
fork, forks._PATIENCE, calls = os.fork, 0.5, []
def fails():
    calls.append(1)
    if len(calls) == 2:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
if sys.argv.pop(1) == "fork":
    os.fork = fails
sys.exit(forks.main())
"""


@pytest.mark.parametrize("case", ["fork", pytest.param("deaf", marks=pytest.mark.full)])
def test_no_rank_stays(case, tmp_path):
    """Where a fork fails, the ranks before it are ended. A rank that does not heed SIGTERM is killed."""
    script = tmp_path / "deaf.py"
    script.write_text("import os, signal, sys, time\nimport torch\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                      "open(sys.argv[1] + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
                      "while not os.path.exists(sys.argv[1] + '0'):\n    time.sleep(0.01)\n"
                      "sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(100)\n")
    words = ["-c", PATCHED, case, "launch.sh", "--nproc-per-node=2", "--standalone", "--", str(script), f"{tmp_path}/"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False)
    expected = (1, "launch.sh: cannot start 2 ranks: [Errno 11] Resource temporarily unavailable\n")
    if case == "deaf":
        expected = (3, "launch.sh: rank 1 failed with exit code 3\n")
    assert (done.returncode, done.stderr) == expected
    pids = [int(path.read_text() or 0) for path in tmp_path.glob("[01]")]
    assert not [pid for pid in pids if pid and lives(pid)] and (case == "fork" or len(pids) == 2)


def starter(*argv, **environ):
    environ["CUDA_VISIBLE_DEVICES"] = environ.get("gpus", "")
    return Path(launch.plan(launch.parse(list(argv), environ), environ)[0][2]).name


def test_torchrun_starts_what_forks_cannot(monkeypatch):
    """GPUs, several nodes, and whatever torchrun alone understands."""
    monkeypatch.setattr(launch, "devices", lambda root: ("nvidia", 8))
    script = "test_gemm_rs.py"
    assert starter(script) == starter("--nproc_per_node=2", script, "--n", "3") == "forks.py"
    assert starter("--published", script) == starter(script, gpus="0,1", TRITON_DIST_BACKEND="emulator") == "forks.py"
    assert starter(script, gpus="0,1") == "torchrun.py"
    assert starter(script, TRITON_DIST_BACKEND="amd", NPROC_PER_NODE="2") == "torchrun.py"
    for words in (["--nnodes=2"], ["--master_port=29511"], [TORCHRUN], ["--log-dir=logs"], ["--tee", "3"]):
        assert starter(*words, script) == "torchrun.py", words
    assert starter(script, "${local_rank}") == "torchrun.py"
    for variable in ("PET_MAX_RESTARTS", "PYTHON_EXEC", "TORCHELASTIC_ENABLE_FILE_TIMER"):
        assert starter(script, **{variable: "1"}) == "torchrun.py"


@pytest.mark.parametrize("source, expected", [
    ("'doc'\nfrom __future__ import annotations\nimport os, sys\nimport torch\nimport my\nimport triton",
     ["import torch"]),
    ("import numpy as np\nfrom triton_dist import ops\nx = 1\nimport triton",
     ["import numpy as np", "from triton_dist import ops"]),
    ("import pytest, re\nimport torch\nimport transformers\nimport triton", ["import pytest, re", "import torch"]),
    ("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch", []),
    ("try:\n    import torch\nexcept ImportError:\n    pass", []),
    ("from .beside import a\nimport torch", []),
    ("import torch, beside\nimport triton", []),
    ("import torch.distributed as dist, os\ndef f(): import triton", ["import torch.distributed as dist, os"])])
def test_the_head_of_a_script_ends_where_a_later_import_may_depend_on_it(source, expected):
    assert [ast.unparse(node) for node in forks.head(source.encode())] == expected


def test_a_process_with_threads_is_not_forked(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("import torch")
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not forks.import_once(SimpleNamespace(module=False, script=str(script)))
    finally:
        end.set()
        thread.join()


def test_a_script_that_sets_the_environment_first_runs_as_it_would_alone(tmp_path):
    """torch reads OMP_NUM_THREADS when it is imported. A syntax error is shown as Python shows it."""
    script = tmp_path / "first.py"
    script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch\nprint(torch.get_num_threads(), "
                      "'forks.py' in open('/proc/self/cmdline').read())\nraise SystemExit(5)")
    done = finished(started(script, ranks=1))
    assert (done.status, done.out) == (5, "2 False\n")
    script.write_text("import torch\nx = = 1\n")
    done = finished(started(script, ranks=1))
    assert done.status == 1 and "forks" not in done.err
    assert "x = = 1" in done.err and "SyntaxError: invalid syntax" in done.err
