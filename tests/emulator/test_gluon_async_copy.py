# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""cp.async in the emulator: copies by threads, their arrivals at a mbarrier, and what is refused."""
import pytest
import torch
from gluon_helpers import ROWS, in_every_mode
from language_helpers import engine, launch  # noqa: F401
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_dist.cores.hopper.hopper_prims import copies_arrive, copy_async
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument, UnsupportedFeature

SHARED = gl.constexpr(gl.NVMMASharedLayout.get_default_for([16, 32], gl.float32))
THREADS = gl.constexpr(128)         # of the four warps that a program has


@gluon.jit
def _copy(x, sources, box, bar, width, ARRIVES: gl.constexpr):
    row = gl.load(sources + gl.arange(0, 16, layout=gl.SliceLayout(1, ROWS)))
    cols = gl.arange(0, 32, layout=gl.SliceLayout(0, ROWS))
    for i in gl.static_range(2):
        copy_async(box.index(i), x + i * 32 + row[:, None] * 64 + cols[None, :], mask=(i * 32 + cols < width)[None, :])
    if ARRIVES:
        copies_arrive(bar, increment_count=False)


@gluon.jit
def gathered(x, sources, out, width, COUNT: gl.constexpr, ARRIVES: gl.constexpr):
    """out [2, 16, 32]: rows `sources` of x [., 64], zeros from column `width` on."""
    box = gl.allocate_shared_memory(gl.float32, [2, 16, 32], SHARED)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=COUNT)
    _copy(x, sources, box, bar, width, ARRIVES)
    mbarrier.wait(bar, 0)
    row, col = gl.arange(0, 16, layout=gl.SliceLayout(1, ROWS)), gl.arange(0, 32, layout=gl.SliceLayout(0, ROWS))
    at = 32 * row[:, None] + col[None, :]
    for i in gl.static_range(2):
        gl.store(out + i * 512 + at, box.index(i).load(ROWS))


@pytest.mark.parametrize("width", [64, 40, 0])
def test_rows_are_gathered_and_what_is_masked_becomes_zeros(width):
    x, sources = torch.randn(9, 64), torch.randint(9, (16, ), dtype=torch.int32)
    wanted = torch.where(torch.arange(64) < width, x[sources.long()], 0.0).view(16, 2, 32).transpose(0, 1)

    def run():
        out = torch.full((2, 16, 32), float("nan"))
        launch(gathered, 1, x, sources, out, width, THREADS.value, True)
        assert torch.equal(out, wanted)

    in_every_mode(run)


def test_a_barrier_without_their_arrivals_waits_for_ever():
    with pytest.raises(HangError, match="missing 1 of 129 arrivals"):
        launch(gathered, 1, torch.ones(9, 64), torch.zeros(16, dtype=torch.int32), torch.zeros(2, 16, 32), 64, 129, True)
    with pytest.raises(DeviceFault, match="128 arrivals in one phase, expected 127"):
        launch(gathered, 1, torch.ones(9, 64), torch.zeros(16, dtype=torch.int32), torch.zeros(2, 16, 32), 64, 127, True)


@gluon.jit
def misuse(x, WHAT: gl.constexpr):
    box = gl.allocate_shared_memory(gl.float32, [16, 32], SHARED)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=THREADS)
    cols = gl.arange(0, 32, layout=gl.SliceLayout(0, ROWS))[None, :]
    rows = gl.arange(0, 16, layout=gl.SliceLayout(1, ROWS))[:, None]
    if WHAT == "counts":
        async_copy.mbarrier_arrive(bar)
    if WHAT == "shape":
        copy_async(box.slice(0, 8, 0), x + rows * 32 + cols)
    if WHAT == "outside":
        copy_async(box, x + rows * 2**20 + cols)
        copies_arrive(bar, increment_count=False)
        mbarrier.wait(bar, 0)
    if WHAT == "ends":
        copy_async(box, x + rows * 32 + cols)


@pytest.mark.parametrize("what, kind, text", [
    ("counts", UnsupportedFeature, "increment_count=True"),
    ("shape", (InvalidArgument, Exception), "shape"),
    ("outside", DeviceFault, "in a cp.async issued at test_gluon_async_copy.py"),
    ("ends", DeviceFault, "ends while the cp.async issued at"),
])
def test_errors_name_the_line(what, kind, text):
    with pytest.raises(kind, match=text):
        for _ in range(1 if what != "ends" else 20):           # in some orders it has ended as well
            launch(misuse, 1, torch.zeros(16, 32), what)
