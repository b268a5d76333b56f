# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Gradients through dispatch and combine, against autograd of one rank in float64, and what torch.compile sees of both."""
import pytest
import torch
from experts import anywhere

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

T, H, K, SHARE = 4, 12, 3, 2
F32 = torch.float32


def through(x, ids, weights, factors, layout, world, **how):
    """sum over choices of weight * factor of the expert * x, by a dispatch and a combine. factors: of this rank's experts."""
    came = ops.ep_dispatch(x, ids, weights, num_experts=SHARE * world, layout=layout, **how)
    triton_dist.synchronize()
    if layout in ("compact", "indexed"):
        chosen = torch.where(came.topk_ids >= 0, factors[came.topk_ids.clamp(min=0).long()], 0.0)
        rows = torch.arange(len(came.x)) < came.rows
        y = torch.where(rows[:, None], came.x, 0.0) * (chosen * came.topk_weights).sum(1, keepdim=True)
        return ops.ep_combine(y, came.handle)
    rows = torch.arange(came.x.shape[-2])
    if layout == "masked":
        expert, there = torch.arange(SHARE)[:, None], rows < came.expert_rows[:, None]
    else:
        expert, there = torch.bucketize(rows, came.expert_offsets[1:-1], right=True), rows < came.expert_offsets[-1]
    y = torch.where(there.unsqueeze(-1), came.x, 0.0) * factors[expert].unsqueeze(-1)
    return ops.ep_combine(y, came.handle, topk_weights=came.topk_weights)


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("layout", ["compact", "expert", pytest.param("masked", marks=pytest.mark.full)])
def test_gradients(layout, world):
    def ranks():
        rank, g = resolve().rank, torch.Generator().manual_seed(resolve().rank)
        ids = anywhere(rank, 2, T, K, SHARE * world)
        if layout == "masked":  # has room for a token once in an expert
            ids = torch.stack([torch.randperm(SHARE * world + 1, generator=g)[:K] - 1
                               for _ in range(T)])[:, :K].contiguous()
        x, weights = random_tensor(T, H, dtype=F32, seed=rank), random_tensor(T,
                                                                              ids.shape[1],
                                                                              dtype=F32,
                                                                              seed=rank + 10)
        factors, to = random_tensor(SHARE * world, dtype=F32, seed=5), random_tensor(T, H, dtype=F32, seed=rank + 20)
        leaves = [t.double().requires_grad_() for t in (x, weights, factors)]
        chosen = torch.where(ids >= 0, leaves[2][ids.clamp(min=0)], 0.0)
        expected = leaves[0] * (leaves[1] * chosen).sum(1, keepdim=True)
        (expected * to).sum().backward()
        x.requires_grad_(), weights.requires_grad_()
        mine = factors[rank * SHARE:][:SHARE].clone().requires_grad_()
        out = through(x, ids, weights, mine, layout, world)
        (out * to).sum().backward()
        triton_dist.synchronize()
        for found, wanted in ((out.detach(), expected.detach()), (x.grad, leaves[0].grad), (weights.grad,
                                                                                            leaves[1].grad)):
            assert_matches(found, wanted, k=64, roundings=8)
        return mine.grad, leaves[2].grad

    grads = run_ranks(ranks, world)
    whole = sum(total for _, total in grads)  # each rank's tokens
    assert_matches(torch.cat([of for of, _ in grads]), whole, k=64, roundings=8)


def test_gradients_of_bias_and_residual_and_of_ranks_without_tokens():
    def ranks():
        rank = resolve().rank
        tokens = (0, 3)[rank]
        x, residual, bias = (random_tensor(*shape, dtype=F32, seed=rank).requires_grad_()
                             for shape in ((tokens, H), (tokens, H), (H, )))
        came = ops.ep_dispatch(x,
                               torch.zeros(tokens, 1, dtype=torch.int32),
                               num_experts=2,
                               layout="expert",
                               max_tokens=3)
        out = ops.ep_combine(came.x * 2.0, came.handle, bias=bias, residual=residual)
        out.sum().backward()
        assert torch.equal(x.grad, torch.full_like(x, 2.0)) and torch.equal(residual.grad, torch.ones_like(x))
        assert torch.equal(bias.grad, torch.full((H, ), float(tokens)))

    run_ranks(ranks, 2)


@pytest.mark.parametrize("k", [1, pytest.param(3, marks=pytest.mark.full)])
def test_weights_of_any_number_of_choices_have_a_gradient_where_rows_are_self_flagged(k):
    """Gradients of weights go back as rows of k numbers, which may be no whole vectors."""
    def ranks():
        rank = resolve().rank
        ids = torch.full((2, k), 1 - rank, dtype=torch.int32)
        x, weights = torch.ones(2, 4), random_tensor(2, k, dtype=F32, seed=rank).requires_grad_()
        came = ops.ep_dispatch(x, ids, weights, num_experts=2, method="self_flagged")
        (came.topk_weights * 3.0).sum().backward()
        triton_dist.synchronize()
        assert torch.equal(weights.grad, torch.full_like(weights, 3.0))

    run_ranks(ranks, 2)


def test_rows_of_fp8_have_no_gradient():
    def ranks():
        with pytest.raises(InvalidArgument, match="a dispatch of fp8 has no gradient"):
            ops.ep_dispatch(torch.ones(2, 128, requires_grad=True),
                            torch.zeros(2, 1, dtype=torch.int32),
                            num_experts=1,
                            quant="fp8_1x128")

    run_ranks(ranks, 1)


@pytest.mark.parametrize("layout, backend", [("expert", "eager"), pytest.param("compact", "aot_eager", marks=pytest.mark.full),
                                             pytest.param("expert", "aot_eager", marks=pytest.mark.full)])
def test_compiled_without_a_break(layout, backend):
    def ranks():
        rank, world = resolve().rank, resolve().size
        ids = anywhere(rank, 2, T, K, SHARE * world).int()
        x, weights = random_tensor(T, H, dtype=F32, seed=rank), random_tensor(T, K, dtype=F32, seed=rank + 10)

        def call(x, weights):
            came = ops.ep_dispatch(x, ids, weights, num_experts=SHARE * world, layout=layout)
            return ops.ep_combine(came.x * 2.0, came.handle, topk_weights=came.topk_weights if layout == "expert" else None)
        expected = call(x, weights)
        triton_dist.synchronize()
        compiled = torch.compile(call, fullgraph=True, backend=backend)
        found = compiled(x, weights)
        triton_dist.synchronize()
        assert torch.equal(found, expected)
        if backend == "aot_eager":
            x.requires_grad_(), weights.requires_grad_()
            compiled(x, weights).sum().backward()
            grads = x.grad.clone()
            x.grad = None
            call(x, weights).sum().backward()
            assert torch.equal(x.grad, grads)
    run_ranks(ranks, 1)
