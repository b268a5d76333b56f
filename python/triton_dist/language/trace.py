# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A recorder inside kernels: when a program waits, multiplies, stores. `triton-dist trace` reads it."""
import triton.language as tl
from triton.language import core

from triton_dist.compat.triton import constexpr_function
from triton_dist.language._call import helper, primitive
from triton_dist.language._check import choice
from triton_dist.language._linked import libraries
from triton_dist.language.trace_abi import CLOCK, EVENT, EVENTS, LIBRARY


@constexpr_function
def _number_of(function: str, event) -> int:
    choice(function, "event", event, EVENTS)
    return [number for number in range(len(EVENTS)) if EVENTS[number] == event][0]     # Triton refuses EVENTS.index here


@core.builtin
def _is_traced(_semantic=None):
    """Whether the kernel is compiled to record."""
    return core.constexpr(LIBRARY in libraries(_semantic))


@primitive
def _event(event, stop, lap, number):
    return EVENT, (event, stop, lap, number)


@primitive
def _clock():
    return CLOCK, ()


@helper
def trace_start(event: tl.constexpr, lap, number=0):
    """Notes that something begins. Nothing at all is compiled unless the process traces (TRITON_DIST_TRACE).

    Any program or Gluon partition calls it, in uniform control flow. It orders nothing, and the compiler may move arithmetic past
    it.

    Args:
        event: what begins, a constexpr: "tile", "wait", "load", "mma", "add", "store", "signal" or "push".
        lap: how many of its kind the program had before, int32: the round of a persistent loop. Each lap is kept once.
        number: an int32 that is shown with it, such as the number of the tile, or of the rank that is waited for; -1: all ranks.
    """
    kind: tl.constexpr = _number_of("trace_start", event)      # also where nothing is recorded: a wrong name is wrong at once
    if _is_traced():
        _event(kind, 0, lap, number)


@helper
def trace_stop(event: tl.constexpr, lap):
    """Notes that what `trace_start` began has ended.

    Args:
        event: as there.
        lap: as there.
    """
    kind: tl.constexpr = _number_of("trace_stop", event)
    if _is_traced():
        _event(kind, 1, lap, 0)
