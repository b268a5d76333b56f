# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Run by test_moe_layers.py on each rank: a tiny mixture-of-experts decoder of transformers, its experts divided."""
import copy

import torch

import triton_dist
from triton_dist.integrations.transformers import full_state_dict
from triton_dist.layers import EPMoE
from triton_dist.runtime.state import state

from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, MiniMaxConfig, MixtralConfig, Qwen2MoeConfig,
                          Qwen3MoeConfig)

SIZES = dict(vocab_size=31,
             hidden_size=16,
             intermediate_size=24,
             num_hidden_layers=2,
             num_attention_heads=2,
             num_key_value_heads=2,
             max_position_embeddings=32,
             pad_token_id=0,
             bos_token_id=1,
             eos_token_id=2)
QWEN = dict(SIZES,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            decoder_sparse_step=1,
            mlp_only_layers=[])
FEW = dict(SIZES, num_local_experts=4, num_experts_per_tok=2)
DEEPSEEK = dict(SIZES,
                n_routed_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=12,
                n_group=4,
                n_shared_experts=1,
                kv_lora_rank=8,
                q_lora_rank=8,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=8)
CONFIGS = {
    "qwen3_moe": lambda: Qwen3MoeConfig(**QWEN, head_dim=8, norm_topk_prob=True),
    "qwen2_moe": lambda: Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=12),
    "minimax": lambda: MiniMaxConfig(**FEW, head_dim=8),
    "mixtral": lambda: MixtralConfig(**FEW),
    "deepseek_v2": lambda: DeepseekV2Config(**DEEPSEEK, head_dim=4, topk_group=1, topk_method="greedy", norm_topk_prob=True,
                                            first_k_dense_replace=0),
    "deepseek_v3": lambda: DeepseekV3Config(**DEEPSEEK, topk_group=2, first_k_dense_replace=1),
}


def main(name, steps=2):
    """Each rank has words of its own. Logits of all, and the weights after some steps, are those of one rank with all words."""
    triton_dist.initialize_distributed()
    world = state().world
    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(CONFIGS[name]()).float()
    with torch.no_grad():
        for p in (*alone.parameters(), *[b for key, b in alone.named_buffers() if "correction" in key]):
            p.add_(torch.randn_like(p) / 4)  # so that words and experts are told apart
    model = copy.deepcopy(alone)
    places = [layer for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    for layer in places:
        layer.mlp = EPMoE.from_transformers(layer.mlp, model.config)
    assert places
    saved, whole = full_state_dict(model), alone.state_dict()
    assert saved.keys() == whole.keys() and all(torch.equal(saved[key], whole[key]) for key in whole)
    ids = torch.randint(3, 31, (world.size, 2, 5))
    mine = ids[world.rank]
    with torch.no_grad():  # "indexed"
        expected = alone(input_ids=mine).logits
        torch.testing.assert_close(model(input_ids=mine).logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(input_ids=mine).logits.detach(), expected, rtol=1e-4, atol=1e-4)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, alone))
    for _ in range(steps):
        model(input_ids=mine, labels=mine).loss.backward()
        sum(alone(input_ids=part, labels=part).loss for part in ids).backward()
        shared = [p for key, p in model.named_parameters() if not key.endswith(("mlp.weight", "mlp.down"))]
        for p in shared:  # as data parallelism does it; experts have the sum already
            if p.grad is not None:
                world.all_reduce_tensor(p.grad)
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=mine).logits, alone(input_ids=mine).logits, rtol=1e-3, atol=1e-3)
    if world.rank == 0:
        print(f"{name} on {world.size}: right", flush=True)
    triton_dist.finalize_distributed()
