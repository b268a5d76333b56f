# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Events of streams, and the stream on which asynchronous calls run."""
from typing import Any, Callable

from triton_dist.runtime.backend import backend
from triton_dist.runtime.streams import used_on
from triton_dist.runtime.workspace import side_streams


class EventHandle:
    """An event of the current stream at the time it is made."""

    def __init__(self) -> None:
        self._event = backend().current_stream().record_event()

    def current_stream_wait(self) -> None:
        """The current stream waits for it."""
        self.wait_on(backend().current_stream())
        backend().before_torch()

    def wait_on(self, stream: Any) -> None:
        """`stream` waits for it."""
        stream.wait_event(self._event)


class EventOverlap:
    """An event, or none, as DeepEP's calls return it.

    Attributes:
        event: an EventHandle, or None where the call was not asynchronous.
        extra_tensors: kept as long as the object.
        hook_after_wait: called once after the next wait, or None.
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple | None = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors
        self.hook_after_wait: Callable[[], Any] | None = None
        self._releases = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """The current stream waits for the event. Returns what the registered hook returns, or None."""
        if self.event is not None:
            self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if release_handle:
            self.event = None
        return None if hook is None else hook()

    def wait(self) -> Any:
        """The same."""
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Has the next wait call it."""
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """For `with event(release_handle=True):`."""
        self._releases = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: Any) -> None:
        """The current stream waits at the end of the block."""
        self.current_stream_wait(self._releases)
        self._releases = False


def run(call: Callable[[], Any], inputs: tuple, previous_event: Any, is_async: bool, also_after: Any = None) -> tuple:
    """(what `call()` returns, an EventOverlap of its end).

    is_async: it runs on a stream of its own, which waits for previous_event or for the current stream, and the current stream
    does not wait for it. Otherwise it runs on the current stream, and the event is none.
    previous_event: an EventHandle, an EventOverlap, or None. also_after: likewise, of an event that is waited for in any case.
    inputs: all that `call` reads or writes and that was made before, in tuples and handles.
    """
    before, also = (getattr(event, "event", event) for event in (previous_event, also_after))
    if not is_async:
        for event in (before, also):
            if event is not None:
                event.current_stream_wait()
        result = call()
        backend().before_torch()
        return result, EventOverlap()
    stream, here = side_streams(1)[0], backend().current_stream()
    if before is None:
        stream.wait_stream(here)
    else:
        before.wait_on(stream)
    if also is not None:
        also.wait_on(stream)
    with backend().use_stream(stream):
        result = call()
        event = EventHandle()
    used_on(stream, inputs)
    used_on(here, result)
    return result, EventOverlap(event)
