# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Layers whose product gathers rows on their way, on virtual worlds: the bits of rows copied first, and of rows in order."""
from unittest import mock

import pytest
import torch
from experts import anywhere
from scenarios import captures_by_rank, graph  # noqa: F401

import triton_dist
from triton_dist.backends.emulator import backend as emulator
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.cores.hopper import grouped_gemm as core
from triton_dist.cores.hopper.cores import cores
from triton_dist.layers import EPMoE, TPMoE
from triton_dist.ops import dispatch_grouped_gemm, ep_combine, ep_dispatch, grouped_gemm
from triton_dist.ops.ep import self_flagged
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("push_for_few_tokens")
BF16, F32 = torch.bfloat16, torch.float32
LOCAL, K, HIDDEN, INNER = 3, 3, 32, 24              # experts of a rank, choices of a token


@pytest.fixture(autouse=True)
def the_core_is_preferred(monkeypatch):
    """As on a GPU."""
    found = cores(emulator._core_tiles, preferred=True)
    monkeypatch.setattr(emulator.EmulatorBackend, "core", lambda self, name: found.get(name))


@pytest.fixture(autouse=True)
def the_product_gathers(monkeypatch):
    """As it does for few tokens: for others rows come by expert."""
    monkeypatch.setattr(self_flagged, "serves", lambda *_: True)


@pytest.fixture
def copies():
    """What copies rows first: called where that is done."""
    with mock.patch.object(core, "GatherRows", wraps=core.GatherRows) as made:
        yield made


def given(rank, world, tokens=12):
    """(x, ids, weights of choices, gate and up, down) of a rank."""
    return (random_tensor(tokens, HIDDEN, dtype=BF16, seed=rank), anywhere(rank, 1, tokens, K, LOCAL * world),
            random_tensor(tokens, K, dtype=F32, seed=rank + 10),
            random_tensor(LOCAL, 2 * INNER, HIDDEN, dtype=BF16, seed=rank + 20),
            random_tensor(LOCAL, HIDDEN, INNER, dtype=BF16, seed=rank + 30))


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.full)])
def test_ops_in_turn_and_the_layer_have_the_bits_of_copied_rows(world, copies):
    def script():
        group = resolve()
        x, ids, by, gate_up, down = given(group.rank, world)
        h, came = dispatch_grouped_gemm(x, ids, by, gate_up, num_experts=LOCAL * world, method="unfused")
        moe = EPMoE(lambda x: (ids, by), gate_up, down)
        with torch.no_grad():
            out = moe(x)
        triton_dist.synchronize()
        return h[:int(came.expert_offsets[-1])].clone(), out.clone()

    def by_expert():
        group = resolve()
        x, ids, by, gate_up, down = given(group.rank, world)
        came = ep_dispatch(x, ids, by, num_experts=LOCAL * world, layout="expert")
        rows = dict(offsets=came.expert_offsets, counts=came.expert_rows)
        h = grouped_gemm(came.x, gate_up, act="silu_mul", **rows)
        out = ep_combine(grouped_gemm(h, down, **rows), came.handle, topk_weights=came.topk_weights)
        triton_dist.synchronize()
        return h[:int(came.expert_offsets[-1])].clone(), out.clone()

    gathered = run_ranks(script, world)
    assert not copies.called
    in_order = run_ranks(by_expert, world)
    with mock.patch.object(self_flagged, "serves", lambda *_: False), mock.patch.object(core, "GATHERED_N", 0):
        straight = run_ranks(script, world)
    assert not copies.called
    with mock.patch.object(core, "GATHERED_N", 0):
        copied = run_ranks(script, world)
    assert copies.called
    for others in (in_order, straight, copied):
        for mine, other in zip(gathered, others):
            assert all(len(a) and torch.equal(a, b) for a, b in zip(mine, other))


@pytest.mark.usefixtures("captures_by_rank")
def test_a_graph_gathers_by_routing_that_changes(copies):
    def script():
        group = resolve()
        x, ids, by, gate_up, _ = given(group.rank, 2)

        def call():
            return dispatch_grouped_gemm(x, ids, by, gate_up, num_experts=2 * LOCAL, method="unfused")

        call()
        with graph() as made:
            h, came = call()
        for seed in (2, 3):
            triton_dist.synchronize()
            ids.copy_(anywhere(group.rank, seed, len(x), K, 2 * LOCAL))
            made.replay()
            wanted, other = call()
            triton_dist.synchronize()
            rows = int(other.expert_offsets[-1])
            assert rows and torch.equal(came.expert_rows, other.expert_rows) and torch.equal(h[:rows], wanted[:rows])

    run_ranks(script, 2)
    assert not copies.called


@pytest.mark.parametrize("world", [1, 2])
def test_experts_divided_over_ranks_gather_where_no_gradient_is_wanted(world, copies):
    """With gradients rows are put in order by torch, with the same bits."""
    def script():
        ids, by = anywhere(0, 1, 20, K, LOCAL), random_tensor(20, K, dtype=F32, seed=1)
        gate_up, down = given(0, 1)[3:]
        moe, x = TPMoE.from_full(lambda x: (ids, by), gate_up, down), random_tensor(20, HIDDEN, dtype=BF16, seed=2)
        with torch.no_grad():
            out = moe(x)
        ordered = moe(x)
        triton_dist.synchronize()
        assert torch.equal(out, ordered)

    with mock.patch("triton_dist.layers.tp_moe.grouped_gemm", wraps=grouped_gemm) as product:
        run_ranks(script, world)
    assert sum(call.kwargs.get("sources") is not None for call in product.call_args_list) == world and not copies.called
