# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Checkpoints of Hugging Face, of which each rank reads its part, on virtual ranks."""
import importlib.util
import json

import pytest
import torch

from triton_dist.backends.emulator import run_ranks

pytestmark = pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")),
                                reason="transformers or accelerate is not installed")


OWN = """
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own"
class Own(LlamaForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture(autouse=True)
def of_this_rank(monkeypatch):
    """Threads of transformers that read files would not know which virtual rank they read for."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("name", ["llama", "tied", "qwen3", "qwen3_moe", "mixtral"])
def test_a_checkpoint_is_read_in_parts_and_saved_whole(name, world, tmp_path, monkeypatch):
    """Also what was saved loads on other numbers of ranks."""
    import pretrained
    alone = pretrained.whole(name, tmp_path / "first", files=2)
    counts = pretrained.read(monkeypatch)
    run_ranks(pretrained.loaded, world, name, tmp_path / "first", alone, tmp_path / "second", counts, heap=False)
    pretrained.same(tmp_path / "second", alone)
    run_ranks(pretrained.loaded, {1: 2, 2: 1, 4: 2}[world], name, tmp_path / "second", alone, heap=False)


def test_a_checkpoint_of_one_file_in_another_dtype(tmp_path):
    import pretrained
    import triton_dist
    pretrained.whole("llama", tmp_path, files=1)

    def main():
        triton_dist.initialize_distributed()
        model = pretrained.from_pretrained(tmp_path, dtype=torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        triton_dist.finalize_distributed()
    run_ranks(main, 2, heap=False)


def test_a_checkpoint_with_code_of_its_own(tmp_path, monkeypatch):
    """It runs where the caller says so."""
    import pretrained
    import transformers
    import triton_dist
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    alone, folder = pretrained.whole("llama", tmp_path / "model", files=1), tmp_path / "model"
    config = json.loads((folder / "config.json").read_text())
    own = dict(model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"})
    (folder / "config.json").write_text(json.dumps(config | own))
    (folder / "own.py").write_text(OWN)

    def main():
        triton_dist.initialize_distributed()
        model = pretrained.from_pretrained(folder, trust_remote_code=True)
        with torch.no_grad():
            torch.testing.assert_close(model(pretrained.IDS).logits, alone(pretrained.IDS).logits, rtol=1e-4, atol=1e-4)
        triton_dist.finalize_distributed()
    run_ranks(main, 2, heap=False)


def edited(folder, edit):
    """Changes the weights of a checkpoint of one file."""
    from safetensors.torch import load_file, save_file
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_all_ranks_refuse_what_does_not_fit(tmp_path):
    import pretrained
    q, norm = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
    cases = [
        (None, "expected a local folder", dict(folder="no/such/name")),
        (None, "expected a torch.dtype of floating-point numbers", dict(dtype="float17")),
        (None, "expected a torch.dtype of floating-point numbers", dict(dtype=torch.int32)),
        (None, "expected a local folder", dict(of_rank=[{}, dict(folder="not/here")])),         # one rank's mistake
        (lambda weights: weights.pop(norm), f"missing: {norm}", {}),
        (lambda weights: weights.update(more=torch.ones(2)), "not of the model: more", {}),
        (lambda weights: weights.update({q: torch.ones(16, 15)}), f"{q} of [16, 15], expected [16, 16]", {}),
        (lambda weights: weights.update({norm: torch.ones(3)}), norm, {}),
    ]
    for i, (edit, expected, options) in enumerate(cases):
        folder = tmp_path / str(i)
        pretrained.whole("llama", folder, files=1)
        if edit is not None:
            edited(folder, edit)
        run_ranks(pretrained.refused, 2, folder, expected, heap=False, **options)
    run_ranks(pretrained.refused, 3, tmp_path / "0", "expected one that divides num_attention_heads, found 3 ranks", heap=False)
    two = tmp_path / "two"
    pretrained.whole("llama", two, files=2)
    (two / "model-00002-of-00002.safetensors").unlink()
    run_ranks(pretrained.refused, 2, two, "found no model-00002-of-00002.safetensors", heap=False)
    config = json.loads((tmp_path / "0" / "config.json").read_text())
    (tmp_path / "0" / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    run_ranks(pretrained.refused, 2, tmp_path / "0", "not quantised", heap=False)
