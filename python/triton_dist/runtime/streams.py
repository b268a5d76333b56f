# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device and streams of the calling rank, the same in the emulator and on a GPU."""
from typing import Any

from triton_dist.runtime.backend import backend
from triton_dist.runtime.device import Stream
from triton_dist.runtime.errors import InvalidArgument


def device() -> Any:
    """torch.device that this rank's tensors belong on: a GPU, or the CPU in the emulator."""
    return backend().device()


def new_stream(priority: int = 0) -> Stream:
    """A new stream; a negative priority is a higher one."""
    if not isinstance(priority, int):
        raise InvalidArgument(f"priority: expected a whole number, found {priority!r}; a negative one is a higher priority")
    return backend().new_stream(priority)


def current_stream() -> Stream:
    """The stream that launches go to."""
    return backend().current_stream()


def use_stream(stream: Stream) -> Any:
    """Context manager: launches inside go to `stream`."""
    return backend().use_stream(stream)


def synchronize() -> None:
    """Waits for all work of this rank. Raises WaitTimeout where a bounded wait expired on the device."""
    backend().synchronize()
