# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Memory outside of the pools that a caller has set: torch sets one for a thread."""
from concurrent.futures import Future
from threading import Thread
from typing import Any, Callable

import torch


def in_another_thread(call: Callable[[], Any]) -> Any:
    """What call() returns. A new thread calls it, on the current stream of this one: it has no memory pool."""
    stream, result = torch.cuda.current_stream(), Future()

    def run() -> None:
        try:
            torch.cuda.set_device(stream.device)    # a thread begins with device 0, on which a switch of streams leaves a context
            torch.cuda.set_stream(stream)
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)
    try:
        Thread(target=run, name="outside of memory pools", daemon=True).start()
    except RuntimeError:                        # the interpreter ends, and starts no threads any more
        return call()
    return result.result()
