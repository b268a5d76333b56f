# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A stream that runs beside the current one, and is joined with it again in each call."""
from typing import Any

import torch


class SideStream(torch.cuda.Stream):
    """torch makes and destroys an event for each wait between two streams. This stream keeps the one that it waits for.

    The event may be recorded again at once: a wait is for the record before it. Events of this stream are torch's own, since
    others may hold them.
    """

    _begin: Any

    def __new__(cls, priority: int = 0) -> "SideStream":
        made = super().__new__(cls, priority=priority)
        made._begin = torch.cuda.Event()
        return made

    def wait_stream(self, stream: Any) -> None:
        """What is put on this stream from now on runs after what is on `stream` now."""
        self._begin.record(stream)
        self.wait_event(self._begin)
