# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls that differ from a known one in the number of rows alone are not checked again; all others are."""
import pytest
import torch

from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.ops import OPS
from triton_dist.ops.all_reduce import op as all_reduce_op
from triton_dist.ops.calls.pipeline import Calls
from triton_dist.ops.exchange.collective import OneHopPush
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

N, K, ROWS = 32, 16, 8
OPS_OF_ROWS = ["ag_gemm", "gemm_rs", "gemm_ar", "all_reduce", "reduce_scatter", "all_gather", "all_reduce_rmsnorm",
               "gemm_ar_rmsnorm", "all_reduce_layernorm", "all_reduce_rmsnorm_quant"]
QUICK = ["ag_gemm", "gemm_rs", "all_reduce"]
F32 = torch.float32


def tensor(*shape, dtype=F32, seed=0):
    return random_tensor(*shape, dtype=dtype, seed=seed + 10 * resolve().rank)


def gathered(x):
    return torch.cat(resolve().all_gather_object(x))


def summed(t):
    return sum(resolve().all_gather_object(t))


def own(t):
    return t.chunk(resolve().size)[resolve().rank]


def calls():
    """{op: (a call on x, the columns of x, what it gives by torch)}."""
    column, row, norm = tensor(N, K, seed=1), tensor(N, K, seed=2), torch.linspace(0.5, 1.5, N)

    def normed(t):
        return torch.nn.functional.rms_norm(summed(t), (N,), norm, 1e-6)
    return {
        "all_reduce_rmsnorm": (lambda x: ops.all_reduce_rmsnorm(x, norm)[0], N, normed),
        "all_reduce_layernorm": (lambda x: ops.all_reduce_layernorm(x, norm)[0], N,
                                 lambda x: torch.nn.functional.layer_norm(summed(x), (N,), norm)),
        "all_reduce_rmsnorm_quant": (lambda x: ops.all_reduce_rmsnorm_quant(x, norm, keep_norm=True).norm_out, N, normed),
        "gemm_ar_rmsnorm": (lambda x: ops.gemm_ar_rmsnorm(x, row, norm)[0], K, lambda x: normed(x @ row.T)),
        "ag_gemm": (lambda x: ops.ag_gemm(x, column), K, lambda x: gathered(x) @ column.T),
        "gemm_rs": (lambda x: ops.gemm_rs(x, row), K, lambda x: own(summed(x @ row.T))),
        "gemm_ar": (lambda x: ops.gemm_ar(x, row), K, lambda x: summed(x @ row.T)),
        "all_reduce": (lambda x: ops.all_reduce(x), N, summed),
        "reduce_scatter": (lambda x: ops.reduce_scatter(x), N, lambda x: own(summed(x))),
        "all_gather": (lambda x: ops.all_gather(x), N, gathered),
    }


@pytest.fixture
def checked(monkeypatch):
    """Names of the ops whose checks rank 0 has run since."""
    found = []
    for name in OPS_OF_ROWS:
        usual = type(OPS[name]).check

        def check(self, *args, usual=usual):
            if resolve().rank == 0:
                found.append(self.name)
            return usual(self, *args)
        monkeypatch.setattr(OPS[name], "check", check.__get__(OPS[name]), raising=False)
    return found


@pytest.mark.parametrize("op", [*QUICK, *[pytest.param(op, marks=pytest.mark.full) for op in OPS_OF_ROWS if op not in QUICK]])
def test_only_what_is_new_is_checked(op, checked):
    def script():
        call, columns, expected = calls()[op]
        whole = tensor(64, 2 * columns)

        def ran(x, checks):
            """A call gives what torch gives, and has been checked or not."""
            if resolve().rank == 0:
                del checked[:]
            torch.testing.assert_close(call(x), expected(x), rtol=1e-4, atol=1e-4)
            if resolve().rank == 0:
                assert (op in checked) == checks, (tuple(x.shape), x.stride())
        first = whole[:, :columns].contiguous()
        ran(first[:ROWS], True)
        for rows in (4, 16, 2, 16):                     # the last one is known
            ran(first[:rows], False)
        ran(first[2:12], False)                             # at another address
        ran(whole[:6, :columns], True)                      # other strides
        ran(whole[:12, :columns], False)
        ran(torch.zeros(12 * columns + 1)[1:].view(12, columns), True)          # another alignment
        ran(first[:22], False)
    run_ranks(script, 2)


@pytest.mark.parametrize("op", ["gemm_ar", pytest.param("gemm_ar_rmsnorm", marks=pytest.mark.full), "all_reduce_rmsnorm"])
def test_a_residual_has_as_many_rows_as_x(op, checked):
    def script():
        columns, wide = (N, N) if op == "all_reduce_rmsnorm" else (K, N)
        x, residual = tensor(64, columns), random_tensor(64, wide, dtype=F32, seed=5)
        row, norm = tensor(N, K, seed=2), torch.linspace(0.5, 1.5, N)
        calls_of = {"gemm_ar": lambda x, r: ops.gemm_ar(x, row, residual=r),
                    "gemm_ar_rmsnorm": lambda x, r: ops.gemm_ar_rmsnorm(x, row, norm, residual=r)[1],
                    "all_reduce_rmsnorm": lambda x, r: ops.all_reduce_rmsnorm(x, norm, residual=r)[1]}

        def ran(x, residual, checks):
            if resolve().rank == 0:
                del checked[:]
            product = x if op == "all_reduce_rmsnorm" else x @ row.T
            torch.testing.assert_close(calls_of[op](x, residual), summed(product) + residual, rtol=1e-4, atol=1e-4)
            if resolve().rank == 0:
                assert (op in checked) == checks, tuple(x.shape)
        ran(x[:ROWS], residual[:ROWS], True)
        for rows in (4, 16, 2):
            ran(x[:rows], residual[:rows], False)
        ran(x[:6], residual.repeat(1, 2)[:6, :wide], True)              # other strides
        for rows in (3, 7):
            with pytest.raises(InvalidArgument, match="residual: expected"):
                calls_of[op](x[:6], residual[:rows])
        ran(x[:10], residual[:10], False)                               # a refused call changes nothing
    run_ranks(script, 2)


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs", "all_reduce"])
def test_what_was_not_checked_has_the_plan_of_a_call_that_is_looked_at_in_full(op):
    def script():
        call, columns, _ = calls()[op]
        x = tensor(ROWS, columns)
        call(x)
        call(x[:4])
        plans = dict(state().records[OPS[op]][None].plans)
        state().doubt()
        call(x[:4])
        assert len(plans) == 2 and state().records[OPS[op]][None].plans == plans
        torch.set_grad_enabled(False)                           # of which the plan may depend
        try:
            call(x[:2])
            assert [signature[0][1] for signature, _ in state().records[OPS[op]][None].plans] == [True, True, False]
        finally:
            torch.set_grad_enabled(True)
    run_ranks(script, 2)


@pytest.mark.parametrize("op", ["ag_gemm", "gemm_rs", pytest.param("gemm_ar", marks=pytest.mark.full), "reduce_scatter"])
def test_what_is_refused_is_refused_after_a_good_call_as_before_it(op):
    def refusals(call, columns):
        x = tensor(ROWS, 2 * columns)
        wrong = [x[:6, :columns - 1], x[:6, :columns].double(), x[:6, :columns, None], x[:6, :columns].to_sparse(),
                 torch._neg_view(x[:6, :columns].contiguous())]
        if op in ("gemm_rs", "reduce_scatter"):
            wrong += [x[:rows, :columns].contiguous() for rows in (3, 5, 7)]
        found = []
        for each in wrong:
            try:
                call(each)
                found.append("none")
            except InvalidArgument as error:
                found.append(str(error))
        return found

    def script():
        call, columns, expected = calls()[op]
        before = refusals(call, columns)
        x = tensor(ROWS, columns)
        call(x)
        call(x[:4])
        assert refusals(call, columns) == before and before[-1] != "none"
        with pytest.raises(InvalidArgument, match="method"):
            OPS[op].function(x, *[x] * (op != "reduce_scatter"), method=["no key"])
        torch.testing.assert_close(call(x[:6]), expected(x[:6]), rtol=1e-4, atol=1e-4)
        if op != "reduce_scatter":
            empty = call(x[:0])                             # of no rows, after rows
            assert not empty.numel()
        call(x)
        x.requires_grad_()
        assert call(x[:2 * resolve().size]).requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            found = call(x.detach()[:6])
        assert found.dtype == (torch.bfloat16 if op != "reduce_scatter" else F32)
        assert state().over == ""
    run_ranks(script, 2)


def ways():
    """{what: (a call on x and a residual, the columns of x)} by ways whose plans are made from that of other rows."""
    bf16 = torch.bfloat16
    column, row = tensor(N, K, dtype=bf16, seed=1), tensor(N, K, dtype=bf16, seed=2)
    bias, norm = random_tensor(N, dtype=bf16, seed=3), torch.linspace(0.5, 1.5, N).to(bf16)
    found = {f"{op} {method}": (lambda x, r, op=op, method=method: getattr(ops, op)(x, method=method), N)
             for op in ("all_reduce", "all_gather", "reduce_scatter") for method in ("one_shot", "push")}
    return {
        **found,
        "all_reduce two_shot": (lambda x, r: ops.all_reduce(x, method="two_shot"), N),
        "all_reduce of integers": (lambda x, r: ops.all_reduce((100 * x).int()), N),
        "ag_gemm portable": (lambda x, r: ops.ag_gemm(x, column, bias=bias, method="portable"), K),
        "ag_gemm ws": (lambda x, r: ops.ag_gemm(x, column, method="ws"), K),
        "ag_gemm act": (lambda x, r: ops.ag_gemm(x, column, act="silu_mul", method="ws"), K),
        "gemm_rs portable": (lambda x, r: ops.gemm_rs(x, row, method="portable"), K),
        "gemm_rs ws": (lambda x, r: ops.gemm_rs(x, row, bias=bias, method="ws"), K),
        "gemm_rs scatter": (lambda x, r: ops.gemm_rs(x, row, method="scatter"), K),
        "gemm_ar ring": (lambda x, r: ops.gemm_ar(x, row, bias=bias, residual=r, method="ring"), K),
        "gemm_ar_rmsnorm ring": (lambda x, r: ops.gemm_ar_rmsnorm(x, row, norm, residual=r, method="ring"), K),
        "all_reduce_rmsnorm unfused": (lambda x, r: ops.all_reduce_rmsnorm(x, norm, bias=bias, residual=r, method="unfused"), N),
        "all_reduce_layernorm unfused": (lambda x, r: ops.all_reduce_layernorm(x, norm, bias, residual=r, method="unfused"), N),
        **{f"all_reduce_rmsnorm_quant {quant}": (lambda x, r, quant=quant: tuple(ops.all_reduce_rmsnorm_quant(
            x, norm, residual=r, quant=quant, method="unfused")[:3]), N) for quant in ("fp8_row", "fp8_1x128")},
    }


QUICK_WAYS = ["ag_gemm ws", "gemm_rs portable", "gemm_ar_rmsnorm ring", "all_reduce two_shot", "all_reduce_rmsnorm unfused"]
WAYS = [*QUICK_WAYS, *[f"{op} {method}" for op in ("all_reduce", "all_gather", "reduce_scatter") for method in
                       ("one_shot", "push")], "all_reduce of integers", "ag_gemm portable", "ag_gemm act", "gemm_rs ws",
        "gemm_rs scatter", "gemm_ar ring", "all_reduce_layernorm unfused", "all_reduce_rmsnorm_quant fp8_row",
        "all_reduce_rmsnorm_quant fp8_1x128"]


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize("way", [*QUICK_WAYS, *[pytest.param(way, marks=pytest.mark.full) for way in WAYS[len(QUICK_WAYS):]]])
def test_a_plan_that_is_made_from_that_of_other_rows_gives_the_same_bits_as_one_of_its_own(way, world, monkeypatch):
    """It prepares no launch anew, unless buffers have to grow or tilings are others."""
    prepared, usual = [], EmulatorBackend.prepare

    def noted(self, *args, **kwargs):
        prepared.append(resolve().rank)
        return usual(self, *args, **kwargs)
    monkeypatch.setattr(EmulatorBackend, "prepare", noted)

    def bits(found):
        return [t.contiguous().view(torch.uint8) for t in (found if isinstance(found, tuple) else (found,))]

    def script():
        call, columns = ways()[way]
        rank, large = resolve().rank, 128 * world
        x = tensor(large, columns, dtype=torch.bfloat16)
        residual = random_tensor(large, N, dtype=torch.bfloat16, seed=5)

        def ran(rows):
            """What a call gives, and how many launches this rank has prepared for it."""
            before = prepared.count(rank)
            return bits(call(x[:rows], residual[:rows])), prepared.count(rank) - before

        def forget():
            for record in state().all_records():
                record.plans.clear()
                record.known.clear()
                record.classes.clear()
        ran(40 * world)
        for rows in (36 * world, 38 * world, 2 * world, large, 6 * world):
            found, launches = ran(rows)
            forget()
            wanted, own = ran(rows)
            assert all(map(torch.equal, found, wanted)) and own > 0
            assert launches == 0 or rows not in (36 * world, 38 * world), (rows, launches)
    run_ranks(script, world)


@pytest.mark.parametrize("op", ["all_gather", "all_reduce", "all_reduce_rmsnorm"])
def test_one_row_is_no_example_of_rows_that_are_not_contiguous(op):
    """It is contiguous, whatever its strides, and its plan takes it as it is."""
    def script():
        whole, residuals = tensor(4, 2 * N), random_tensor(4, 2 * N, dtype=F32, seed=5)
        method = "unfused" if op == "all_reduce_rmsnorm" else "one_shot"
        for rows in (1, 2, 3, 1):
            x, residual = whole[:rows, :N], residuals[:rows, :N]
            if op == "all_reduce_rmsnorm":
                found = ops.all_reduce_rmsnorm(x, torch.ones(N), residual=residual, method=method)[1]
            else:
                found = getattr(ops, op)(x, method=method)
            expected = {"all_gather": gathered, "all_reduce": summed, "all_reduce_rmsnorm": lambda x: summed(x) + residual}[op]
            torch.testing.assert_close(found, expected(x), rtol=1e-4, atol=1e-4)
    run_ranks(script, 2)


def test_a_push_of_few_bytes_is_not_made_from_one_of_many_or_the_other_way_round(monkeypatch):
    """Between two ranks they have one hop or two, and other buffers: ranks would meet to allocate them, or run other kernels."""
    monkeypatch.setattr(all_reduce_op, "_ONE_HOP_BYTES", 100 * N * F32.itemsize)

    def script():
        x = tensor(160, N)
        for rows in (160, 90, 150, 100, 6, 101):
            torch.testing.assert_close(ops.all_reduce(x[:rows], method="push"), summed(x[:rows]), rtol=1e-4, atol=1e-4)
        plans = state().records[OPS["all_reduce"]][None].plans.values()
        assert [isinstance(plan, OneHopPush) for plan in plans] == [False, True, False, True, True, False]
    run_ranks(script, 2)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.full)])
def test_a_plan_is_made_anew_where_the_own_rows_of_a_residual_are_aligned_otherwise(world, monkeypatch):
    """A kernel may have been compiled for addresses that are multiples of 16."""
    prepared, usual = [], EmulatorBackend.prepare

    def noted(self, kernel, grid, args, *rest, **kwargs):
        if kernel.fn.__name__ == "norm_rows_kernel":
            prepared.append((resolve().rank, [t.data_ptr() % 16 for t in args[:4]]))
        return usual(self, kernel, grid, args, *rest, **kwargs)
    monkeypatch.setattr(EmulatorBackend, "prepare", noted)

    def script():
        x, row = tensor(64 * world, K), tensor(5, K, seed=2)
        residual = random_tensor(64 * world, 5, dtype=F32, seed=5)
        for each, new in ((8, 1), (4, 1), (5, 1 + (resolve().rank > 0)), (12, 1 + (resolve().rank > 0))):
            rows = each * world
            found = ops.gemm_ar(x[:rows], row, residual=residual[:rows], method="ring")
            torch.testing.assert_close(found, summed(x[:rows] @ row.T) + residual[:rows], rtol=1e-4, atol=1e-4)
            assert len([1 for rank, _ in prepared if rank == resolve().rank]) == new, (each, prepared)
    run_ranks(script, world)


def unfused():
    """{op: (a call on x that writes to `out`, the columns of x and of out, rows of out for a row of x, what it gives)}."""
    column, row, norm, world = tensor(N, K, seed=1), tensor(N, K, seed=2), torch.linspace(0.5, 1.5, N), resolve().size
    normed = calls()["all_reduce_rmsnorm"][2]
    return {
        "ag_gemm": (lambda x, out: ops.ag_gemm(x, column, out=out, method="unfused"), K, N, world,
                    lambda x: gathered(x) @ column.T),
        "gemm_rs": (lambda x, out: ops.gemm_rs(x, row, out=out, method="unfused"), K, N, 1 / world,
                    lambda x: own(summed(x @ row.T))),
        "gemm_ar": (lambda x, out: ops.gemm_ar(x, row, out=out, method="unfused"), K, N, 1, lambda x: summed(x @ row.T)),
        "all_reduce_rmsnorm": (lambda x, out: ops.all_reduce_rmsnorm(x, norm, out=out, method="unfused")[0], N, N, 1, normed),
    }


COLLECTIVES = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter", "gemm_ar": "all_reduce", "all_reduce_rmsnorm": "all_reduce"}


@pytest.mark.parametrize("op", COLLECTIVES)
def test_an_unfused_call_has_the_plan_of_its_collective(op, monkeypatch):
    """Which is not looked at as a call of its own, and counts as one."""
    seen, usual = set(), Calls._looked_at

    def noted(self, *args):
        seen.add(self.name)
        return usual(self, *args)
    monkeypatch.setattr(Calls, "_looked_at", noted)

    def script():
        call, columns, wide, share, expected = unfused()[op]
        x, group = tensor(ROWS, columns), resolve()
        for rows in (ROWS, 4, 6, 6):
            count, room = state().calls.get(group.key, [0])[0], int(rows * share) * wide
            torch.testing.assert_close(call(x[:rows], None), expected(x[:rows]), rtol=1e-4, atol=1e-4)
            assert state().calls[group.key][0] == count + 2
            for out in (torch.empty(room), torch.empty(room + 1)[1:]):              # the second one is not aligned
                found = call(x[:rows], out.view(-1, wide).fill_(float("nan")))
                torch.testing.assert_close(found, expected(x[:rows]), rtol=1e-4, atol=1e-4)
        plan = next(iter(state().records[OPS[op]][None].plans.values()))
        assert [each.agreed.op for each in plan.with_parts()] == [op, COLLECTIVES[op]]
    run_ranks(script, 2)
    assert seen == {op}
