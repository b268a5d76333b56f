# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Run by test_plans.py on each rank: a tiny decoder of transformers, divided, against the same on one rank."""
import copy
import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import triton_dist
from triton_dist.integrations.transformers import full_state_dict, tensor_parallel
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

SIZES = dict(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, head_dim=4,
             num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def main(name, folder):
    triton_dist.initialize_distributed()
    world = state().world
    torch.manual_seed(0)
    config = CONFIGS[name](**dict(SIZES, num_key_value_heads=max(SIZES["num_key_value_heads"], world.size)))
    alone = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for p in alone.parameters():                        # so that norms are not all ones, and words are told apart
            p.add_(torch.randn_like(p) / 4)
    mesh = init_device_mesh("cpu", (world.size,))
    model = tensor_parallel(copy.deepcopy(alone), mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    divided = [key for key, p in model.named_parameters() if not p.placements[0].is_replicate()]
    assert len(divided) == 7 * SIZES["num_hidden_layers"], divided
    ids = torch.randint(3, 31, (2, 6))
    expected, found = alone(input_ids=ids, labels=ids), model(input_ids=ids, labels=ids)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    for loss in (expected.loss, found.loss):
        loss.backward()
    for (key, p), q in zip(model.named_parameters(), alone.parameters()):
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(grad, q.grad, rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.5, foreach=True) for m in (model, alone)]
    torch.testing.assert_close(norms[0].full_tensor(), norms[1], rtol=1e-4, atol=1e-4)
    for m in (model, alone):
        torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=True).step()         # as on GPUs, where foreach is the default
    asked = dict(input_ids=ids[:1], attention_mask=torch.ones_like(ids[:1]), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    with torch.no_grad():
        tokens = model.generate(**asked)
        assert torch.equal(tokens, alone.generate(**asked)), tokens
        static = model.generate(**asked, cache_implementation="static")
        assert torch.equal(tokens, static), static
    whole = full_state_dict(model)
    if world.rank == 0:
        copy.deepcopy(alone).save_pretrained(folder, state_dict=whole)
        again = AutoModelForCausalLM.from_pretrained(folder).float()
        for p, q in zip(again.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-3)
    if world.size > 1:
        try:
            tensor_parallel(AutoModelForCausalLM.from_config(CONFIGS[name](**dict(SIZES, num_key_value_heads=1))), mesh)
            raise AssertionError("one key head cannot be divided")
        except InvalidArgument as error:
            assert "num_key_value_heads" in str(error)
    try:
        tensor_parallel(torch.nn.Linear(2, 2), mesh)
        raise AssertionError("a linear layer is no decoder")
    except InvalidArgument as error:
        assert "found Linear" in str(error)
    if world.rank == 0:
        print(f"{name} on {world.size}: right", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main(*sys.argv[1:])
