# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Numbers of rows that have not come before: ranks meet only for what is new about them, and after `warm_up` never."""
from collections import Counter

import pytest
import torch
from profiled import profiled
from torch.nn.functional import linear

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops import OPS, ag_gemm, all_gather, all_reduce, gemm_ar, gemm_ar_rmsnorm, gemm_rs, reduce_scatter
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import Group, resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

K, N, MOST = 48, 40, 64


class Meetings:
    """What ranks say to each other on the host."""

    def __init__(self, monkeypatch):
        self.of_rank: dict = {}
        for name in ("all_gather_object", "barrier", "broadcast_object"):
            for kind in (Group, *Group.__subclasses__()):
                if name in vars(kind):
                    monkeypatch.setattr(kind, name, self._counted(name, vars(kind)[name]))

    def _counted(self, name, real):
        def call(group, *args, **kwargs):
            self.of_rank.setdefault(resolve().rank, []).append(name)
            return real(group, *args, **kwargs)
        return call

    def since(self) -> list:
        """Those of this rank since it asked last."""
        return self.of_rank.pop(resolve().rank, [])


def calls() -> dict:
    """{name: (a call with that many rows on each rank, what it must give)} of ops whose rows a server changes."""
    group = resolve()
    x = [random_tensor(MOST * group.size, K, dtype=torch.float32, seed=rank) for rank in range(group.size)]
    weight = [random_tensor(N, K, dtype=torch.float32, seed=100 + rank) for rank in range(group.size)]
    mine, w = x[group.rank], weight[group.rank]

    def summed(rows):
        return sum(linear(a[:rows], b) for a, b in zip(x, weight))

    def part(whole, rows):
        return whole[group.rank * rows:(group.rank + 1) * rows]
    return {
        "ag_gemm": (lambda r: ag_gemm(mine[:r], w), lambda r: linear(torch.cat([a[:r] for a in x]), w)),
        "gemm_rs": (lambda r: gemm_rs(mine[:r * group.size], w), lambda r: part(summed(r * group.size), r)),
        "gemm_ar": (lambda r: gemm_ar(mine[:r], w), summed),
        "all_gather": (lambda r: all_gather(mine[:r]), lambda r: torch.cat([a[:r] for a in x])),
        "reduce_scatter": (lambda r: reduce_scatter(mine[:r * group.size]),
                           lambda r: part(sum(a[:r * group.size] for a in x), r)),
        "all_reduce": (lambda r: all_reduce(mine[:r]), lambda r: sum(a[:r] for a in x)),
    }


@pytest.mark.one
@pytest.mark.parametrize("name, world", [
    ("ag_gemm", 3), ("gemm_rs", 2), ("all_gather", 3), ("reduce_scatter", 2), ("all_reduce", 3),
    pytest.param("gemm_ar", 3, marks=pytest.mark.full)])
def test_after_it_no_number_of_rows_makes_ranks_meet(name, world, monkeypatch):
    meetings = Meetings(monkeypatch)

    def script():
        call, expected = calls()[name]
        used = triton_dist.warm_up(call, range(1, MOST + 1))
        assert {1, 2, MOST} <= set(used) and used[0] == MOST and len(used) == len(set(used)) and meetings.since()
        for rows in (*range(2, MOST, 13), MOST):
            torch.testing.assert_close(call(rows), expected(rows), rtol=1e-4, atol=1e-4)
            assert meetings.since() == [], rows
    run_ranks(script, world)


@pytest.fixture
def compiled(monkeypatch):
    """{rank: what its launches need to have compiled: kernel, constexprs and launch options}. Nothing is launched."""
    found: dict = {}
    prepare = EmulatorBackend.prepare

    def noted(self, kernel, grid, args, kwargs, varying=None):
        options = tuple(sorted((name, str(value)) for name, value in kwargs.items()))
        found.setdefault(resolve().rank, set()).add((kernel.__name__, options))
        return prepare(self, kernel, grid, args, kwargs, varying)
    monkeypatch.setattr(EmulatorBackend, "prepare", noted)
    monkeypatch.setattr(EmulatorBackend, "launch", lambda *args: None)
    monkeypatch.setattr(EmulatorBackend, "push", lambda *args: None)
    return found


WIDE = 256                              # so that numbers of rows differ in the threads of a collective's programs
LARGE = {
    "ag_gemm": lambda x, weight, group, r: ag_gemm(x[:r], weight[:200], method="ws"),
    "gemm_rs": lambda x, weight, group, r: gemm_rs(x[:r * group.size], weight[:40], method="ws"),
    "gemm_ar": lambda x, weight, group, r: gemm_ar(x[:r], weight[:72]),
    "all_reduce": lambda x, weight, group, r: all_reduce(x[:r]),
    "all_gather": lambda x, weight, group, r: all_gather(x[:r], method="one_shot"),
    "reduce_scatter": lambda x, weight, group, r: reduce_scatter(x[:r * group.size], method="one_shot"),
}


@pytest.mark.parametrize("name", LARGE)
def test_after_it_no_number_of_rows_needs_a_kernel_that_is_not_compiled(name, compiled):
    """Of all numbers of a range, not only of those divisible by something."""
    def script():
        group, most = resolve(), 160
        x = random_tensor(most * group.size, WIDE, dtype=torch.float16, seed=group.rank)
        weight = random_tensor(200, WIDE, dtype=torch.float16, seed=100 + group.rank)

        def call(rows):
            return LARGE[name](x, weight, group, rows)
        used = triton_dist.warm_up(call, range(1, most + 1))
        ready = set(compiled[group.rank])
        for rows in range(1, most + 1, 3):
            call(rows)
        return len(used), compiled[group.rank] - ready
    for used, late in run_ranks(script, 2, num_sms=5):
        assert late == set() and used < 70


@pytest.mark.parametrize("name, described", [("ag_gemm", 3), ("gemm_rs", 2)])
def test_a_new_number_of_rows_makes_nothing_that_its_class_has(name, described, compiled):
    """Descriptors of x and out, and what ranks agree on, made of the class's; no launch, and nothing of weight and buffers."""
    asked = Counter(noted=0, descriptor=described, allocate=0, peer_tensor=0, of_rows=1)

    def script():
        group, most, seen = resolve(), 160, Counter()
        x = random_tensor(most * group.size, WIDE, dtype=torch.float16, seed=group.rank)
        weight = random_tensor(200, WIDE, dtype=torch.float16, seed=100 + group.rank)

        def call(rows):
            return LARGE[name](x, weight, group, rows)
        used = triton_dist.warm_up(call, range(2, most + 1))
        new = next(rows for rows in range(most // 2, most) if rows not in used)
        profiled(lambda: call(new), lambda frame: seen.update([frame.f_code.co_name]))
        return {what: seen[what] for what in asked}
    assert run_ranks(script, 2, num_sms=5) == [dict(asked)] * 2


@pytest.fixture
def products(monkeypatch):
    """{rank: what torch's matmuls were given: how both operands and the result lie in memory}."""
    found: dict = {}
    matmul = torch.matmul

    def noted(a, b, *, out=None):
        result = matmul(a, b, out=out)
        lies = tuple((t.dtype, t.shape, t.stride(), t.data_ptr() % 16) for t in (a, b, result))
        found.setdefault(resolve().rank, set()).add(lies)
        return result
    monkeypatch.setattr(torch, "matmul", noted)
    return found


UNFUSED = {
    "ag_gemm": lambda x, weight, norm, r: ag_gemm(x[:r], weight, method="unfused"),
    "ag_gemm, gated": lambda x, weight, norm, r: ag_gemm(x[:r], weight, method="unfused", act="silu_mul"),
    "gemm_rs": lambda x, weight, norm, r: gemm_rs(x[:r * resolve().size], weight, method="unfused"),
    "gemm_rs, wider": lambda x, weight, norm, r: gemm_rs(x[:r * resolve().size], weight, method="unfused",
                                                         hop_dtype=torch.float32),
    "gemm_ar": lambda x, weight, norm, r: gemm_ar(x[:r], weight, method="unfused"),
    "gemm_ar, columns": lambda x, weight, norm, r: gemm_ar(x[:r], weight.t().contiguous().t(), method="unfused"),
    "gemm_ar_rmsnorm": lambda x, weight, norm, r: gemm_ar_rmsnorm(x[:r], weight, norm, method="unfused"),
}


@pytest.mark.parametrize("name", [*list(UNFUSED)[:-1], pytest.param("gemm_ar_rmsnorm", marks=pytest.mark.full)])
def test_after_it_no_number_of_rows_is_new_to_a_matmul_of_torch(name, products):
    """Torch's library takes a kernel by the number of rows, and loads it at its first use."""
    def script():
        group, most = resolve(), 48
        x = random_tensor(most * group.size, K, dtype=torch.float16, seed=group.rank)
        weight, norm = random_tensor(N, K, dtype=torch.float16, seed=9), torch.ones(N, dtype=torch.float16)

        def call(rows):
            return UNFUSED[name](x, weight, norm, rows)
        used = triton_dist.warm_up(call, range(3, most + 1))
        ready = set(products[group.rank])
        new = [rows for rows in range(3, most + 1) if rows not in used][::4]
        assert new and state().products is None
        for rows in new:
            call(rows)
        return len(ready), products[group.rank] - ready
    for ready, late in run_ranks(script, 2):
        assert late == set() and ready == 46


def test_a_matmul_is_made_with_no_numbers_that_cannot_come(products):
    """Where `call` has run with all numbers there is nothing left to make ready, nor where nothing is left to torch."""
    def script():
        x, weight = torch.ones(64, K), torch.ones(N, K)

        def call(rows):
            return gemm_ar(x[:rows], weight, method="unfused")
        triton_dist.warm_up(call, [8, 32, 64])
        assert sorted(a[1][0] for a, _, _ in products.pop(resolve().rank)) == [8, 32, 64]
        triton_dist.warm_up(lambda rows: gemm_ar(x[:rows], weight, method="packets"), range(1, 33))
        assert not products.get(resolve().rank)
        with pytest.raises(ArithmeticError):
            triton_dist.warm_up(lambda rows: call(rows).numel() // 0, range(1, 65))
        assert state().products is None and len(products.pop(resolve().rank)) == 1
    run_ranks(script, 2)


def test_an_unfused_way_is_called_at_numbers_a_tenth_apart():
    """Its collective may run in other ways. Numbers of one remainder serve for the others as well."""
    def script():
        x, weight = torch.ones(128, K), torch.ones(N, K)
        used = sorted(triton_dist.warm_up(lambda rows: gemm_ar(x[:rows], weight, method="unfused"), range(1, 129)))
        even = [rows for rows in used if rows % 2 == 0]
        assert all(b <= 1.1 * a or b == a + 2 for a, b in zip(even, even[1:]))
        assert (even[0], even[-1]) == (2, 128) and len(even) < 45 and len(used) - len(even) < 20
        fused = triton_dist.warm_up(lambda rows: gemm_ar(x[:rows], weight, method="packets"), range(1, 33))
        assert len(fused) < 15
    run_ranks(script, 2)


def test_a_new_number_of_rows_costs_a_meeting_only_where_it_runs_in_a_new_way(monkeypatch):
    meetings = Meetings(monkeypatch)

    def script():
        call, _ = calls()["gemm_rs"]
        call(MOST)
        assert meetings.since()
        call(MOST - 1)
        assert meetings.since() == []
        call(1)                             # by other tiles, which each rank has to compile
        assert meetings.since() == ["barrier"]
        call(2)
        assert meetings.since() == []
    run_ranks(script, 2)


def test_all_layers_of_a_model_are_made_ready(monkeypatch):
    meetings = Meetings(monkeypatch)

    def script():
        of_ops = calls()

        def model(rows):
            return of_ops["ag_gemm"][0](rows).sum() + of_ops["gemm_rs"][0](rows).sum()
        triton_dist.warm_up(model, range(2, MOST + 1, 2))
        meetings.since()
        for rows in range(2, MOST + 1, 6):
            model(rows)
        assert meetings.since() == []
    run_ranks(script, 2)


def test_it_meets_every_way_of_a_range_with_few_calls():
    def script():
        op, group = OPS["gemm_rs"], resolve()
        call, _ = calls()["gemm_rs"]
        used = triton_dist.warm_up(call, range(1, MOST + 1))

        def way(rows):
            agreed = op.at(rows * group.size, N, K * group.size, torch.float32, group)
            return op.rule(agreed, group, op.candidates(agreed, group))[0]
        assert {way(rows) for rows in used} == {way(rows) for rows in range(1, MOST + 1)} and 2 < len(used) < MOST / 2
        return used
    first, second = run_ranks(script, 2)
    assert first == second


def test_ranks_that_differ_at_the_first_call_of_a_family_are_told():
    def script():
        call, _ = calls()["all_reduce"]
        with pytest.raises(CollectiveMismatch):
            call(8 + resolve().rank)
    run_ranks(script, 2)


@pytest.mark.parametrize("rows", [range(0), [4, 4], [4, 2], range(8, 1, -1), 5, [1.5, 2], [-1, 2]])
def test_numbers_that_do_not_increase_are_refused(rows):
    with pytest.raises(InvalidArgument, match="rows: expected numbers in increasing order"):
        triton_dist.warm_up(lambda rows: None, rows)


def test_an_error_of_the_call_comes_through_and_leaves_nothing():
    def script():
        call, expected = calls()["all_reduce"]

        def failing(rows):
            if rows == 1:
                raise ArithmeticError("mine")
            call(rows)
        with pytest.raises(ArithmeticError, match="mine"):
            triton_dist.warm_up(failing, range(1, 9))
        torch.testing.assert_close(call(3), expected(3))
    run_ranks(script, 2)
