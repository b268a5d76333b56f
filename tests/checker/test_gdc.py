# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Launches that overlap: what a kernel touches before gdc_wait is not ordered behind the kernel ahead of it on its stream."""
import pytest
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.checker import check_kernel
from triton_dist.language import gdc_wait as turn


@triton_dist.jit
def produce(x):
    offsets = tl.arange(0, 64)
    tl.store(x + offsets, offsets.to(tl.float32))


@triton_dist.jit
def consume(x, out, EARLY: tl.constexpr):
    offsets = tl.arange(0, 64)
    if EARLY == "load":
        tl.store(out + offsets, tl.load(x + offsets))            # early load
    if EARLY == "store":
        tl.store(x + offsets, offsets.to(tl.float32))            # early store
    in_turn()
    tl.store(out + offsets, tl.load(x + offsets))


@triton.jit
def in_turn():
    dl.gdc_wait()


@triton_dist.jit
def between(out, WAIT_FIRST: tl.constexpr):
    if WAIT_FIRST:
        dl.gdc_wait()
    dl.gdc_launch_dependents()
    if not WAIT_FIRST:
        dl.gdc_wait()
    tl.store(out, 1.0)


@triton.jit
def gdc_wait():
    """A name is not enough: this waits for nothing."""


@triton.jit
def by_another_name():
    turn()


@triton.jit
def by_triton():
    tl.extra.cuda.gdc_wait()


@triton_dist.jit
def consume_by(x, out, WAIT: tl.constexpr):
    offsets = tl.arange(0, 64)
    tl.store(out + offsets, tl.load(x + offsets))                # early by another way
    WAIT()


def faults(script):
    def host():
        device = triton_dist.device()
        script(*(torch.zeros(64, device=device) for _ in range(3)))
        triton_dist.synchronize()
    return [(fault.kind, fault.text) for fault in check_kernel(host, world_size=1, schedules=4).faults]


@pytest.mark.parametrize("early, access", [("load", "store and load of 'x'"), ("store", "store and store of 'x'")])
def test_what_is_touched_before_the_wait_races_with_the_kernel_ahead(early, access):
    def script(x, out, _):
        produce[(1,)](x)
        consume[(1,)](x, out, early)
    ((kind, text),) = faults(script)
    assert kind == "race" and access in text and f"# early {early}" in text
    assert "put dl.gdc_wait() before the access" in text


def test_a_kernel_that_is_asked_to_overlap_must_wait():
    def script(x, out, _):
        produce[(1,)](x)
        consume[(1,)](x, out, "nothing", launch_pdl=True)        # waits
        produce[(1,)](x, launch_pdl=True)                        # does not: the load of consume may come behind its store
    ((kind, text),) = faults(script)
    assert kind == "race" and "load and store of 'x'" in text and "put dl.gdc_wait()" in text


def test_what_is_touched_behind_the_wait_is_in_order():
    def script(x, out, _):
        for _ in range(3):
            produce[(1,)](x)
            consume[(1,)](x, out, "nothing")
    assert not faults(script)


def test_behind_what_is_no_kernel_nothing_overlaps():
    def script(x, out, y):
        produce[(1,)](x)
        triton_dist.synchronize()                       # the host knows the end
        consume[(1,)](x, out, "load")
        produce[(1,)](x)
        y.copy_(x)                                      # follows the stream
        stream = triton_dist.new_stream()
        stream.wait_stream(triton_dist.current_stream())
        with triton_dist.use_stream(stream):            # first on its stream
            consume[(1,)](x, out, "load")
    assert not faults(script)


@pytest.mark.parametrize("wait_first", [True, False])
def test_a_kernel_that_lets_the_next_one_in_before_it_has_waited_lets_it_overlap_both(wait_first):
    def script(x, out, y):
        produce[(1,)](x)
        between[(1,)](y, wait_first)
        consume[(1,)](x, out, "load")
    found = faults(script)
    assert not found if wait_first else "store and load of 'x'" in found[0][1]


@pytest.mark.parametrize("wait, overlaps", [(by_another_name, True), (by_triton, True), (in_turn, True), (gdc_wait, False)])
def test_a_kernel_overlaps_where_it_waits_whatever_the_function_is_called(wait, overlaps):
    def script(x, out, _):
        produce[(1,)](x)
        consume_by[(1,)](x, out, wait)
    found = faults(script)
    assert bool(found) == overlaps
    assert not found or found[0][0] == "race" and "# early by another way" in found[0][1]
