# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls that will be captured in graphs: who makes them ready."""
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator

from triton_dist.runtime.backend import backend
from triton_dist.runtime.state import state

_PREPARES: ContextVar = ContextVar("triton_dist_prepare_graphs", default=False)


@contextmanager
def prepare_graphs() -> Iterator[None]:
    """Context manager: calls of ops inside prepare their later capture in a CUDA graph. All ranks must use it alike.

    Most ops can be captured after any earlier call. If the copy engine sends x of ag_gemm, a graph needs another plan, with its
    own room in the symmetric heap. That plan is made here, or by a call on a stream other than the default one, such as torch's
    warm-up before a capture.

    Example:
        with triton_dist.prepare_graphs():
            model(x)
        with torch.cuda.graph(graph):
            model(x)
    """
    state().doubt()                                 # calls that are known are looked at again
    token = _PREPARES.set(True)
    try:
        yield
    finally:
        _PREPARES.reset(token)
        state().doubt()


def asked() -> bool:
    """Whether calls are to be made ready for graphs now."""
    return _PREPARES.get() or backend().warms_up()
