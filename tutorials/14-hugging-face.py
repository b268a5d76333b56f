# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder of Hugging Face over ranks
====================================

.. code-block:: bash

    bash launch.sh 14-hugging-face.py

You will divide a Llama of ``transformers`` over ranks by one call. Then it generates text, takes a training step and is saved,
by the methods that it always had. On a laptop four ranks are emulated and the model is tiny. On GPUs the same file runs
unedited, with a rank on each GPU. With ``--folder`` it takes a checkpoint of yours:

.. code-block:: bash

    bash launch.sh 14-hugging-face.py --folder path/to/Meta-Llama-3-8B

It needs ``transformers``. In the environment that ``launch.sh`` makes, install it by
``.venv/bin/python -m pip install transformers``.
"""
import argparse
import sys
import tempfile
import time

import torch
from torch.distributed.device_mesh import init_device_mesh

import triton_dist
from triton_dist.runtime.groups import resolve

try:
    from transformers import AutoModelForCausalLM, LlamaConfig

    from triton_dist.integrations.transformers import full_state_dict, tensor_parallel
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; install it by: {sys.executable} -m pip install transformers") from error

TINY = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
                   num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
NEW = 8         # tokens to generate

# %%
# A model that is whole
# ---------------------
#
# Every rank begins with the same whole model. Here its weights are random, from one seed. ``num_key_value_heads`` must be
# divisible by the number of ranks, as each rank will have some of the heads.


def whole_model(folder):
    """(the model, token ids [1, 6]) on this rank's device, the same on all ranks."""
    torch.manual_seed(0)
    if folder:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    else:
        model = AutoModelForCausalLM.from_config(TINY).float()
    ids = torch.randint(3, model.config.vocab_size, (1, 6))
    return model.to(triton_dist.device()), ids.to(triton_dist.device())


# %%
# Divide it
# ---------
#
# ``tensor_parallel`` divides the projections of attention and MLP, in place. Their parameters become DTensors, of which a rank
# holds its shard. ``q``, ``k``, ``v``, ``gate`` and ``up`` are divided by columns. ``o`` and ``down`` are divided by rows, and
# end with an all-reduce: this is ``gemm_ar``, which for few rows is one kernel. Embedding, norms and head stay whole on every
# rank. The logits are those of the whole model, up to rounding.


def divided(model):
    """`model` over all ranks, in place."""
    mesh = init_device_mesh(triton_dist.device().type, (resolve().size,))
    return tensor_parallel(model, mesh)


def relative_error(found, expected):
    """||found - expected|| / ||expected||"""
    return float((found - expected).float().norm() / expected.float().norm())


# %%
# Use it as before
# ----------------
#
# ``generate`` is called as before, by all ranks with the same tokens, and gives all of them the same tokens. The cache of keys
# and values has only this rank's heads. Gradients are DTensors too, so that optimizers, ``clip_grad_norm_`` and torch's
# distributed checkpoints work. ``full_state_dict`` puts the shards together again, for ``save_pretrained``.


def generated(model, ids):
    """Token ids [1, 6 + NEW], by greedy search."""
    with torch.no_grad():
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)


def train_step(model, ids):
    """The losses before and after one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(input_ids=ids, labels=ids).loss
    before.backward()
    optimizer.step()
    return float(before.detach()), float(model(input_ids=ids, labels=ids).loss.detach())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="a checkpoint of a Llama, Qwen or Mistral on this machine (default: a tiny Llama)")
    folder = parser.parse_args().folder
    triton_dist.initialize_distributed()
    group = resolve()
    model, ids = whole_model(folder)
    with torch.no_grad():
        expected = model(ids).logits
        text = generated(model, ids)
    model = divided(model)
    with torch.no_grad():
        error = relative_error(model(ids).logits, expected)
    start = time.perf_counter()
    same = torch.equal(generated(model, ids), text)
    took = time.perf_counter() - start
    print(f"rank {group.rank} of {group.size}: logits differ by {error:.1e} from one rank's, "
          f"{'the same' if same else 'other'} {NEW} tokens, in {took:.2f} s", flush=True)
    if not folder:
        before, after = train_step(model, ids)
        state = full_state_dict(model)                      # on all ranks, since each has a part
        with tempfile.TemporaryDirectory() as place:
            model.save_pretrained(place, state_dict=state)  # the first rank writes
            if group.rank == 0:
                loaded = AutoModelForCausalLM.from_pretrained(place).to(triton_dist.device())
                loss = float(loaded(input_ids=ids, labels=ids).loss.detach())
                print(f"loss {before:.3f}, after a step {after:.3f}; saved, and loaded on one rank: {loss:.3f}", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
