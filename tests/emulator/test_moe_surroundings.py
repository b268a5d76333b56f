# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Layers of a mixture of experts under torch.compile and autocast."""
import pytest
import torch
from torch import nn

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import EPMoE, TopKRouter, TPMoE
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

BF16, F32 = torch.bfloat16, torch.float32
E, H, INNER, K = 4, 16, 8, 2


def made(layer, weights=F32, **options):
    """(a layer, its gate and up, its down) of all experts."""
    gate_up = (random_tensor(E, 2 * INNER, H, dtype=F32, seed=1) / H**0.5).to(weights)
    down = (random_tensor(E, H, INNER, dtype=F32, seed=2) / INNER**0.5).to(weights)
    router = TopKRouter(nn.Parameter(random_tensor(E, H, dtype=F32, seed=3).to(weights)), K, **options)
    return layer.from_full(router, nn.Parameter(gate_up), nn.Parameter(down))


def rows_of(layer, dtype=F32):
    return random_tensor(5, H, dtype=dtype, seed=9 + (resolve().rank if layer is EPMoE else 0))


@pytest.mark.parametrize("layer", [EPMoE, TPMoE])
def test_a_layer_is_one_graph(layer):
    def script():
        moe, x, named = made(layer), rows_of(layer), []

        def look(graph, _):
            named.extend(str(node.target) for node in graph.graph.nodes if "triton_dist" in str(node.target))
            return graph
        compiled = torch.compile(moe, fullgraph=True, backend=look)
        found = compiled(x)
        wanted = moe(x)
        assert torch.equal(found, wanted) and any("grouped_gemm" in name for name in named)
        (gradient,) = torch.autograd.grad(found.square().sum(), moe.weight)
        assert torch.equal(gradient, torch.autograd.grad(wanted.square().sum(), moe.weight)[0])
    run_ranks(script, 2)
    torch._dynamo.reset()


@pytest.mark.parametrize("layer", [EPMoE, TPMoE])
@pytest.mark.parametrize("weights, rows", [(F32, F32), (F32, BF16), (BF16, F32)])
def test_under_autocast_experts_compute_in_its_dtype(layer, weights, rows):
    """With and without gradients, which have the dtype of the parameters."""
    def script():
        moe, x = made(layer, weights), rows_of(layer, rows).requires_grad_()
        plain = made(layer, BF16)
        with torch.autocast("cpu", dtype=BF16):
            out = moe(x)
            with torch.no_grad():
                again = moe(x)
        wanted = plain(x.detach().to(BF16))
        out.float().square().sum().backward()
        triton_dist.synchronize()
        assert out.dtype is again.dtype is BF16
        for found in (out, again):
            assert_matches(found.detach(), wanted.detach().double(), k=INNER, roundings=6)
        assert moe.weight.grad.dtype is weights and x.grad.dtype is rows and bool(moe.down.grad.isfinite().all())
    run_ranks(script, 2)


def test_a_router_of_a_dtype_keeps_it_under_autocast():
    def script():
        router, x = made(EPMoE, BF16, dtype=F32).router, rows_of(EPMoE)
        expected = router(x)
        with torch.autocast("cpu", dtype=BF16):
            found = router(x)
        assert all(torch.equal(a, b) for a, b in zip(found, expected))
    run_ranks(script, 1)
