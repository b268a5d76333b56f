# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Leaving a world while the device still waits for a peer, or has failed.

To unmap a slab torch waits for the device without a bound, in a destructor, out of which an error ends the process. NCCL frees
memory when a communicator ends, and waits for the device too. So a rank that leaves by an error would hang, or be aborted
before it has told the error.
"""
import ctypes
from threading import Thread
from typing import Any

import torch

_PATIENCE = 2.0                 # seconds


def comes_to_rest(device: int | None) -> bool:
    """Whether all work on a device, None: the current one, ends soon and without an error."""
    ended = []

    def wait() -> None:
        try:
            torch.cuda.synchronize(device)
            ended.append(True)
        except RuntimeError:                    # of the device; this and every later call gives it
            pass
    thread = Thread(target=wait, name="waits for the device", daemon=True)
    try:
        thread.start()
    except RuntimeError:                        # at its end the interpreter starts no threads any more
        return False
    thread.join(_PATIENCE)
    return bool(ended)


def keep_for_good(kept: Any) -> None:
    """An object that is not destroyed, also not when the interpreter ends and empties its modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
