# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What makes a function one that users call: an op, or one that makes or frees symmetric memory.

torch.compile does not look into it. An op is recorded as an operator (`ops/registry.py`). At the other functions the graph
breaks: they run as they do without torch.compile. Functions are marked for that, not wrapped, so an eager call costs nothing
more.
"""
from typing import Any, Callable

from triton_dist.compat import torch as private
from triton_dist.runtime import threads

_WHY = "this function of triton_dist runs as it is, between compiled graphs"


def entry(op: Callable[..., Any]) -> Callable[..., Any]:
    """Marks `op`, a plain function, and returns it."""
    private.mark_not_compiled(op, _WHY)
    if private.set_code_exec_strategy is not None:          # nor what it calls; without this the compiler looks at each frame
        private.set_code_exec_strategy(op.__code__, private.SKIP)
    threads.entries.add(op.__code__)
    return op


def seen_by_compile_as(op: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """Has torch.compile look into `traced` where a model calls `op`. To a torch that does not know the mark the graph breaks."""
    private.mark_compiled_as(op, traced)
