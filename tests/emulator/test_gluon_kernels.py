# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gluon kernels in the emulator: a warp-specialised GEMM, wgmma, partitions, aggregates, launching."""
import pytest
import torch
from gluon_helpers import arrive_times, desc, in_every_mode, move
from language_helpers import engine, launch  # noqa: F401
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (fence_async_shared, mbarrier, tma, warpgroup_mma,
                                                              warpgroup_mma_wait)
from triton.language.core import _aggregate as aggregate

import triton_dist.language as dl
from triton_dist.backends.emulator.values.promotion import NEWER
from triton_dist.cores.hopper.hopper_prims import tma_load, tma_store
from triton_dist.runtime.errors import DeviceFault, InvalidArgument
from triton_dist.runtime.jit import gluon_jit


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
    gl.warp_specialize([(arrive_times, (bar, 1)), (arrive_times, (bar, 1))], [1], [24])


@gluon.jit
def _returns(bar):
    arrive_times(bar, 1)
    return gl.program_id(0)


@gluon.jit
def _fails(bar):
    mbarrier.arrive(bar, count=5)


@gluon.jit
def partitions(WHAT: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    if WHAT == "nested":
        gl.warp_specialize([(arrive_times, (bar, 1)), (_nested, (bar, ))], [1], [24])
    if WHAT == "count":
        gl.warp_specialize([(arrive_times, (bar, 1)), (arrive_times, (bar, 1))], [1, 1], [24, 24])
    if WHAT == "warps":
        gl.warp_specialize([(arrive_times, (bar, 1)), (arrive_times, (bar, 1))], [3], [24])
    if WHAT == "result":
        gl.warp_specialize([(_returns, (bar, )), (arrive_times, (bar, 1))], [1], [24])
    if WHAT == "worker":
        gl.warp_specialize([(arrive_times, (bar, 1)), (_fails, (bar, ))], [1], [24])


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
