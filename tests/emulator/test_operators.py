# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops as operators of torch: in the graphs of torch.compile, without a break and without a new graph for each length."""
import inspect
from functools import partial

import pytest
import torch
from ambient_states import CASES
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from triton_dist import ops
from triton_dist.backends.emulator import run_ranks
from triton_dist.ops import OPS
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.testing import random_tensor

F32 = torch.float32
RECORDED = [name for name in CASES if name != "create_symm_tensor"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tensor(*shape, seed=0, dtype=F32):
    return random_tensor(*shape, dtype=dtype, seed=seed)


def test_every_op_that_users_call_has_an_operator():
    own = {name: op for name, op in OPS.items() if op.function.__module__.startswith("triton_dist.")}      # and not other tests'
    functions = {op.function for op in own.values()}
    over = {ops.ep_dispatch, ops.ep_combine, ops.ep_dispatch_send, ops.ep_combine_send, ops.dispatch_grouped_gemm,
            ops.grouped_gemm_combine}           # which name what ops give, or complete a call later
    exported = [getattr(ops, name) for name in ops.__all__ if name != "explain"]
    assert functions | over == {value for value in exported if inspect.isfunction(value)} and len(functions) > 10
    assert all(op.operator.name() == f"triton_dist::{name}" and op.function.__name__ in (name, f"{name}_rows")
               for name, op in own.items())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", RECORDED)
def test_an_op_is_in_one_graph_with_what_is_around_it(name, backend):
    """And gives what the eager call gives."""
    def ranks():
        group = state().world
        case = CASES[name](3, group.rank, group.size, 1)
        with torch.no_grad():
            compiled = torch.compile(lambda t: case.run(t * 1) + 0, fullgraph=True, backend=backend)
            for _ in range(2):
                case.check(compiled(case.x))
    run_ranks(ranks, 2)


@pytest.mark.parametrize("name", RECORDED)
def test_outputs_of_fakes_are_like_those_of_calls(name):
    """Shapes, dtypes and strides."""
    def ranks():
        group = state().world
        case = CASES[name](3, group.rank, group.size, 1)
        graph = make_fx(case.run, tracing_mode="fake", _allow_non_fake_inputs=True)(case.x)
        for node in graph.graph.nodes:
            if node.op == "call_function" and str(node.target).startswith("triton_dist."):
                fakes = node.meta["val"]
                break
        else:
            raise AssertionError("no operator was recorded")
        found = []

        class Keep(torch.fx.Interpreter):
            def run_node(self, n):
                result = super().run_node(n)
                if n is node:
                    found.append(result)
                return result
        with torch.no_grad():
            case.check(Keep(graph).run(case.x))
        fakes, real = (t if isinstance(t, (tuple, list)) else (t,) for t in (fakes, found[0]))
        assert [(f.shape, f.dtype, f.stride()) for f in fakes] == [(r.shape, r.dtype, r.stride()) for r in real]
    run_ranks(ranks, 2)


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2])
def test_twenty_lengths_take_one_graph_forward_and_backward(world):
    """Sequence lengths are dynamic; results are those of eager calls, bit by bit."""
    counter = CompileCounterWithBackend("aot_eager")

    def model(x, weight, down):
        return ops.gemm_rs(torch.relu(ops.ag_gemm(x * 2, weight)), down)

    def ranks():
        rank, compiled = state().world.rank, torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
        weight, down = tensor(6, 8, seed=rank).requires_grad_(), tensor(8, 6, seed=9 + rank).requires_grad_()
        for rows in range(3, 23):
            found = []
            for call in (compiled, model):
                x = tensor(rows, 8, seed=rank + rows).requires_grad_()
                y = call(x, weight, down)
                found.append((y, *torch.autograd.grad(y.square().sum(), (x, weight, down))))
            assert all(torch.equal(a, b) for a, b in zip(*found))
    run_ranks(ranks, world)
    assert counter.frame_count == 1, "ranks of a virtual world share the compiled code"


def all_ops(rank, world):
    """A function of rows that calls every op which takes any number of them."""
    weight, square, norm, bias = tensor(6, 8, seed=rank), tensor(8, 8, seed=9 + rank), tensor(8, seed=7), tensor(8, seed=8)
    scale = torch.tensor([0.1])

    def model(x):
        y = x * 2
        found = [ops.all_gather(y), ops.all_reduce(y), ops.reduce_scatter(y), ops.all_to_all_single(y)]
        found += [ops.ag_gemm(y, weight), ops.ag_gemm(y, weight, act="silu_mul"), ops.gemm_rs(y, weight)]
        found += [ops.gemm_ar(y, square, residual=x), *ops.gemm_ar_rmsnorm(y, square, norm, residual=x, bias=bias)]
        found += [*ops.all_reduce_rmsnorm(y, norm, bias=bias), *ops.all_reduce_layernorm(y, norm, bias, residual=x)]
        found += [ops.rmsnorm_gemm(y, weight, norm), *ops.rmsnorm_gemm(y, square, norm, residual=x, act="silu_mul")]
        for quant, given in (("fp8_row", None), ("fp8_tensor", scale)):
            q, scales, total, _ = ops.all_reduce_rmsnorm_quant(y, norm, quant=quant, scale=given)
            found += [q.view(torch.uint8), scales, total]
        return [t + 1 for t in found]
    return model


@pytest.mark.parametrize("world, lengths", [(1, 4), *(pytest.param(world, 20, marks=pytest.mark.full) for world in (1, 2))])
def test_every_op_takes_all_lengths_in_one_graph(world, lengths):
    """Bit by bit as eager calls. No length is that of another dimension, for which torch would make a graph of its own."""
    @torch.no_grad()
    def ranks():
        model = all_ops(state().world.rank, world)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
        for rows in range(9, 9 + lengths):
            x = tensor(rows * world, 8, seed=state().world.rank + rows)
            for a, b in zip(compiled(x), model(x), strict=True):
                assert torch.equal(a, b)
    with torch._dynamo.config.patch(error_on_recompile=True):
        run_ranks(ranks, world)


def test_a_group_is_in_the_graph_by_its_name():
    def ranks(group):
        x = tensor(2, 8, seed=state().world.rank)
        call = torch.compile(lambda t: ops.all_gather(t, group=group) + 1, fullgraph=True, backend="aot_eager")
        expected = ops.all_gather(x, group=group) + 1
        assert expected.shape == (4, 8) and torch.equal(call(x), expected)
        name = resolve(group).name
        assert torch.equal(ops.all_gather(x, group=name) + 1, expected)
        with pytest.raises(InvalidArgument, match="no process group"):
            ops.all_gather(x, group="that of others")
        assert torch.equal(ops.all_gather(x, group=name) + 1, expected)
    run_ranks(ranks, 4, groups=[(0, 2), (1, 3)])


def test_tensors_to_write_to_are_written_in_a_graph():
    def ranks():
        x, w = tensor(2, 8, seed=state().world.rank), tensor(6, 8)
        out = torch.zeros(4, 6)
        call = torch.compile(lambda t, o: ops.ag_gemm(t, w, out=o), fullgraph=True, backend="aot_eager")
        assert call(x, out).data_ptr() == out.data_ptr() and torch.equal(out, ops.ag_gemm(x, w))
        summed, expected = x.clone(), ops.all_reduce(x)
        torch.compile(lambda t: ops.all_reduce(t, out=t), fullgraph=True, backend="aot_eager")(summed)
        assert torch.equal(summed, expected)
        splits, kept = torch.tensor([1, 0], dtype=torch.int32), torch.full((4, 8), 7.0)
        torch.compile(lambda t, o: ops.all_to_all_vdev(t, splits, out=o), fullgraph=True, backend="aot_eager")(x, kept)
        came = 2 if state().world.rank == 0 else 0
        assert (kept[came:] == 7).all() and (kept[:came] != 7).all()
    run_ranks(ranks, 2)


def test_autocast_holds_in_a_graph():
    def ranks():
        x, w = tensor(2, 16, seed=state().world.rank), tensor(6, 16)

        def call(t):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return ops.ag_gemm(t, w)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert compiled(x).dtype is torch.bfloat16 and torch.equal(compiled(x), call(x))
    run_ranks(ranks, 2)


def test_shapes_that_do_not_fit_are_refused_while_a_graph_is_made():
    def ranks():
        with pytest.raises(Exception, match="divisible by the group size"):
            torch.compile(lambda t: ops.reduce_scatter(t), fullgraph=True, backend="eager")(tensor(3, 4))
        assert ops.reduce_scatter(tensor(4, 4)).shape == (2, 4)
    run_ranks(ranks, 2)


def test_shapes_are_worked_out_without_memory():
    def ranks():
        with FakeTensorMode():
            y = ops.ag_gemm(torch.empty(1 << 20, 4096), torch.empty(1 << 16, 4096))
        assert y.shape == (1 << 21, 1 << 16)
    run_ranks(ranks, 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_selective_checkpoint_knows_the_operators(compiled):
    """Results of ops are saved: nothing is sent again in the backward pass."""
    saved = [OPS[name].operator for name in ("ag_gemm", "gemm_rs")]

    contexts = partial(create_selective_checkpoint_contexts, saved)

    def block(x, weight, down):
        return ops.gemm_rs(torch.relu(ops.ag_gemm(x, weight)), down).square()

    def wrapped(x, weight, down):
        return checkpoint(block, x, weight, down, use_reentrant=False,
                          context_fn=contexts)

    def ranks():
        rank = state().world.rank
        given = [tensor(*shape, seed=i + rank).requires_grad_() for i, shape in enumerate(((4, 8), (6, 8), (8, 6)))]
        call = torch.compile(wrapped, fullgraph=True, backend="aot_eager") if compiled else wrapped
        calls = state().calls.setdefault(state().world.key, [0])
        counts = []
        for one in (block, call):
            before = calls[0]
            grads = torch.autograd.grad(one(*given).sum(), given)
            counts.append((calls[0] - before, grads))
        assert counts[0][0] == counts[1][0] > 0
        assert all(torch.equal(a, b) for a, b in zip(counts[0][1], counts[1][1]))
    run_ranks(ranks, 2)


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_is_exported_with_its_operators(strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(tensor(6, 8))

        def forward(self, x):
            return ops.ag_gemm(x * 2, self.weight) + 1

    def ranks():
        model, rows = Model(), torch.export.Dim("rows", min=2)
        program = torch.export.export(model, (tensor(4, 8),), strict=strict, dynamic_shapes=({0: rows},))
        assert any(node.target is OPS["ag_gemm"].operator for node in program.graph.nodes)
        x = tensor(7, 8, seed=3)
        assert torch.equal(program.module()(x), model(x))
    run_ranks(ranks, 1)


def test_a_graph_is_of_a_number_of_ranks():
    """Compilers keep graphs on disk, where one for two ranks must not be found for three."""
    graphs = [run_ranks(lambda: make_fx(lambda t: ops.all_gather(t), tracing_mode="fake")(torch.ones(2, 3)).code, world)[0]
              for world in (2, 3)]
    assert "'@2'" in graphs[0] and "'@3'" in graphs[1]

    def ranks():
        x = torch.ones(2, 3)
        with pytest.raises(InvalidArgument, match="made for 3 ranks, and now there are 2"):
            OPS["all_gather"].operator(x, "@3", "auto")
        assert OPS["all_gather"].operator(x, "@2", "auto").shape == (4, 3)
    run_ranks(ranks, 2)


@pytest.mark.full
def test_inductor():
    """Its cache on disk does not mix numbers of ranks."""
    def model(x, weight, down):
        return ops.gemm_rs(torch.relu(ops.ag_gemm(x * 2, weight)), down).square().sum()

    def ranks():
        given = [tensor(*shape, seed=i).requires_grad_() for i, shape in enumerate(((4, 8), (6, 8), (8, 6)))]
        grads = [torch.autograd.grad(call(*given), given) for call in (model, torch.compile(model, fullgraph=True))]
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b)
    for world in (1, 2):
        torch._dynamo.reset()
        run_ranks(ranks, world)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_operator_refuses_tangents_of_forward_mode(name):
    """Operators of torch.library drop them without a word."""
    def ranks():
        case = CASES[name](1, 0, 1, 1)
        graph = make_fx(case.run)(case.x)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(case.x, torch.ones_like(case.x))
            case.check(graph(case.x))                   # without a tangent it is served
            with pytest.raises(InvalidArgument, match="carries a tangent"):
                graph(dual)
        case.check(graph(case.x))
    run_ranks(ranks, 1)
