# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which Python functions a call enters."""
import gc
import sys
from types import FrameType
from typing import Any, Callable


def profiled(call: Callable[[], Any], note: Callable[[FrameType], object]) -> Any:
    """Returns what call() returns. note(frame) is called for each Python function that is entered, `call` itself first.

    The garbage collector waits: it calls finalizers of what other tests have left, at any time.
    """
    gc.disable()
    sys.setprofile(lambda frame, event, _: note(frame) if event == "call" else None)
    try:
        return call()
    finally:
        sys.setprofile(None)
        gc.enable()
