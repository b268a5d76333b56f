# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Situations at a shell: each is a line that says what to do, from the launcher and the doctor alike, or does no harm."""
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from triton_dist.cli import launch
from triton_dist.cli.main import main as tools
from triton_dist.doctor import examine, variables
from triton_dist.doctor.report import BAD, NOTE
from triton_dist.runtime import console, folders
from triton_dist.runtime.console import printable

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "test_ag_gemm.py"
FULL = OSError(errno.ENOSPC, "No space left on device")


def refused(capsys, *argv):
    """What the launcher says in place of starting ranks: one line."""
    assert launch.main([*argv, SCRIPT]) == 2
    line, = capsys.readouterr().err.splitlines()
    return line


def doctors(emulated=True):
    """What the doctor says to fix at this shell."""
    return [finding for finding in examine.shell(os.environ, emulated) if finding.status == BAD]


@pytest.fixture
def started(monkeypatch):
    """Commands and environments that would take this process's place."""
    found = []

    def execve(path, argv, env):
        found.append((argv, env))
        raise SystemExit(0)
    monkeypatch.setattr(os, "execve", execve)
    return found


def test_a_home_that_cannot_be_written(capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_DIST_CACHE_DIR", raising=False)
    line = refused(capsys, "--nproc_per_node", "2")
    assert line.startswith("launch.sh: cannot write /dev/null/.triton/cache: Not a directory; set TRITON_CACHE_DIR to a folder")
    told, = doctors()
    assert told.value in line and told.remedy in line
    assert ["TRITON_CACHE_DIR", "TRITON_DIST_CACHE_DIR"] == [one.remedy.split()[1] for one in doctors(emulated=False)]


def test_only_what_is_needed_must_be_writable(started, monkeypatch, tmp_path):
    """The emulator writes to Triton's cache alone; and a trial leaves no folder behind."""
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("TRITON_DIST_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    with pytest.raises(SystemExit):
        launch.main([SCRIPT])
    assert len(started) == 1 and not list(tmp_path.iterdir())


def test_a_full_disk_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    class Full(tempfile.SpooledTemporaryFile):
        def write(self, data):
            raise FULL
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    assert f"cannot write {tmp_path}: No space left on device; set TRITON_CACHE_DIR" in refused(capsys)
    assert doctors()[0].value == f"cannot write {tmp_path}: No space left on device"


def test_a_working_directory_that_is_gone(capsys, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refused(capsys) == "launch.sh: the working directory has been deleted; cd to another one"
    told, = doctors()
    assert (told.value, told.remedy) == ("it has been deleted", "cd to another one")


def test_an_address_left_from_another_job_is_not_waited_for(capsys, started, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    monkeypatch.setenv("MASTER_PORT", "29999")
    with pytest.raises(SystemExit):
        launch.main([SCRIPT])
    assert "--standalone" in started[0][0] and not [word for word in started[0][0] if "29999" in word or "invalid" in word]
    line = refused(capsys, "--nnodes", "2")
    assert "--master_addr (MASTER_ADDR): cannot find the host 'no-such-host.invalid'" in line and "name the first node" in line
    told = next(one for one in variables.examine({"MASTER_ADDR": "no-such-host.invalid"}) if one.name == "MASTER_ADDR")
    assert told.status == NOTE and "on one node launch.sh does not use it" in told.value


def test_the_command_launches_as_the_script_does(started, monkeypatch):
    words = ["--nproc_per_node", "3", SCRIPT, "64", "--dtype", "float16"]
    with pytest.raises(SystemExit):
        launch.main(words)
    monkeypatch.setattr(sys, "argv", ["triton-dist", "launch", *words])
    with pytest.raises(SystemExit):
        tools()
    (one, env), (other, same) = started
    assert (one.pop(3), other.pop(3)) == ("launch.sh", "triton-dist launch"), "who says how it ended"
    assert one == other and env == same and "OMP_NUM_THREADS" in env


def set_up(script, cwd=ROOT, **environ):
    """What a shell prints that runs a script after the set-up, which it finds by a relative path where it is in the checkout."""
    source = "scripts/setenv.sh" if cwd == ROOT else f"{ROOT}/scripts/setenv.sh"
    done = subprocess.run(["bash", "-euc", f"source {source}; {script}"], cwd=cwd, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "TRITON_DIST_PYTHON": sys.executable, **environ}, check=False)
    return done.stdout + done.stderr


def test_a_search_path_for_folders_moves_no_script():
    """The shell's cd looks for relative folders in CDPATH, and prints what it has found there."""
    assert set_up('echo "$TRITON_DIST_ROOT"', CDPATH=".:/tmp") == f"{ROOT}\n"
    scripts = [*ROOT.glob("*.sh"), *(ROOT / "scripts").glob("*.sh"), *(ROOT / "shmem").rglob("*.sh")]
    assert len(scripts) > 6
    assert not [path for path in scripts if re.search(r"(?<!CDPATH='' )\bcd (-- )?\"\$\(dirname", path.read_text())]


def test_links_to_the_launchers_start_them(tmp_path):
    (tmp_path / "launch").symlink_to(ROOT / "launch_amd.sh")
    done = subprocess.run(["bash", tmp_path / "launch", "--help"], env=dict(os.environ, TRITON_DIST_PYTHON=sys.executable),
                          capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("usage: bash launch.sh")


def test_an_interpreter_is_taken_for_what_it_can_import_and_for_its_version(tmp_path):
    """Not for folders here that are called like a module, such as a clone of Triton; and not if it is too old."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 10, 0, 'final', 0)\n")
    (tmp_path / "no_such_module").mkdir()
    has = "_has $PYTHON json && ! _has $PYTHON json no_such_module && echo right"
    assert set_up(has, tmp_path, PYTHONSAFEPATH="") == "right\n"
    suits = f"_suits $PYTHON && PYTHONPATH={tmp_path}/old:$PYTHONPATH && ! _suits $PYTHON && echo right"
    assert set_up(suits, TRITON_DIST_DEV="") == "right\n"


def test_the_set_up_puts_the_command_beside_the_interpreter(tmp_path):
    tmp_path = tmp_path / "a folder"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "python").symlink_to(ROOT / "python")
    script = f"source {ROOT}/scripts/setenv.sh; TRITON_DIST_ROOT='{tmp_path}'; _command; _command; .venv/bin/triton-dist --help"
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=dict(os.environ, TRITON_DIST_PYTHON=sys.executable),
                          capture_output=True, text=True, timeout=60, check=True)
    assert "launch" in done.stdout and "doctor" in done.stdout


def test_signs_that_a_terminal_cannot_show_are_left_out():
    class Terminal:
        encoding = "latin-1"
    assert printable("✅ Triton and Torch match", Terminal()) == "Triton and Torch match"
    Terminal.encoding = "utf-8"
    assert printable("✅ Triton and Torch match", Terminal()) == "✅ Triton and Torch match"


def test_a_line_is_one_write():
    """Ranks run under `python -u`. A datagram is what one write has brought."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        code = (f"import runpy, sys; runpy.run_path({console.__file__!r})['whole_lines'](); print('rank', 0, 'is here')\n"
                "print('and its error', file=sys.stderr)")
        subprocess.run([sys.executable, "-u", "-c", code], stdout=theirs, stderr=theirs, timeout=60, check=True)
        ours.settimeout(5)
        assert [ours.recv(100), ours.recv(100)] == [b"rank 0 is here\n", b"and its error\n"]


SLEEPS = """
import time, triton_dist
triton_dist.initialize_distributed()
print("ready", flush=True)
time.sleep(60)
"""


def test_ctrl_c_is_a_line_and_130_and_no_warning_comes_before(tmp_path):
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env.update(MASTER_ADDR="no-such-host.invalid", PYTHONIOENCODING="latin-1", TRITON_DIST_BACKEND="emulator",
               TRITON_DIST_PYTHON=sys.executable)
    process = subprocess.Popen(["bash", str(ROOT / "launch.sh"), "--nproc_per_node", "2", str(tmp_path / "sleeps.py")], env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
        os.killpg(process.pid, signal.SIGINT)           # as a terminal does
        assert process.communicate(timeout=60)[0] == "launch.sh: interrupted\n"
        assert process.returncode == 130
    finally:
        process.kill()


def test_ctrl_c_ends_a_check_at_once_and_is_no_fault(tmp_path):
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    process = subprocess.Popen(["bash", str(ROOT / "launch.sh"), "--check", "--nproc_per_node", "2", "--output",
                                str(tmp_path / "sleeps.py")], env={**os.environ, "TRITON_DIST_PYTHON": sys.executable},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20)[0] in ("launch.sh: interrupted\n", "ready\nlaunch.sh: interrupted\n")
        assert process.returncode == 130
    finally:
        process.kill()


def test_ctrl_c_in_the_set_up_is_a_line_too():
    """Before Python has taken the shell's place."""
    done = subprocess.run(["bash", "-c", f"{(ROOT / 'launch.sh').read_text().split('source')[0]} kill -INT $$; sleep 5"],
                          capture_output=True, text=True, timeout=60, check=False,
                          preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert (done.returncode, done.stderr) == (130, "launch.sh: interrupted\n")


def test_folders_are_those_that_triton_uses(monkeypatch):
    from triton import knobs
    for environ in ({}, {"TRITON_HOME": "/else"}, {"TRITON_CACHE_DIR": "/cache"}):
        for name in ("TRITON_HOME", "TRITON_CACHE_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert str(folders.triton_cache(os.environ)) == type(knobs.cache)().dir
