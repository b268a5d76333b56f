# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Flags and copies by address on a stream: what published scripts ask the driver for, on GPUs and in the emulator."""
import ctypes
from contextlib import nullcontext
from typing import Any

import torch

import triton_dist
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument

_EQUAL = 1                    # the drivers' flag for a wait until equal
_GEQUAL = 0


def on(stream: Any) -> Any:
    """Context manager: launches inside go to `stream`; None changes nothing."""
    return nullcontext() if stream is None else triton_dist.use_stream(stream)


def peers_have_atomics() -> bool:
    """Whether atomics on a peer's memory are atomic; True in the emulator and with one device."""
    if backend().name == "emulator" or torch.cuda.device_count() < 2:
        return True
    if backend().name == "amd":
        return True
    value = ctypes.c_int()
    _driver().call("cuDeviceGetP2PAttribute", ctypes.byref(value), ctypes.c_int(3), ctypes.c_int(0), ctypes.c_int(1))
    return bool(value.value)


def target(signal: Any, require_i64: bool = False) -> tuple[int, int]:
    """(address, bits) of a flag: a tensor of one, or an address, which is of 64 bits where `require_i64` says so."""
    if isinstance(signal, torch.Tensor):
        if signal.element_size() not in (4, 8):
            raise InvalidArgument(f"signal: expected a tensor of 32- or 64-bit integers, found {signal.dtype}")
        return signal.data_ptr(), 8 * signal.element_size()
    return int(signal), 64 if require_i64 else 32


def set_signal(signal: Any, value: int, stream: Any = None, require_i64: bool = False) -> None:
    """Puts a store of `value` to a flag on a stream, after all before it.

    Args:
        signal: a tensor of one 32- or 64-bit integer, or its address.
        value: integer to store.
        stream: the stream, or None for the current one.
        require_i64: an address is of 64 bits.
    """
    address, bits = target(signal, require_i64)
    write_value(stream, address, value, bits)


def wait_eq(signal: Any, value: int, stream: Any = None, require_i64: bool = False) -> None:
    """Lets a stream wait until a flag holds `value`. Arguments as for set_signal."""
    address, bits = target(signal, require_i64)
    wait_value(stream, address, value, bits)


def write_value(stream: Any, address: int, value: int, bits: int) -> None:
    """A store of 32 or 64 bits on a stream."""
    stream = stream or triton_dist.current_stream()
    if backend().name == "emulator":
        store = stream.device.machine.memory.flag_store
        stream._transfer("flag write", [lambda: store(address, _signed(value, bits), bits, "release", "sys")])
        _settle(stream)
        return
    name = f"StreamWriteValue{bits}"
    call = f"hip{name}" if backend().name == "amd" else f"cu{name}_v2"
    _driver().call(call, _handle(stream), ctypes.c_uint64(address), _word(value, bits), ctypes.c_uint(0))


def wait_value(stream: Any, address: int, value: int, bits: int, at_least: bool = False) -> None:
    """A wait of a stream until a word of 32 or 64 bits equals a value, or is at least it."""
    stream = stream or triton_dist.current_stream()
    if backend().name == "emulator":
        from triton_dist.backends.emulator.twins.memory import await_flag
        wanted = _signed(value, bits)
        met = (lambda seen: seen >= wanted) if at_least else (lambda seen: seen == wanted)
        cmp = "ge" if at_least else "eq"
        stream._put("wait for a flag", lambda: await_flag(address, bits, cmp, met, wanted, "acquire", "sys"))
        _settle(stream)
        return
    name, how = f"StreamWaitValue{bits}", _GEQUAL if at_least else _EQUAL
    common = _handle(stream), ctypes.c_uint64(address), _word(value, bits), ctypes.c_uint(how)
    if backend().name == "amd":
        _driver().call(f"hip{name}", *common, _word(-1, bits))          # all bits count
    else:
        _driver().call(f"cu{name}_v2", *common)


def memcpy(dst: Any, src: Any, nbytes: int, stream: Any = None) -> None:
    """A copy of bytes between two addresses, or tensors, on a stream."""
    stream = stream or triton_dist.current_stream()
    to, origin = (x.data_ptr() if isinstance(x, torch.Tensor) else int(x) for x in (dst, src))
    if backend().name == "emulator":
        for tensor in (dst, src):
            if isinstance(tensor, torch.Tensor):
                stream.device.machine.memory.register(tensor, "memcpy")
        stream.copy(to, origin, nbytes, keep=(dst, src))
        _settle(stream)
        return
    backend().driver.copy(to, origin, nbytes, stream.cuda_stream)        # type: ignore[attr-defined]


def _settle(stream: Any) -> None:
    """The emulator's default stream is drained before the host goes on, as by a launch."""
    if stream is stream.device.default:
        stream.wait_host(stream.issued)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _word(value: int, bits: int) -> Any:
    return (ctypes.c_uint32 if bits == 32 else ctypes.c_uint64)(value & ((1 << bits) - 1))


def _handle(stream: Any) -> Any:
    return ctypes.c_void_p(stream.cuda_stream)


def _driver() -> Any:
    """That of the backend: its library is the one that torch has loaded, and its errors have words."""
    return backend().driver             # type: ignore[attr-defined]
