# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The ctypes side of the GPU backends, against libraries that are Python functions."""
import ctypes
from types import SimpleNamespace

import pytest
import torch

from triton_dist.backends.amd.driver import HipDriver
from triton_dist.backends.gpu import backend as gpu_backend
from triton_dist.backends.gpu import driver as gpu_driver
from triton_dist.backends.gpu.backend import GpuBackend
from triton_dist.backends.nvidia.backend import NvidiaBackend
from triton_dist.backends.nvidia.driver import CudaDriver
from triton_dist.runtime.device import Transfer, contiguous_strides
from triton_dist.runtime.errors import InvalidArgument, TritonDistError, UnsupportedFeature


def plain(argument):
    """The value inside a ctypes argument."""
    return argument.value if hasattr(argument, "value") else argument


class Library:
    """Answers every function with `status`, after `effects[name](*args)`; remembers the calls."""

    def __init__(self, **effects):
        self.effects, self.calls, self.status = effects, [], 0

    def __getattr__(self, name):
        if not name.startswith(("cu", "hip")):
            raise AttributeError(name)

        def call(*args):
            self.calls.append((name, tuple(plain(a) for a in args)))
            effect = self.effects.get(name)
            return (effect(*args) if effect else None) or self.status

        return call


def with_library(driver, library):
    driver.__dict__["library"] = library        # a cached_property: this is its cache
    return driver


def set_global(address, nbytes, module, name):
    address._obj.value, nbytes._obj.value = 0xFFFF_0000_1000, 568


@pytest.mark.parametrize("driver, function", [(CudaDriver(), "cuModuleGetGlobal_v2"),
                                              (HipDriver(), "hipModuleGetGlobal")])
def test_module_global_is_found_or_absent_or_an_error(driver, function):
    library = Library(**{function: set_global})
    with_library(driver, library)
    assert driver.module_global(0x7F00_1234_5678, "tdist_ctx") == (0xFFFF_0000_1000, 568)
    assert library.calls[0][1][2:] == (0x7F00_1234_5678, b"tdist_ctx")
    with_library(driver, Library(**{function: lambda *_: 500}))
    assert driver.module_global(1, "tdist_ctx") is None


@pytest.mark.parametrize("driver, name", [(CudaDriver(), "cuNotYet"), (HipDriver(), "hipNotYet")])
def test_a_function_that_an_old_driver_lacks_is_named(driver, name):
    with_library(driver, SimpleNamespace())
    for ask in (driver.call, driver.bound):
        with pytest.raises(UnsupportedFeature, match=f"the GPU driver has no {name}: install a newer one"):
            ask(name)
    with pytest.raises(UnsupportedFeature, match="the GPU driver has no"):
        driver.copy(1, 2, 3, 4)


def test_errors_carry_the_drivers_words():
    def name(code, out):
        out._obj.value = b"CUDA_ERROR_INVALID_VALUE"

    def text(code, out):
        out._obj.value = b"invalid argument"

    driver = with_library(CudaDriver(), Library(cuGetErrorName=name, cuGetErrorString=text, cuMemcpyAsync=lambda *_: 1))
    with pytest.raises(TritonDistError, match="cuMemcpyAsync .* 1: CUDA_ERROR_INVALID_VALUE, invalid argument"):
        driver.copy(1, 2, 3, 4)


def test_a_thread_without_a_context_is_bound_to_it_and_the_call_repeated(monkeypatch):
    """By the driver: torch has no need to set a device that is the thread's already, as device 0 is in a new one."""
    bound = []
    monkeypatch.setattr(gpu_driver.torch, "cuda", SimpleNamespace(current_device=lambda: 3, set_device=lambda device: None))
    library = Library(cuMemcpyAsync=lambda *_: 0 if bound else 201, cuCtxSetCurrent=lambda context: bound.append(1) or 0)
    with_library(CudaDriver(), library).copy(1, 2, 3, 4)
    assert bound == [1] and [args[1] for name, args in library.calls if name == "cuDeviceGet"] == [3]


def test_a_thread_that_takes_over_is_bound_to_the_ranks_device(monkeypatch):
    """Torch's current device and the driver's context both begin as another one's in a new thread."""
    def retain(context, device):
        context._obj.value = 0xC0 + plain(device)

    def get(handle, device):
        handle._obj.value = plain(device)

    library, devices = Library(cuDeviceGet=get, cuDevicePrimaryCtxRetain=retain), []
    driver = with_library(CudaDriver(), library)
    monkeypatch.setattr(gpu_backend.torch, "cuda", SimpleNamespace(set_device=devices.append))
    here = SimpleNamespace(_home=2, driver=driver)
    for _ in range(2):
        GpuBackend.enter_thread(here)
    assert devices == [2, 2]
    assert [args for name, args in library.calls if name == "cuCtxSetCurrent"] == [(0xC2,)] * 2
    assert sum(name == "cuDevicePrimaryCtxRetain" for name, _ in library.calls) == 1
    GpuBackend.enter_thread(SimpleNamespace(_home=None, driver=driver))          # no world yet
    assert devices == [2, 2]
    HipDriver().bind_thread(2)                                                   # has no contexts of threads


@pytest.mark.parametrize("name, driver, prefix, suffix", [("nvidia", CudaDriver(), "cu", "_v2"), ("amd", HipDriver(), "hip", "")])
def test_published_stream_calls_go_to_the_library_of_the_backend_with_its_words(monkeypatch, name, driver, prefix, suffix):
    """They loaded a second copy of HIP, which does not know torch's streams."""
    from triton_dist.dropin import stream_calls
    library, stream = Library(), SimpleNamespace(cuda_stream=9)
    with_library(driver, library)
    monkeypatch.setattr(type(driver), "error_text", lambda self, code: "the driver's words")
    monkeypatch.setattr(stream_calls, "backend", lambda: SimpleNamespace(name=name, driver=driver))
    stream_calls.write_value(stream, 2**40, -1, 64)
    stream_calls.wait_value(stream, 2**40, 3, 32, at_least=True)
    rest = (2**32 - 1,) if name == "amd" else ()
    assert library.calls == [(f"{prefix}StreamWriteValue64{suffix}", (9, 2**40, 2**64 - 1, 0)),
                             (f"{prefix}StreamWaitValue32{suffix}", (9, 2**40, 3, 0, *rest))]
    library.status = 1
    with pytest.raises(TritonDistError, match=f"{prefix}StreamWriteValue32{suffix} failed with 1: the driver's words"):
        stream_calls.write_value(stream, 2**40, 3, 32)


@pytest.mark.parametrize("driver, write, copy", [
    (CudaDriver(), ("cuStreamWriteValue32_v2", (9, 2**40 + 4, 2**32 - 1, 0)), ("cuMemcpyAsync", (2**40, 2**41, 64, 9))),
    (HipDriver(), ("hipStreamWriteValue32", (9, 2**40 + 4, 2**32 - 1, 0)),
     ("hipMemcpyAsync", (2**40, 2**41, 64, 1024, 9))),
])
def test_stream_operations_pass_whole_addresses_in_the_right_order(driver, write, copy):
    library = Library()
    with_library(driver, library)
    driver.write_value32(2**40 + 4, -1, 9)
    driver.copy(2**40, 2**41, 64, 9)
    driver.copy_to_device(2**40, b"a\0b", 9)
    assert library.calls[:2] == [write, copy]
    assert library.calls[2][1][0] == 2**40 and library.calls[2][1][2:] == (3, 9)


def test_a_push_copies_then_signals_and_an_error_is_told():
    library, transfers = Library(), [Transfer(1 << 40, 16, 64, 1 << 41), Transfer(2 << 40, 0, 8, 2 << 41)]
    with_library(CudaDriver(), library).push(4096, transfers, -1, 9)
    assert library.calls == [("cuMemcpyAsync", (1 << 40, 4112, 64, 9)), ("cuStreamWriteValue32_v2", (9, 1 << 41, 2**32 - 1, 0)),
                             ("cuMemcpyAsync", (2 << 40, 4096, 8, 9)), ("cuStreamWriteValue32_v2", (9, 2 << 41, 2**32 - 1, 0))]
    for name in ("cuMemcpyAsync", "cuStreamWriteValue32_v2"):
        with pytest.raises(TritonDistError, match=f"{name} failed with 1"):
            with_library(CudaDriver(), Library(**{name: lambda *_: 1})).push(4096, transfers, 5, 9)


def test_attribute_asks_for_the_device_handle_first():
    def handle(out, ordinal):
        out._obj.value = ordinal.value + 10

    def attribute(out, which, device):
        out._obj.value = which.value * 100 + device.value

    driver = with_library(CudaDriver(), Library(cuDeviceGet=handle, cuDeviceGetAttribute=attribute))
    assert driver.attribute(1, 122) == 12211


@pytest.mark.parametrize("driver, attribute", [(CudaDriver(), "cuDeviceGetAttribute"), (HipDriver(), "hipDeviceGetAttribute")])
def test_streams_can_write_flags_where_the_device_says_so(driver, attribute):
    def answer(out, *_):
        out._obj.value = says

    with_library(driver, Library(**{attribute: answer}))
    for says in (1, 0):
        assert driver.can_write_flags(0) == bool(says)
    with_library(driver, SimpleNamespace())
    assert not driver.can_write_flags(0), "an old library"


@pytest.mark.parametrize("write, end, found", [(0, 0, True), (900, 901, False), (0, 901, False)])
def test_whether_graphs_hold_flags_is_tried_and_leaves_no_graph(write, end, found):
    """900: not supported in capture; then there is no graph."""
    def ended(stream, graph):
        graph._obj.value = None if end else 0x60
        return end

    library = Library(cuStreamWriteValue32_v2=lambda *_: write, cuStreamEndCapture=ended)
    assert with_library(CudaDriver(), library).can_capture_flags(2**40, 9) is found
    assert [name for name, _ in library.calls[:3]] == ["cuStreamBeginCapture_v2", "cuStreamWriteValue32_v2", "cuStreamEndCapture"]
    assert library.calls[1][1] == (9, 2**40, 0, 0)
    assert library.calls[3:] == ([("cuGraphDestroy", (0x60,))] if not end else [])


def test_whether_graphs_hold_pushes_is_asked_once_and_not_inside_a_capture(monkeypatch):
    """Until somebody has asked outside, nothing speaks against it."""
    class Bare(NvidiaBackend):
        def __init__(self):
            self._captures_pushes, self.tried = None, []
            self.driver = SimpleNamespace(can_capture_flags=lambda address, stream: bool(self.tried.append(stream)))

        def device(self):
            return torch.device("cpu")

        def has_stream_memory_ops(self):
            return True

        def is_capturing(self):
            return capturing

    monkeypatch.setattr(gpu_backend.torch, "cuda", SimpleNamespace(Stream=lambda: SimpleNamespace(cuda_stream=9)))
    here, capturing = Bare(), True
    assert here.captures_pushes() and not here.tried
    capturing = False
    assert not here.captures_pushes() and not here.captures_pushes() and here.tried == [9]
    capturing = True
    assert not here.captures_pushes()


def test_a_missing_driver_library_is_a_clear_error(monkeypatch):
    driver = CudaDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name}: not found")))
    with pytest.raises(UnsupportedFeature, match="libcuda.so.1: not found"):
        driver.call("cuInit", 0)


@pytest.fixture
def backend():
    """GpuBackend's copy-engine methods over a driver that records."""
    class Bare(GpuBackend):
        name = "nvidia"

        def __init__(self):
            self.driver = SimpleNamespace(copy=lambda *args: self.calls.append(args),
                                          write_value32=lambda *args: self.calls.append(args))
            self.calls = []

        def gemm_config(self, dtype, m):
            raise NotImplementedError

    return Bare()


STREAM = SimpleNamespace(cuda_stream=9)


def test_copy_moves_all_bytes_of_contiguous_tensors_and_nothing_else(backend):
    dst, src = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(32, dtype=torch.int16)
    backend.copy(dst, src, STREAM)
    backend.copy(dst[:0], src[:0], STREAM)
    assert backend.calls == [(dst.data_ptr(), src.data_ptr(), 64, 9)]
    for bad in (dst[:, :4], dst[:2]):
        with pytest.raises(InvalidArgument, match="equal bytes"):
            backend.copy(bad, src, STREAM)


def test_write_value_checks_the_flag(backend):
    flags = torch.zeros(8, dtype=torch.int32)
    backend.write_value32(flags[2:], 3, 7, STREAM)
    assert backend.calls == [(flags.data_ptr() + 20, 7, 9)]
    for bad, index in ((flags, 8), (flags, -1), (flags[::2], 0), (flags.long(), 0)):
        with pytest.raises(InvalidArgument, match="4-byte flags"):
            backend.write_value32(bad, index, 7, STREAM)


@pytest.mark.parametrize("capability, options", [((8, 0), {"num_warps": 8}), ((9, 0), {"num_warps": 8, "launch_pdl": True}),
                                                 (None, {"num_warps": 8})])
def test_an_overlapping_launch_is_asked_for_where_there_is_such_a_thing(monkeypatch, capability, options):
    """Triton's AMD back end does not know the option, and older devices refuse it."""
    from triton_dist.backends.amd.backend import AmdBackend
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    cls, seen = NvidiaBackend if capability else AmdBackend, []
    here = cls.__new__(cls)
    here._extern_libs = {}
    monkeypatch.setattr(cls, "device", lambda self: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernel = SimpleNamespace(run_compiled=lambda args, kwargs, grid, warmup, libraries: seen.append(kwargs))
    here.launch(kernel, (1,), (), {"num_warps": 8, "launch_pdl": True})
    here.compile(kernel, (1,), (), {"num_warps": 8, "launch_pdl": True})
    assert seen == [options] * 2


@pytest.mark.parametrize("local_rank, shares, home", [(1, "", 1), (2, "", None), (2, "0", None), (2, "1", 0), (5, "1", 1),
                                                     (None, "", 0), (None, "1", 0)])
def test_ranks_share_gpus_only_when_asked(monkeypatch, local_rank, shares, home):
    from triton_dist.backends.nvidia.backend import NvidiaBackend
    taken, made = [], object.__new__(NvidiaBackend)
    made._home, made._variants, made._streams = 1, {"of device": 1}, {}
    monkeypatch.setenv("TRITON_DIST_SHARE_GPUS", shares)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)        # which a rank keeps without LOCAL_RANK
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    if home is None:
        with pytest.raises(InvalidArgument, match="one of the 2 visible GPUs, found 2; .*TRITON_DIST_SHARE_GPUS=1"):
            made.set_device(local_rank)
    else:
        made.set_device(local_rank)
    assert taken == ([] if home is None else [home])
    assert made._variants == ({} if home == 0 else {"of device": 1}), "kernels are loaded on one device"
    assert ("nccl" in made.torch_backend()) == (shares != "1")


@pytest.mark.parametrize("words", [["bench", "ag_gemm", "--shapes", "8B"], ["tune", "ag_gemm", "--shapes", "8B"]])
def test_nothing_is_measured_on_a_shared_gpu(monkeypatch, capsys, words):
    from triton_dist.bench import command as bench
    from triton_dist.tune import command as tune
    monkeypatch.setenv("TRITON_DIST_SHARE_GPUS", "1")
    with pytest.raises(SystemExit) as ended:
        {"bench": bench, "tune": tune}[words[0]].main(words[1:])
    assert ended.value.code == 2 and "take turns" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(), (3,), (1, 1), (2, 3, 4), (0, 3), (3, 0), (2, 0, 3), (0, 0)])
def test_strides_of_contiguous_tensors_are_those_of_torch(shape):
    assert contiguous_strides(shape) == torch.empty(shape).stride() == contiguous_strides(torch.Size(shape))
