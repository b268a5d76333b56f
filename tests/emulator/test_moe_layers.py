# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""EPMoE and its router, by themselves and in tiny decoders of transformers."""
import copy
import importlib.util

import pytest
import torch
from torch import nn

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import EPMoE, TopKRouter, TPMoE, moe as moe_layers
from triton_dist.ops.ep import chunks, self_flagged
from triton_dist.ops.ep_dispatch.by_expert import ByExpert
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

BF16, F32 = torch.bfloat16, torch.float32
E, H, INNER = 6, 16, 12


def chosen(logits, top_k, sigmoid, bias, groups, top_groups, group_score):
    """A token's experts and scores, one expert after the other."""
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = scores + (0 if bias is None else bias)
    size = len(choice) // groups
    best = []
    for g in range(groups):
        of = sorted(choice[g * size:(g + 1) * size].tolist(), reverse=True)
        best.append(sum(of[:2]) if group_score == "top2" else of[0])
    kept = sorted(range(groups), key=lambda g: -best[g])[:top_groups]
    ids = sorted((e for e in range(len(choice)) if e // size in kept), key=lambda e: -choice[e])[:top_k]
    return ids, [float(scores[e]) for e in ids]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups, top_groups, group_score", [(1, 1, "top2"), (4, 2, "top2"), (4, 2, "max")])
@pytest.mark.parametrize("biased", [False, True])
def test_the_router_chooses_as_a_loop_does(score, groups, top_groups, group_score, biased):
    weight, bias = torch.randn(12, H, generator=torch.Generator().manual_seed(1)), None
    if biased:
        bias = torch.rand(12, generator=torch.Generator().manual_seed(2))
    router = TopKRouter(weight,
                        3,
                        score=score,
                        bias=bias,
                        groups=groups,
                        top_groups=top_groups,
                        group_score=group_score,
                        scale=2.5)
    x = torch.randn(20, H, generator=torch.Generator().manual_seed(3))
    ids, weights = router(x)
    assert ids.dtype is torch.int32 and weights.dtype is F32
    for token in range(20):
        wanted, scores = chosen(x[token] @ weight.t(), 3, score == "sigmoid", bias, groups, top_groups, group_score)
        assert ids[token].tolist() == wanted
        torch.testing.assert_close(weights[token], 2.5 * torch.tensor(scores) / sum(scores))


def layer(shared=None, **options):
    router = TopKRouter(random_tensor(E, H, dtype=F32, seed=1), 2)
    gate_up, down = (random_tensor(*shape, dtype=F32, seed=2 + i) / 4
                     for i, shape in enumerate(((E, 2 * INNER, H), (E, H, INNER))))
    return router, gate_up, down, EPMoE.from_full(router, gate_up, down, shared=shared, **options)


def by_loop(x, router, gate_up, down):
    """Every choice of every token, in float64."""
    ids, weights = router(x)
    found = []
    for token in range(len(x)):
        total = torch.zeros(x.shape[1], dtype=torch.float64)
        for e, w in zip(ids[token].tolist(), weights[token]):
            gate, up = (x[token].double() @ gate_up[e].double().t()).chunk(2)
            total = total + w.double() * ((nn.functional.silu(gate) * up) @ down[e].double().t())
        found.append(total)
    return torch.stack(found) if found else torch.zeros(x.shape, dtype=torch.float64)


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.full), 2, pytest.param(3, marks=pytest.mark.full)])
def test_the_layer_is_what_a_loop_gives(world):
    def script():
        shared = nn.Linear(H, H, bias=False)
        nn.init.eye_(shared.weight)
        router, gate_up, down, moe = layer(shared, max_tokens=5)
        for tokens in (4 - resolve().rank, 0):
            x = random_tensor(tokens, H, dtype=F32, seed=10 * tokens + resolve().rank)
            wanted = by_loop(x, router, gate_up, down) + x.double()
            with torch.no_grad():
                for out in (moe(x), copy.deepcopy(moe)(x.view(tokens, 1, H)).view(tokens, H)):
                    triton_dist.synchronize()
                    assert_matches(out, wanted, k=H + INNER, roundings=8)
            out = moe(x).detach()
            triton_dist.synchronize()
            assert_matches(out, wanted, k=H + INNER, roundings=8)
        assert "max_tokens=5" in repr(moe)

    run_ranks(script, world)


@pytest.mark.parametrize("world, mode, order", [(2, "skew", (2, 9, 9, 2)), *[
    pytest.param(w, mode, (2, 9, 9, 2, 40, 9, 2), marks=pytest.mark.full) for w in (2, 3, 4) for mode in ("random", "late")
]])
def test_few_and_many_tokens_in_turn_keep_their_bits(world, mode, order, monkeypatch):
    """Few are self-flagged and gathered, many come by expert; no host waits between calls, and workspaces grow."""
    monkeypatch.setattr(self_flagged, "AUTO_ROWS", 4)
    monkeypatch.setattr(chunks, "PLACED", chunks.Pieces(128, 128))  # several rounds of a chunk
    plans = []
    made = ByExpert.__init__
    monkeypatch.setattr(ByExpert, "__init__", lambda self, *args: plans.append(args[1].max_tokens) or made(self, *args))

    def script():
        gate_up, down = (random_tensor(2 * world, 32, size, dtype=BF16, seed=size) / 4 for size in (32, 16))
        router = TopKRouter(random_tensor(2 * world, 32, dtype=BF16, seed=1) / 4, 2)
        moe = EPMoE.from_full(router, gate_up, down)
        inputs = {tokens: random_tensor(tokens, 32, dtype=BF16, seed=10 * tokens + resolve().rank) for tokens in order}
        with torch.no_grad():
            found = [moe(inputs[tokens]) for tokens in order]
            triton_dist.synchronize()
            first: dict = {}
            for tokens, out in zip(order, found):
                if tokens not in first:
                    first[tokens] = out
                    assert_matches(out, by_loop(inputs[tokens], router, gate_up, down), k=48, roundings=8)
                assert torch.equal(out, first[tokens])

    run_ranks(script, world, mode=mode)
    assert set(plans) == {tokens for tokens in order if tokens > 4}


@pytest.mark.parametrize("dtype, rounded_once", [(F32, True), (torch.float64, False)])
def test_the_combine_adds_what_the_shared_experts_gave_if_it_has_the_dtype(dtype, rounded_once, monkeypatch):
    given, combine = [], moe_layers.grouped_gemm_combine

    def seen(*args, residual=None):
        given.append(residual)
        return combine(*args, residual=residual)
    monkeypatch.setattr(moe_layers, "grouped_gemm_combine", seen)

    def script():
        router, gate_up, down, moe = layer(lambda x: 3 * x.to(dtype))
        x = random_tensor(3, H, dtype=F32, seed=resolve().rank)
        with torch.no_grad():
            out = moe(x)
        triton_dist.synchronize()
        assert out.dtype == dtype
        assert_matches(out.float(), by_loop(x, router, gate_up, down) + 3 * x.double(), k=H + INNER, roundings=8)

    run_ranks(script, 2)
    assert [residual is not None for residual in given] == [rounded_once] * 2


@pytest.mark.parametrize("world", [1, 2, 3])
def test_experts_divided_over_ranks_give_the_same_with_gradients(world):
    """One loss that all ranks compute."""
    def script():
        router, gate_up, down, _ = layer()
        leaves = [t.double().requires_grad_() for t in (gate_up, down)]
        x = random_tensor(5, H, dtype=F32, seed=4)
        wide = x.double().requires_grad_()
        wanted = by_loop(wide, copy.deepcopy(router).double(), *leaves)
        to = random_tensor(5, H, dtype=F32, seed=6)
        (wanted * to).sum().backward()
        moe = TPMoE.from_full(router, gate_up.requires_grad_(), down.requires_grad_())
        x.requires_grad_()
        out = moe(x.view(1, 5, H)).view(5, H)
        triton_dist.synchronize()
        (out * to).sum().backward()
        triton_dist.synchronize()
        assert_matches(out.detach(), wanted.detach(), k=H + INNER, roundings=8)
        assert_matches(x.grad, wide.grad, k=64, roundings=8)
        part = moe.down.shape[2]
        first = resolve().rank * (INNER // world)
        mine = slice(first, first + part)
        assert_matches(moe.down.grad, leaves[1].grad[:, :, mine], k=64, roundings=8)
        both = torch.cat([part[:, mine] for part in leaves[0].grad.chunk(2, 1)], 1)
        assert_matches(moe.weight.grad, both, k=64, roundings=8)

    run_ranks(script, world)


def test_bad_arguments_are_refused_with_words():
    def script():
        router, gate_up, down, _ = layer()
        for says, call in (("gate_up: expected .* to match down",
                            lambda: EPMoE(router, gate_up[:, 1:], down)), ("down: expected a weight for each expert",
                                                                           lambda: EPMoE(router, gate_up, down[0])),
                           ("divisible by the 2 ranks, found 5", lambda: EPMoE.from_full(router, gate_up[:5], down[:5])),
                           ("score: expected one of", lambda: TopKRouter(gate_up[0], 2, score="relu")),
                           ("groups: expected", lambda: TopKRouter(gate_up[0], 2, groups=5)),
                           ("top_k: expected 1 to", lambda: TopKRouter(gate_up[0], 2 * INNER + 1)),
                           ("block: expected one with gate.weight",
                            lambda: EPMoE.from_transformers(nn.Linear(2, 2), None))):
            with pytest.raises(InvalidArgument, match=says):
                call()

    run_ranks(script, 2)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize(
    "name",
    ["qwen3_moe",
     *(pytest.param(name, marks=pytest.mark.full)
       for name in ("mixtral", "deepseek_v3", "qwen2_moe", "minimax", "deepseek_v2"))])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_decoder_of_transformers_has_the_logits_of_one_rank(name, world, capsys):
    """Before and after steps of training."""
    import moe_decoder
    run_ranks(moe_decoder.main, world, name, heap=False)
    assert f"{name} on {world}: right" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_twenty_steps_of_training_are_those_of_one_rank(capsys):
    import moe_decoder
    run_ranks(moe_decoder.main, 2, "qwen3_moe", 20, heap=False)
    assert "qwen3_moe on 2: right" in capsys.readouterr().out
