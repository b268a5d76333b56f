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
    """Calls of ops inside are made ready to be captured in graphs later. All ranks must make them so.

    Most calls are ready once they have been made. ag_gemm is not, where the copy engine sends x: a graph needs another plan, with
    room of its own in the symmetric heap. That plan is made here, or by a call on another stream than the default one, as the
    warm-up before a capture is.

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
