# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Between emulated hosts: an answer belongs to its request, and a closed wire leaves nothing behind."""
import threading
import time

import pytest

from triton_dist.backends.emulator.memory import wire as module
from triton_dist.backends.emulator.memory.wire import Wire
from triton_dist.runtime.errors import HangError, InvalidArgument
from triton_dist.runtime.groups import SoloGroup


@pytest.fixture
def wire(monkeypatch):
    """A wire whose rank 0 is itself."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    made = Wire(SoloGroup(), [0], b"block", threading.Lock())
    yield made
    made.close()


def test_a_late_answer_is_not_taken_for_the_next_ones(wire, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", 0.2)
    late = threading.Event()

    def slow(offset, nbytes):
        late.wait(10)
        return b"late"
    quick, wire._answers["get"] = wire._answers["state"], slow
    with pytest.raises(HangError, match="no answer for 0.2 seconds"):
        wire.ask(0, "get", 0, 4)
    late.set()
    time.sleep(0.1)                         # the late answer is on its way
    assert wire.ask(0, "state", 3) == quick(3) == b"blo"


def test_what_is_refused_is_raised_and_other_requests_are_not_served(wire):
    with pytest.raises(InvalidArgument, match="of a heap of 0"):
        wire.ask(0, "get", 0, 4)
    with pytest.raises(HangError):
        wire.ask(0, "accept")               # a method, and no request
    assert wire.ask(0, "state", 5) == b"block"


def test_closing_ends_the_thread_that_accepts(wire):
    def accepting():
        return [thread for thread in threading.enumerate() if getattr(thread, "_target", None) == wire._accept]
    assert accepting()
    wire.close()
    deadline = time.monotonic() + 5
    while accepting() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not accepting()
