# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The device as Triton's own helpers ask for it: functions and classes named as in torch.cuda, over the emulator's device."""
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Optional

from triton_dist.backends.emulator.backend import machine
from triton_dist.backends.emulator.engine import streams
from triton_dist.runtime.errors import InvalidArgument

NAME = "triton_dist emulator"


class Event(streams.Event):
    """torch.cuda.Event. Times are those of the host's clock when an event was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        super().__init__()
        self._at = 0.0

    def record(self, stream: Any = None) -> None:
        super().record(stream or current_stream())
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        super().wait(stream or current_stream())

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to `end`."""
        return (end._at - self._at) * 1e3


class device:
    """Context manager of torch.cuda.device: a rank has one device, so it changes nothing."""

    def __init__(self, index: Any):
        self.idx = _index(index)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> bool:
        return False


def is_available() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(index: Any) -> None:
    _index(index)


def get_device_name(index: Any = None) -> str:
    _index(index)
    return NAME


def get_device_capability(index: Any = None) -> tuple[int, int]:
    _index(index)
    return 9, 0


def get_device_properties(index: Any = None) -> SimpleNamespace:
    _index(index)
    return SimpleNamespace(name=NAME, major=9, minor=0, multi_processor_count=machine().scheduler.num_sms, warp_size=32)


def synchronize(index: Any = None) -> None:
    _index(index)
    machine().device().synchronize()


def current_stream(index: Any = None) -> streams.Stream:
    _index(index)
    return machine().device().current


def default_stream(index: Any = None) -> streams.Stream:
    _index(index)
    return machine().device().default


def Stream(device: Any = None, priority: int = 0) -> streams.Stream:
    """torch.cuda.Stream."""
    _index(device)
    return machine().device().new_stream(priority)


def stream(to: Optional[streams.Stream]) -> Any:
    """Context manager: launches inside go to `to`; None changes nothing."""
    return nullcontext() if to is None else machine().device().use(to)


def set_stream(to: streams.Stream) -> None:
    machine().device().current = to


def is_current_stream_capturing() -> bool:
    return False


def empty_cache() -> None:
    """There is none."""


def _index(index: Any) -> int:
    number = getattr(index, "index", index)
    if number not in (None, 0):
        raise InvalidArgument(f"device: an emulated rank has one device, number 0, found {index!r}")
    return 0
