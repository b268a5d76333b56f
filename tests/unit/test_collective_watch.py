# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The warning of collectives of the host that do not end, with ranks that are threads and torch's own store."""
import logging
import threading
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from triton_dist.backends.gpu import collective_watch
from triton_dist.backends.gpu.collective_watch import CollectiveWatch


class World:
    """Three ranks whose watches look when the test says so, at the time that it says."""

    def __init__(self, monkeypatch):
        self.now, self.threads = 100.0, []
        monkeypatch.setattr(collective_watch, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(collective_watch, "_POLL", 1000.0)          # their own threads never look
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.watches = [CollectiveWatch(rank, 3, store.clone, 24.0) for rank in range(3)]

    def enter(self, rank, waits):
        """A rank's script enters a collective. Returns what ends it."""
        inside, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=waits, args=(self.watches[rank], inside, done), daemon=True)
        thread.start()
        assert inside.wait(20)

        def end():
            done.set()
            thread.join()
        return end

    def after(self, seconds):
        self.now += seconds
        for watch in self.watches[::-1]:
            watch.look()


@pytest.fixture
def world(monkeypatch, caplog):
    made = World(monkeypatch)
    with caplog.at_level(logging.WARNING, "triton_dist.hang"):
        yield made
    for watch in made.watches:
        watch.stop()


def waits_here(watch, inside, done):
    def here():
        inside.set()
        done.wait()
    watch.run(here)


def waits_there(watch, inside, done):
    def there():
        inside.set()
        done.wait()
    watch.run(there)


def busy(rank, told):
    """Whether the line `told` says that a rank which waits for none is in the test itself, on the main thread."""
    return (told.startswith(f"{rank}     (host)  test_collective_watch.py:") and "(after)" in told
            and "none; it is at stacks.py:" in told)


def test_the_first_rank_that_waits_tells_where_all_are(world, caplog):
    ends = world.enter(1, waits_here), world.enter(2, waits_there)
    world.after(9)
    assert not caplog.records, "they are in the store, and nothing is logged yet"
    world.after(16)
    told, = caplog.records
    lines = told.getMessage().splitlines()
    assert "has not ended for 25 s" in lines[0] and busy(0, lines[2]) and len(lines) == 5
    for line, where in zip(lines[3:], ("(here)", "(there)")):
        assert "test_collective_watch.py:" in line and where in line and line.endswith("peers in a collective, for 25 s")
    world.after(60)
    assert len(caplog.records) == 1
    world.after(20)
    assert len(caplog.records) == 2 and "has not ended for 105 s" in caplog.records[1].getMessage()
    for end in ends:
        end()
    world.after(1)
    end = world.enter(2, waits_there)
    world.after(9)
    world.after(16)
    lines = caplog.records[-1].getMessage().splitlines()
    assert busy(0, lines[2]) and busy(1, lines[3]) and "(there)" in lines[4]
    end()


def test_a_rank_that_has_not_been_asked_for_long_says_nothing(world, caplog):
    end = world.enter(2, waits_there)
    world.after(25)                                     # at once, so that the others have not looked yet
    lines = caplog.records[-1].getMessage().splitlines()
    assert [line.split() for line in lines[2:4]] == [["0", "(host)", "none"], ["1", "(host)", "none"]] and "(there)" in lines[4]
    end()
    world.after(1)
    assert world.watches[0]._value(collective_watch._ASKED) == b"0"


def test_what_ends_soon_is_not_told(world, caplog):
    def fails():
        raise ValueError("as it was")

    for _ in range(10):
        end = world.enter(0, waits_here)
        world.after(7)
        end()
    with pytest.raises(ValueError, match="as it was"):
        world.watches[0].run(fails)
    world.after(100)
    assert not caplog.records
