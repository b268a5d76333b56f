# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""`torch.cuda` on a machine without a GPU: device="cuda" means the emulated device, whose tensors lie in host memory.

Installed by the launcher's --published only, on emulated ranks. A mode of torch's functions replaces devices in calls, and
the names of torch.cuda that scripts use are those of the emulator's streams and events. Torch's own work runs on the host:
on the default stream at once; on another stream a copy, or an operation in place, is put on that stream, and anything else
first waits for it.
"""
import functools
import itertools
import os
import threading
import types
import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from triton_dist.backends.emulator import device_interface
from triton_dist.backends.emulator.backend import machine
from triton_dist.backends.emulator.engine import streams
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature

_CPU = torch.device("cpu")
_handles: "weakref.WeakValueDictionary" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_current = [int(os.environ.get("LOCAL_RANK", 0))]
_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
                "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "reduce", "reduce_scatter",
                "reduce_scatter_tensor", "scatter")
_COPIES = (torch.Tensor.cuda, torch.Tensor.cpu)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return isinstance(device, str) and (device == "cuda" or device.startswith("cuda:"))


def _host(value: Any) -> Any:
    return _CPU if _is_cuda(value) else value


class EmulatedCuda(TorchFunctionMode):
    """Devices of calls are the host's; work on side streams stays in the streams' order."""

    def __torch_function__(self, func: Any, kinds: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return True if getattr(func, "__self__", None) is torch.Tensor.is_cuda else func(*args, **kwargs)
        if func in _COPIES:
            return _in_order("clone", torch.Tensor.clone, args[:1], {})
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.data_ptr:        # the script may give the address to the driver
            _register(args[0])
            return func(*args)
        given = (*args[1:], *kwargs.values())
        moves = func is torch.Tensor.to and any(_is_cuda(x) or x == "cpu" or type(x) is int for x in given)
        args, kwargs = tuple(map(_host, args)), {key: _host(value) for key, value in kwargs.items() if key != "pin_memory"}
        if type(kwargs.get("device")) is int:
            kwargs["device"] = _CPU
        if moves:                                # a copy, as between a GPU and the host
            args = tuple(_CPU if type(x) is int else x for x in args)
            kwargs["copy"] = True
        return _in_order(name, func, args, kwargs)


def _register(tensor: torch.Tensor) -> None:
    if tensor.is_contiguous() and tensor.numel():
        machine().memory.register(tensor, "a tensor whose address was taken")


def _in_order(name: str, func: Any, args: tuple, kwargs: dict) -> Any:
    device = machine().device()
    stream = device.current
    if stream is device.default or not args and not kwargs:
        return func(*args, **kwargs)
    if func is torch.Tensor.copy_ and _same_bytes(args):
        backend().copy(args[0], args[1], stream)
        return args[0]
    if func is torch.Tensor.record_stream:
        return None
    if name.endswith("_") and not name.startswith("_") and isinstance(args[0], torch.Tensor):
        stream._put(f"torch's {name}", lambda: func(*args, **kwargs))
        return args[0]
    stream.wait_host(stream.issued)
    return func(*args, **kwargs)


def _same_bytes(args: tuple) -> bool:
    dst, src = args[0], args[1]
    return (isinstance(src, torch.Tensor) and dst.dtype == src.dtype and dst.shape == src.shape and dst.is_contiguous()
            and src.is_contiguous() and dst.numel() > 0)


# -- torch.cuda --------------------------------------------------------------------------------------------------------
def handle(stream: streams.Stream) -> int:
    """The number that scripts pass to the driver for a stream: 0 for the default one."""
    if stream is stream.device.default:
        return 0
    if not hasattr(stream, "handle"):
        stream.handle = next(_numbers)           # type: ignore[attr-defined]
        _handles[stream.handle] = stream         # type: ignore[attr-defined]
    return stream.handle                         # type: ignore[attr-defined]


def stream_of(number: Any) -> streams.Stream:
    """The stream of a handle."""
    if isinstance(number, streams.Stream):
        return number
    number = int(getattr(number, "handle", number) or 0)
    if number == 0:
        return machine().device().default
    if number not in _handles:
        raise InvalidArgument(f"stream: no stream of the emulator has the handle {number}")
    return _handles[number]


class _StreamType(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, streams.Stream)


class Stream(metaclass=_StreamType):
    """torch.cuda.Stream: makes an emulated stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Any:
        return machine().device().new_stream(priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1


def _set_device(index: Any) -> None:
    number = getattr(index, "index", index)
    if isinstance(number, str):
        number = torch.device(number).index
    if not 0 <= (number or 0) < _device_count():
        raise InvalidArgument(f"device: expected one of the {_device_count()} emulated devices, found {index!r}")
    _current[0] = number or 0


def _device_count() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


class _Device:
    """torch.cuda.device: a rank has one device, so it changes nothing."""

    def __init__(self, index: Any = None):
        self.idx = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> bool:
        return False


def _properties(index: Any = None) -> Any:
    found = device_interface.get_device_properties()
    found.__dict__.update(total_memory=80 << 30, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
                          regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, gcnArchName="",
                          L2_cache_size=50 << 20)
    return found


def _refuse(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedFeature(f"{what}: the emulator does not capture graphs; leave it out on emulated ranks")
    return refuse


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _zero(*_: Any, **__: Any) -> int:
    return 0


_NAMES = {
    "is_available": lambda: True, "is_initialized": lambda: True, "init": _nothing, "device_count": _device_count,
    "current_device": lambda: _current[0], "set_device": _set_device, "device": _Device, "synchronize": lambda *_, **__:
    machine().device().synchronize(), "current_stream": lambda *_, **__: machine().device().current,
    "default_stream": lambda *_, **__: machine().device().default, "Stream": Stream, "ExternalStream": stream_of,
    "Event": device_interface.Event, "stream": device_interface.stream, "set_stream": device_interface.set_stream,
    "get_device_name": lambda *_, **__: device_interface.NAME, "get_device_capability": lambda *_, **__: (9, 0),
    "get_device_properties": _properties, "is_current_stream_capturing": lambda: False, "empty_cache": _nothing,
    "manual_seed": _nothing, "manual_seed_all": _nothing, "seed_all": _nothing, "ipc_collect": _nothing, "_sleep": _nothing,
    "mem_get_info": lambda *_, **__: (80 << 30, 80 << 30), "memory_allocated": _zero, "max_memory_allocated": _zero,
    "memory_reserved": _zero, "reset_peak_memory_stats": _nothing, "can_device_access_peer": lambda *_: True,
    "CUDAGraph": _refuse("torch.cuda.CUDAGraph"), "graph": _refuse("torch.cuda.graph"),
    "is_bf16_supported": lambda *_, **__: True,
}


def _blocking(call: Any) -> Any:
    """A collective of torch.distributed, beside which this rank's streams go on."""
    @functools.wraps(call)
    def blocking(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("async_op") or threading.current_thread() is not threading.main_thread():      # ours does so already
            return call(*args, **kwargs)
        stream = machine().device().current
        if stream is not machine().device().default:
            stream.wait_host(stream.issued)
        if call.__name__ in ("all_gather_into_tensor", "reduce_scatter_tensor"):       # the host's backend wants them flat
            args = tuple(x.view(-1) if isinstance(x, torch.Tensor) else x for x in args)
        results: list = []
        backend().blocking(lambda: results.append(call(*args, **kwargs)))
        return results[0] if results else None
    return blocking


def _of_host(call: Any) -> Any:
    """init_process_group and new_group: of the host's backend, without a device."""
    @functools.wraps(call)
    def started(*args: Any, **kwargs: Any) -> Any:
        kwargs = {key: value for key, value in kwargs.items() if key != "device_id"}
        if kwargs.get("backend") is not None:
            kwargs["backend"] = "gloo"
        args = tuple("gloo" if isinstance(x, str) and "nccl" in x else x for x in args)
        return call(*args, **kwargs)
    return started


def _own(call: Any) -> Any:
    """A function object of one name's own: torch.compile keeps a table of torch's functions, each of which it expects once."""
    return lambda *args, **kwargs: call(*args, **kwargs)


def install() -> None:
    """Makes this process's torch speak of an emulated device as of a GPU."""
    import torch.distributed as dist
    for name, value in _NAMES.items():
        setattr(torch.cuda, name, value if isinstance(value, type) else _own(value))
    torch.cuda.streams.Stream, torch.cuda.streams.Event = Stream, device_interface.Event        # type: ignore[misc]
    torch.cuda.nvtx = types.SimpleNamespace(                         # type: ignore[assignment]
        range_push=_nothing, range_pop=_nothing, mark=_nothing, range=lambda *_, **__: nullcontext(), range_start=_zero,
        range_end=_nothing)
    streams.Stream.cuda_stream = property(handle)                    # type: ignore[attr-defined]
    streams.Stream.priority_range = staticmethod(lambda: (0, -1))    # type: ignore[attr-defined]
    for name in _COLLECTIVES:
        setattr(dist, name, _blocking(getattr(dist, name)))
    dist.init_process_group, dist.new_group = _of_host(dist.init_process_group), _of_host(dist.new_group)
    EmulatedCuda().__enter__()
