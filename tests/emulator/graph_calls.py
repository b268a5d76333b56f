# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls of ag_gemm and gemm_rs that are captured, replayed and checked. With the fixture captures_by_rank."""
from functools import partial

import torch
from scenarios import F16, dawdle, graph

import triton_dist
from triton_dist import prepare_graphs
from triton_dist.ops import ag_gemm, gemm_rs
from triton_dist.runtime.groups import resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, gemm_rs_float64, random_tensor


class Static:
    """A call on tensors that stay. m rows a rank; n of ag_gemm and k of gemm_rs may be functions of the rank's index.

    n: columns of the result. With an activation the weight has 2 * n rows.
    """

    def __init__(self, name, m, n, k, seed, group, method="portable", comm_sms=None, dtype=F16, act=None):
        n, k = (size(group.rank) if callable(size) else size for size in (n, k))
        gather = name == "ag_gemm"
        self.group, self.method, self.roundings, self.k = group, method, 1 if gather else group.size, k
        self.x = random_tensor(m if gather else m * group.size, k, dtype=dtype, seed=1000 * seed + group.rank)
        self.weight = random_tensor(n if act is None else 2 * n, k, dtype=dtype, seed=1000 * seed + 100 + group.rank)
        self.out = torch.full((m * group.size if gather else m, n), float("nan"), dtype=dtype)
        self.op, self.reference = (partial(ag_gemm, act=act), partial(ag_gemm_float64, act=act)) if gather else (
            gemm_rs, gemm_rs_float64)
        self.options = dict(method=method, group=group, out=self.out, **({"comm_sms": comm_sms} if gather else {}))

    def __call__(self):
        self.op(self.x, self.weight, **self.options)

    def verify(self):
        expected = self.reference(self.x, self.weight, self.group)
        assert_matches(self.out, expected, k=max(1, self.k) * self.group.size, roundings=self.roundings)


def statics(name, comm_sms, method, group, shapes=((40, 24, 64), (9, 40, 64), (40, 24, 64), (70, 40, 96)), act=None):
    """Calls of these shapes, two of which are the same, with other content."""
    return [Static(name, *shape, seed, group, method, comm_sms, act=act) for seed, shape in enumerate(shapes)]


def captured(calls):
    """A graph of calls that have run before."""
    with graph() as made:
        for call in calls:
            call()
    return made


def warm_up(calls):
    """Runs each call once, and makes it ready for graphs."""
    with prepare_graphs():
        for call in calls:
            call()


def finish(calls):
    triton_dist.synchronize()
    for call in calls:
        call.verify()


def replayed(name, comm_sms, method, slow=None, act=None):
    """Replays of graphs of three calls and of one, eager calls between, nothing else between; twice with other content."""
    group = resolve()
    a, b, c, d = calls = statics(name, comm_sms, method, group, act=act)
    warm_up(calls)
    finish(calls)
    odd, single = captured([a, b, c]), captured([c])
    for content in range(2):
        for call in calls:
            call.x.mul_(-1 - content)
            call.out.fill_(float("nan"))
        group.barrier()
        for step in (odd, odd, d, single, a, odd, c, odd):
            if group.rank == slow:
                dawdle()
            step() if isinstance(step, Static) else step.replay()
        finish(calls)


def replayed_on_two_streams(calls):
    """Captures calls, replays them three times on a stream of its own and once more on the current one, and looks at results."""
    made, stream = captured(calls), triton_dist.new_stream()
    stream.wait_stream(triton_dist.current_stream())
    with triton_dist.use_stream(stream):
        for _ in range(3):
            made.replay()
    triton_dist.current_stream().wait_stream(stream)
    made.replay()
    finish(calls)
