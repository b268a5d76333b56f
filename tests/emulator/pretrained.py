# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Run by test_pretrained.py on each rank: checkpoints of tiny decoders of transformers, loaded in parts."""
import json
from collections import Counter

import torch
import transformers.modeling_utils
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3Config, Qwen3MoeConfig

import triton_dist
from triton_dist.integrations.plans import OverlapColwiseLinear, OverlapRowwiseLinear
from triton_dist.integrations.transformers import from_pretrained
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

SIZES = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=4, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES, head_dim=4, attention_bias=True),
    "tied": lambda: LlamaConfig(**SIZES, head_dim=4, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=4),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SIZES, head_dim=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}
IDS = torch.arange(3, 15).view(2, 6)


def whole(name, folder, files=2):
    """A model of one rank, which it also saves, in so many files."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]()).float()
    with torch.no_grad():
        for p in model.parameters():                        # so that norms are not all ones, and words are told apart
            p.add_(torch.randn_like(p) / 4)
    total = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=total if files == 1 else int(total * 0.6))
    found = len(list(folder.glob("*.safetensors")))
    assert found == files == len({*json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()}
                                 if files > 1 else [1]), found
    return model.eval()


def read(monkeypatch):
    """Counts the elements that each rank reads of the files."""
    found, opened = Counter(), transformers.modeling_utils.safe_open

    class Slice:
        def __init__(self, real):
            self.real, self.get_shape, self.get_dtype = real, real.get_shape, real.get_dtype

        def __getitem__(self, where):
            part = self.real[where]
            found[getattr(state().world, "rank", None)] += part.numel()
            return part

    class File:
        def __init__(self, *args, **options):
            self.real = opened(*args, **options)
            self.keys, self.metadata = self.real.keys, self.real.metadata

        def get_slice(self, key):
            return Slice(self.real.get_slice(key))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return self.real.__exit__(*error)
    monkeypatch.setattr(transformers.modeling_utils, "safe_open", File)
    return found


def loaded(name, folder, alone, save_to=None, counts=None):
    """Loads: logits, gradients, words and what is saved are those of `alone`, the model of one rank."""
    triton_dist.initialize_distributed()
    world = state().world
    model = from_pretrained(folder)
    local = {key: p.to_local() if isinstance(p, DTensor) else p for key, p in model.named_parameters()}
    if counts is not None:
        assert counts[world.rank] == sum(p.numel() for p in local.values()), counts
    kinds = Counter(type(module) for module in model.modules())
    mlp = 0 if "experts" in "".join(local) else 1
    layers = SIZES["num_hidden_layers"] if world.size > 1 else 0
    assert kinds[OverlapColwiseLinear] == (3 + 2 * mlp) * layers and kinds[OverlapRowwiseLinear] == (1 + mlp) * layers, kinds
    expected, found = alone(input_ids=IDS, labels=IDS), model(input_ids=IDS, labels=IDS)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    wanted = dict(zip([key for key, _ in alone.named_parameters()], torch.autograd.grad(expected.loss, list(alone.parameters()))))
    found.loss.backward()
    for key, p in model.named_parameters():
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(grad, wanted[key], rtol=1e-3, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    asked = dict(input_ids=IDS[:1], attention_mask=torch.ones_like(IDS[:1]), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    with torch.no_grad():
        assert torch.equal(model.generate(**asked), alone.generate(**asked))
    if save_to is not None:
        model.save_pretrained(save_to)
    triton_dist.finalize_distributed()


def same(folder, alone):
    """What was saved is whole, for one rank."""
    again = AutoModelForCausalLM.from_pretrained(folder).float()
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), alone.parameters(), strict=True))


def refused(where, expected, **options):
    """All ranks raise, and the world goes on."""
    triton_dist.initialize_distributed()
    options = options.pop("of_rank", [options] * state().world.size)[state().world.rank]
    try:
        from_pretrained(options.pop("folder", where), **options)
        raise AssertionError(f"expected an error with {expected!r}")
    except InvalidArgument as error:
        assert expected in str(error), error
    total = triton_dist.ops.all_reduce(torch.ones(4))
    triton_dist.synchronize()
    assert total.tolist() == [state().world.size] * 4
    triton_dist.finalize_distributed()
