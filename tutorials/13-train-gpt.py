# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A small language model, trained over ranks
==========================================

.. code-block:: bash

    bash launch.sh 13-train-gpt.py

The layers of triton_dist make a model whose weights and activations are divided over ranks, by tensor and sequence parallelism.
You will build a decoder from them and train it. The model learns to count in steps of five. Its loss is that of one rank that
holds everything, whatever the number of ranks. On GPUs the same file runs unedited.
"""
import torch
from torch import nn
from torch.nn import functional

import triton_dist
from triton_dist.layers import TPMLP, ParallelEmbedding, ParallelLMHead, SequenceRMSNorm, TPAttention, rotary
from triton_dist.runtime.groups import resolve
from triton_dist.testing import plot

WORDS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 32, 32, 8, 16, 2, 10

# %%
# The model
# ---------
#
# A block of a decoder is attention and an MLP. Each is a column-parallel layer, which gathers the sequence under its GEMM, and a
# row-parallel one, which scatters the sum under its own. Between these two layers a rank has some heads, or some columns, of the
# whole sequence; outside them it has a part of the sequence. The backward pass is the same the other way round, and overlaps as
# well.


class Block(nn.Module):
    """A decoder block whose weights this rank has its share of: x [LENGTH / world, BATCH, WIDTH] in and out."""

    def __init__(self):
        super().__init__()
        self.before = SequenceRMSNorm.from_norm(nn.RMSNorm(WIDTH, eps=1e-5))
        self.attention = TPAttention.from_full(nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), HEADS)
        self.after = SequenceRMSNorm.from_norm(nn.RMSNorm(WIDTH, eps=1e-5))
        self.mlp = TPMLP.from_full(nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), activation=functional.gelu)

    def forward(self, x, angles):
        x = x + self.attention(self.before(x), angles)
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    """Embedding, one block, and a head with the embedding's weight."""

    def __init__(self):
        super().__init__()
        words = nn.Embedding(WORDS, WIDTH)
        nn.init.normal_(words.weight, std=0.1)
        self.embedding = ParallelEmbedding.from_full(words)
        self.block = Block()
        self.norm = SequenceRMSNorm.from_norm(nn.RMSNorm(WIDTH, eps=1e-5))
        self.head = ParallelLMHead(self.embedding.weight, self.embedding.first, WORDS)

    def forward(self, ids, labels):
        """ids, labels [LENGTH, BATCH], the same on all ranks -> the mean loss, the same on all ranks."""
        angles = rotary(torch.arange(LENGTH, device=ids.device), WIDTH // HEADS)
        return self.head.loss(self.norm(self.block(self.embedding(ids), angles)), labels)


# %%
# Training
# --------
#
# Each rank makes whole layers from the same seed, and `from_full` takes its shard of them. From there on it is training as usual.
#
# .. image:: /tutorial_plots/13-train-gpt.png
#    :alt: the loss over ten steps


def main() -> None:
    triton_dist.initialize_distributed()
    group, device = resolve(), triton_dist.device()
    torch.manual_seed(0)                            # whole layers are the same on all ranks, which take their shards of them
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        first = torch.randint(WORDS, (BATCH,))
        words = ((first + 5 * torch.arange(LENGTH + 1)[:, None]) % WORDS).to(device)
        loss = model(words[:-1], words[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    print(f"rank {group.rank} of {group.size}: loss {losses[0]:.3f}, after {STEPS} steps {losses[-1]:.3f}", flush=True)
    plot("13-train-gpt", list(range(1, STEPS + 1)), {"loss": losses}, group, "step", "loss", scale="linear")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/13-train-gpt.png'
