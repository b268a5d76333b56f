# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon in the emulator: TMA copies, views of shared memory, mbarriers, and what is refused."""
import pytest
import torch
from gluon_helpers import ROWS, arrive_times, desc, in_every_mode, move
from language_helpers import engine, finish, launch, start  # noqa: F401
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.blackwell import tcgen05_commit
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from triton_dist.cores.hopper.hopper_prims import flush_tma_stores, tma_load, tma_store
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument, UnsupportedFeature


# -- TMA ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", [(0, 0), (8, 16), (-4, -8), (30, 30), (40, 0), (-100, 0)])
def test_boxes_are_clipped_and_zero_filled(at):
    source, wide = torch.randn(33, 40), torch.zeros(233, 240)
    wide[100:133, 100:140] = source

    def run():
        target = torch.full((16, 32), float("nan"))
        launch(move, 1, desc(source, 16, 32), desc(target, 16, 32), *at, 0, 0)
        assert torch.equal(target, wide[100 + at[0]:116 + at[0], 100 + at[1]:132 + at[1]])
        clipped = torch.full((10, 24), float("nan"))
        launch(move, 1, desc(source, 16, 32), desc(clipped, 16, 32), *at, -3, 8)
        part = wide[103 + at[0]:113 + at[0], 100 + at[1]:116 + at[1]]
        assert torch.equal(clipped[:, 8:], part) and bool(clipped[:, :8].isnan().all())
    in_every_mode(run)


def test_nan_padding():
    source, target = torch.ones(8, 8), torch.zeros(16, 32)
    launch(move, 1, desc(source, 16, 32, padding="nan"), desc(target, 16, 32), 0, 0, 0, 0)
    assert int(target.isnan().sum()) == 16 * 32 - 64


@gluon.jit
def move_3d(source, target, chunk, row):
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    mbarrier.expect(bar, source.block_type.nbytes)
    tma_load(source, [row, 0], bar, box)
    mbarrier.wait(bar, 0)
    tma_store(target, [chunk, row, 0], box._reinterpret(target.dtype, [1] + source.block_type.shape, target.layout))
    tma.store_wait(pendings=0)


def test_a_box_of_three_axes_never_crosses_a_chunk():
    source, target = torch.randn(20, 32).half(), torch.zeros(3, 10, 32).half()
    launch(move_3d, 1, desc(source, 16, 32), desc(target, 1, 16, 32), 1, 4)
    expected = torch.zeros(3, 10, 32).half()
    expected[1, 4:10] = source[4:10]
    assert torch.equal(target, expected)


@gluon.jit
def signalled_store(source, target, flag, FLUSH: gl.constexpr):
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    box.store(gl.full(source.block_type.shape, 7.0, gl.float32, layout=ROWS))
    fence_async_shared()
    tma_store(target, [0, 0], box)
    tma.store_wait(pendings=0)
    if FLUSH:
        flush_tma_stores()
    gl.store(flag, 1)


@gluon.jit
def signalled_load(target, flag, seen, FLUSH: gl.constexpr):
    while gl.atomic_add(flag, 0, sem="acquire", scope="sys") == 0:
        pass
    gl.store(seen, gl.load(target))


@pytest.mark.parametrize("flush", [False, True])
def test_store_wait_is_for_the_read_only(flush):
    def run():
        source, target = torch.zeros(16, 32), torch.zeros(16, 32)
        flag, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        finish(start(signalled_store, (1, ), desc(source, 16, 32), desc(target, 16, 32), flag, flush),
               start(signalled_load, (1, ), target, flag, seen, flush))
        assert bool((target == 7).all())
        return float(seen)
    seen = in_every_mode(run, seeds=8)
    assert set(seen) == ({7.0} if flush else {0.0, 7.0})


@gluon.jit
def bad_end(source, target, WHAT: gl.constexpr):
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    if WHAT == "store":
        tma_store(target, [0, 0], box)
    else:
        mbarrier.expect(bar, source.block_type.nbytes)
        tma_load(source, [0, 0], bar, box)


def test_a_cta_must_not_leave_copies_behind():
    x = torch.zeros(16, 32)
    with pytest.raises(DeviceFault, match=r"ends before tma.store_wait: .* test_gluon_memory.py:\d+ \(bad_end\)"):
        launch(bad_end, 1, desc(x, 16, 32), desc(x, 16, 32), "store")

    def run():
        try:
            launch(bad_end, 1, desc(x, 16, 32), desc(x, 16, 32), "load")
        except DeviceFault as error:
            assert "while the TMA load issued at test_gluon_memory.py" in str(error)
            return True
        return False
    assert any(in_every_mode(run))


# -- shared memory -----------------------------------------------------------------------------------------------------
@gluon.jit
def views(out, whole, wide):
    buf = gl.allocate_shared_memory(gl.int32, [2, 16, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, ROWS))
    cols = gl.arange(0, 32, layout=gl.SliceLayout(0, ROWS))
    value = rows[:, None] * 32 + cols[None, :]
    gl.static_assert(buf.shape[1] == 16 and buf.dtype == gl.int32 and buf.type.shape[0] == 2 and buf.rank == 3)
    buf.index(0).store(value)
    buf.index(gl.program_id(0) + 1).store(value + 1000)
    gl.store(out + value, buf.index(1).load(ROWS))
    part = buf.index(0).slice(8, 8, 0).slice(16, 16, 1)
    eight = gl.arange(0, 8, layout=gl.SliceLayout(0, ROWS))
    gl.store(out + 512 + rows[:, None] * 8 + eight[None, :], part.permute((1, 0)).load(ROWS))
    flat = gl.allocate_shared_memory(gl.int32, [8, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    flat.reshape([16, 32]).store(value)
    across = gl.arange(0, 64, layout=gl.SliceLayout(0, ROWS))
    gl.store(whole + gl.arange(0, 8, layout=gl.SliceLayout(1, ROWS))[:, None] * 64 + across[None, :], flat.load(ROWS))
    as_half = buf.index(1)._reinterpret(gl.float16, [16, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    as_half.store(value.to(gl.float16))
    gl.store(wide + value, as_half.load(ROWS))


def test_views_share_bytes():
    out, whole = torch.zeros(640, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
    wide = torch.zeros(512, dtype=torch.float16)
    launch(views, 1, out, whole, wide)
    value = torch.arange(512, dtype=torch.int32).view(16, 32)
    assert torch.equal(out[:512], value.view(-1) + 1000)
    assert torch.equal(out[512:], value[8:16, 16:32].t().reshape(-1))
    assert torch.equal(whole, value.view(-1))
    assert torch.equal(wide, torch.arange(512).half())


@gluon.jit
def misuse(x, WHAT: gl.constexpr):
    buf = gl.allocate_shared_memory(gl.float32, [2, 16, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    bar = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    if WHAT == "index":
        buf.index(gl.program_id(0) + 2)
    if WHAT == "type":
        buf.index(0).store(gl.zeros([16, 32], gl.float16, layout=ROWS))
    if WHAT == "larger":
        buf.index(0)._reinterpret(gl.float32, [32, 32], buf.layout)
    if WHAT == "capacity":
        gl.allocate_shared_memory(gl.float32, [64, 1024], buf.layout)
    if WHAT == "warps":
        gl.zeros([16, 32], gl.float16, layout=gl.BlockedLayout([1, 8], [8, 4], [8, 1], [1, 0]))
    if WHAT == "uninitialised":
        mbarrier.arrive(bar.index(1), count=1)
    mbarrier.init(bar.index(0), count=2)
    if WHAT == "twice":
        mbarrier.init(bar.index(0), count=2)
    if WHAT == "arrivals":
        mbarrier.arrive(bar.index(0), count=3)
    if WHAT == "invalid":
        mbarrier.invalidate(bar.index(0))
        mbarrier.wait(bar.index(0), 0)
    if WHAT == "phase":
        mbarrier.wait(bar.index(0), 2)
    if WHAT == "gather":
        buf.gather(gl.arange(0, 16), 0)
    if WHAT == "cp.async":
        async_copy.wait_group(0)
    if WHAT == "tcgen05":
        tcgen05_commit(bar.index(0))


@pytest.mark.parametrize("what, kind, text", [
    ("index", DeviceFault, r"index 2 of buf:\d+ <2x16x32xfp32>: its first axis has 2"),
    ("type", InvalidArgument, "type and shape must be equal"),
    ("larger", InvalidArgument, "no larger"),
    ("capacity", InvalidArgument, "Hopper has 232448"),
    ("warps", InvalidArgument, "of 8 warps in a partition of 4"),
    ("uninitialised", DeviceFault, r"mbarrier bar:\d+ at byte 8 used before mbarrier.init"),
    ("twice", DeviceFault, r"mbarrier bar\[0\] initialised twice"),
    ("arrivals", DeviceFault, r"mbarrier bar\[0\]: 3 arrivals in one phase, expected 2"),
    ("invalid", DeviceFault, "used before mbarrier.init"),
    ("phase", InvalidArgument, "expected 0 or 1"),
    ("gather", UnsupportedFeature, "shared_memory_descriptor.gather"),
    ("cp.async", UnsupportedFeature, "async_copy.wait_group"),
    ("tcgen05", UnsupportedFeature, "tcgen05_commit"),
])
def test_errors_name_the_line(what, kind, text):
    with pytest.raises(kind, match=text) as caught:
        launch(misuse, 1, torch.zeros(1), what)
    assert "test_gluon_memory.py:" in str(caught.value) and "(misuse)" in str(caught.value)


# -- mbarriers ---------------------------------------------------------------------------------------------------------
@gluon.jit
def _see(bar, out, parity):
    mbarrier.wait(bar, parity)
    gl.store(out, 1)


@gluon.jit
def phases(out, times, parity):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    gl.warp_specialize([(_see, (bar, out, parity)), (arrive_times, (bar, times))], [1], [24])


@pytest.mark.parametrize("times, parity, passes", [(0, 1, True), (1, 0, True), (3, 0, True), (0, 0, False)])
def test_a_wait_tests_the_parity_of_the_phase_under_way(times, parity, passes):
    def run():
        out = torch.zeros(1, dtype=torch.int32)
        if passes:
            launch(phases, 1, out, times, parity)
            return int(out)
        missing = r"parity 0 of mbarrier bar\[0\] \(phase 0, missing 1 of 1 arrivals and 0 bytes\)"
        with pytest.raises(HangError, match=missing):
            launch(phases, 1, out, times, parity)
        return int(out)
    assert set(in_every_mode(run)) == {int(passes)}


def test_a_wait_can_be_lapped():
    """After two arrivals the phase has parity 0 again: whoever comes then, or wakes then, waits for ever."""
    def run():
        out = torch.zeros(1, dtype=torch.int32)
        try:
            launch(phases, 1, out, 2, 0)
        except HangError as error:
            assert "phase 2" in str(error)
        return int(out)
    assert set(in_every_mode(run, seeds=12)) == {0, 1}


@gluon.jit
def wrong_bytes(source, BYTES: gl.constexpr):
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, BYTES)
    tma_load(source, [0, 0], bar, box)
    mbarrier.wait(bar, 0)


def test_a_clipped_box_counts_all_its_bytes():
    source = torch.zeros(3, 8)
    in_every_mode(lambda: launch(wrong_bytes, 1, desc(source, 16, 32), 16 * 32 * 4))
    with pytest.raises(HangError, match=f"and -{16 * 32 * 4 - 3 * 8 * 4} bytes"):
        launch(wrong_bytes, 1, desc(source, 16, 32), 3 * 8 * 4)
