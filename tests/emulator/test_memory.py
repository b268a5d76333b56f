# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Global memory: segments, bounds, alignment, lifetime, and the funnel that a checker hooks."""
import gc

import pytest
import torch
import triton
import triton.language as tl
from language_helpers import engine, finish, launch, start  # noqa: F401
from triton.language import core

from triton_dist.backends.emulator.engine import scheduler
from triton_dist.backends.emulator.memory import memory
from triton_dist.backends.emulator.values.promotion import info
from triton_dist.runtime.errors import DeviceFault

I32, F32, F16 = info(core.int32), info(core.float32), info(core.float16)


@pytest.fixture
def mem(engine):      # noqa: F811
    old, new = memory.active(), memory.Memory()
    memory.activate(new)
    yield new
    memory.activate(old)


def slab(mem, nbytes=4096, name="heap", rank=0):
    t = torch.zeros(nbytes, dtype=torch.uint8)
    return t, mem.add_segment(t.data_ptr(), nbytes, name, rank)


def test_views_copy_nothing(mem):
    t, segment = slab(mem)
    base = t.data_ptr()
    mem.store_tile(base + 64, (2, 4), (32, 4), F32, torch.arange(8.0).view(2, 4))
    seen = t.view(torch.float32)
    assert seen[16:20].tolist() == [0, 1, 2, 3] and seen[24:28].tolist() == [4, 5, 6, 7]
    seen[17] = 9
    assert mem.load_tile(base + 64, (4, ), (4, ), F32).tolist() == [0, 9, 2, 3]
    mem.store_word(base, I32, -5)
    assert mem.load_word(base, I32) == -5 and mem.flag_load(base, 32) == -5 and mem.peek(base, 64) == 2**32 - 5
    mem.copy(base + 128, base + 64, 16)
    assert seen[32:36].tolist() == [0, 9, 2, 3]
    assert mem.flag_add(base, 7, 32) == -5 and mem.flag_load(base, 32) == 2
    mem.flag_store(base, -1, 64)
    assert mem.flag_load(base, 64) == -1


def test_bounds_are_exact_and_named(mem):
    t, _ = slab(mem, 256, "symmetric heap", 3)
    base = t.data_ptr()
    mem.load_tile(base, (8, 8), (32, 4), F32)
    for call in (lambda: mem.load_tile(base + 4, (8, 8), (32, 4), F32), lambda: mem.load_word(base + 256, I32),
                 lambda: mem.store_points(torch.tensor([base, base + 256]), F32, torch.zeros(2)),
                 lambda: mem.copy(base, base + 128, 129), lambda: mem.flag_store(base + 256, 1, 32)):
        with pytest.raises(DeviceFault, match=r"past the end of symmetric heap \(rank 3, 256 bytes\)"):
            call()
    with pytest.raises(DeviceFault, match="before symmetric heap|outside"):
        mem.load_word(base - 4, I32)
    with pytest.raises(DeviceFault, match="null pointer"):
        mem.load_word(16, I32)


def test_misaligned_accesses_fault(mem):
    base = slab(mem)[0].data_ptr()
    keep = slab(mem)
    for call in (lambda: mem.load_word(base + 2, I32), lambda: mem.load_tile(base + 1, (4, ), (2, ), F16),
                 lambda: mem.load_tile(base, (4, ), (6, ), F32), lambda: mem.flag_load(base + 4, 64),
                 lambda: mem.load_points(torch.tensor([base, base + 2]), F32)):
        with pytest.raises(DeviceFault, match="multiple of"):
            call()
    assert keep


def test_scattered_accesses_may_span_segments(mem):
    (a, _), (b, _) = slab(mem, 64, "a"), slab(mem, 64, "b")
    at = torch.tensor([b.data_ptr(), a.data_ptr() + 4, b.data_ptr() + 8])
    mem.store_points(at, I32, torch.tensor([1, 2, 3], dtype=torch.int32))
    assert a.view(torch.int32)[1] == 2 and b.view(torch.int32)[[0, 2]].tolist() == [1, 3]
    assert mem.load_points(at, I32).tolist() == [1, 2, 3]
    old = mem.update_points(at, I32, torch.add, (torch.tensor([10, 10, 10], dtype=torch.int32), ), "relaxed", "gpu")
    assert old.tolist() == [1, 2, 3] and mem.load_points(at, I32).tolist() == [11, 12, 13]
    with pytest.raises(DeviceFault, match="outside"):
        mem.load_points(torch.cat([at, torch.tensor([b.data_ptr() + 64])]), I32)


def test_a_registered_tensor_lives_no_longer_than_its_storage(mem):
    t = torch.zeros(64)
    address = t.data_ptr()
    mem.register(t, "x")
    mem.register(t[8:], "again")
    assert str(mem.find(address, 4)).startswith("x (") and mem.at(address + 256) is None
    view = t[4:]
    del t
    gc.collect()
    assert mem.find(address, 4)
    del view
    gc.collect()
    with pytest.raises(DeviceFault, match="which has been freed"):
        mem.find(address, 4)


def test_dropped_segments_fault(mem):
    t, segment = slab(mem)
    mem.find(t.data_ptr(), 8)
    mem.drop_segment(segment)
    mem.drop_segment(segment)
    with pytest.raises(DeviceFault):
        mem.find(t.data_ptr(), 8)


class Recorder(memory.Memory):
    """What a checker sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def observe(self, kind, segment, address, shape, steps, size, sem, scope):
        self.seen.append((kind, segment.name, None if shape is None else tuple(shape), size, sem, scope, memory.site()))


@triton.jit
def _accesses(x, y, flag):
    k = tl.arange(0, 8)
    v = tl.load(x + k)
    tl.store(y + k * k, v, mask=k < 3)
    tl.atomic_xchg(flag, 1, sem="release", scope="sys")
    tl.load(x + k, mask=k > 100)


def test_every_access_is_observed_once_with_its_order_and_line(engine):      # noqa: F811
    old, recorder = memory.active(), Recorder()
    memory.activate(recorder)
    try:
        launch(_accesses, 1, torch.zeros(8), torch.zeros(8), torch.zeros(1, dtype=torch.int32))
    finally:
        memory.activate(old)
    first = _accesses.starting_line_number + 3
    assert [s[:6] for s in recorder.seen] == [("load", "x", (8, ), 4, None, None), ("store", "y", None, 4, None, None),
                                              ("atomic", "flag", (), 4, "release", "sys")]
    assert [s[6] for s in recorder.seen] == [f"test_memory.py:{first + i} (_accesses)" for i in range(3)]


@triton.jit
def _past(x, n):
    tl.store(x + n + tl.arange(0, 4), 1.0)


def test_faults_name_the_argument_and_the_kernels_line(mem):
    line = _past.starting_line_number + 2
    with pytest.raises(
            DeviceFault,
            match=rf"16 bytes past the end of weights \(rank 2, 64 bytes\).*test_memory.py:{line} \(_past\)"):
        x = torch.zeros(16)
        mem.register(x, "weights", 2)
        finish(start(_past, (1, ), x, 16, rank=2))
    assert scheduler.active().current.kind == "host"


@triton.jit
def _empty(x, MASK: tl.constexpr):
    k = tl.arange(0, 4)
    tl.store(x + 1000000 + k, 1.0, mask=(k < 0) if MASK == 0 else (k * k < 0))
    v = tl.load(x + 1000000 + k, mask=(k < 0) if MASK == 0 else (k * k < 0), other=5.0)
    tl.atomic_add(x + 1000000 + k, v, mask=k * k < 0)
    tl.store(x + k, v)


@pytest.mark.parametrize("kind", [0, 1])
def test_empty_masks_touch_no_memory(mem, kind):
    x = torch.zeros(4)
    launch(_empty, 1, x, MASK=kind)
    assert x.tolist() == [5.0] * 4
