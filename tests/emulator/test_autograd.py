# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients of the ops, compared with autograd of one rank that holds everything, in float64."""
from unittest import mock

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.ops.autograd import norm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state
from triton_dist.testing import assert_matches

K, N, ROWS = 12, 10, 3
WORLDS = [1, 2, 3, 4]


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves(*tensors, dtype=torch.float32):
    return [None if t is None else t.to(dtype).clone().requires_grad_() for t in tensors]


def pieces(total, world):
    """Unequal parts of `total`, the last of which may be empty."""
    cuts = [min(total, -(-total * 2 * (i + 1) // (world + 2))) for i in range(world - 1)]
    return [b - a for a, b in zip([0, *cuts], [*cuts, total])]


def near(found, wanted, k=64):
    assert found is not None and found.dtype is torch.float32
    assert_matches(found, wanted, k=k, roundings=8)


@pytest.mark.parametrize("method", ["auto", "unfused"])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("world", WORLDS)
def test_ag_gemm(world, saved, method):
    """Ranks have unequal parts of the weight, and use the gathered x as well."""
    x, weight, bias = leaves(drawn(world * ROWS, K, seed=1), drawn(N, K, seed=2), drawn(N, seed=3), dtype=torch.float64)
    factor, other = drawn(world * ROWS, N, seed=4), drawn(world, world * ROWS, K, seed=5)
    ((x @ weight.t() + bias) * factor).sum().backward()
    grad_with_gathered = x.grad + other.sum(0)

    def ranks():
        r = state().world.rank
        parts = pieces(N, world)
        w, b, f = (t.split(parts, dim)[r] for t, dim in ((weight, 0), (bias, 0), (factor, 1)))
        mine = x.chunk(world)[r].detach(), w.detach(), b.detach()
        for both in (False, True):
            xs, ws, bs = leaves(*mine)
            y = ops.ag_gemm(xs, ws, bias=bs, save_gathered=saved, return_gathered=both, method=method)
            y, gathered = y if both else (y, None)
            loss = (y * f.float()).sum() + (0 if gathered is None else (gathered * other[r].float()).sum())
            loss.backward()
            near(xs.grad, (grad_with_gathered if both else x.grad).chunk(world)[r])
            near(ws.grad, weight.grad.split(parts)[r])
            near(bs.grad, bias.grad.split(parts)[r])
    run_ranks(ranks, world)


@pytest.mark.parametrize("wanted", ["all", "x", "weight", "bias"])
@pytest.mark.parametrize("method", ["auto", "portable", "unfused"])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("world", WORLDS)
def test_ag_gemm_silu_mul(world, saved, method, wanted):
    """The product is computed once more, from x that is gathered in the same call or was kept. Ranks have unequal parts."""
    given = leaves(drawn(world * ROWS, K, seed=1), drawn(N, K, seed=2), drawn(N, K, seed=3), drawn(N, seed=4), drawn(N, seed=5),
                   dtype=torch.float64)
    x, gate, up, gate_bias, up_bias = given
    factor, other = drawn(world * ROWS, N, seed=6), drawn(world, world * ROWS, K, seed=7)
    ((torch.nn.functional.silu(x @ gate.t() + gate_bias) * (x @ up.t() + up_bias)) * factor).sum().backward()

    def ranks():
        r, parts = state().world.rank, pieces(N, world)
        mine = [torch.cat([t.detach().split(parts)[r] for t in both]) for both in ((gate, up), (gate_bias, up_bias))]
        grads = [torch.cat([t.grad.split(parts)[r] for t in both]) for both in ((gate, up), (gate_bias, up_bias))]
        for both in (False, True):
            of = xs, ws, bs = leaves(x.detach().chunk(world)[r], *mine)
            for name, t in zip(("x", "weight", "bias"), of):
                t.requires_grad_(wanted in ("all", name))
            y = ops.ag_gemm(xs, ws, bias=bs, act="silu_mul", save_gathered=saved, return_gathered=both, method=method)
            y, gathered = y if both else (y, None)
            loss = (y * factor.split(parts, 1)[r].float()).sum()
            if both and wanted != "weight" and wanted != "bias":
                loss = loss + (gathered * other[r].float()).sum()
            loss.backward()
            more = other.sum(0) if both else 0
            for name, t, grad in zip(("x", "weight", "bias"), of, ((x.grad + more).chunk(world)[r], *grads)):
                assert (t.grad is not None) == (wanted in ("all", name))
                if t.grad is not None:
                    near(t.grad, grad)
    run_ranks(ranks, world)


@pytest.mark.parametrize("world", WORLDS)
def test_gemm_rs(world):
    x, weight, bias = leaves(drawn(world * ROWS, K, seed=1), drawn(N, K, seed=2), drawn(N, seed=3), dtype=torch.float64)
    factor = drawn(world * ROWS, N, seed=4)
    ((x @ weight.t() + bias) * factor).sum().backward()

    def ranks():
        r, parts = state().world.rank, pieces(K, world)
        xs, ws, bs = leaves(x.detach().split(parts, 1)[r], weight.detach().split(parts, 1)[r], bias.detach())
        (ops.gemm_rs(xs, ws, bias=bs) * factor.chunk(world)[r].float()).sum().backward()
        near(xs.grad, x.grad.split(parts, 1)[r])
        near(ws.grad, weight.grad.split(parts, 1)[r])
        near(bs.grad, bias.grad)
    run_ranks(ranks, world)


@pytest.mark.parametrize("method", ["auto", "ring", "unfused"])
@pytest.mark.parametrize("world", WORLDS)
def test_gemm_ar(world, method):
    """What follows is the same on all ranks."""
    x, weight, bias, residual = leaves(drawn(world * ROWS, K, seed=1), drawn(N, K, seed=2), drawn(N, seed=3),
                                       drawn(world * ROWS, N, seed=5), dtype=torch.float64)
    factor = drawn(world * ROWS, N, seed=4)
    ((x @ weight.t() + bias + residual) * factor).sum().backward()

    def ranks():
        r, parts = state().world.rank, pieces(K, world)
        xs, ws, bs, rs = leaves(x.detach().split(parts, 1)[r], weight.detach().split(parts, 1)[r], bias.detach(),
                                residual.detach())
        (ops.gemm_ar(xs, ws, bias=bs, residual=rs, method=method) * factor.float()).sum().backward()
        near(xs.grad, x.grad.split(parts, 1)[r])
        near(ws.grad, weight.grad.split(parts, 1)[r])
        near(bs.grad, bias.grad)
        near(rs.grad, residual.grad)
    run_ranks(ranks, world)


MOVED = {       # op on x, and what each rank gets of every rank's x [W, rows, K] by plain torch
    "all_gather": (ops.all_gather, lambda every, r, w: every.flatten(0, 1)),
    "all_gather_2d": (ops.all_gather_2d, lambda every, r, w: every.flatten(0, 1)),
    "reduce_scatter": (ops.reduce_scatter, lambda every, r, w: every.sum(0).chunk(w)[r]),
    "reduce_scatter_2d": (ops.reduce_scatter_2d, lambda every, r, w: every.sum(0).chunk(w)[r]),
    "reduce_scatter avg": (lambda x: ops.reduce_scatter(x, op="avg"), lambda every, r, w: every.mean(0).chunk(w)[r]),
    "all_reduce": (ops.all_reduce, lambda every, r, w: every.sum(0)),
    "all_reduce avg": (lambda x: ops.all_reduce(x, op="avg"), lambda every, r, w: every.mean(0)),
    "all_to_all_single": (ops.all_to_all_single, lambda every, r, w: torch.cat([x.chunk(w)[r] for x in every])),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("world", WORLDS)
def test_collectives(world, name):
    """Gradients of the sum of all ranks' losses, each of which weighs what it gets differently."""
    op, alone = MOVED[name]
    every, = leaves(drawn(world, world * ROWS, K, seed=1), dtype=torch.float64)
    got = [alone(every, r, world) for r in range(world)]
    factors = [drawn(*y.shape, seed=7 + r) for r, y in enumerate(got)]
    sum((y * f).sum() for y, f in zip(got, factors)).backward()

    def ranks():
        r = state().world.rank
        x, = leaves(every.detach()[r])
        (op(x) * factors[r].float()).sum().backward()
        near(x.grad, every.grad[r])
    run_ranks(ranks, world)


@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all_single_by_lists(world):
    counts = [[(r + 2 * p) % 3 for p in range(world)] for r in range(world)]            # rows that rank r has for rank p

    def ranks():
        r = state().world.rank
        given, taken = counts[r], [row[r] for row in counts]
        x, = leaves(drawn(sum(given), K, seed=r))
        y = ops.all_to_all_single(x, output_split_sizes=taken, input_split_sizes=given)
        y.backward(torch.full_like(y, float(r)))                                        # so a gradient says where a row went
        assert x.grad[:, 0].tolist() == [float(p) for p in range(world) for _ in range(given[p])]
    run_ranks(ranks, world)


@pytest.mark.parametrize("capacity", [None, 4])
@pytest.mark.parametrize("world", WORLDS)
def test_all_to_all_vdev(world, capacity):
    """Rows that nobody got, or for which there was no room, have a gradient of zero."""
    rows = 6
    counts = [[(r + p) % 3 for p in range(world)] for r in range(world)]
    counts = [[min(n, max(0, rows - sum(row[:p]))) for p, n in enumerate(row)] for row in counts]
    room = world * rows if capacity is None else capacity

    def ranks():
        r = state().world.rank
        x, = leaves(drawn(rows, K, seed=r))
        out, told = ops.all_to_all_vdev(x, torch.tensor(counts[r], dtype=torch.int32), capacity=capacity)
        came = min(room, sum(row[r] for row in counts))
        assert not told.requires_grad
        (out[:came].sum() * (r + 1)).backward()
        wanted = []
        for p in range(world):
            first = sum(counts[q][p] for q in range(r))
            wanted += [float(p + 1) if first + i < room else 0.0 for i in range(counts[r][p])]
        assert x.grad[:, 0].tolist() == wanted + [0.0] * (rows - len(wanted))
    run_ranks(ranks, world)


@pytest.mark.parametrize("outputs", ["both", "norm", "sum"])
@pytest.mark.parametrize("world", WORLDS)
def test_all_reduce_rmsnorm(world, outputs):
    every, weight, bias, residual = leaves(drawn(world, 2, ROWS, K, seed=1), drawn(K, seed=2), drawn(K, seed=3),
                                           drawn(2, ROWS, K, seed=4), dtype=torch.float64)
    total = every.sum(0) + bias + residual
    y = torch.nn.functional.rms_norm(total, (K,), weight, 1e-5)
    one, two = drawn(2, ROWS, K, seed=5), drawn(2, ROWS, K, seed=6)
    one, two = one * (outputs != "sum"), two * (outputs != "norm")
    ((y * one).sum() + (total * two).sum()).backward()

    def ranks():
        r = state().world.rank
        x, w, b, res = leaves(every.detach()[r], weight.detach(), bias.detach(), residual.detach())
        y, total = ops.all_reduce_rmsnorm(x, w, bias=b, residual=res, eps=1e-5)
        loss = 0
        if outputs != "sum":
            loss = loss + (y * one.float()).sum()
        if outputs != "norm":
            loss = loss + (total * two.float()).sum()
        loss.backward()
        near(x.grad, every.grad[r])
        near(b.grad, bias.grad)
        near(res.grad, residual.grad)
        if outputs != "sum":
            near(w.grad, weight.grad)
    run_ranks(ranks, world)


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_only_what_is_wanted_is_computed(frozen):
    """A frozen weight has no gradient, and for an x that has none nothing is sent back."""
    def ranks():
        r = state().world.rank
        x, w, down = leaves(drawn(ROWS, K, seed=r), drawn(N, K, seed=r + 5), drawn(K, N, seed=r + 9))
        (x if frozen == "x" else w).requires_grad_(False)
        (w if frozen == "x" else down).requires_grad_(frozen == "x")
        ops.gemm_rs(ops.ag_gemm(x, w), down).sum().backward()
        assert (x.grad is None) == (frozen == "x") and (w.grad is None) == (frozen == "weight")
        assert (down.grad is None) == (frozen == "weight")
    run_ranks(ranks, 2)


def test_an_output_that_nothing_uses_has_no_gradient():
    """What ag_gemm has gathered and kept is one: zeros for it would be summed over ranks in each backward pass."""
    def ranks():
        x, w = leaves(drawn(ROWS, K, seed=state().world.rank), drawn(N, K, seed=5))
        weight, residual = leaves(drawn(N, seed=6), drawn(ROWS * state().world.size, N, seed=7))
        y = ops.ag_gemm(x, w, save_gathered=True)
        ops.all_reduce_rmsnorm(y, weight, residual=residual)[0].square().sum().backward()
        assert all(t.grad is not None for t in (x, w, weight, residual))
    with mock.patch.object(ops, "reduce_scatter", side_effect=AssertionError("zeros were summed")), \
            mock.patch.object(norm, "of_total", side_effect=norm.of_total) as of_total:
        run_ranks(ranks, 2)
    assert all(call.args[5] is None for call in of_total.call_args_list)


def test_ranks_may_use_other_outputs_than_their_peers():
    """The gradient of what ag_gemm has gathered is summed over ranks, also those that do not use it."""
    def ranks():
        rank = state().world.rank
        x, w = leaves(drawn(ROWS, K, seed=rank), drawn(N, K, seed=5))
        y, gathered = ops.ag_gemm(x, w, return_gathered=True)
        (gathered.sum() if rank == 0 else y.square().sum()).backward()
        return x.grad - 1 if rank == 0 else w.grad
    assert all(grad.any() for grad in run_ranks(ranks, 2))


class NoGradient(torch.autograd.Function):
    """Has a gradient on rank 1 only."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad if state().world.rank else None


@pytest.mark.parametrize("save_gathered", [False, True])
def test_a_rank_may_be_asked_for_no_gradient(save_gathered):
    def ranks():
        x, w = leaves(drawn(ROWS, K, seed=state().world.rank), drawn(N, K, seed=5))
        NoGradient.apply(ops.ag_gemm(x, w, save_gathered=save_gathered)).sum().backward()
        return x.grad
    assert all(grad.any() for grad in run_ranks(ranks, 2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_both_kinds(reentrant):
    def block(x, w, down):
        return ops.gemm_rs(torch.relu(ops.ag_gemm(x, w)), down)

    def ranks():
        r = state().world.rank
        found = []
        for wrap in (block, lambda *given: checkpoint(block, *given, use_reentrant=reentrant)):
            given = leaves(drawn(ROWS, K, seed=r), drawn(N, K, seed=r + 5), drawn(K, N, seed=r + 9))
            wrap(*given).square().sum().backward()
            found.append([t.grad for t in given])
        assert all(torch.equal(a, b) for a, b in zip(*found))
    run_ranks(ranks, 2)


@pytest.mark.parametrize("says", [False, True])
def test_a_gradient_is_added_to_main_grad(says):
    """As Megatron does: in its dtype, and what autograd gets is nothing, or zeros where hooks wait for something."""
    def ranks():
        r = state().world.rank
        x, w = leaves(drawn(ROWS, K, seed=r), drawn(N, K, seed=r + 5), dtype=torch.bfloat16)
        expected = torch.autograd.grad(ops.ag_gemm(x, w).float().square().sum(), w)[0]
        w.main_grad = torch.ones(N, K, dtype=torch.float32)
        if says:
            w.grad_added_to_main_grad = False
        ops.ag_gemm(x, w).float().square().sum().backward()
        assert w.main_grad.dtype is torch.float32
        torch.testing.assert_close(w.main_grad - 1, expected.float(), rtol=1e-2, atol=0.2)
        assert (w.main_grad - 1).norm() > 1
        if says:
            assert w.grad_added_to_main_grad and not w.grad.any()
        else:
            assert w.grad is None
    run_ranks(ranks, 2)


def test_what_has_no_gradient_is_refused_and_later_calls_are_right():
    def ranks():
        r = state().world.rank
        x, w = leaves(drawn(2 * ROWS, K, seed=r), drawn(N, K, seed=r + 5))
        with pytest.raises(InvalidArgument, match="no gradient in all_reduce"):
            ops.all_reduce(x, op="max")
        plain, bias = x.detach(), torch.zeros(N, requires_grad=True)
        with pytest.raises(InvalidArgument, match="x: requires grad.*leave out `out`"):
            ops.ag_gemm(x, w, out=torch.empty(4 * ROWS, N))
        with pytest.raises(InvalidArgument, match="weight: requires grad.*leave out `out`"):
            ops.gemm_rs(plain, w, out=torch.empty(ROWS, N))
        with pytest.raises(InvalidArgument, match="bias: requires grad.*leave out `out`"):
            ops.gemm_ar(plain, w.detach(), bias=bias, out=torch.empty(2 * ROWS, N))
        with pytest.raises(InvalidArgument, match="residual: requires grad.*leave out `out`"):
            ops.all_reduce_rmsnorm(plain, torch.ones(K), residual=x, residual_out=torch.empty(2 * ROWS, K))
        for op in (ops.all_reduce, lambda x, out: ops.all_to_all_vdev(x, torch.tensor([1, 1]), capacity=2 * ROWS, out=out)):
            with pytest.raises(InvalidArgument, match="x: requires grad.*leave out `out`"):
                op(x, out=torch.empty(2 * ROWS, K))
        with pytest.raises(InvalidArgument, match="ag_gemm: has no second derivative"):
            torch.autograd.grad(ops.ag_gemm(x, w).square().sum(), x, create_graph=True)
        with pytest.raises(InvalidArgument, match="weight: expected"):
            ops.ag_gemm(x, w[:, 1:])
        y = ops.ag_gemm(x, w)
        assert y.requires_grad and torch.equal(y.detach(), ops.ag_gemm(x.detach(), w.detach()))
    run_ranks(ranks, 2)


def test_gradients_follow_autocast():
    def ranks():
        r = state().world.rank
        x, w = leaves(drawn(ROWS, 16, seed=r), drawn(N, 16, seed=r + 5))
        with torch.autocast(triton_dist.device().type, dtype=torch.bfloat16):
            y = ops.ag_gemm(x, w)
            assert y.dtype is torch.bfloat16
            y.float().sum().backward()
        assert x.grad.dtype is w.grad.dtype is torch.float32 and x.grad.any()
    run_ranks(ranks, 2)
