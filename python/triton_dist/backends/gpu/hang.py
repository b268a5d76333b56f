# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""One report for a hang on GPUs: expired waits of all ranks in one table, after which every rank ends.

With TRITON_DIST_WAIT_TIMEOUT set, a thread on each rank looks at the records that this rank's kernels write to host
memory when a wait expires. The first that finds one opens a window of some seconds, in which every rank, waiting or not,
posts its rows to the key-value store of the process group; then one of them prints all. The device lingers that long
before it traps (common.ll), so nothing needs it any more when its context is lost.
"""
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import Any, Callable, Sequence

from triton_dist.runtime.hang_table import Row, last_words, merge, table
from triton_dist.runtime.stacks import script_line
from triton_dist.runtime.state import at_exit, state

_KEY = "triton_dist/hang/"
_POLL = 0.1         # seconds between two looks
_WINDOW = 3.0       # in which ranks post what they wait for; less than a device lingers
_LINGER = 4.0       # common.ll, tdist_give_up
_GRACE = 2.0        # for the main thread to end by the device's error, before this process is ended


class HangWatch:
    """The watching thread of one rank.

    rows: this rank's expired waits so far. store: torch's Store of the world, or None for a world of one. window and end
    are there for tests.
    """

    def __init__(self, rank: int, world_size: int, store: Any, rows: Callable[[], Sequence[Row]], timeout: float,
                 window: float = _WINDOW, end: Callable[[int], None] = os._exit):
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self._store, self._rows, self._window, self._end = store, rows, window, end
        self._stop, self._told, self._raised = threading.Event(), threading.Event(), threading.Event()
        self._text = ""
        self._forget_exit: Callable = lambda: None
        self._thread = threading.Thread(target=self._run, name="triton_dist hang watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._forget_exit = at_exit(self._at_exit)
        self._hook, sys.excepthook = sys.excepthook, self._excepthook

    def stop(self) -> None:
        """The world has ended well, or its report is out."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(self._window + 2 * _GRACE)
        self._forget_exit()
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._hook

    def explain(self) -> str:
        """The report, for the error of the thread that waited for the device; that thread then decides what ends."""
        self._raised.set()
        if self._thread.ident is None or not self._told.wait(self._window + _GRACE):
            self._text = self._words({self.rank: self._rows()})
        return self._text

    def _run(self) -> None:
        while not self._stop.wait(_POLL):
            if self._rows() or self._call("check", [_KEY + "open"]):
                self._report()
                # The device traps after a pause; a host that waits for it then ends by itself.
                if not self._raised.wait(_LINGER - self._window + _GRACE):
                    last_words(f"rank {self.rank} is ended after this hang")
                    self._leave()
                return

    def _report(self) -> None:
        self._call("set", _KEY + "open", "1")
        opened, reports = time.monotonic(), {}
        while (left := opened + self._window - time.monotonic()) > 0:
            self._call("set", f"{_KEY}{self.rank}", json.dumps([asdict(row) for row in self._rows() or [self._host()]]))
            time.sleep(min(_POLL, left))
        for rank in range(self.world_size):
            if rank == self.rank or not self._store:
                continue
            if self._call("check", [f"{_KEY}{rank}"]):
                reports[rank] = [Row(**row) for row in json.loads(self._call("get", f"{_KEY}{rank}"))]
        reports[self.rank] = self._rows() or [self._host()]
        self._text = self._words(reports)
        if not self._store or self._call("add", _KEY + "printed", 1) in (1, None):     # None: the store is gone
            last_words(self._text)
        self._told.set()

    def _words(self, reports: dict) -> str:
        return (f"hang: no signal within TRITON_DIST_WAIT_TIMEOUT={self.timeout:g} seconds; all ranks end. What they wait for:\n"
                + table(merge(reports, self.world_size), writer="to be written by"))

    def _host(self) -> Row:
        """Where the thread that calls ops is, of a rank that has no expired wait."""
        where = script_line(state().thread or threading.main_thread().ident)
        return Row(self.rank, "(host)", site=where, what="no device wait that has expired")

    def _call(self, method: str, *args: Any) -> Any:
        """A call of the store; None without one, and once it has failed: its host has left."""
        if self._store is not None:
            try:
                return getattr(self._store, method)(*args)
            except Exception:    # torch raises several kinds
                self._store = None
        return None

    def _reported(self) -> bool:
        """Whether the hang has been told; waits for that where this rank has part in it."""
        if self._rows() and self._thread.is_alive():
            self._told.wait(self._window + _GRACE)
        return self._told.is_set()

    def _excepthook(self, kind: type, error: BaseException, trace: Any) -> None:
        """After a report an uncaught error is its consequence, whatever call of torch it comes from: a line is enough."""
        if self._reported():
            last_words(f"rank {self.rank} ends by this {kind.__name__}")
        else:
            self._hook(kind, error, trace)

    def _at_exit(self) -> None:
        """After a report the device context is lost and peers are gone: nothing can be torn down, so end at once."""
        self._stop.set()
        if self._reported():
            self._leave()

    def _leave(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        self._end(1)


def store_of_world() -> Any:
    """A connection of its own to the store that the default process group was made with; None where there is none."""
    import torch.distributed as dist
    if not dist.is_initialized():
        return None
    try:
        from triton_dist.compat.distributed import default_store
        return default_store().clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
