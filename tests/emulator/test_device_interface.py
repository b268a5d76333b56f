# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Triton's public helpers on the emulator's device, and the groups that users hold."""
import inspect

import pytest
import torch
import triton
import triton.language as tl
import triton.testing

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import all_reduce
from triton_dist.runtime.errors import InvalidArgument


@triton.jit
def plus_one(x):
    at = tl.arange(0, 16)
    tl.store(x + at, tl.load(x + at) + 1)


def interface():
    return triton.runtime.driver.active.get_device_interface()


def test_helpers_that_ask_about_the_device_answer():
    assert triton.testing.get_dram_gbps() > 0
    assert triton.testing.get_dram_gbps(0) == triton.testing.get_dram_gbps()
    x = torch.zeros(16)
    assert triton.testing.do_bench(lambda: plus_one[(1,)](x), warmup=1, rep=1) > 0
    assert x[0] >= 1 and torch.equal(x, x[:1].expand(16))


def test_what_triton_uses_of_the_interface_is_there():
    """Whatever its own modules take from it, by their source."""
    source = inspect.getsource(triton.testing)
    used = {name for name in ("Event", "synchronize", "current_device", "Stream", "stream", "current_stream")
            if f"di.{name}" in source or f"get_device_interface().{name}" in source}
    assert {"Event", "synchronize", "current_device"} <= used
    assert all(callable(getattr(interface(), name)) for name in used)


def test_streams_and_events_are_those_of_the_device():
    x, di = torch.zeros(16), interface()
    start, end, side = di.Event(enable_timing=True), di.Event(enable_timing=True), di.Stream()
    start.record()
    with di.stream(side), di.device(0):
        assert di.current_stream() is side
        plus_one[(1,)](x)
        end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0 and di.current_stream() is di.default_stream()
    assert x.tolist() == [1.0] * 16
    assert (di.current_device(), di.device_count(), di.get_device_capability()) == (0, 1, (9, 0))
    assert di.get_device_properties(0).multi_processor_count >= 1 and not di.is_current_stream_capturing()
    for ask in (di.set_device, di.device, di.synchronize, di.get_device_name):
        with pytest.raises(InvalidArgument, match="one device, number 0, found 1"):
            ask(1)


@pytest.mark.parametrize("size", [1, 3])
def test_a_held_group_is_asked_as_torchs_are_and_works_as_group(size):
    def script():
        group = triton_dist.initialize_distributed()
        assert group is triton_dist.initialize_distributed()
        assert all_reduce(torch.ones(2), group=group).tolist() == [size] * 2
        return group.rank(), group.size()
    assert run_ranks(script, size) == [(rank, size) for rank in range(size)]
