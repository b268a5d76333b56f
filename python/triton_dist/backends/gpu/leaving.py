# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Leaving a world while the device still waits for a peer, or has failed.

torch unmaps a slab in a destructor. There it waits for the device, however long that takes, and an error of the device ends the
process. NCCL waits for the device too when a communicator ends, since it frees memory. So a rank that leaves by an error would
hang, or be aborted before it has told the error.
"""
import ctypes
from threading import Event, Thread
from typing import Any

import torch

_PATIENCE = 2.0                 # seconds


class Leaver:
    """Closes the arena of a world that is left, if all work on the device ends soon and without an error.

    A thread of its own waits for the device. It is started with the world, since at its end the interpreter starts none.
    """

    def __init__(self, device: int | None):
        self._device, self._rests = device, False
        self._asked, self._told = Event(), Event()
        Thread(target=self._wait, name="waits for the device", daemon=True).start()

    def _wait(self) -> None:
        self._asked.wait()
        try:
            torch.cuda.synchronize(self._device)
            self._rests = True
        except RuntimeError:                    # of the device; this and every later call gives it
            pass
        self._told.set()

    def close(self, arena: Any) -> bool:
        """Closes `arena`, or keeps it until the process ends. Returns whether it is closed."""
        rests = False
        try:
            self._asked.set()
            self._told.wait(_PATIENCE)
            rests = self._rests
        finally:                                # also where Ctrl-C ends the wait
            if not rests:
                keep_for_good(arena)
        if rests:
            arena.close()
        return rests


def keep_for_good(kept: Any) -> None:
    """An object that is not destroyed, also not when the interpreter ends and empties its modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
