# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ag_gemm with act="silu_mul": gate and up joined by the product, by both kernels and without them."""
from dataclasses import replace

import gluon_core
import pytest
import torch
from gluon_core import BF16, BLOCK_K, F16, F32, small_core  # noqa: F401
from graph_calls import replayed
from scenarios import AG, back_to_back, captures_by_rank, side_stream, two_groups  # noqa: F401

from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.modules.module import register_module_forward_hook

import triton_dist
from triton_dist.backends.emulator.engine.scheduler import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import AGGemm, TPMLP, linear
from triton_dist.ops import OPS, ag_gemm
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import ag_gemm_float64, assert_matches, poisoned, random_tensor

ACT = "silu_mul"
CORE_BLOCK_N = 64                                   # 32 columns of the result, so that narrow tiles have what a wgmma needs
WORLDS = [1, 2, 3, 4, 8]
SHAPES = [(64, 64, 64), (1, 2, 1), (9, 10, 50), (70, 34, 130), (3, 200, 17)]
BOTH = ["portable", "ws"]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.every("world")
@pytest.mark.parametrize("world", WORLDS)
def test_ragged_shapes_back_to_back(world):
    calls = [AG(*shape, act=ACT, bias=i % 2 == 0, dtype=(F16, BF16, F32)[i % 3]) for i, shape in enumerate(SHAPES)]
    run_ranks(back_to_back, world, [*calls, AG(9, 10, 50), calls[2]], seed=world)


@pytest.mark.every("world")
@pytest.mark.usefixtures("small_core")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", WORLDS)
def test_the_core(world, mode):
    """Ragged columns, so that a tile loads rows of up for those that gate lacks; some last waves are narrow tiles."""
    depths = (1, 3, 5, 8) if world < 8 else (1, 3)
    calls = [gluon_core.AG([130, 64, 72][i % 3], [80, 48, 16][i % 3], steps * BLOCK_K - 8 * (i % 2), [BF16, F16][i % 2],
                           bias=i % 2 == 0, act=ACT, comm_sms=[None, None, 1][i % 3]) for i, steps in enumerate(depths)]
    run_ranks(gluon_core.back_to_back, world, [*calls, gluon_core.AG(64, 48, 24)], mode=mode, seed=world, num_sms=2 + world % 4)


@pytest.mark.usefixtures("small_core")
@pytest.mark.parametrize("method", BOTH)
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_same_bits_in_every_schedule_and_in_repeated_calls(method, mode):
    call = AG(40, 80, 96, dtype=BF16, act=ACT)
    call.method = method

    def script():
        return [call(1, resolve())() for _ in range(2)]
    first = run_ranks(script, 4, seed=0, mode="eager")
    for found, (expected, again) in zip(run_ranks(script, 4, seed=7, mode=mode), first):
        assert torch.equal(expected, again) and all(torch.equal(each, expected) for each in found)


@pytest.mark.usefixtures("small_core")
@pytest.mark.parametrize("method", BOTH)
def test_gates_far_out(method):
    """What exponentials overflow for is -0 or the gate itself; what is no number stays none."""
    gates = [0.0, 1.0, -1.0, 20.0, -20.0, 88.0, -88.0, 100.0, -100.0, 3e4, -3e4, float("inf"), float("-inf"), float("nan")]

    def script():
        n, size = len(gates), 16
        weight = torch.zeros(2 * size, size, dtype=BF16)                    # x's only column that counts is 0
        weight[:n, 0] = torch.tensor(gates)
        weight[size:, 0] = 2.0
        x = torch.zeros(3, size, dtype=BF16)
        x[:, 0] = 1
        out, wide = ag_gemm(x, weight, act=ACT, method=method), weight[:size, 0].float()
        triton_dist.synchronize()
        expected = (torch.nn.functional.silu(wide) * 2).to(BF16)
        for row in out:
            torch.testing.assert_close(row, expected, rtol=2**-7, atol=1e-30, equal_nan=True)
            assert row[8] == 0 and row[8].signbit() and row[7] == 200
    run_ranks(script, 2)


@pytest.mark.usefixtures("small_core", "captures_by_rank")
@pytest.mark.parametrize("comm_sms", [None, 2])
@pytest.mark.parametrize("method", BOTH)
def test_graphs(method, comm_sms):
    run_ranks(replayed, 2, "ag_gemm", comm_sms, method, act=ACT, num_sms=4)


def test_groups_and_streams():
    calls = [AG(20, 40, 50, act=ACT), AG(33, 18, 64, act=ACT, bias=True)]
    run_ranks(lambda: two_groups(calls), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 3, seed=5)
    run_ranks(back_to_back, 4, calls * 2, nodes=2, seed=1)


@pytest.mark.parametrize("method", ["portable", "unfused"])
def test_empty_sizes(method):
    """No rows; no columns on one rank; sums of no terms, which leave the activation of the bias."""
    def script():
        group = resolve()
        for m, n, k in ((0, 8, 16), (5, 8 * group.rank, 16), (5, 8, 0)):
            x, w, b = (random_tensor(*s, dtype=F32, seed=group.rank) for s in ((m, k), (n, k), (n,)))
            for bias in (None, b):
                out = poisoned(m * group.size, n // 2, dtype=F32)
                ag_gemm(x, w, bias=bias, out=out, act=ACT, method=method)
                triton_dist.synchronize()
                assert_matches(out, ag_gemm_float64(x, w, group, bias, ACT), k=16, roundings=3)
    run_ranks(script, 2)


def test_unfused_and_the_gathered_x():
    def script():
        group = resolve()
        x, w, b = (random_tensor(*s, dtype=BF16, seed=group.rank) for s in ((12, 32), (20, 32), (20,)))
        for method in ("portable", "unfused"):
            out, gathered = ag_gemm(x, w, bias=b, method=method, act=ACT, return_gathered=True)
            triton_dist.synchronize()
            assert_matches(out, ag_gemm_float64(x, w, group, b, ACT), k=32, roundings=3 if method == "unfused" else 1)
            assert torch.equal(gathered.chunk(group.size)[group.rank], x)
    run_ranks(script, 3)


@pytest.mark.parametrize("method", ["auto", "ws", "portable"])
def test_operands_that_the_core_cannot_read(method):
    """Contiguous columns, rows at odd addresses, a result whose rows are no multiple of 16 bytes: copied, or the other kernel."""
    def script():
        group = resolve()
        for n, columns, skip in ((48, True, 0), (48, False, 1), (20, False, 0)):
            x, w = (random_tensor(rows, 32 + skip, dtype=F16, seed=rows + group.rank)[:, skip:] for rows in (24, n))
            w = w.t().contiguous().t() if columns else w
            out = ag_gemm(x, w, act=ACT, method=method)
            triton_dist.synchronize()
            assert_matches(out, ag_gemm_float64(x, w, group, None, ACT), k=32, roundings=3)
    run_ranks(script, 2)


def test_what_is_refused():
    def script():
        x, w = torch.ones(4, 8), torch.ones(6, 8)
        for what, call in (("act: expected None or one of silu_mul, found 'gelu'", lambda: ag_gemm(x, w, act="gelu")),
                           ("act: expected None or one of silu_mul, found 1", lambda: ag_gemm(x, w, act=1)),
                           ("weight: expected an even number of rows .*, found 5", lambda: ag_gemm(x, w[:5], act=ACT)),
                           (r"bias: expected None or a tensor of shape \[6\]", lambda: ag_gemm(x, w, bias=w[0, :3], act=ACT)),
                           (r"out: expected shape \[8, 3\]", lambda: ag_gemm(x, w, out=torch.empty(8, 6), act=ACT)),
                           ("x: expected float16", lambda: ag_gemm(x.int(), w.int(), act=ACT))):
            with pytest.raises(InvalidArgument, match=what):
                call()
        assert_matches(ag_gemm(x, w, act=ACT), ag_gemm_float64(x, w, resolve(), None, ACT), k=8, roundings=3)
    run_ranks(script, 2)


def test_ranks_that_ask_for_different_activations_all_raise():
    def script():
        with pytest.raises(CollectiveMismatch, match="act"):
            ag_gemm(torch.ones(4, 8), torch.ones(6, 8), act=ACT if resolve().rank else None, method="portable")
            triton_dist.synchronize()
    run_ranks(script, 2)


def test_lengths_take_one_graph_forward_and_backward(fresh_compiler):
    """By the operator; results and gradients are those of eager calls, bit by bit."""
    counter = CompileCounterWithBackend("aot_eager")

    def model(x, weight, bias):
        out, gathered = ag_gemm(x * 2, weight, bias=bias, act=ACT, return_gathered=True)
        return ag_gemm(x, weight, act=ACT, save_gathered=True) + out, gathered

    def ranks():
        rank, compiled = resolve().rank, torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
        weight, bias = (random_tensor(*s, dtype=F32, seed=rank).requires_grad_() for s in ((12, 8), (12,)))
        for rows in (3, 5, 8):
            found = []
            for call in (compiled, model):
                x = random_tensor(rows, 8, dtype=F32, seed=rank + rows).requires_grad_()
                y, gathered = call(x, weight, bias)
                assert y.shape == (2 * rows, 6) and gathered.shape == (2 * rows, 8)
                found.append((y, *torch.autograd.grad(y.square().sum() + gathered.sum(), (x, weight, bias))))
            assert all(torch.equal(a, b) for a, b in zip(*found))
    run_ranks(ranks, 2)
    assert counter.frame_count == 1


def test_it_is_measured_and_agreed_upon_by_itself():
    """Its time is not that of the plain product, and so is not kept with it."""
    def script():
        op, group = OPS["ag_gemm"], resolve()
        plain, gated = (op.check(group, torch.ones(4, 8), torch.ones(6, 8), None, None, "auto", None, act) for act in (None, ACT))
        assert plain.family != gated.family and op.traffic(plain, group) == op.traffic(gated, group)
        shapes = [op.shape(agreed, group, 6 * group.size) for agreed in (plain, gated)]
        assert shapes[0] == replace(shapes[1], dtype="float32") and shapes[1].dtype == "float32, silu_mul"
    run_ranks(script, 2)


@pytest.fixture
def joined(monkeypatch):
    """What each ag_gemm of a layer is asked for as its activation, but for compiled ones."""
    asked = []

    def seen(*args, **kwargs):
        if not torch.compiler.is_compiling():       # whose code would put back the list as it was when they were traced
            asked.append(kwargs.get("act"))
        return ag_gemm(*args, **kwargs)
    monkeypatch.setattr(linear, "ag_gemm", seen)
    return asked


def mlp(**options):
    torch.manual_seed(3)
    up, gate, down = nn.Linear(16, 24), nn.Linear(16, 24, bias=False), nn.Linear(24, 16)
    return TPMLP.from_full(up, down, gate, **options), lambda x: down(nn.functional.silu(gate(x)) * up(x))


@pytest.mark.parametrize("activation", [nn.functional.silu, nn.SiLU()], ids=["function", "module"])
def test_a_feed_forward_part_joins_them_where_no_gradient_is_wanted(activation, joined):
    def script():
        layer, alone = mlp(activation=activation)
        x = torch.randn(8, 3, 16, generator=torch.Generator().manual_seed(1))
        mine, expected = x.chunk(2)[resolve().rank], alone(x).chunk(2)[resolve().rank]
        found = [layer(mine)]                               # its weights want gradients
        with torch.no_grad():
            found += [layer(mine), torch.compile(layer, fullgraph=True, backend="aot_eager")(mine)]
        layer.requires_grad_(False)
        layer.up.bias.requires_grad_(True)
        found += [layer(mine)]
        layer.requires_grad_(False)
        found += [layer(mine), layer(mine.clone().requires_grad_())]
        for y in found:
            torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    run_ranks(script, 2)
    assert (joined.count(None), joined.count(ACT)) == (3 * 2, 2 * 2)


@pytest.mark.parametrize("what", ["hook", "hook on all modules", "another activation", "no gate", "a class of its own",
                                  "another forward"])
def test_a_feed_forward_part_that_someone_watches_or_changes_is_computed_as_before(what, joined, request):
    def script():
        layer, _ = mlp(activation=nn.functional.gelu if what == "another activation" else nn.functional.silu)
        seen = []
        if what == "hook":
            layer.up.register_forward_hook(lambda module, args, y: seen.append(y.shape[-1]))
        elif what == "hook on all modules":
            request.addfinalizer(register_module_forward_hook(
                lambda module, args, y: seen.append(y.shape[-1]) if module is layer.up else None).remove)
        elif what == "no gate":
            layer = TPMLP.from_full(nn.Linear(16, 24), nn.Linear(24, 16))
        elif what == "a class of its own":
            layer.up.__class__ = type("Wrapped", (AGGemm,), {})
        elif what == "another forward":
            layer.up.forward = lambda x, inner=layer.up.forward: inner(x) * 1
        with torch.no_grad():
            assert layer(torch.ones(4, 16)).shape == (4, 16)
        assert seen == [24] * what.startswith("hook")
    run_ranks(script, 2)
    assert joined == [None, None]
