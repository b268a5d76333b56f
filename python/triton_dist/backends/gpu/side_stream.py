# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A stream that runs beside the current one, and is joined with it again in each call."""
from typing import Any

import torch


class SideStream(torch.cuda.Stream):
    """torch makes and destroys an event for each wait between two streams. This stream keeps one for each direction.

    An event may be recorded again at once: a wait is for the record before it.
    """

    _begin: Any
    _end: Any

    def __new__(cls, priority: int = 0) -> "SideStream":
        made = super().__new__(cls, priority=priority)
        made._begin, made._end = torch.cuda.Event(), torch.cuda.Event()
        return made

    def wait_stream(self, stream: Any) -> None:
        """What is put on this stream from now on runs after what is on `stream` now."""
        self._begin.record(stream)
        self.wait_event(self._begin)

    def record_event(self, event: Any = None) -> Any:
        """An event after what is on this stream now: other streams' `wait_stream` asks for it."""
        return super().record_event(self._end if event is None else event)
