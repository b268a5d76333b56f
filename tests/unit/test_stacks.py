# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Looking at another thread must not change it."""
import gc
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import triton_dist
from triton_dist.runtime.stacks import Watched, stack_of


@pytest.fixture
def often():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_places_of_a_thread_that_waits():
    go, inside = threading.Event(), threading.Event()

    def inner():
        inside.set()
        go.wait(30)

    def outer():
        inner()

    thread = threading.Thread(target=outer)
    thread.start()
    try:
        assert inside.wait(30)
        calls = [(code, line) for code, line in stack_of(thread.ident) if code.co_filename == __file__]
        assert calls == [(inner.__code__, inner.__code__.co_firstlineno + 2), (outer.__code__, outer.__code__.co_firstlineno + 1)]
    finally:
        go.set()
        thread.join()
    assert stack_of(thread.ident) == []


def test_a_thread_that_stands_still_is_told_from_one_that_runs():
    watched, stop, end = [], threading.Event(), threading.Event()

    def work():
        watched.append(Watched())
        while not stop.is_set():
            pass
        watched.append(Watched())
        end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    while not watched:
        time.sleep(0.01)
    first = watched[0].ran()
    time.sleep(0.2)
    assert watched[0].ran() > first
    stop.set()
    while len(watched) < 2:
        time.sleep(0.01)
    time.sleep(0.2)
    still = watched[1].ran()
    time.sleep(0.1)
    assert still and watched[1].ran() == still
    end.set()
    thread.join()
    late = time.monotonic() + 20            # its entry under /proc goes a little later
    while watched[1].ran() is not None and time.monotonic() < late:
        time.sleep(0.01)
    assert watched[1].ran() is None


def test_a_watched_thread_destroys_its_locals_itself(often):
    """A guard of torch that another thread destroys leaves its state behind on this one; torch.compile has such guards."""
    class Local:
        def __del__(self):
            died.add(threading.get_ident())

    class Garbage:
        """A look may start a collection of what the watching thread has left."""
        def __init__(self):
            self.me = self

        def __del__(self):
            self.me = None

    def call():
        local = Local()                         # noqa: F841 (it dies with the call)
        torch.autograd.grad_mode._enter_inference_mode(False)

    def watch():
        while not stop.is_set():
            looks.append(any(code is here for code, _ in stack_of(main)))
            Garbage()

    died, looks, stop, main = set(), [], threading.Event(), threading.get_ident()
    here = sys._getframe().f_code
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with torch.no_grad():
            end = time.monotonic() + 2
            while time.monotonic() < end or len(looks) < 1000:
                call()
                assert not torch.is_grad_enabled()
    finally:
        stop.set()
        watcher.join()
    assert died == {main} and all(looks) and gc.isenabled()


def test_frames_of_other_threads_are_looked_at_in_one_place():
    """And in the checker, whose ranks stand still meanwhile."""
    package = Path(triton_dist.__file__).parent
    users = {str(path.relative_to(package)) for path in package.rglob("*.py") if "_current_frames" in path.read_text()}
    assert users == {"runtime/stacks.py", "checker/hangs.py"}
