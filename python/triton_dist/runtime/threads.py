# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which thread of a process calls ops: any of them, one at a time.

A call rewrites parameter blocks and counts that belong to the process, so two calls at once would corrupt each other. A
call compares the number of its thread with that of the last caller. Only where another thread comes does it look whether
that caller is still inside of an op. Both are on their stacks before they compare, so one of them always sees the other.
"""
from threading import get_ident
from types import CodeType

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.stacks import stack_of
from triton_dist.runtime.state import state

entries: set[CodeType] = set()              # code of the functions that users call: who runs one is inside of an op


def take_turn() -> None:
    """Another thread than before calls an op. Raises UnsupportedFeature where that one is still inside of one."""
    me, here = state(), get_ident()
    if me.thread == here:
        return
    for code, _ in stack_of(me.thread):
        if code in entries:
            raise UnsupportedFeature(f"two threads of this process call ops at the same time: {code.co_name} has not returned in "
                                     "the other; let one thread at a time call ops, say under a lock")
    if me.thread:
        backend().enter_thread()
    me.thread = here
