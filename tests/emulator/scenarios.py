# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Host scripts that try to break the protocol, one rank each. Run on a virtual world by the tests beside this file.

Every scenario checks each result against float64 only after its last call, so that calls follow each other with nothing
between them; inputs differ from call to call, so that data of an earlier call is wrong data.
"""
from contextlib import contextmanager
from unittest import mock

import pytest
import torch

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.streams import Stream
from triton_dist.ops import ag_gemm, all_reduce, all_reduce_rmsnorm, all_to_all_vdev, gemm_ar, gemm_rs
from triton_dist.ops.calls import acts
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace
from triton_dist.testing import (ag_gemm_float64, all_reduce_rmsnorm_float64, assert_matches, gemm_ar_float64, gemm_rs_float64,
                                 poisoned, random_tensor)

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def ordered(weight, columns):
    """`weight` with contiguous columns instead of rows, as a backward pass has it; or as it is."""
    return weight.t().contiguous().t() if columns else weight


class AG:
    """One ag_gemm call: n, the rows of the weight, may be a function of the rank's index."""
    kind, method, dtype, columns = "ag_gemm", "portable", F16, False

    def __init__(self, m, n, k, dtype=None, bias=False, comm_sms=None, act=None):
        self.m, self.n, self.k, self.dtype, self.bias = m, n, k, dtype or self.dtype, bias
        self.comm_sms, self.act = comm_sms, act

    def __call__(self, seed, group, **kwargs):
        n = self.n(group.rank) if callable(self.n) else self.n
        x = random_tensor(self.m, self.k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = ordered(random_tensor(n, self.k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank), self.columns)
        b = random_tensor(n, dtype=self.dtype, seed=1000 * seed + 200 + group.rank) if self.bias else None
        out = poisoned(self.m * group.size, acts.columns(self.act, n), dtype=self.dtype)
        got = ag_gemm(x, w, group=group, bias=b, out=out, method=self.method, comm_sms=self.comm_sms, act=self.act, **kwargs)

        def verify():
            gathered = got[1] if kwargs.get("return_gathered") else None
            assert_matches(out, ag_gemm_float64(x, w, group, b, self.act), k=self.k)
            if gathered is not None:
                expected = torch.empty_like(gathered)
                group.all_gather_tensor(expected, x)
                assert torch.equal(gathered, expected), "gathered input differs"
            return out
        return verify


class RS:
    """One gemm_rs call: k may be a function of the rank's index; m is per rank."""
    kind, method, dtype, columns = "gemm_rs", "portable", F16, False

    def __init__(self, m, n, k, dtype=None, bias=False, hop_dtype=None):
        self.m, self.n, self.k, self.dtype, self.bias, self.hop = m, n, k, dtype or self.dtype, bias, hop_dtype

    def __call__(self, seed, group, **kwargs):
        k = self.k(group.rank) if callable(self.k) else self.k
        x = random_tensor(self.m * group.size, k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = ordered(random_tensor(self.n, k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank), self.columns)
        b = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 200) if self.bias else None
        out = poisoned(self.m, self.n, dtype=self.dtype)
        gemm_rs(x, w, group=group, bias=b, out=out, method=self.method, hop_dtype=self.hop, **kwargs)

        def verify():
            roundings = group.size if self.hop is None else 1
            assert_matches(out, gemm_rs_float64(x, w, group, b), k=max(1, k) * group.size, roundings=roundings)
            return out
        return verify


class AR:
    """One all_reduce of n elements that begin `skip` elements into a tensor; in place where `in_place`."""

    def __init__(self, n, method, dtype=BF16, in_place=False, skip=0):
        self.n, self.method, self.dtype, self.in_place, self.skip = n, method, dtype, in_place, skip

    def term(self, index, seed):
        """What a rank has."""
        return random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + index)

    def __call__(self, seed, group):
        def of(index):
            return self.term(index, seed)
        x = torch.cat([torch.zeros(self.skip, dtype=self.dtype), of(group.rank)])[self.skip:]
        out = x if self.in_place else poisoned(self.n, dtype=self.dtype)
        assert all_reduce(x, group=group, out=out, method=self.method) is out

        def verify():
            expected = sum((of(index).double() for index in range(group.size)), torch.zeros(self.n, dtype=torch.float64))
            assert_matches(out, expected, k=group.size, roundings=group.size if self.method == "unfused" else 1)
            return out
        return verify


class Moves:
    """One all_gather, reduce_scatter or all_to_all_single of n elements a rank, 1-D; in place where `in_place`."""

    def __init__(self, op, n, method, dtype=BF16, in_place=False, skip=0):
        self.op, self.n, self.method, self.dtype, self.in_place, self.skip = op, n, method, dtype, in_place, skip

    def __call__(self, seed, group):
        def of(index):
            """What a rank has, a row for each rank unless it gathers."""
            rows = 1 if self.op == "all_gather" else group.size
            return random_tensor(rows, self.n, dtype=self.dtype, seed=1000 * seed + index)

        def placed(t):
            return torch.cat([torch.zeros(self.skip, dtype=self.dtype), t.view(-1)])[self.skip:]
        every = [of(index) for index in range(group.size)]
        mine = slice(group.rank * self.n, (group.rank + 1) * self.n)
        x, rows = placed(every[group.rank]), 1 if self.op == "reduce_scatter" else group.size
        out = poisoned(self.skip + rows * self.n, dtype=self.dtype)[self.skip:]
        if self.in_place and self.op == "all_gather":
            out[mine] = x
            x = out[mine]
        elif self.in_place:
            out = x[mine] if self.op == "reduce_scatter" else x
        assert getattr(ops, self.op)(x, group=group, out=out, method=self.method) is out

        def verify():
            if self.op == "reduce_scatter":
                expected = sum(part[group.rank].double() for part in every)
                assert_matches(out, expected, k=group.size, roundings=group.size if self.method == "unfused" else 1)
            else:
                assert torch.equal(out, torch.cat([part[-1 if self.op == "all_gather" else group.rank] for part in every]))
            return out
        return verify


class GAR:
    """One gemm_ar call: k may be a function of the rank's index. residual: None, "apart", "strided" or "in place"."""
    kind = "packets"

    def __init__(self, m, n, k, method="packets", dtype=F16, bias=False, residual=None):
        self.m, self.n, self.k, self.method, self.dtype, self.bias, self.residual = m, n, k, method, dtype, bias, residual

    def __call__(self, seed, group):
        k = self.k(group.rank) if callable(self.k) else self.k
        x = random_tensor(self.m, k, dtype=self.dtype, seed=1000 * seed + group.rank)
        w = random_tensor(self.n, k, dtype=self.dtype, seed=1000 * seed + 100 + group.rank)
        b = random_tensor(self.n, dtype=self.dtype, seed=1000 * seed + 200) if self.bias else None
        r = random_tensor(self.m, self.n, dtype=self.dtype, seed=1000 * seed + 300) if self.residual else None
        if self.residual == "strided":
            r = r.t().contiguous().t()
        before = r if r is None else r.clone()
        out = r if self.residual == "in place" else poisoned(self.m, self.n, dtype=self.dtype)
        assert gemm_ar(x, w, group=group, bias=b, residual=r, out=out, method=self.method) is out

        def verify():
            roundings = group.size + 1 if self.method == "packets" else group.size + 3
            assert_matches(out, gemm_ar_float64(x, w, group, b, before), k=max(1, k) * group.size, roundings=roundings)
            return out
        return verify


class ARN:
    """One all_reduce_rmsnorm of x [m, n] with residual None, "apart", "strided" or "in place".

    over_x: what goes over x, the "norm" or the "sum".
    """
    kind, eps = "packets", 1e-3

    def __init__(self, m, n, method, dtype=F16, bias=False, residual=None, skip=0, over_x=None):
        self.m, self.n, self.method, self.dtype, self.bias, self.residual, self.skip = m, n, method, dtype, bias, residual, skip
        self.over_x = over_x

    def tensors(self, seed, group):
        """x, weight, bias, residual, the residual before the call, and where the sum goes."""
        def of(*shape, salt):
            flat = random_tensor(self.skip + torch.Size(shape).numel(), dtype=self.dtype, seed=1000 * seed + salt)
            return flat[self.skip:].view(shape)
        x, w = of(self.m, self.n, salt=group.rank), of(self.n, salt=100)
        b = of(self.n, salt=200) if self.bias else None
        r = of(self.m, self.n, salt=300) if self.residual else None
        if self.residual == "strided":
            r = r.t().contiguous().t()
        before = None if r is None else r.clone()
        return x, w, b, r, before, r if self.residual == "in place" else poisoned(self.m, self.n, dtype=self.dtype)

    def __call__(self, seed, group):
        x, w, b, r, before, total = self.tensors(seed, group)
        given, out = x.clone(), x if self.over_x == "norm" else poisoned(self.m, self.n, dtype=self.dtype)
        total = x if self.over_x == "sum" else total
        got = all_reduce_rmsnorm(x, w, bias=b, residual=r, eps=self.eps, group=group, out=out, residual_out=total,
                                 method=self.method)
        assert got[0] is out and got[1] is total

        def verify():
            roundings = 1 if self.method.endswith("_shot") else group.size + 3
            norm, summed = all_reduce_rmsnorm_float64(given, w, group, b, before, self.eps)
            assert_matches(total, summed, k=group.size, roundings=roundings)
            assert_matches(out, norm, k=self.n, roundings=roundings + 3)
            return torch.stack([out, total])
        return verify


class V:
    """One all_to_all_vdev of x [m, row] with random splits, or splits(rank, seed); a capacity of None is that of all rows."""
    kind = "rows by splits"

    def __init__(self, m, row, method="push", dtype=BF16, capacity=None, splits=None, kept=torch.int64):
        self.m, self.row, self.method, self.dtype, self.capacity = m, row, method, dtype, capacity
        self.splits, self.kept = splits or self.random_splits, kept

    def random_splits(self, rank, seed, world):
        """Some rows go to nobody, and now and then a rank gets none."""
        chosen = torch.randint(world + 1, (self.m,), generator=torch.Generator().manual_seed(1000 * seed + rank))
        return chosen[chosen != seed % (world + 1)].bincount(minlength=world + 1)[:world].tolist()

    def __call__(self, seed, group):
        def of(index):
            return random_tensor(self.m, self.row, dtype=self.dtype, seed=1000 * seed + index)
        capacity = group.size * self.m if self.capacity is None else self.capacity
        every = [self.splits(index, seed, group.size) for index in range(group.size)]
        out, told = poisoned(capacity, self.row, dtype=self.dtype), torch.full((2, group.size), -7, dtype=self.kept)
        got = all_to_all_vdev(of(group.rank), torch.tensor(every[group.rank], dtype=self.kept), out=out, out_splits_offsets=told,
                              group=group, method=self.method)
        assert got[0] is out and got[1] is told

        def verify():
            rows, splits = [], []
            for index, wanted in enumerate(every):
                begins = [min(self.m, sum(min(max(w, 0), self.m) for w in wanted[:j])) for j in range(group.size)]
                splits.append(min(max(wanted[group.rank], 0), self.m - begins[group.rank]))
                rows.append(of(index)[begins[group.rank]:][:splits[-1]])
            expected = torch.cat(rows)[:capacity]
            assert told.tolist() == [splits, [sum(splits[:index]) for index in range(group.size)]]
            assert torch.equal(out[:len(expected)], expected), "rows differ"
            assert bool(out[len(expected):].isnan().all()), "rows behind the last one were written"
            return out[:len(expected)]
        return verify


def back_to_back(calls, repeat=1, slow=None):
    """The calls in order, `repeat` times, nothing between; then all results are checked.

    `slow`: a rank that dawdles before every call, so that the others run as far ahead as they are let.
    """
    members, pending = resolve(), []
    for seed, call in enumerate(list(calls) * repeat):
        if members.rank == slow:
            dawdle()
        pending.append(call(seed, members))
    triton_dist.synchronize()
    return [verify() for verify in pending]


def overtaking(calls, slow=0, repeat=3):
    """As back_to_back, with a rank that is slow."""
    return back_to_back(calls, repeat=repeat, slow=slow)


def dawdle(turns=200):
    """Gives other actors the floor many times."""
    from triton_dist.backends.emulator.engine import scheduler
    for _ in range(turns):
        scheduler.active().point()


def near_the_wrap(calls, kinds, start=2**31 - 3, repeat=4):
    """Epochs that pass from 2^31 - 1 to -2^31 in the middle of the calls."""
    members = resolve()
    back_to_back(calls)
    for kind in kinds:
        workspace(members, kind).set_epoch(start)
    return back_to_back(calls, repeat=repeat)


FIVE_ON = {2**31 - 3: -2**31 + 2, -3: 4}        # epoch: that of the fifth call behind it; 2 follows -1


def past_the_wrap_and_zero(calls, growing, kind, start):
    """Calls that the device counts. In five `growing` ones the workspace grows, just at 0 too: what fresh memory holds."""
    near_the_wrap(calls, [kind], start=start)
    workspace(resolve(), kind).set_epoch(start)
    back_to_back(growing)
    assert set(workspace(resolve(), kind).control.tolist()) == {FIVE_ON[start]}


def two_groups(calls, repeat=2):
    """Each rank alternates between the world and the half of the world it is in."""
    world = resolve()
    half = world.size // 2
    halves = [world.new_group(range(half)), world.new_group(range(half, world.size))]
    mine = halves[world.rank >= half]
    pending = [call(seed, group) for seed, call in enumerate(list(calls) * repeat) for group in (world, mine)]
    triton_dist.synchronize()
    return [verify() for verify in pending]


def side_stream(calls):
    """Calls that alternate between the default stream and a side stream."""
    members, side = resolve(), triton_dist.new_stream()
    pending = []
    for seed, call in enumerate(list(calls) * 2):
        if seed % 2:
            with triton_dist.use_stream(side):
                pending.append(call(seed, members))
        else:
            pending.append(call(seed, members))
    triton_dist.synchronize()
    return [verify() for verify in pending]


class Graph:
    """Launches, pushes and waits of streams that were captured, to be done by each replay, on the stream that is current then."""

    def __init__(self):
        self._origin, self._steps = triton_dist.current_stream(), []

    def add(self, stream, step):
        """step(at): done on `stream`; at(stream) tells where what was captured on a stream is replayed."""
        self._steps.append((stream, step))

    def replay(self):
        here = triton_dist.current_stream()

        def at(stream):
            return here if stream is self._origin else stream
        for stream, step in self._steps:
            with triton_dist.use_stream(at(stream)):
                step(at)


@pytest.fixture
def captures_by_rank():
    """Each rank tells by `capturing` or `graph` whether it captures."""
    launch, push, wait = EmulatorBackend.launch, EmulatorBackend.push, Stream.wait_stream

    def launch_or_note(self, *args):
        if isinstance(made := getattr(state(), "captures", None), Graph):
            made.add(self.current_stream(), lambda at: launch(self, *args))
        else:
            launch(self, *args)

    def push_or_note(self, source, transfers, value, stream):
        if isinstance(made := getattr(state(), "captures", None), Graph):
            made.add(stream, lambda at: push(self, source, transfers, value, at(stream)))
        else:
            push(self, source, transfers, value, stream)

    def wait_or_note(self, other):
        if isinstance(made := getattr(state(), "captures", None), Graph):
            made.add(self, lambda at: wait(at(self), at(other)))
        else:
            wait(self, other)
    with mock.patch.object(EmulatorBackend, "is_capturing", lambda self: hasattr(state(), "captures")), \
            mock.patch.object(EmulatorBackend, "launch", launch_or_note), \
            mock.patch.object(EmulatorBackend, "push", push_or_note), mock.patch.object(Stream, "wait_stream", wait_or_note):
        yield


@contextmanager
def capturing():
    """A stream that is captured, as far as the host can see; kernels still run. With captures_by_rank."""
    state().captures = True
    yield
    del state().captures


@contextmanager
def graph():
    """Captures the kernels and copies of fused ops into a Graph: none runs before its replay. With captures_by_rank."""
    state().captures = made = Graph()
    yield made
    del state().captures


@contextmanager
def capture_invalid_on(rank):
    """A capture in which each launch of one rank fails, as where another of its threads has made the capture invalid."""
    mine, launch = resolve().rank == rank, EmulatorBackend.launch

    def refused(self, *args):
        if hasattr(state(), "captures") and resolve().rank == rank:
            raise RuntimeError("the capture is invalid")
        return launch(self, *args)
    with mock.patch.object(EmulatorBackend, "launch", refused), graph():
        try:
            yield
        except RuntimeError:
            assert mine
        else:
            assert not mine
