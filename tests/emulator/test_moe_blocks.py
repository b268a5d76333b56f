# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Layers made from blocks as models of transformers have them: what they take over, and what they refuse to lose."""
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.integrations.transformers import full_state_dict
from triton_dist.layers import EPMoE, TopKRouter, TPMoE
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

BF16, F32 = torch.bfloat16, torch.float32
E, H, INNER, K = 6, 16, 8, 2


class Weights(nn.Module):
    """Parameters of these shapes by name."""

    def __init__(self, **shapes):
        super().__init__()
        for i, (name, shape) in enumerate(shapes.items()):
            setattr(self, name, nn.Parameter(random_tensor(*shape, dtype=F32, seed=len(name) + i) / H**0.5))


def block(act=nn.SiLU, gate=(), **parts):
    """A block with a gate, which has more parameters of E elements, with fused experts, and other parts."""
    made = nn.Module()
    made.gate = Weights(weight=(E, H), **{name: (E,) for name in gate})
    made.experts = Weights(gate_up_proj=(E, 2 * INNER, H), down_proj=(E, H, INNER))
    made.experts.act_fn = act()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def config(kind, **more):
    return SimpleNamespace(model_type=kind, num_experts_per_tok=K, **more)


def experts_sum(made, x, ids, weights):
    """In float64, one token and choice after the other."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, row in enumerate(x.double()):
        for e, weight in zip(ids[token].tolist(), weights[token].tolist()):
            if 0 <= e < E:
                gate, up = (made.experts.gate_up_proj[e].double() @ row).chunk(2)
                out[token] += weight * (made.experts.down_proj[e].double() @ (nn.functional.silu(gate) * up))
    return out.detach()


ROUTES = {              # model: (its configuration, what the gate has more, scores, whether weights are normalised)
    "mixtral": ({}, (), "softmax", True), "minimax": ({}, (), "softmax", True),
    "qwen3_moe": (dict(norm_topk_prob=True), (), "softmax", True), "olmoe": (dict(norm_topk_prob=False), (), "softmax", False),
    "deepseek_v2": (dict(norm_topk_prob=True, topk_method="greedy", n_group=3, topk_group=1), (), "softmax", False),
    "deepseek_v3": (dict(norm_topk_prob=True, routed_scaling_factor=2.5), ("e_score_correction_bias",), "sigmoid", True)}


@pytest.mark.parametrize("model", ROUTES)
def test_each_model_routes_as_transformers_does(model):
    more, gate, score, normalized = ROUTES[model]

    def script():
        made, x = block(gate=gate), random_tensor(5, H, dtype=F32, seed=30 + resolve().rank)
        logits = x @ made.gate.weight.detach().t()
        scores = logits.softmax(-1) if score == "softmax" else logits.sigmoid()
        ids = (scores + (made.gate.e_score_correction_bias.detach() if gate else 0)).topk(K).indices
        weights = scores.gather(1, ids)
        weights = (weights / weights.sum(1, keepdim=True) if normalized else weights) * more.get("routed_scaling_factor", 1.0)
        with torch.no_grad():
            out = EPMoE.from_transformers(made, config(model, **more))(x)
        triton_dist.synchronize()
        assert_matches(out, experts_sum(made, x, ids, weights), k=H + INNER, roundings=8)
    run_ranks(script, 2)


@pytest.mark.parametrize("layer", [EPMoE, TPMoE])
def test_a_shared_expert_with_a_gate_of_its_own_is_kept(layer):
    """As of Qwen2-MoE and Qwen3-Next."""
    def script():
        made = block(shared_expert=nn.Linear(H, H), shared_expert_gate=nn.Linear(H, 1))
        for p in (*made.shared_expert.parameters(), *made.shared_expert_gate.parameters()):
            nn.init.constant_(p, 0.25)
        x = random_tensor(5, H, dtype=F32, seed=3)
        with torch.no_grad():
            found = layer.from_transformers(made, config("qwen2_moe", norm_topk_prob=False))
            ids, weights = found.router(x)
            wanted = experts_sum(made, x, ids, weights) + (made.shared_expert_gate(x).sigmoid() * made.shared_expert(x)).double()
            out = found(x)
        triton_dist.synchronize()
        assert_matches(out, wanted, k=H + INNER, roundings=8)
    run_ranks(script, 2)


class Adapted(nn.Linear):
    """A linear layer with something beside its weight."""

    def forward(self, input):
        return super().forward(input) + 1


def listed(names=("gate_proj", "up_proj", "down_proj"), bias=False, linear=nn.Linear):
    """A block whose experts are modules in a list, as transformers had them before version 5."""
    made = block()
    made.experts = nn.ModuleList(nn.Module() for _ in range(E))
    for expert in made.experts:
        for name, (n, k) in zip(names, ((INNER, H), (INNER, H), (H, INNER))):
            setattr(expert, name, linear(k, n, bias=bias))
    return made


@pytest.mark.parametrize("names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")])
def test_experts_in_a_list_are_trained_if_they_are(names):
    def script():
        x = random_tensor(5, H, dtype=F32, seed=3)
        for layer in (EPMoE, TPMoE):
            made = listed(names)
            found = layer.from_transformers(made, config("mixtral"))
            found(x).square().sum().backward()
            assert found.weight.grad.any() and found.down.grad.any()
            for p in made.experts.parameters():
                p.requires_grad_(False)
            found = layer.from_transformers(made, config("mixtral"))
            assert not found.weight.requires_grad and not found.down.requires_grad and found.router.weight.requires_grad
    run_ranks(script, 2)


LOST = {
    "an unknown model": (block, config("ernie4_5_moe"), "model_type to be one of deepseek_v2, .*found 'ernie4_5_moe'"),
    "no model": (block, SimpleNamespace(num_experts_per_tok=K), "found None"),
    "a bias of the gate": (lambda: block(gate=("bias",)), config("qwen3_moe"), "a gate with bias, weight"),
    "more in the gate": (lambda: block(gate=("temperature",)), config("qwen3_moe"), "a gate with temperature, weight"),
    "noise": (block, config("mixtral", router_jitter_noise=0.1), "router_jitter_noise of 0, found 0.1"),
    "logits of the router": (block, config("mixtral", output_router_logits=True), "output_router_logits False, found True"),
    "another activation": (lambda: block(nn.GELU), config("mixtral"), "activation silu, found GELU"),
    "biases of experts": (lambda: listed(bias=True), config("mixtral"),
                          "experts without biases, found gate_proj.bias, up_proj.bias"),
    "adapters of experts": (lambda: listed(linear=Adapted), config("mixtral"), "linear: .*its own forward, found Adapted"),
    "a part that is not known": (lambda: block(norm=nn.LayerNorm(H)), config("qwen3_moe"), "found experts, gate, norm"),
    "a shared expert without its gate": (lambda: block(shared_expert=nn.Linear(H, H)), config("qwen2_moe"),
                                         "found experts, gate, shared_expert in"),
}


def test_what_a_layer_would_lose_is_refused():
    def script():
        for make, of, said in LOST.values():
            for layer in (EPMoE, TPMoE):
                with pytest.raises(InvalidArgument, match=said):
                    layer.from_transformers(make(), of)
    run_ranks(script, 1)


@pytest.mark.parametrize("weight, dtype", [(F32, None), (BF16, F32)])
def test_a_router_in_fp32_chooses_in_fp32(weight, dtype):
    """Logits rounded to bfloat16 would be equal for many experts."""
    def script():
        x = random_tensor(64, H, dtype=BF16, seed=3)
        router = TopKRouter((random_tensor(64, H, dtype=F32, seed=4) / 64).to(weight), 4, dtype=dtype)
        logits = x.double() @ router.weight.double().t()
        ids, weights = router(x)
        assert torch.equal(ids.long().sort().values, logits.topk(4).indices.sort().values)
        rounded = TopKRouter(router.weight.to(BF16), 4)(x)[0]
        assert not torch.equal(rounded.sort().values, ids.sort().values)
    run_ranks(script, 1)


class Some(nn.Module):
    """A router that gives numbers of no expert, too."""

    def forward(self, x):
        ids = torch.tensor([[0, -1], [E, 5], [3, 3], [-7, 100]], dtype=torch.int32)
        return ids, (x[:, :2].float().abs() + 0.5)


@pytest.mark.parametrize("layer", [EPMoE, TPMoE])
@pytest.mark.parametrize("grad", [False, True])
def test_numbers_of_no_expert_count_for_nothing(layer, grad):
    def script():
        made, x = block(), random_tensor(4, H, dtype=F32, seed=5)
        found = layer.from_full(Some(), made.experts.gate_up_proj, made.experts.down_proj)
        with torch.set_grad_enabled(grad):
            out = found(x)
        triton_dist.synchronize()
        assert_matches(out.detach(), experts_sum(made, x, *Some()(x)), k=H + INNER, roundings=8)
    run_ranks(script, 2)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("layer", [EPMoE, TPMoE])
def test_all_experts_are_given_back_whole(layer, world):
    """So that a model can be saved, under the names of transformers. Eight rows do not divide by three ranks."""
    def script():
        made = block(shared_expert=nn.Linear(H, H), shared_expert_gate=nn.Linear(H, 1))
        found = layer.from_transformers(made, config("qwen2_moe", norm_topk_prob=False))
        for whole, part in zip((made.experts.gate_up_proj, made.experts.down_proj), found.full_experts()):
            assert torch.equal(whole, part) and part.is_contiguous()
        for model, wanted in ((found, made), (nn.Sequential(nn.Linear(2, 2), found), None)):
            saved = full_state_dict(model)
            wanted = nn.Sequential(model[0], made) if wanted is None else wanted
            assert saved.keys() == wanted.state_dict().keys()
            assert all(torch.equal(saved[name], t) for name, t in wanted.state_dict().items())
    run_ranks(script, world)
