# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A small GPT: whole, by plain torch, and the same divided over ranks by layers."""
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from triton_dist.layers import TPMLP, ParallelEmbedding, ParallelLMHead, SequenceRMSNorm, TPAttention, rotary

WORDS, WIDTH, HEADS, KV_HEADS, SIZE, INNER, LAYERS = 37, 16, 8, 4, 4, 24, 4


class Block(nn.Module):
    """A decoder block of whole weights."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * SIZE)
        self.out = nn.Linear(HEADS * SIZE, WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH)

    def forward(self, x, angles):
        """x: [S, B, WIDTH]."""
        x = x + self.attention(self.before(x), *angles)
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def attention(self, x, cos, sin):
        q, k, v = (t.unflatten(-1, (-1, SIZE)).permute(1, 2, 0, 3) for t in
                   self.qkv(x).split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1))

        def turned(t):
            one, two = t[..., :SIZE // 2], t[..., SIZE // 2:]
            return t * cos + torch.cat([-two, one], -1) * sin
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (turned(k), v))
        scores = turned(q) @ k.mT * SIZE ** -0.5
        scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2))


class GPT(nn.Module):
    """The whole model, embedding and head tied."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, ids, labels):
        x, angles = self.embedding(ids), rotary(torch.arange(len(ids)), SIZE)
        for block in self.blocks:
            x = block(x, angles)
        logits = self.norm(x) @ self.embedding.weight.t()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class ParallelBlock(nn.Module):
    """A block's shards."""

    def __init__(self, full, options):
        super().__init__()
        norm = partial(SequenceRMSNorm.from_norm, group=options.get("group"))
        self.before, self.after = norm(full.before), norm(full.after)
        self.attention = TPAttention.from_full(full.qkv, full.out, HEADS, KV_HEADS, **options)
        self.mlp = TPMLP.from_full(full.up, full.down, full.gate, **options)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.before(x), (cos, sin))
        return x + self.mlp(self.after(x))


class ParallelGPT(nn.Module):
    """The model of `full`, divided. checkpointed: None, or use_reentrant of torch's checkpoint around each block."""

    def __init__(self, full, checkpointed=None, **options):
        super().__init__()
        self.checkpointed, self.dim = checkpointed, options.get("sequence_dim", 0)
        self.embedding = ParallelEmbedding.from_full(full.embedding, **options)
        self.blocks = nn.ModuleList(ParallelBlock(block, options) for block in full.blocks)
        self.norm = SequenceRMSNorm.from_norm(full.norm, options.get("group"))
        self.head = ParallelLMHead(self.embedding.weight, self.embedding.first, WORDS, options.get("group"), **{
            name: value for name, value in options.items() if name != "group"})

    def forward(self, ids, labels):
        x, angles = self.embedding(ids), rotary(torch.arange(ids.shape[self.dim]), SIZE)
        for block in self.blocks:
            if self.checkpointed is None:
                x = block(x, *angles)
            else:
                x = checkpoint(block, x, *angles, use_reentrant=self.checkpointed)
        return self.head.loss(self.norm(x), labels)


def batches(steps, length=8, batch=2):
    """(ids, labels) [length, batch] of each step: words that follow each other by a rule, so that there is something to learn."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        first = torch.randint(WORDS, (batch,), generator=generator)
        words = (first + 5 * torch.arange(length + 1)[:, None]) % WORDS
        yield words[:-1], words[1:]


def trained(model, steps, call=None, sequence_dim=0):
    """The loss of each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for ids, labels in batches(steps):
        ids, labels = (ids, labels) if sequence_dim == 0 else (ids.t().contiguous(), labels.t().contiguous())
        loss = (model if call is None else call)(ids, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
