# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon kernels in the emulator: a warp-specialised GEMM, TMA, mbarriers, wgmma, partitions, aggregates, refusals."""
import pytest
import torch
from language_helpers import engine, launch  # noqa: F401
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.blackwell import tcgen05_commit
from triton.experimental.gluon.language.nvidia.hopper import (fence_async_shared, mbarrier, tma, warpgroup_mma,
                                                              warpgroup_mma_wait)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.core import _aggregate as aggregate

import triton_dist.language as dl
from triton_dist.backends.emulator import scheduler
from triton_dist.backends.emulator.promotion import NEWER
from triton_dist.backends.emulator.scheduler import MODES, Scheduler
from triton_dist.backends.nvidia.hopper_prims import flush_tma_stores, tma_load, tma_store
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument, UnsupportedFeature
from triton_dist.runtime.jit import gluon_jit

_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32, torch.int32: gl.int32}
ROWS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0]))


def layout(block, dtype):
    return gl.NVMMASharedLayout.get_default_for(list(block), _TYPES[dtype])


def desc(t, *block, **kwargs):
    return TensorDescriptor.from_tensor(t, list(block), layout(block, t.dtype), **kwargs)


def in_every_mode(test, seeds=2):
    """Runs `test` on a scheduler of each mode and several seeds; what it returned."""
    results = []
    for mode in MODES:
        for seed in range(seeds):
            with scheduler.activated(Scheduler(seed=seed, mode=mode)):
                results.append(test())
    return results


# -- a GEMM ------------------------------------------------------------------------------------------------------------
@gluon.jit
def _fill(a_desc, b_desc, a, b, full, empty, m, n, k, STAGES: gl.constexpr):
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    for i in range(gl.cdiv(k, BLOCK_K)):
        slot = i % STAGES
        mbarrier.wait(empty.index(slot), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(slot), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma_load(a_desc, [m, i * BLOCK_K], full.index(slot), a.index(slot))
        tma_load(b_desc, [i * BLOCK_K, n], full.index(slot), b.index(slot))


@gluon.jit
def _multiply(c_desc, a, b, c, full, empty, m, n, steps, STAGES: gl.constexpr):
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_type.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 16])
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout=mma)
    for i in range(steps):
        slot = i % STAGES
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        acc = warpgroup_mma(a.index(slot), b.index(slot), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(slot), count=1)
    c.store(acc.to(c.dtype))
    fence_async_shared()
    tma_store(c_desc, [m, n], c)
    tma.store_wait(pendings=0)


@gluon.jit
def gemm(a_desc, b_desc, c_desc, k, STAGES: gl.constexpr):
    a = gl.allocate_shared_memory(a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    m = gl.program_id(0) * c_desc.block_type.shape[0]
    n = gl.program_id(1) * c_desc.block_type.shape[1]
    steps = gl.cdiv(k, a_desc.block_type.shape[1])
    gl.warp_specialize([(_multiply, (c_desc, a, b, c, full, empty, m, n, steps, STAGES)),
                        (_fill, (a_desc, b_desc, a, b, full, empty, m, n, k, STAGES))], [1], [24])


def gemm_error(m, n, k, dtype=torch.float16):
    a, b, c = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.full((m, n), float("nan"), dtype=dtype)
    launch(gemm, (-(-m // 64), -(-n // 32)), desc(a, 64, 16), desc(b, 16, 32), desc(c, 64, 32), k, 2, num_warps=4)
    reference = a.double() @ b.double()
    return float((c.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("m, n, k", [(64, 32, 16), (100, 40, 72), (128, 64, 128)])
def test_warp_specialised_gemm(m, n, k):
    assert max(in_every_mode(lambda: gemm_error(m, n, k))) < 5e-4
    assert max(in_every_mode(lambda: gemm_error(m, n, k, torch.bfloat16), seeds=1)) < 4e-3


# -- TMA ---------------------------------------------------------------------------------------------------------------
@gluon.jit
def move(source, target, x, y, to_x, to_y):
    """One box from `source` at (x, y) to `target` at (to_x, to_y)."""
    box = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    mbarrier.expect(bar, source.block_type.nbytes)
    tma_load(source, [x, y], bar, box)
    mbarrier.wait(bar, 0)
    tma_store(target, [to_x, to_y], box)
    tma.store_wait(pendings=0)


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
    from language_helpers import finish, start

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
    with pytest.raises(DeviceFault, match=r"ends before tma.store_wait: .* test_gluon_kernels.py:\d+ \(bad_end\)"):
        launch(bad_end, 1, desc(x, 16, 32), desc(x, 16, 32), "store")

    def run():
        try:
            launch(bad_end, 1, desc(x, 16, 32), desc(x, 16, 32), "load")
        except DeviceFault as error:
            assert "while the TMA load issued at test_gluon_kernels.py" in str(error)
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
    assert "test_gluon_kernels.py:" in str(caught.value) and "(misuse)" in str(caught.value)


# -- mbarriers ---------------------------------------------------------------------------------------------------------
@gluon.jit
def _arrive(bar, times):
    for i in range(times):
        mbarrier.arrive(bar, count=1)


@gluon.jit
def _see(bar, out, parity):
    mbarrier.wait(bar, parity)
    gl.store(out, 1)


@gluon.jit
def phases(out, times, parity):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    gl.warp_specialize([(_see, (bar, out, parity)), (_arrive, (bar, times))], [1], [24])


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


# -- wgmma -------------------------------------------------------------------------------------------------------------
@gluon.jit
def unfinished(out, WAIT: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    a = gl.allocate_shared_memory(gl.float16, [64, 16], gl.NVMMASharedLayout.get_default_for([64, 16], gl.float16))
    b = gl.allocate_shared_memory(gl.float16, [16, 32], gl.NVMMASharedLayout.get_default_for([16, 32], gl.float16))
    a.store(gl.full([64, 16], 1.0, gl.float16, layout=mma))
    b.store(gl.full([16, 32], 2.0, gl.float16, layout=mma))
    acc = gl.zeros([64, 32], gl.float32, layout=mma)
    acc = warpgroup_mma(a, b, acc, is_async=True)
    acc = warpgroup_mma(a, b, acc, is_async=True)
    if WAIT >= 0:
        acc = warpgroup_mma_wait(WAIT, deps=[acc])
    where = gl.arange(0, 64)[:, None] * 32 + gl.arange(0, 32)[None, :]
    gl.store(out + where, acc + 1.0)
    sync = warpgroup_mma(a, b, acc, use_acc=False)
    gl.store(out + where, sync + 1.0, mask=where >= 1024)


def test_an_accumulator_is_unreadable_until_waited_for():
    def run():
        out = torch.zeros(64, 32)
        launch(unfinished, 1, out, 0)
        assert bool((out[:32] == 65).all()) and bool((out[32:] == 33).all())
        for wait in (-1, 1):
            with pytest.raises(DeviceFault, match=r"read while its wgmma, issued at .*\(unfinished\), is in flight"):
                launch(unfinished, 1, out, wait)
    in_every_mode(run, seeds=1)


@gluon.jit
def overwritten(out):
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 32, 16])
    a = gl.allocate_shared_memory(gl.float16, [64, 16], gl.NVMMASharedLayout.get_default_for([64, 16], gl.float16))
    b = gl.allocate_shared_memory(gl.float16, [16, 32], gl.NVMMASharedLayout.get_default_for([16, 32], gl.float16))
    a.store(gl.full([64, 16], 1.0, gl.float16, layout=mma))
    b.store(gl.full([16, 32], 2.0, gl.float16, layout=mma))
    acc = warpgroup_mma(a, b, gl.zeros([64, 32], gl.float32, layout=mma), is_async=True)
    a.store(gl.full([64, 16], 3.0, gl.float16, layout=mma))
    acc = warpgroup_mma_wait(0, deps=[acc])
    gl.store(out + gl.arange(0, 64)[:, None] * 32 + gl.arange(0, 32)[None, :], acc)


def test_operands_are_read_early_or_late():
    def run():
        out = torch.zeros(64, 32)
        launch(overwritten, 1, out)
        return float(out[0, 0])
    assert set(in_every_mode(run, seeds=4)) == {32.0, 96.0}


# -- partitions --------------------------------------------------------------------------------------------------------
@gluon.jit
def _count(flag, out):
    dl.notify_warp(flag, 1, "add")
    gl.store(out, gl.num_warps())


@gluon.jit
def _count_first(flag, out):
    _count(flag, out)
    number = gl.num_warps() + 100
    return (number, )


@gluon_jit
def warps(flags, out):
    result = gl.warp_specialize([(_count_first, (flags, out)), (_count, (flags + 1, out + 1)),
                                 (_count, (flags + 2, out + 2))], [1, 2], [24, 24])
    gl.store(out + 3, result[0])


def test_notify_warp_fires_once_a_warp_of_the_partition():
    flags, out = torch.zeros(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    launch(warps, 1, flags, out, num_warps=8)
    assert flags.tolist() == [8, 1, 2] and out.tolist() == [8, 1, 2, 108]


@gluon.jit
def _nested(bar):
    gl.warp_specialize([(_arrive, (bar, 1)), (_arrive, (bar, 1))], [1], [24])


@gluon.jit
def _returns(bar):
    _arrive(bar, 1)
    return gl.program_id(0)


@gluon.jit
def _fails(bar):
    mbarrier.arrive(bar, count=5)


@gluon.jit
def partitions(WHAT: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    if WHAT == "nested":
        gl.warp_specialize([(_arrive, (bar, 1)), (_nested, (bar, ))], [1], [24])
    if WHAT == "count":
        gl.warp_specialize([(_arrive, (bar, 1)), (_arrive, (bar, 1))], [1, 1], [24, 24])
    if WHAT == "warps":
        gl.warp_specialize([(_arrive, (bar, 1)), (_arrive, (bar, 1))], [3], [24])
    if WHAT == "result":
        gl.warp_specialize([(_returns, (bar, )), (_arrive, (bar, 1))], [1], [24])
    if WHAT == "worker":
        gl.warp_specialize([(_arrive, (bar, 1)), (_fails, (bar, ))], [1], [24])


@pytest.mark.parametrize("what, kind, text", [
    ("nested", InvalidArgument, "inside a partition"),
    ("count", InvalidArgument, "one entry for each"),
    ("warps", InvalidArgument, "powers of two"),
    ("result", InvalidArgument, "_returns must return a tuple"),
    ("worker", DeviceFault, r"arrivals in one phase.*\(_fails\)"),
])
def test_partitions_that_cannot_be(what, kind, text):
    with pytest.raises(kind, match=text):
        launch(partitions, 1, what)


# -- aggregates --------------------------------------------------------------------------------------------------------
@aggregate
class Point:
    x: gl.tensor
    y: gl.tensor
    SCALE: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, x, y, SCALE):
        self.x = x
        self.y = y
        self.SCALE = gl.constexpr(SCALE)

    @gluon.jit
    def _scaled(self, value):
        return value * self.SCALE

    @gluon.jit
    def sum(self):
        return self._scaled(self.x) + self.y


@aggregate
class Pair:
    first: Point
    second: Point

    @gluon.constexpr_function
    def __init__(self, first, second):
        self.first = first
        self.second = second


@gluon.jit
def use(out, n, WHAT: gl.constexpr):
    point = Point(n, n + 1, 10)
    pair = Pair(point, Point(n + 2, n, 100))
    gl.store(out, pair.first.sum() * 1000 + pair.second.sum())
    if WHAT == "constexpr":
        Point(3, n, 10)
    if WHAT == "runtime":
        Point(n, n, n)
    if WHAT == "aggregate":
        Pair(point, n)


def test_aggregates():
    out = torch.zeros(1, dtype=torch.int32)
    launch(use, 1, out, 3, "")
    assert int(out) == 34 * 1000 + 503


@pytest.mark.parametrize("what, text", [("constexpr", "field 'x' of Point: expected tensor, found 3"),
                                        ("runtime", "field 'SCALE' of Point: expected constexpr"),
                                        ("aggregate", "field 'second' of Pair: expected Point")])
def test_fields_are_checked(what, text):
    with pytest.raises(InvalidArgument, match=text):
        launch(use, 1, torch.zeros(1, dtype=torch.int32), 3, what)


@pytest.mark.skipif(not NEWER, reason="Triton 3.9 makes constructors of aggregates")
def test_aggregates_without_a_constructor():
    @aggregate
    class Made:
        x: gl.tensor
        y: gl.tensor
        SCALE: gl.constexpr = 10

        @gluon.jit
        def sum(self):
            return self.x * self.SCALE + self.y

    @gluon.jit
    def make(out, n, WHAT: gl.constexpr):
        made = Made(n, y=n + 1)
        other = gl.aggregate_replace(made, SCALE=100)
        gl.store(out, made.sum() * 1000 + other.sum())
        if WHAT == "assign":
            made.x = n
        if WHAT == "missing":
            Made(n)

    out = torch.zeros(1, dtype=torch.int32)
    launch(make, 1, out, 3, "")
    assert int(out) == 34 * 1000 + 304
    for what, text in [("assign", "aggregates are immutable"), ("missing", "expected the fields x, y, SCALE")]:
        with pytest.raises(InvalidArgument, match=text):
            launch(make, 1, out, 3, what)


# -- launching ---------------------------------------------------------------------------------------------------------
def test_launched_by_subscript(monkeypatch):
    """kernel[grid](...), of gluon_jit and of Triton's own gluon.jit, in a virtual world."""
    from triton_dist.backends import emulator
    from triton_dist.runtime.backend import backend
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")

    def script():
        backend()
        source, target = torch.randn(16, 32), torch.zeros(16, 32)
        move[(1, )](desc(source, 16, 32), desc(target, 16, 32), 0, 0, 0, 0)
        flags, out = torch.zeros(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
        warps[(1, )](flags, out, num_warps=4)
        return torch.equal(source, target) and flags.tolist() == [4, 1, 2]
    assert emulator.run_ranks(script, 2) == [True, True]
