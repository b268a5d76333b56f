# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Programs that read the same word again and again: those that wait sleep until any of their words changes, those whose loop ends
by itself are left alone, and those for which nobody writes are reported."""
import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, finish, launch, start  # noqa: F401

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.engine.scheduler import Scheduler
from triton_dist.backends.emulator.twins import memory
from triton_dist.runtime.errors import HangError


@triton.jit
def _greatest(best, x, n):
    for i in range(n):
        tl.atomic_max(best, tl.load(x + i))


@triton.jit
def _sum(word, out, n):
    total, i = 0, 0
    while i < n:
        total += tl.load(word, volatile=True)
        i += 1
    tl.store(out, total)


def test_loops_that_end_by_themselves_are_no_hang():
    best, x, out = torch.full((1, ), 5, dtype=torch.int32), torch.arange(1500, dtype=torch.int32) % 5, torch.zeros(1)
    launch(_greatest, 1, best, x, 1500)
    assert best.item() == 5
    launch(_sum, 1, best, out, 1500)
    assert out.item() == 7500


@triton.jit
def _either(flags, out):
    seen = 0
    while seen == 0:
        seen = tl.atomic_add(flags, 0) + 10 * tl.atomic_add(flags + 1, 0) + 100 * tl.load(flags + 2, volatile=True)
    tl.store(out, seen)


@triton.jit
def _later(other, flags, which, BLOCK: tl.constexpr):
    n = 0
    for i in range(6000):
        n += tl.load(other)
    if BLOCK:
        tl.store(flags + which + tl.arange(0, 1), n + 1)
    else:
        tl.atomic_xchg(flags + which, n + 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_poll_of_several_words_sees_each_of_them(mode, which):
    with scheduler.activated(Scheduler(seed=which, mode=mode)):
        flags, out, other = torch.zeros(4, dtype=torch.int32), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
        finish(start(_either, (1, ), flags, out), start(_later, (1, ), other, flags, which, BLOCK=which == 1))
        assert out.item() == 10**which


def test_programs_share_the_reads_after_which_a_hang_is_reported(monkeypatch):
    reads = []
    monkeypatch.setattr(memory, "_OF_ALL", 4096)
    monkeypatch.setattr(memory, "spin", lambda *args, spin=memory.spin: (reads.append(args), spin(*args)))
    with pytest.raises(HangError):
        launch(_either, 8, torch.zeros(4, dtype=torch.int32), torch.zeros(1))
    assert len(reads) < 8 * 3 * 1024, "a program reads three words"


def test_a_poll_that_nobody_answers_is_a_hang():
    with pytest.raises(HangError, match=r"ne 0 .*"):
        launch(_either, 1, torch.zeros(4, dtype=torch.int32), torch.zeros(1))
