# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device and streams of the calling rank, the same in the emulator and on a GPU."""
from dataclasses import is_dataclass
from typing import Any

import torch

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


def used_on(stream: Stream, *values: Any) -> None:
    """Notes that tensors are used on a stream on which they may not have been made: those in `values`, in tuples and in handles.

    Without it torch gives the memory of one that is dropped to the stream on which it was made, which may write to it at once.
    """
    for value in values:
        if isinstance(value, torch.Tensor):
            backend().note_use(value, stream)
        elif isinstance(value, (tuple, list)):
            used_on(stream, *value, *getattr(value, "__dict__", {}).values())
        elif is_dataclass(value):
            used_on(stream, *vars(value).values())
