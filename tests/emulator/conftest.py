# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What several files of emulator tests use."""
import pytest

from triton_dist.ops import _plan


@pytest.fixture
def long_ways(monkeypatch):
    """Counts the calls, of all ranks, that were looked at in full."""
    taken, real = [], _plan.planned

    def planned(*args):
        taken.append(args[0])
        return real(*args)
    monkeypatch.setattr(_plan, "planned", planned)
    return taken
