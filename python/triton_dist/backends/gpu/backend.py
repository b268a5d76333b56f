# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What the GPU backends share: torch names streams and devices the same for both vendors, only the driver differs."""
import functools
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import torch
from triton import knobs

from triton_dist.backends.gpu import graphs
from triton_dist.backends.gpu.context import ContextWriter
from triton_dist.backends.gpu.device_runtime import library
from triton_dist.backends.gpu.driver import GpuDriver
from triton_dist.backends.gpu.collective_watch import CollectiveWatch
from triton_dist.backends.gpu.hang import HangWatch, store_of_world
from triton_dist.backends.gpu.heap_provider import heap_provider
from triton_dist.backends.gpu.leaving import Leaver
from triton_dist.backends.gpu.p2p import LocalArena, P2PArena
from triton_dist.backends.gpu.pools import in_another_thread
from triton_dist.backends.gpu.prebuilt import Prebuilt
from triton_dist.backends.gpu.recording import Recorder
from triton_dist.backends.gpu.side_stream import SideStream
from triton_dist.backends.gpu.thread_functions import library as thread_library
from triton_dist.backends.gpu.trace_library import library as trace_library
from triton_dist.backends.gpu.tracing import TraceBuffers
from triton_dist.backends.gpu.variants import Variant, kinds, no_launcher, specialised
from triton_dist.compat.torch import cuda_device as _device, cuda_empty as _empty, cuda_raw_stream as _raw_stream
from triton_dist.compat.torch import fp32_precision as _fp32_precision
from triton_dist.compat.triton import load
from triton_dist.language._call import LIBRARY
from triton_dist.language.kernels_of_threads import of_threads
from triton_dist.language.threads_abi import LIBRARY as THREAD_LIBRARY
from triton_dist.language.trace_abi import LIBRARY as TRACE_LIBRARY
from triton_dist.runtime.backend import Backend
from triton_dist.runtime.context import Context
from triton_dist.runtime.device import (Arena, Arguments, Stream, Transfer, contiguous_strides, copy_bytes, flag_address,
                                        note_variant, places)
from triton_dist.runtime.environment import aot_record, share_gpus, traced, wait_timeout
from triton_dist.runtime.errors import InvalidArgument, WaitTimeout
from triton_dist.runtime.hang_table import Row
from triton_dist.runtime.state import state

_MOST_STREAMS = 64


class PreparedLaunch:
    """A compiled kernel with its grid and the arguments that stay, trailing constexprs among them.

    A call costs Triton's launcher and little more, or less: `bound` is a vendor's own launcher. It is not used while
    Triton's launch hooks are set.
    """

    def __init__(self, variant: Variant, device: int, grid: tuple, whole: Arguments, bound: Any):
        self._variant, self._compiled, self._device, self._whole = variant, variant.compiled, device, whole
        self._launcher = bound
        self._bound = None if bound is None else bound.__call__         # a method is called in less time than an object
        self._grid = (*grid, 1, 1)[:3]
        self._hooks = knobs.runtime

    def __call__(self, *args: Any) -> None:
        hooks = self._hooks
        if self._bound is None or hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
            self._by_triton(hooks.launch_enter_hook, hooks.launch_exit_hook, self._whole(args))
        else:
            self._bound(_raw_stream(self._device), args)

    def _by_triton(self, enter: Any, leave: Any, values: tuple) -> None:
        stream, compiled, metadata = _raw_stream(self._device), self._compiled, None
        if enter.calls or leave.calls:
            metadata = compiled.launch_metadata(self._grid, stream, *values)
        else:
            enter = leave = None
        compiled.run(*self._grid, stream, compiled.function, compiled.packed_metadata, metadata, enter, leave, *values)

    @property
    def again(self) -> Callable | None:
        """Launches as the last call did, in the least host time that a launch takes; None where Triton's launcher serves."""
        return getattr(self._launcher, "again", None)

    def on(self, grid: tuple, changed: dict) -> "PreparedLaunch | None":
        """See runtime.device.Prepared."""
        integers = self._variant.integers
        if integers is None:
            return None
        for position in integers.keys() & changed.keys():
            parameter, kind = integers[position]
            if kinds((parameter,), (changed[position],)) != (kind,):
                return None
        bound = None if self._launcher is None else self._launcher.on(grid, changed)
        return PreparedLaunch(self._variant, self._device, grid, self._whole.on(changed), bound)


@functools.cache
def _cuda(index: int) -> torch.device:
    return torch.device("cuda", index)


class GpuBackend(Backend):
    """A process drives one device; kernels are Triton's, with the device runtime linked in."""

    default_heap_size = 2 << 30
    heap_providers: tuple = ("p2p",)       # what TRITON_DIST_HEAP may name, beside auto; the first is for one host
    _home: int | None = None               # the device of this rank
    compiles_by_storage = False            # whether Triton compiles for how large the storage of a tensor is

    def __init__(self, driver: GpuDriver):
        self.driver = driver
        self._timeout = wait_timeout()
        bounded = self._timeout > 0
        self._extern_libs = {LIBRARY: library(self.name, bounded)}
        self.tracer = TraceBuffers(driver) if traced() else None
        if self.tracer is not None:
            self._extern_libs[TRACE_LIBRARY] = trace_library(self.name)
        self._contexts = ContextWriter(driver, bounded)
        self._watch: HangWatch | None = None
        self._collectives: CollectiveWatch | None = None
        self._prebuilt: Prebuilt | None = None
        path = aot_record()
        self._recorder = Recorder(path) if path else None
        self._memory_ops: dict[int, bool] = {}
        self._variants: dict[tuple, Variant] = {}
        self._streams: dict[int, Stream] = {}                   # those that have been current, by handle

    # -- devices -------------------------------------------------------------------------------------------
    def device(self) -> torch.device:
        return _cuda(torch.cuda.current_device())

    @functools.cached_property
    def _properties(self) -> Any:
        """Of the device: a first call of a new shape asks for them many times."""
        return torch.cuda.get_device_properties(self.device())

    @functools.cached_property
    def _capability(self) -> tuple[int, int]:
        return torch.cuda.get_device_capability(self.device())

    def device_name(self) -> str:
        return self._properties.name

    def set_device(self, local_rank: int | None) -> None:
        count = torch.cuda.device_count()
        if local_rank is None:
            local_rank = torch.cuda.current_device() if count else 0
        if local_rank >= count and count and share_gpus():
            local_rank %= count
        if not 0 <= local_rank < count:
            raise InvalidArgument(f"local rank: expected one of the {count} visible GPUs, found {local_rank}; start at "
                                  "most one process per GPU, make more GPUs visible, or set TRITON_DIST_SHARE_GPUS=1 to "
                                  "try a program with several ranks on one GPU, slowly; where each rank sees only its own GPU, "
                                  "unset LOCAL_RANK")
        torch.cuda.set_device(local_rank)
        if local_rank != self._home:
            self._variants.clear()              # they are loaded on the device before
            self._streams.clear()
        self._home = local_rank
        for known in ("_properties", "_capability"):
            vars(self).pop(known, None)

    def enter_thread(self) -> None:
        if self._home is not None:              # a new thread begins on device 0, and without a context of the driver
            torch.cuda.set_device(self._home)
            self.driver.bind_thread(self._home)

    def num_sms(self) -> int:
        return self._properties.multi_processor_count

    def torch_backend(self) -> str:
        return "cpu:gloo,cuda:gloo" if share_gpus() else "cpu:gloo,cuda:nccl"      # NCCL refuses two ranks on one GPU

    def maker(self, shape: tuple, dtype: torch.dtype) -> Callable[[], torch.Tensor]:
        if not self._allocates_quickly:
            return super().maker(shape, dtype)
        mine, device, size, stride = _device(), self.device(), tuple(shape), contiguous_strides(shape)
        return lambda: (_empty(size, stride, dtype) if _device() == mine else torch.empty(size, dtype=dtype, device=device))

    def outside_pools(self, call: Callable[[], Any]) -> Any:
        return call() if self.is_capturing() else in_another_thread(call)     # in a capture other threads must ask for nothing

    def end_graphs(self) -> bool:
        return graphs.end()

    @functools.cached_property
    def _allocates_quickly(self) -> bool:
        try:
            made = _empty((2, 3), (3, 1), torch.float16)
            return (*made.shape, *made.stride(), made.dtype, made.device) == (2, 3, 3, 1, torch.float16, self.device())
        except Exception:                                   # of an interface that is torch's own affair anything may come
            return False

    # -- streams -------------------------------------------------------------------------------------------
    def new_stream(self, priority: int = 0) -> Stream:
        return torch.cuda.Stream(priority=priority)

    def side_stream(self) -> Stream:
        return SideStream(priority=-1)

    def current_stream(self) -> Stream:
        if (device := _device()) != self._home:
            self._expect_home(device)
        return self._stream_of(_raw_stream(device))

    def eager_stream(self) -> Stream | None:
        if (device := _device()) != self._home:
            self._expect_home(device)
        raw = _raw_stream(device)
        if raw and torch.cuda.is_current_stream_capturing():      # 0, the legacy default stream, cannot be captured
            return None
        return self._streams.get(raw) or self._stream_of(raw)

    def _expect_home(self, device: int) -> None:
        """Refuses a call while another device is current: a launch would meet that one's streams."""
        if self._home is not None:
            raise InvalidArgument(f"the current device is cuda:{device}, and that of this rank is cuda:{self._home}; call ops "
                                  "where that one is current, outside of torch.cuda.device(...)")

    def _stream_of(self, raw: int) -> Stream:
        """The current stream, whose handle is `raw`: an object of torch's costs microseconds."""
        stream = self._streams.get(raw)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                self._streams.clear()
            stream = self._streams[raw] = torch.cuda.current_stream()
        return stream

    def use_stream(self, stream: Stream) -> Any:
        return torch.cuda.stream(stream)

    def note_use(self, tensor: torch.Tensor, stream: Stream) -> None:
        if tensor.is_cuda:
            tensor.record_stream(stream)        # type: ignore[arg-type]

    @contextmanager
    def named_range(self, name: str) -> Iterator[None]:
        with torch.cuda.nvtx.range(name), super().named_range(name):     # on AMD torch's name means roctx
            yield

    def warms_up(self) -> bool:
        return _raw_stream(_device()) != 0

    def synchronize(self) -> None:
        try:
            torch.cuda.synchronize(self._home)
        except RuntimeError as error:
            if not self._contexts.wait_records():
                raise
            watch = self._watch or HangWatch(0, 1, None, self._waiting, self._timeout, window=0)
            raise WaitTimeout(f"{watch.explain()}\nThe device context of this process is lost: end it") from error

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def capturing_graph(self) -> Any:
        ask = getattr(torch.cuda.CUDAGraph, "get_currently_capturing_graph", None)       # a recent torch
        return ask() if ask is not None and self.is_capturing() else None

    # -- copy engine ---------------------------------------------------------------------------------------
    def has_stream_memory_ops(self) -> bool:
        device = torch.cuda.current_device()
        if device not in self._memory_ops:
            self._memory_ops[device] = self.driver.can_write_flags(device)
        return self._memory_ops[device]

    def push(self, source: torch.Tensor, transfers: Sequence[Transfer], value: int, stream: Stream) -> None:
        self.driver.push(source.data_ptr(), transfers, value, stream.cuda_stream)

    def copy(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        if nbytes := copy_bytes(dst, src):
            # The driver's memcpy, not Tensor.copy_: that one may pick a kernel, which would compete for SMs.
            self.driver.copy(dst.data_ptr(), src.data_ptr(), nbytes, stream.cuda_stream)

    def write_value32(self, flags: torch.Tensor, index: int, value: int, stream: Stream) -> None:
        self.driver.write_value32(flag_address(flags, index), value, stream.cuda_stream)

    # -- kernels -------------------------------------------------------------------------------------------
    def prepare(self, kernel: Any, grid: tuple, args: tuple, kwargs: dict, varying: int | tuple | None = None) -> Callable:
        note_variant(kernel, kwargs)
        positions = places(varying, args)
        found = self._from_library(kernel, grid, args, kwargs, positions)
        if found is not None:
            return found
        variant = self._variant(kernel, grid, args, kwargs, positions)
        return PreparedLaunch(variant, torch.cuda.current_device(), grid, Arguments(args + variant.constants, positions),
                              variant.bind(grid, args))

    def _variant(self, kernel: Any, grid: tuple, args: tuple, kwargs: dict, positions: tuple) -> Variant:
        """What serves launches of `kernel` with arguments like these: compiled and loaded at the first one."""
        key = (id(kernel), positions, *kinds(kernel.params, args, self.compiles_by_storage), *kwargs.items(),
               *self._extern_libs.values())
        found = self._variants.get(key)
        if found is None:
            compiled = self.compile(kernel, grid, args, kwargs)
            load(compiled)
            layouts = [getattr(arg, "layout", None) for arg in args if hasattr(arg, "base")]
            constants = tuple([kwargs[name] for name in kernel.arg_names[len(args):]])
            integers = None if self.compiles_by_storage else specialised(kernel.params, args)
            found = self._variants[key] = Variant(kernel, layouts, compiled, integers, constants,
                                                  self._binder(compiled, positions))
        return found

    def _from_library(self, kernel: Any, grid: tuple, args: tuple, kwargs: dict, positions: tuple) -> Callable | None:
        """A launch of a kernel that was compiled ahead of time, if this process uses some and has this one."""
        if self._prebuilt is None and self._recorder is None or self.tracer is not None:
            return None
        given = dict(self._possible(kwargs), extern_libs={**dict(kwargs.get("extern_libs") or ()), **self._libraries(kernel)})
        if self._recorder is not None:
            self._recorder.add(kernel, args, given)
        return None if self._prebuilt is None else self._prebuilt.prepare(kernel, grid, args, given, positions)

    def _binder(self, compiled: Any, positions: tuple) -> Callable:
        """What gives, for a grid and arguments, a launcher (stream, arguments) that needs less host time than Triton's, or None.

        positions: of the arguments that a call gives.
        """
        return no_launcher

    def launch(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Any:
        return kernel.run_compiled(args, self._possible(kwargs), grid, False, self._libraries(kernel))

    def compile(self, kernel: Any, grid: Any, args: tuple, kwargs: dict) -> Any:
        return kernel.run_compiled(args, self._possible(kwargs), grid, True, self._libraries(kernel))

    def _libraries(self, kernel: Any) -> dict:
        """What is linked into `kernel`, {key: path}."""
        if of_threads(kernel):
            return {**self._extern_libs, THREAD_LIBRARY: thread_library(self.name)}
        return self._extern_libs

    def use_prebuilt(self, folder: str | None, tells: bool) -> None:
        self._prebuilt = None if folder is None else Prebuilt(folder, tells, self._timeout > 0)
        if self._prebuilt is not None and self._contexts.context is not None:
            self._prebuilt.set_context(self._contexts.context.pack())

    def launches_overlap(self) -> bool:
        """Whether a kernel can start before the one ahead on its stream has ended."""
        return False

    def _possible(self, kwargs: dict) -> dict:
        """Options without `launch_pdl` where launches do not overlap: a hint, which Triton or the driver would refuse."""
        if "launch_pdl" not in kwargs or self.launches_overlap():
            return kwargs
        return {name: value for name, value in kwargs.items() if name != "launch_pdl"}

    def allow_tf32(self) -> bool:
        return _fp32_precision("cuda", "matmul") == "tf32"      # to read torch's older switch raises where this one was set

    def set_context(self, context: Context) -> None:
        self._contexts.set(context)
        if self._prebuilt is not None:
            self._prebuilt.set_context(context.pack())
        self.left_world()
        self._collectives = CollectiveWatch(context.rank, context.world_size, store_of_world)
        if self._timeout:
            self._watch = HangWatch(context.rank, context.world_size, store_of_world(), self._waiting, self._timeout)
            self._watch.start()

    # -- symmetric memory ----------------------------------------------------------------------------------
    def reserve_arena(self, nbytes: int, world: Any) -> Arena:
        arena = self._arena(heap_provider(self.heap_providers, world), nbytes, world)
        arena.local.zero_()
        torch.cuda.synchronize()
        world.barrier()             # no peer stores into a slab before its owner has cleared it
        self._leaver = Leaver(self._home)
        return arena

    def close_arena(self, arena: Arena) -> bool:
        return self._leaver.close(arena)

    def _arena(self, provider: str, nbytes: int, world: Any) -> Arena:
        return LocalArena(nbytes, self.device()) if world.size == 1 else P2PArena(nbytes, self.device(), world)

    # -- failure -------------------------------------------------------------------------------------------
    def blocking(self, call: Callable[[], Any]) -> None:
        if self._collectives is None:
            call()
        else:
            self._collectives.run(call)

    def left_world(self, error: str | None = None) -> None:
        if self._collectives is not None:
            self._collectives.stop()
            self._collectives = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _waiting(self) -> list[Row]:
        """What this rank's expired waits wait for."""
        heap, rows = state().heap, []
        for record in self._contexts.wait_records():
            name, writer = heap.describe(record.flag) if heap is not None else ("of no symmetric tensor", None)
            rows.append(Row(record.rank, self._contexts.kernel_name(record.kernel_id), str(record.program),
                            self._contexts.line_of(record), f"flag {name} ({record.flag:#x})", str(record.wanted),
                            str(record.seen), "" if writer is None else f"rank {writer}"))
        return rows
