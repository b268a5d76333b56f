# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A warning where a collective of the host does not end: ranks wait for each other that have made different calls.

Kernels' waits have a report of their own (hang.py), and torch ends a collective after half an hour. Before that, and without any
variable being set, each rank says in the process group's key-value store where it is, and one of those that wait logs a table.
Nothing is ended: a rank that compiles or loads for long comes in the end.
"""
import json
import logging
import threading
import time
from typing import Any, Callable, Optional

from triton_dist.runtime.environment import number
from triton_dist.runtime.hang_table import Row, table
from triton_dist.runtime.stacks import place_in, script_line, stack_of

_LOG = logging.getLogger("triton_dist.hang")
_KEY = "triton_dist/waits/"
_ASKED = f"{_KEY}asked"  # b"1" while a rank waits for long
_POLL = 1.0  # seconds between two looks


class CollectiveWatch:
    """Watches this rank's collectives of the host, from a thread that the first of them starts.

    Args:
        rank, world_size: of the world.
        store: gives torch's Store of the world, or None.
        patience: seconds after which a warning is logged; 0: never. The next ones follow after four times as many each. A rank
            tells in the store where it waits after a third of the first ones, and asks the others, who look for that as often.
    """

    def __init__(self, rank: int, world_size: int, store: Callable[[], Any], patience: float | None = None):
        self.rank, self.world_size = rank, world_size
        self.patience = 8 * number("TRITON_DIST_HANG_SECONDS", 3.0, least=0) if patience is None else patience
        self._make_store, self._store = store, None
        self._since: dict[int, float] = {}  # of threads that are in a collective
        self._told, self._next = 0.0, self.patience  # which of them the store knows of; when it is logged
        self._looked = time.monotonic()  # when this rank, which does not wait, last looked whether it is asked
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], Any]) -> None:
        """Runs a collective, which may wait for peers."""
        if self._thread is None and self.patience:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="triton_dist collective watch", daemon=True)
                    self._thread.start()
        me = threading.get_ident()
        self._since[me] = time.monotonic()
        try:
            call()
        finally:
            self._since.pop(me, None)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:  # which must not be in a call of the store when the interpreter ends
            self._thread.join(_POLL)

    def _run(self) -> None:
        while not self._stop.wait(_POLL):
            try:
                self.look()
            except Exception:  # torch raises several kinds where the store's host has left
                return

    def look(self) -> None:
        now = time.monotonic()
        thread, since = min([*self._since.items()], key=lambda one: one[1], default=(0, 0.0))
        waited = now - since if since else 0.0
        if self._told and self._told != since:  # that one has ended
            self._tell("")
            self._store.set(_ASKED, "0")
            self._told, self._next = 0.0, self.patience
        if waited > self.patience / 3:
            if self._reaches_store():
                self._told = since
                self._store.set(_ASKED, "1")
                self._tell(json.dumps([_site(thread), f"peers in a collective, for {int(waited)} s"]))
                if waited > self._next:
                    self._next *= 4
                    self._warn(waited)
        elif not since and now - self._looked > self.patience / 3:
            self._looked = now
            if self._reaches_store() and self._value(_ASKED) == b"1":
                main = threading.main_thread().ident
                self._tell(json.dumps([_site(main), f"none; it is at {_innermost(main)}"]))

    def _reaches_store(self) -> bool:
        self._store = self._store or self._make_store()
        return self._store is not None

    def _value(self, key: str) -> bytes:
        return self._store.get(key) if self._store.check([key]) else b""

    def _tell(self, text: str) -> None:
        self._store.set(f"{_KEY}{self.rank}", text)

    def _warn(self, waited: float) -> None:
        """By the first of the ranks that wait."""
        rows = []
        for rank in range(self.world_size):
            told = self._value(f"{_KEY}{rank}")
            where, what = json.loads(told) if told else ("", "none")
            if rank < self.rank and not what.startswith("none"):
                return
            rows.append(Row(rank, "(host)", site=where, what=what))
        _LOG.warning("a collective of the host has not ended for %d s. Ranks that wait at different lines have made different "
                     "calls; one that does not wait is busy, waits for its device, or has left:\n%s", waited, table(rows))


def _site(thread: Optional[int]) -> str:
    """The line of the script, or where a tool of this package itself is what runs, of any code."""
    return script_line(thread) or _innermost(thread)


def _innermost(thread: Optional[int]) -> str:
    """The line that is executed, or "" where the thread runs no Python code."""
    return next((place_in(code, line) for code, line in stack_of(thread or 0)), "")
