# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`triton_dist.jit` and the GPU backends' side of a launch, against a driver that is not there."""
import json
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction, MockTensor

import triton_dist.language as dl
from triton_dist.backends.gpu import context as gpu_context
from triton_dist.backends.gpu.context import ContextWriter
from triton_dist.backends.gpu.device_runtime import library
from triton_dist.runtime import jit as jit_module
from triton_dist.runtime.context import Context
from triton_dist.runtime.errors import InvalidArgument, NotInitialized, TritonDistError
from triton_dist.runtime.jit import DistJITFunction, gluon_jit, jit


class Recorder:
    """A backend that writes down what it was asked to do, and compiles through Triton."""

    def __init__(self):
        self.launches = []

    def launch(self, kernel, grid, args, kwargs):
        self.launches.append((kernel, grid, args, kwargs))

    def compile(self, kernel, grid, args, kwargs):
        return kernel.run_compiled(args, kwargs, grid, True, {"tdist": library("nvidia")})


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path / "device"))
    library.cache_clear()
    backend = Recorder()
    monkeypatch.setattr(jit_module, "backend", lambda: backend)
    yield backend
    library.cache_clear()


@pytest.fixture
def stub_driver(monkeypatch, tmp_path):
    """Triton's active driver, standing in for an H100."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    driver = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
                             get_current_stream=lambda device: 0,
                             get_benchmarker=lambda: lambda call, quantiles: (call(), [1.0] * 3)[1])
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    return driver


@jit
def add_rank(x, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets) + dl.rank())


@jit
def calls_another(x, BLOCK: tl.constexpr):
    add_rank(x, BLOCK)
    dl.notify(x, 0)


def test_decorated_kernel_is_a_jit_function_that_the_backend_launches(recorder):
    assert isinstance(add_rank, JITFunction) and isinstance(add_rank, DistJITFunction)
    add_rank[(3,)](1, BLOCK=4, num_warps=2)
    assert recorder.launches == [(add_rank, (3,), (1,), dict(BLOCK=4, num_warps=2))]


def test_decorator_takes_tritons_options():
    def hook(*_):
        return {}

    @jit(do_not_specialize=["n"], debug=True, launch_metadata=hook, noinline=True, version=3, repr=lambda _: "named")
    def kernel(x, n):
        pass

    assert [p.do_not_specialize for p in kernel.params] == [False, True]
    assert (kernel.debug, kernel.noinline, kernel.version) == (True, True, 3)
    assert kernel.launch_metadata is hook and kernel.repr(None) == "named"


def test_interpreter_variable_does_not_replace_the_function(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert knobs.runtime.interpret

    @jit
    def kernel(x):
        pass

    assert isinstance(kernel, DistJITFunction)


def test_only_functions_are_accepted():
    with pytest.raises(InvalidArgument, match="innermost"):
        jit(add_rank)
    with pytest.raises(InvalidArgument, match="innermost"):
        gluon_jit(7)


def test_gluon_kernels_are_launched_by_the_backend_too(recorder):
    @gluon_jit
    def kernel(x):
        pass

    assert kernel.is_gluon()
    kernel[(1,)](2, num_warps=8)
    assert recorder.launches == [(kernel, (1,), (2,), dict(num_warps=8))]


def test_warmup_compiles_with_the_device_runtime_and_keeps_the_users_libraries(recorder, stub_driver, tmp_path):
    other = tmp_path / "other.ll"
    other.write_text('target triple = "nvptx64-nvidia-cuda"\n')
    kernel = calls_another.warmup(MockTensor(torch.int32), BLOCK=64, grid=(1,), extern_libs={"other": str(other)})
    assert "tdist_ctx" in kernel.asm["ptx"]
    libraries = dict(kernel.metadata.extern_libs)
    assert libraries["other"] == str(other) and libraries["tdist"] == library("nvidia")


def test_pre_run_hooks_and_the_users_global_hooks_stay(recorder, stub_driver, monkeypatch):
    seen = []
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **kwargs: seen.append("compiled"))

    @jit
    def kernel(x, BLOCK: tl.constexpr):
        tl.store(x, BLOCK)

    kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append("before"))
    kernel.warmup(MockTensor(torch.int32), BLOCK=64, grid=(1,))
    assert seen == ["before", "compiled"]


def test_autotune_and_heuristics_wrap_it(recorder, stub_driver):
    @triton.autotune([triton.Config(dict(BLOCK=32)), triton.Config(dict(BLOCK=64))], key=["n"])
    @triton.heuristics(dict(EVEN=lambda args: args["n"] % 2 == 0))
    @jit
    def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        pass

    kernel[(1,)](1, 8)
    assert {kwargs["BLOCK"] for *_, kwargs in recorder.launches} == {32, 64}
    assert all(kwargs["EVEN"] for *_, kwargs in recorder.launches)


def test_override_arch_is_the_whole_target(recorder, stub_driver, monkeypatch):
    """Stock Triton has it in an option only, and compiles for the device."""
    def compiled():
        @jit
        def kernel(x, BLOCK: tl.constexpr):
            tl.store(x + tl.arange(0, BLOCK), dl.rank())

        return kernel.warmup(MockTensor(torch.int32), BLOCK=64, grid=(1,))
    assert ".target sm_90a" in compiled().asm["ptx"]
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "sm80")
    kernel = compiled()
    assert ".target sm_80\n" in kernel.asm["ptx"] and kernel.metadata.target.arch == 80
    for text in ("gfx942", "ninety"):
        monkeypatch.setenv("TRITON_OVERRIDE_ARCH", text)
        with pytest.raises(ValueError, match=f"TRITON_OVERRIDE_ARCH='{text}': expected sm80 or the like, for cuda"):
            compiled()


def test_another_architecture_of_a_vendor_with_names():
    from triton_dist.compat.triton import overridden
    with pytest.MonkeyPatch.context() as patch:
        here = GPUTarget("hip", "gfx942", 64)
        assert overridden(here) is here
        patch.setenv("TRITON_OVERRIDE_ARCH", "gfx950")
        assert overridden(here) == GPUTarget("hip", "gfx950", 64)
        patch.setenv("TRITON_OVERRIDE_ARCH", "sm90")
        with pytest.raises(ValueError, match="expected gfx942 or the like, for hip"):
            overridden(here)


def test_a_version_of_ptx_may_be_set(monkeypatch):
    from triton_dist.backends.nvidia.options import options
    assert options(dict(num_warps=4)) == dict(num_warps=4)
    for text in ("8.3", "83"):
        monkeypatch.setenv("TRITON_DIST_PTX_VERSION", text)
        assert options(dict(num_warps=4)) == dict(num_warps=4, ptx_version=83)
    assert options(dict(ptx_version=80)) == dict(ptx_version=80), "a launch knows better"
    monkeypatch.setenv("TRITON_DIST_PTX_VERSION", "new")
    with pytest.raises(InvalidArgument, match="TRITON_DIST_PTX_VERSION='new': expected a version of PTX such as 8.3"):
        options({})


def test_the_nvidia_backend_compiles_by_it(stub_driver, monkeypatch):
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    monkeypatch.setenv("TRITON_DIST_PTX_VERSION", "8.3")
    made = object.__new__(NvidiaBackend)
    made._extern_libs = {"tdist": library("nvidia")}
    kernel = made.compile(add_rank, (1,), (MockTensor(torch.int32), 64), {})
    assert ".version 8.3\n" in kernel.asm["ptx"]


# -- the context of loaded modules ---------------------------------------------------------------------------


class FakeDriver:
    """Module globals by handle; remembers what was copied where."""

    def __init__(self):
        self.globals = {}
        self.written = {}

    def module_global(self, module, name):
        return self.globals.get(module)

    def copy_to_device(self, address, raw, stream):
        self.written[address] = raw


class FakeCuda:
    """The few names of torch.cuda that the writer uses."""

    capturing = False

    def is_current_stream_capturing(self):
        return self.capturing

    def current_device(self):
        return 0

    def synchronize(self):
        pass

    def Stream(self):
        return SimpleNamespace(cuda_stream=5, synchronize=lambda: None)

    class device:
        def __init__(self, index):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass


@pytest.fixture
def loading(monkeypatch, tmp_path):
    """A ContextWriter over fakes, and `load(handle, name, uses_context=True)`, which loads a module as Triton does."""
    cuda, driver = FakeCuda(), FakeDriver()
    monkeypatch.setattr(gpu_context, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    hooks = [knobs.runtime.kernel_load_start_hook, knobs.runtime.kernel_load_end_hook]
    before = [list(hook.calls) for hook in hooks]
    for hook in hooks:
        hook.calls.clear()                  # other tests may have left writers of drivers that are not there
    writer = ContextWriter(driver, bounded=False)

    def load(handle, name, uses_context=True):
        (tmp_path / f"{name}.json").write_text(json.dumps({"extern_libs": [["tdist", "path"]] if uses_context else []}))
        (tmp_path / f"{name}.cubin").write_bytes(b"...tdist_ctx..." if uses_context else b"...")
        files = {f"{name}.json": str(tmp_path / f"{name}.json"), f"{name}.cubin": str(tmp_path / f"{name}.cubin")}
        hooks[0](None, None, name, files, "hash")
        if uses_context:
            driver.globals[handle] = (handle * 4096, len(Context().pack()))
        hooks[1](handle, None, name, files, "hash")

    yield SimpleNamespace(writer=writer, driver=driver, cuda=cuda, load=load)
    for hook, calls in zip(hooks, before):
        hook.calls[:] = calls


def test_modules_are_filled_when_loaded_and_again_when_the_world_changes(loading):
    first, second = Context(rank=1, world_size=2, bases=[256, 512]), Context(rank=0, world_size=1, bases=[512])
    loading.writer.set(first)
    loading.load(1, "one")
    loading.load(2, "two")
    loading.load(3, "other", uses_context=False)
    assert loading.driver.written == {4096: first.pack(0), 8192: first.pack(1)}
    assert [loading.writer.kernel_name(i) for i in range(3)] == ["one", "two", "kernel 2"]
    loading.writer.set(second)
    assert loading.driver.written == {4096: second.pack(0), 8192: second.pack(1)}


def test_a_lone_process_needs_no_initialisation_but_a_launched_one_does(loading, monkeypatch):
    loading.load(1, "one")
    assert loading.driver.written == {4096: Context().pack(0)}
    loading.writer._context = None
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(NotInitialized, match="initialize_distributed"):
        loading.load(2, "two")


def test_loading_inside_a_capture_says_what_to_do_and_can_be_retried(loading):
    loading.cuda.capturing = True
    loading.load(3, "other", uses_context=False)
    with pytest.raises(TritonDistError, match="run it once before the capture"):
        loading.load(1, "one")
    loading.cuda.capturing = False
    loading.load(1, "one")
    assert 4096 in loading.driver.written


def test_a_context_of_another_version_is_refused(loading):
    loading.driver.module_global = lambda module, name: (4096, 16)
    with pytest.raises(TritonDistError, match="16 bytes"):
        loading.load(1, "one")
