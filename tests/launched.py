# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Scripts on emulated ranks that are processes, started as `bash launch.sh` starts them, and programs that import what these do.

launch.sh starts Python, which imports torch, Triton and triton_dist and forks the ranks. Most of the time of a short script goes
into these imports. Without --full one process of each worker of the tests imports them, once. For each script it forks, and the
fork goes on as launch.py. With --full all scripts are started by launch.sh itself. Tests of launch.sh start it themselves.
"""
import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, NoReturn, Optional

import front_end

ROOT = Path(__file__).resolve().parents[1]
_forker: Optional["Forker"] = None


def launch_sh(*words: str, environment: dict, cwd: Path = ROOT, seconds: float = 120) -> subprocess.CompletedProcess:
    """Runs `bash launch.sh WORDS`.

    Args:
        words: options of launch.sh, the script and its arguments.
        environment: all variables, with those that tests set for all processes: TRITON_DIST_BACKEND, OMP_NUM_THREADS.
        cwd: the working directory.
        seconds: after which it is killed.

    Returns:
        Exit status, output and errors as text.

    Raises:
        subprocess.TimeoutExpired: it has been killed.
    """
    environment = {**environment, "TRITON_DIST_PYTHON": sys.executable}
    return _run(["bash", str(ROOT / "launch.sh"), *words], environment, cwd, seconds)


def python(*words: str, environment: Optional[dict] = None, cwd: Path = ROOT,
           seconds: float = 120) -> subprocess.CompletedProcess:
    """Runs `python WORDS`: a script, or `-m` and a module, and arguments. For those that import what a rank does.

    Args and so on are those of `launch_sh`. environment: this process's own if None.
    """
    return _run([sys.executable, *words], dict(os.environ) if environment is None else environment, cwd, seconds)


def _run(command: list, environment: dict, cwd: Path, seconds: float) -> subprocess.CompletedProcess:
    global _forker
    if not front_end.files:
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if _forker is None:
        _forker = Forker(front_end.files[0])
    return _forker.run(command, environment, cwd, seconds)


@contextmanager
def no_longer() -> Iterator[None]:
    """After the block no process waits for scripts."""
    global _forker
    yield
    if _forker is not None:
        _forker.channel.close()
        _forker.process.wait(60)
        _forker = None


class Forker:
    """The process that forks, as its parent sees it. It ends when the channel does."""

    def __init__(self, shown: Path) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = dict(os.environ, TRITON_DIST_BACKEND="emulator", OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
        with theirs:
            self.process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno()), str(shown)], env=environment,
                                            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)

    def run(self, command: list, environment: dict, cwd: Path, seconds: float) -> subprocess.CompletedProcess:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            request = json.dumps([command, environment, str(cwd)]).encode()
            socket.send_fds(self.channel, [request], [out.fileno(), err.fileno()])
            self.channel.settimeout(60)
            pid = int(self.channel.recv(100))
            self.channel.settimeout(seconds)
            late = False
            try:
                status = int(self.channel.recv(100))
            except TimeoutError:
                late = True
                os.kill(pid, signal.SIGKILL)
                self.channel.settimeout(60)
                status = int(self.channel.recv(100))
            said = [(file.seek(0), file.read())[1] for file in (out, err)]
        if late:
            raise subprocess.TimeoutExpired(command, seconds, *said)
        return subprocess.CompletedProcess(command, status, *said)


# -- in the process that forks -----------------------------------------------------------------------------------------
def serve(channel: socket.socket) -> Optional[list]:
    """Forks for each request. In a fork it returns the request, with the files for output and errors; else at the end None."""
    while True:
        request, files, *_ = socket.recv_fds(channel, 1 << 20, 2)
        if not request:
            return None
        pid = os.fork()
        if not pid:
            channel.close()
            return [*json.loads(request), files]
        for file in files:
            os.close(file)
        channel.send(str(pid).encode())
        channel.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def become(command: list, environment: dict, cwd: str, files: list) -> int:
    """What `command` does: Python, or launch.sh; returns an exit status. In a rank, after its script."""
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    _set(environment)
    execve = os.execve

    def in_place(program: Any, argv: list, environment: dict) -> None:
        words = argv[2:] if argv[1] == "-u" else argv[1:]
        if words[0] != "-m" and Path(words[0]).name != "forks.py":
            execve(program, argv, environment)
        _set(environment)
        sys.path[1:1] = [folder for folder in environment["PYTHONPATH"].split(os.pathsep) if folder not in sys.path]
        sys.exit(run_python(words))
    os.execve = in_place                                    # type: ignore[assignment]
    if command[0] == "bash":
        from triton_dist.cli import launch
        return launch.main(command[2:])
    return run_python(command[1:])


def run_python(words: list) -> int:
    if words[0] == "-m":
        sys.argv[:], sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:], sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    return 0


def _set(environment: dict) -> None:
    os.environ.clear()
    os.environ.update(environment)


def main() -> int:
    from triton_dist.cli import forks
    if not forks.import_once(SimpleNamespace(module=True, script="")):
        raise SystemExit("this process cannot be forked: it has other threads, or an import has failed")
    shown = front_end.shown_what_is_new(Path(sys.argv[2]))
    shown.__enter__()                                       # for good: ranks too show what nobody has shown
    gc.collect()
    gc.freeze()                                             # a fork's collector would look at what it shares, and so copy it
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        request = serve(channel)
    if request is None:
        return 0
    try:
        status = become(*request)
    except SystemExit as end:
        if not isinstance(end.code, (int, type(None))):
            raise                                           # words, which Python shows
        status = end.code or 0
    end_at_once(status)


def end_at_once(status: int) -> NoReturn:
    """Ends a fork as Python ends a process, but for freeing one by one the objects that it shares, which would copy them."""
    threading._shutdown()                                   # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
