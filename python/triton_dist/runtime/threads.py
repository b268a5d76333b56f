# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which thread of a process calls ops: any of them, one at a time.

A call rewrites parameter blocks and counts that belong to the process, so two calls at once would corrupt each other. A call
compares the number of its thread with that of the last caller. A number, since a thread may get the identity of one that has
ended. Only where another thread comes does it look whether that caller is still inside of an op. Both are on their stacks before
they compare, so one of them always sees the other.
"""
from itertools import count
from threading import get_ident, local
from types import CodeType

from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import UnsupportedFeature
from triton_dist.runtime.stacks import stack_of
from triton_dist.runtime.state import state

_numbers = count(1)


class _This(local):
    """The calling thread. number: no other thread of this process has had it."""

    def __init__(self) -> None:
        self.number = next(_numbers)


this = _This()
entries: set[CodeType] = set()              # code of the functions that users call: who runs one is inside of an op


def take_turn() -> None:
    """Another thread than before calls an op. Raises UnsupportedFeature where that one is still inside of one."""
    me, here = state(), get_ident()
    if me.turn == this.number:
        return
    for code, _ in stack_of(me.thread):
        if code in entries and me.thread != here:
            raise UnsupportedFeature(f"two threads of this process call ops at the same time: {code.co_name} has not returned in "
                                     "the other; let one thread at a time call ops, say under a lock")
    if me.turn:
        backend().enter_thread()
    me.thread, me.turn = here, this.number
