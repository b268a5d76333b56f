# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The layers that are timed: Llama's and Qwen3's, with random weights and the layers' own arithmetic in plain torch."""
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from triton_dist.bench.model.words import Arch
from triton_dist.layers.attention import rotary
from triton_dist.runtime.streams import device

EPS = 1e-6


@dataclass
class Layer:
    """A layer's weights [out, in]: whole, or a rank's shard."""
    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norms: torch.Tensor         # [2, hidden]: before attention, before the MLP
    head_norms: torch.Tensor    # [2, head_size]: of queries, of keys

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [self.qkv, self.out, self.gate_up, self.down, self.norms, self.head_norms]


def whole_layer(arch: Arch, number: int, dtype: torch.dtype) -> Layer:
    """Layer `number`, the same on all ranks. A product's entries are about as large as its input's."""
    generator = torch.Generator(device=device()).manual_seed(number)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        t = torch.empty(rows, columns, dtype=dtype, device=device())
        return t.normal_(0.0, 1 / math.sqrt(columns), generator=generator)

    def norm(size: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(2, size, generator=generator, device=device())).to(dtype)
    return Layer(drawn((arch.heads + 2 * arch.kv_heads) * arch.head_size, arch.hidden),
                 drawn(arch.hidden, arch.heads * arch.head_size), drawn(2 * arch.intermediate, arch.hidden),
                 drawn(arch.hidden, arch.intermediate), norm(arch.hidden), norm(arch.head_size))


def shard(layer: Layer, arch: Arch, rank: int, world: int) -> Layer:
    """A rank's heads and its part of the MLP, copies."""
    q, kv = arch.heads * arch.head_size, arch.kv_heads * arch.head_size
    parts = [part.chunk(world)[rank] for part in layer.qkv.split([q, kv, kv])]
    gate, up = (part.chunk(world)[rank] for part in layer.gate_up.chunk(2))
    return Layer(torch.cat(parts), layer.out.chunk(world, 1)[rank].contiguous(), torch.cat([gate, up]),
                 layer.down.chunk(world, 1)[rank].contiguous(), layer.norms, layer.head_norms)


class Decoder:
    """The layers of one rank: forward(h) -> h, whose linears are those of `way`.

    Args:
        arch, layers: sizes, and the weights of this rank.
        way: a Way (ways.py).
        rows: of the sequence, or of a batch of sequences that each take one more token where `cached` is not 0.
        cached: positions that each sequence has in its cache, the new one included.
        share: how many ranks the heads are divided over.
    """

    def __init__(self, arch: Arch, layers: list[Layer], way: Any, rows: int, cached: int, share: int):
        self.arch, self.layers, self.way, self.rows, self.cached = arch, layers, way, rows, cached
        self.heads, self.kv_heads = arch.heads // share, arch.kv_heads // share
        dtype = layers[0].qkv.dtype
        positions = torch.arange(rows, device=device()) if not cached else torch.full((rows,), cached - 1, device=device())
        self.cos, self.sin = (t.to(dtype)[:, None] for t in rotary(positions, arch.head_size))
        self.caches: list = []
        self.last = torch.tensor([cached - 1], device=device())
        if cached:
            generator = torch.Generator(device=device()).manual_seed(99)
            shape = (2, rows, arch.kv_heads, cached, arch.head_size)
            for _ in layers:                        # keys, values: a write to a part of one tensor would be compiled to copies
                whole = torch.empty(shape, dtype=torch.bfloat16, device=device()).normal_(generator=generator).to(dtype)
                self.caches.append(tuple(part.contiguous() for part in whole.chunk(share, 2)[way.rank]))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """h: the rows that this rank has between layers."""
        way = self.way
        n = F.rms_norm(h, (self.arch.hidden,), self.layers[0].norms[0], EPS)
        for number, layer in enumerate(self.layers):
            attended = self._attention(way.column(n, layer.qkv), layer, number)
            n, h = way.row_norm(attended, layer.out, h, layer.norms[1])
            following = self.layers[(number + 1) % len(self.layers)].norms[0]
            n, h = way.row_norm(way.gated(n, layer.gate_up), layer.down, h, following)
        return h

    def _attention(self, qkv: torch.Tensor, layer: Layer, number: int) -> torch.Tensor:
        heads, kv, size = self.heads, self.kv_heads, self.arch.head_size
        q, k, v = qkv.view(self.rows, heads + 2 * kv, size).split([heads, kv, kv], 1)
        if self.arch.head_norms:
            q, k = (F.rms_norm(t, (size,), weight, EPS) for t, weight in zip((q, k), layer.head_norms))
        q, k = (self._turned(t) for t in (q, k))
        if self.cached:
            keys, values = self.caches[number]                              # [rows, kv heads, cached, size]
            for cache, new in ((keys, k), (values, v)):                     # by an index tensor: torch.compile keeps it in place
                cache[:, :, self.last] = new[:, :, None]
            found = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=heads != kv)
            return found.reshape(self.rows, heads * size)
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
        return found[0].transpose(0, 1).reshape(self.rows, heads * size)

    def _turned(self, t: torch.Tensor) -> torch.Tensor:
        one, two = t.chunk(2, -1)
        return t * self.cos + torch.cat([-two, one], -1) * self.sin
