# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""What makes a function one of the ops that users call.

torch.compile does not look into an op: its graph breaks around the call, which runs as it does without torch.compile.
The function is marked for that, not wrapped, so an eager call costs nothing more.
"""
from typing import Any, Callable

from torch._C._dynamo import eval_frame

from triton_dist.runtime import threads

_WHY = "ops of triton_dist run as they are, between compiled graphs"


def entry(op: Callable[..., Any]) -> Callable[..., Any]:
    """Marks `op`, a plain function, and returns it."""
    op._torchdynamo_disable = True                                          # as torch.compiler.disable does: not inlined
    op._torchdynamo_disable_msg = _WHY
    eval_frame.set_code_exec_strategy(op.__code__, _SKIP)                   # nor compiled, with all that it calls
    threads.entries.add(op.__code__)
    return op


_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
