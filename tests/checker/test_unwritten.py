# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Torch operations on memory that nobody has written: a fault only where a result that somebody uses depends on it."""
import pytest
import torch
import triton.language as tl

import triton_dist
from triton_dist.checker import check_kernel

N = 32


@triton_dist.jit
def write_some(x, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.zeros([N], tl.float32) + 2, mask=i < n)


@triton_dist.jit
def read_all(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i))


def half():
    """[N, 1], of which a kernel has written the first half."""
    x = torch.empty(N, 1)
    write_some[(1, )](x, N // 2, N=N)
    return x


def used(x):
    """A kernel reads x."""
    out = torch.zeros(N)
    read_all[(1, )](x, out, N=N)
    return out


CAME = torch.arange(N)[:, None] < N // 2
DROPS = {
    "where": lambda x: torch.where(CAME, x, 0.0),
    "where, the other way": lambda x: torch.where(~CAME, 0.0, x),
    "masked_fill": lambda x: x.masked_fill(~CAME, 1.0),
    "rows by number": lambda x: x[torch.arange(N) // 2],
    "rows by mask": lambda x: torch.cat([x[CAME[:, 0]]] * 2),
    "elementwise, dropped later": lambda x: torch.where(CAME, (2 * x + 1).exp().double(), 0.0).float(),
    "in bfloat16": lambda x: torch.where(CAME, x.bfloat16() + 1, 0.0).float(),
    "in float8": lambda x: torch.where(CAME, x.to(torch.float8_e4m3fn).float(), 0.0),
    "in place, overwritten later": lambda x: torch.zeros(N, 1).copy_(x + 1).masked_fill_(~CAME, 3.0),
    "at another place": lambda x: torch.zeros(N + 1, 1).index_put_((torch.where(CAME[:, 0], torch.arange(N), -1), ), x)[:N],
}
KEEPS = {
    "as it is": lambda x: x,
    "elementwise": lambda x: 2 * x,
    "where it has not come": lambda x: torch.where(CAME, 0.0, x),
    "one row too many": lambda x: x[torch.arange(N) // 2 + 1],
    "whether it is 0": lambda x: torch.where(x != 0, 0.0, 1.0),
    "whether it is below 0": lambda x: torch.where(x < 0, 0.0, 1.0),
    "whether it is large": lambda x: torch.where(x > 1000, 0.0, 1.0),
    "in place": lambda x: torch.zeros(N, 1).copy_(x),
    "over several operations": lambda x: torch.cat([(x + 1).exp()[N // 2:], torch.zeros(N // 2, 1)]),
    "a sum of all": lambda x: x.sum() + torch.zeros(N, 1),
}


@pytest.mark.parametrize("name", DROPS)
def test_what_is_dropped_is_no_fault(name):
    def host():
        out = used(DROPS[name](half()))
        triton_dist.synchronize()
        assert not bool(out.isnan().any())
    report = check_kernel(host, 1, 2)
    assert report.clean, str(report)


@pytest.mark.parametrize("name", KEEPS)
def test_what_a_kernel_uses_is_reported(name):
    report = check_kernel(lambda: used(KEEPS[name](half())), 1, 2)
    assert [fault.kind for fault in report.faults] == ["uninitialized-read"]
    later = name != "as it is" and not name.startswith("whether")         # a mask is used at once
    assert ("computed by torch from: load of 'x'" in str(report)) == later, str(report)


@pytest.mark.parametrize("uses", [lambda x: float((2 * x).sum()), lambda x: torch.equal(x, 2 * x), lambda x: bool((x > 0).all()),
                                  lambda x: x.nonzero()])
def test_what_the_host_uses_is_reported(uses):
    report = check_kernel(lambda: uses(half()), 1, 2)
    assert [fault.kind for fault in report.faults] == ["uninitialized-read"] and "load of 'x'" in str(report)


def test_a_race_with_what_is_dropped_is_reported():
    """The rows have been written, but by another stream."""
    def host():
        x = torch.zeros(N, 1)
        with triton_dist.use_stream(triton_dist.new_stream()):
            write_some[(1, )](x, N, N=N)
        torch.where(CAME, x, 0.0)
    assert [fault.kind for fault in check_kernel(host, 1, 1).faults] == ["race"]


def test_memory_that_is_used_again_is_forgotten():
    """The result of an operation on unwritten memory goes, and what takes its place has nothing of that."""
    def host():
        x = half()
        for _ in range(8):
            y = x + 1
            del y
            used(torch.ones(N, 1))
    report = check_kernel(host, 1, 2)
    assert report.clean, str(report)
