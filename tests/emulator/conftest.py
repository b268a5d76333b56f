# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What several files of emulator tests use."""
import pytest

from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.ops.ep import self_flagged


@pytest.fixture
def long_ways(monkeypatch):
    """Counts the calls, of all ranks, that were looked at in full."""
    taken, real = [], Calls._planned

    def planned(op, *args):
        taken.append(op.name)
        return real(op, *args)
    monkeypatch.setattr(Calls, "_planned", planned)
    return taken


@pytest.fixture
def compares_nothing(monkeypatch):
    """As on a GPU: the device does not compare the calls of ranks by itself, so that known ones are not asked about."""
    monkeypatch.setattr(EmulatorBackend, "compares_calls", False)
    monkeypatch.setattr(EmulatorBackend, "note_call", lambda self, group, number, what, refused: False)


@pytest.fixture
def push_for_few_tokens(monkeypatch):
    """`auto` dispatches and combines few tokens as it does many. The kernel for few takes the emulator several times as long."""
    monkeypatch.setattr(self_flagged, "AUTO_ROWS", 0)
