# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Plain triton.jit kernels, autotuners and hooks in the emulator; compiling for GPUs beside it."""
import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

import triton_dist
from triton_dist.backends.emulator import driver, run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.runtime.errors import DeviceFault, HangError, InvalidArgument
from triton_dist.runtime.state import state


@pytest.fixture(autouse=True)
def emulator(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_BACKEND", "emulator")
    before = triton.runtime.driver._active
    driver.install()
    yield
    triton.runtime.driver._active = before


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


def add_inputs(n=1000):
    return torch.randn(n), torch.randn(n), torch.full((n, ), float("nan"))


def test_plain_kernel():
    x, y, out = add_inputs()
    compiled = add[(triton.cdiv(1000, 256), )](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)
    assert "tt.load" in compiled.asm["ttir"]                # Triton's own front end has seen it
    add[lambda meta: (triton.cdiv(1000, meta["BLOCK"]), )](x, x, out, 1000, BLOCK=128, num_warps=8)
    assert torch.equal(out, x + x)


def test_plain_kernel_faults_like_a_device():
    x, y, out = add_inputs()
    with pytest.raises(DeviceFault, match="past the end of out"):
        add[(4, )](torch.randn(1024), torch.randn(1024), out, 1024, BLOCK=256)
    add[(4, )](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (512, 4))], key=["n"])
@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * factor, i < n)


def test_autotune():
    x, out = torch.randn(700), torch.empty(700)
    scale[lambda meta: (triton.cdiv(700, meta["BLOCK"]), )](x, out, 700, 3.0)
    torch.testing.assert_close(out, x * 3)
    assert scale.best_config.kwargs["BLOCK"] in (64, 512)


def test_do_bench():
    x, y, out = add_inputs(64)
    assert triton.testing.do_bench(lambda: add[(1, )](x, y, out, 64, BLOCK=64), warmup=1, rep=2) > 0


def described(grid, metadata, args):
    name = f"{metadata.name}_{args['n']}_{args['BLOCK']}"
    return {"name": name, "grid": tuple(grid)[:1], "warps": metadata.num_warps}


@triton.jit(launch_metadata=described)
def plain_described(out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), n)


@triton_dist.jit(launch_metadata=described)
def dist_described(out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), n)


@pytest.mark.parametrize("kernel", [plain_described, dist_described])
def test_launch_hooks(kernel):
    seen, before_run = [], []
    out = torch.zeros(16, dtype=torch.int32)
    enter = lambda lazy: seen.append(("enter", lazy.get(), int(out[0])))        # noqa: E731
    leave = lambda lazy: seen.append(("exit", lazy.get(), int(out[0])))         # noqa: E731
    kernel.add_pre_run_hook(lambda *args, **kwargs: before_run.append(kwargs["BLOCK"]))
    knobs.runtime.launch_enter_hook.add(enter)
    knobs.runtime.launch_exit_hook.add(leave)
    try:
        launch = EmulatorBackend().launch
        if kernel is dist_described:
            launch(kernel, (1, ), (out, 7), dict(BLOCK=16, num_warps=2))
        else:
            kernel[(1, )](out, 7, BLOCK=16, num_warps=2)
    finally:
        knobs.runtime.launch_enter_hook.remove(enter)
        knobs.runtime.launch_exit_hook.remove(leave)
        kernel.pre_run_hooks.clear()
    assert out.tolist() == [7] * 16 and before_run == [16]
    assert [(when, value) for when, _, value in seen] == [("enter", 0), ("exit", 7)]
    assert seen[0][1]["name"] == f"{kernel.__name__}_7_16"
    assert seen[0][1]["grid"] == (1, ) and seen[0][1]["warps"] == 2


@gluon.jit
def gluon_copy(x, out, n: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, n, layout=layout)
    gl.store(out + i, gl.load(x + i) * 2)


def test_gluon_kernel_passes_the_front_end():
    compiled = gluon_copy.warmup(torch.randn(128), torch.empty(128), 128, grid=(1, ))
    assert "ttg.blocked" in compiled.asm["ttgir"] and compiled.metadata.target.backend == "emulator"


def test_compile_for_a_gpu_beside_the_emulator():
    x, y, out = add_inputs()
    add[(4, )](x, y, out, 1000, BLOCK=256)
    source = ASTSource(add, signature=dict(x="*fp32", y="*fp32", out="*fp32", n="i32", BLOCK="constexpr"),
                       constexprs={"BLOCK": 256})
    kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ".target sm_90" in kernel.asm["ptx"]
    add[(4, )](y, y, out, 1000, BLOCK=256)
    assert torch.equal(out, y + y)


def test_plain_kernels_in_a_virtual_world():
    def script():
        x, out = torch.full((8, ), float(state().world.rank)), torch.empty(8)
        add[(1, )](x, x, out, 8, BLOCK=8)
        return out.tolist()
    assert run_ranks(script, 3, heap=False) == [[2.0 * rank] * 8 for rank in range(3)]


@triton.jit
def spin(flag, other):
    i = tl.program_id(0)
    if i == 0:
        while tl.atomic_add(flag, 0) == 0:
            pass
        tl.store(other, 1)
    else:
        tl.atomic_xchg(flag, 1)


def test_stock_spin_loop():
    for mode in ("eager", "random", "late", "skew"):
        def script():
            flag, other = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
            spin[(2, )](flag, other)
            return int(other)
        assert run_ranks(script, 1, mode=mode, heap=False) == [1]


def test_hang_of_a_real_kernel_names_its_line():
    import triton_dist.language as dl

    @triton_dist.jit
    def lonely(flag):
        dl.wait(flag, 1, "sys", "acquire", waitValue=9)

    def script():
        EmulatorBackend().launch(lonely, (1, ), (torch.full((1, ), 4, dtype=torch.int32), ), {})
    with pytest.raises(HangError, match=r"lonely +\(0, 0, 0\) +test_machine_driver.py:\d+ \(lonely\).* 9 +4"):
        run_ranks(script, 1, heap=False)


def test_a_cooperative_launch_must_fit():
    def script():
        launch, out = EmulatorBackend().launch, torch.zeros(16, dtype=torch.int32)
        launch(dist_described, (2, ), (out, 5), dict(BLOCK=16, launch_cooperative_grid=True))
        with pytest.raises(InvalidArgument, match="dist_described: a cooperative launch of 3 programs, but only 2"):
            launch(dist_described, (3, ), (out, 7), dict(BLOCK=16, launch_cooperative_grid=True))
        launch(dist_described, (1, 3), (out, 6), dict(BLOCK=16))
        return out.tolist()
    assert run_ranks(script, 1, num_sms=2, heap=False) == [[6] * 16]


@triton.jit
def _types(x_ptr):
    x, s = tl.load(x_ptr + tl.arange(0, 8)), tl.load(x_ptr)
    tl.static_print("type", (x + 3).dtype, (7 - s).dtype, (x * 2.5).dtype, (x / 3).dtype, (x < 0.1).dtype, (-s).dtype)
    tl.static_print("type", tl.maximum(x, 0).dtype, tl.minimum(s, 0.5).dtype, tl.maximum(x, s).dtype, max(x, 1).dtype)
    tl.static_print("type", tl.where(x < s, x, 1).dtype, tl.where(x < s, 0.5, x).dtype, tl.fma(x, 2.0, 1.0).dtype)
    tl.static_print("type", tl.clamp(x, 0.0, 1.0).dtype, tl.clamp(s, s, 1.0).dtype, (x.logical_and(s) if False else x).dtype)
    tl.static_print("type", tl.sum(x, 0).dtype, tl.max(x, 0).dtype, tl.cumsum(x, 0).dtype, tl.sort(x).dtype)
    if x.dtype.is_floating():
        tl.static_print("type", (x % 3).dtype, (x / s).dtype, tl.sum(x, 0, dtype=tl.float64).dtype, tl.fma(x, s, x).dtype)
    else:
        tl.static_print("type", (x // 3).dtype, (100 >> x).dtype, (x & 1).dtype, (x < 100).dtype, tl.cdiv(x, 4).dtype)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.uint32, torch.float16, torch.bfloat16, torch.float32])
def test_types_are_those_of_the_front_end(dtype, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")            # what is in the cache has been traced before
    _types[(1, )](torch.ones(8).to(dtype))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("type")]
    assert len(lines) == 12 and lines[:6] == lines[6:]
