# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Starts emulated ranks as forks of one process, which imports torch, Triton and triton_dist once for all of them.

Run by path, with the words that torchrun.py takes. The imports at the head of the script run before the fork; then each
rank runs the whole script. A rank finds what torchrun would give it: the same environment variables, a session of its own,
a store. Where nothing can be imported in advance, torchrun starts the ranks.

The launcher blocks signals and takes them one at a time, so that none interrupts it while it starts or ends ranks.
"""
import argparse
import ast
import gc
import importlib
import mmap
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
import uuid
from importlib.machinery import SourceFileLoader
from pathlib import Path

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Beside the standard library, at the head of a script. With pytest, a file of tests may be the script of its ranks.
PACKAGES = {"torch", "triton", "triton_dist", "numpy", "pytest"}
OF_TOOLS = "import triton_dist, triton_dist.layers, triton_dist.testing"
LATER = ("torch.distributed", "triton_dist.ops", "triton_dist.backends.emulator.backend",
         "triton_dist.backends.emulator.driver", "triton_dist.cores.hopper.cores")         # what the first call imports
_APART = 1 << 36        # bytes of address space between what two ranks map
_LAST_WORDS = 0.3       # seconds in which the other ranks may fail by themselves, and say why
_PATIENCE = 30.0        # seconds from SIGTERM to SIGKILL, as torchrun has it


def parse(words: list) -> argparse.Namespace:
    """The words that launch.plan writes: `name`, `ranks`, `module`, `script` and its `args`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--nproc-per-node", dest="ranks", type=int)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("-m", dest="module", action="store_true")
    cut = words.index("--")
    options = parser.parse_args(words[:cut])
    options.script, *options.args = words[cut + 1:]
    return options


# -- before the fork ---------------------------------------------------------------------------------------------------
def head(source: bytes) -> list:
    """The imports of PACKAGES with which a script begins.

    They end at its first statement that is no import of these or of the standard library. That may set what a later
    import reads, such as an environment variable.
    """
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            roots = {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots = {str(node.module).partition(".")[0]}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue                            # the docstring
        else:
            break
        if roots & PACKAGES and roots <= PACKAGES | sys.stdlib_module_names:
            found.append(node)
        elif not roots <= sys.stdlib_module_names:
            break
    return found


def import_once(options: argparse.Namespace) -> bool:
    """Imports what every rank needs. False where the ranks must not be forks of this process, or would gain nothing."""
    try:
        nodes = head(OF_TOOLS.encode() if options.module else Path(options.script).read_bytes())
        exec(compile(ast.Module(nodes, []), options.script, "exec", dont_inherit=True), {})
        if "triton_dist" in sys.modules:
            for name in LATER:
                importlib.import_module(name)
            sys.modules["triton_dist"].compat.triton.triton_key()       # Triton remembers this hash of its own files
    except (Exception, SystemExit):             # each rank will say what is wrong
        return False
    return "torch" in sys.modules and len(os.listdir("/proc/self/task")) == 1       # other threads would not be forked


def variables(rank: int, ranks: int, port: int, run: str, folder: str) -> dict:
    """What torchrun sets for a rank of one node."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "ROLE_RANK": rank, "GROUP_RANK": 0, "ROLE_NAME": "default",
             "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "ROLE_WORLD_SIZE": ranks, "GROUP_WORLD_SIZE": 1,
             "MASTER_ADDR": "localhost", "MASTER_PORT": port,
             "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_RUN_ID": run,
             "TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGHUP,SIGQUIT",
             "TORCHELASTIC_ERROR_FILE": f"{folder}/{rank}/error.json",
             "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1)}
    return {name: str(value) for name, value in found.items()}


# -- a rank ------------------------------------------------------------------------------------------------------------
def run(options: argparse.Namespace) -> None:
    """Runs the script as `python -u SCRIPT` or `python -u -m MODULE` does, except that a line is one write."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:                  # it is None where the descriptor is closed
            stream.reconfigure(line_buffering=True, write_through=False)
    _differ()
    sys.orig_argv = [sys.executable, "-u", *(["-m"] if options.module else []), options.script, *options.args]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            _run_file(options.script)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = lambda *_: None        # the error has been shown; Python ends the process as it ends any
        raise


def _run_file(path: str) -> None:
    names = {name: value for name, value in globals().items() if name.startswith("__")}      # those of any __main__
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __file__=path, __doc__=None, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)


def _differ() -> None:
    """Gives a rank what differs between processes that do not come from a fork. Python itself reseeds `random`."""
    global _moved
    sys.modules["torch"].default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    rank = int(os.environ["RANK"])
    try:                                        # a peer's pointer must not be one of this rank by chance
        _moved = mmap.mmap(-1, (rank + 1) * _APART, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
    except (OSError, OverflowError):            # a limit on address space
        _moved = None


# -- the launcher ------------------------------------------------------------------------------------------------------
class Launcher:
    """Forks ranks and waits for them. `left`: {process id: rank} of those that have not ended."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.left: dict = {}
        self._ending = {number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN}    # nohup, &
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *self._ending})
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._folder = tempfile.mkdtemp(prefix="torchelastic_")

    def fork(self) -> bool:
        """True in the launcher; False in a rank, which has its environment variables."""
        run, port = str(uuid.uuid4()), self._listener.getsockname()[1]
        gc.freeze()                             # a collection would write to what ranks share, and so copy it
        for rank in range(self.ranks):
            os.mkdir(f"{self._folder}/{rank}")
            pid = os.fork()
            if not pid:
                os.setsid()                     # the terminal's Ctrl-C is for the launcher, which ends the ranks
                while signal.sigtimedwait([signal.SIGINT], 0):
                    pass                        # also the one that came before setsid
                signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
                self._listener.close()
                os.environ.update(variables(rank, self.ranks, port, run, self._folder))
                return False
            self.left[pid] = rank
        return True

    def serve(self) -> tuple[int, str]:
        """Keeps the ranks' store until they have ended: (exit status, what to say; nothing where all went well)."""
        from torch.distributed import TCPStore
        port = self._listener.getsockname()[1]
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                         master_listen_fd=self._listener.detach())
        try:
            return self._watch()
        finally:
            del store

    def close(self) -> None:
        """Ends the ranks that are left, and what they have started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.left:
                try:
                    os.killpg(pid, number)
                except ProcessLookupError:
                    os.kill(pid, number)                    # it has no session yet; it is there until it is waited for
            end = time.monotonic() + _PATIENCE
            while self.left and self.next_signal(end) is not None:
                self.ended()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> tuple[int, str]:
        from triton_dist.cli.torchrun import verdict
        while self.left:
            number = signal.sigwait({signal.SIGCHLD, *self._ending})
            if number == signal.SIGINT:
                return 130, "interrupted"
            if number in self._ending:
                return 128 + number, f"ended by {signal.Signals(number).name}"
            failed = [(rank, code) for rank, code in self.ended() if code]
            if failed:
                end = time.monotonic() + _LAST_WORDS
                while self.left and self.next_signal(end) == signal.SIGCHLD:
                    self.ended()
                return verdict(*failed[0])
        return 0, ""

    def next_signal(self, end: float) -> int | None:
        """The next signal, SIGCHLD or one of ENDING; None where there is none until `end`, a time.monotonic()."""
        found = signal.sigtimedwait({signal.SIGCHLD, *self._ending}, max(0.0, end - time.monotonic()))
        return None if found is None else found.si_signo

    def ended(self) -> list:
        """(rank, exit code) of the ranks that have ended since the last call."""
        found = []
        for pid in list(self.left):
            known, status = os.waitpid(pid, os.WNOHANG)
            if known:
                found.append((self.left.pop(pid), os.waitstatus_to_exitcode(status)))
        return found


def main() -> int:
    """The exit status is that of the rank that failed first, or 130 after Ctrl-C. In a rank, that of the script."""
    words = sys.argv[1:]
    options = parse(words)
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if options.module else os.path.dirname(options.script)
    try:
        sys.argv = [options.script, *options.args]
        if not import_once(options):
            os.execv(sys.executable, [sys.executable, str(Path(__file__).with_name("torchrun.py")), *words])
        launcher = Launcher(options.ranks)
    except KeyboardInterrupt:
        print(f"{options.name}: interrupted", file=sys.stderr, flush=True)
        return 130
    try:
        in_launcher = launcher.fork()
    except OSError as error:                    # too many processes
        launcher.close()
        print(f"{options.name}: cannot start {options.ranks} ranks: {error}", file=sys.stderr, flush=True)
        return 1
    if not in_launcher:
        run(options)
        return 0
    try:
        status, last = launcher.serve()
    finally:
        launcher.close()
    if last:
        print(f"{options.name}: {last}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
