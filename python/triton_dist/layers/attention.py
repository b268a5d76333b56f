# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A decoder's attention, heads divided over ranks."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers.linear import AGGemm, ColumnLinear, GemmAR, GemmRS
from triton_dist.layers.mlp import fused
from triton_dist.runtime.errors import InvalidArgument


def rotary(positions: torch.Tensor, head_size: int, theta: float = 10000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) [S, head_size] in fp32 of rotary position embeddings, for `positions` [S] (integers)."""
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions.float()[:, None] * theta ** -exponents
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, heads, S, D] turned by its positions' angles, in which the two halves of D are the two coordinates."""
    one, two = x.chunk(2, -1)
    return (x * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


def _expect_angles(angles: tuple, x: torch.Tensor) -> None:
    """Refuses angles that torch would repeat over positions, or over heads in place of sequences."""
    for t in angles:
        if t.shape[-2:] != x.shape[-2:] or t.ndim > 2 and t.shape[-3] != 1:
            raise InvalidArgument(f"angles: expected cos and sin of shape {list(x.shape[-2:])}, for all positions of the "
                                  f"sequence, found {list(t.shape)}")


class KVCache:
    """Keys and values of this rank's heads, for decoding. Attention reads what there is, so a compiled graph is of one length.

    Args:
        batch, kv_heads, capacity, head_size: of the tensors [batch, kv_heads, capacity, head_size]. kv_heads: this rank's.
        dtype, device: of the tensors.
    """

    def __init__(self, batch: int, kv_heads: int, capacity: int, head_size: int, dtype: torch.dtype, device: Any):
        self.keys = torch.zeros(batch, kv_heads, capacity, head_size, dtype=dtype, device=device)
        self.values, self.length = torch.zeros_like(self.keys), 0

    def add(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends [batch, kv_heads, S, head_size]; returns all that there are. Raises InvalidArgument where they do not fit."""
        self._expect(key, value)
        start, end = self.length, self.length + key.shape[2]
        if end > self.keys.shape[2]:
            raise InvalidArgument(f"cache: expected room for {end} positions, found {self.keys.shape[2]}; make it larger")
        self.keys[:, :, start:end], self.values[:, :, start:end], self.length = key, value, end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _expect(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Refuses another batch or other heads than those of the cache: torch would repeat what there is one of."""
        batch, heads, _, size = self.keys.shape
        for name, t in (("key", key), ("value", value)):
            if t.ndim != 4 or (t.shape[0], t.shape[1], t.shape[3]) != (batch, heads, size):
                raise InvalidArgument(f"{name}: expected shape {[batch, heads, 'S', size]} of this cache, found {list(t.shape)}; "
                                      "kv_heads of a cache are this rank's")

    def mask(self, queries: int, causal: bool) -> torch.Tensor | None:
        """Which of the positions that `add` gave the newest `queries` attend to, bool [queries, positions].

        None: each to all, or, where they are all that there are, as `causal` says.
        """
        before = self.length - queries
        if not causal or queries == 1 or not before:
            return None
        places = torch.arange(self.length, device=self.keys.device)
        return places <= places[before:, None]


class StaticKVCache(KVCache):
    """A KVCache whose shapes never change, for torch.compile and CUDA graphs: one graph serves all positions.

    Its `length`, int64 [1], is on the device, and attention reads the whole capacity under a mask. The host does not know the
    length, so it is on the caller to stay within the capacity: beyond it torch reports an index out of range.

    Example:
        step = torch.compile(attention, fullgraph=True)
        y = step(x, angles, cache)                          # any number of times
        cache.length.zero_()                                # for the next sequences
    """

    def __init__(self, batch: int, kv_heads: int, capacity: int, head_size: int, dtype: torch.dtype, device: Any):
        super().__init__(batch, kv_heads, capacity, head_size, dtype, device)
        self.length = torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends [batch, kv_heads, S, head_size]; returns the whole tensors, [batch, kv_heads, capacity, head_size]."""
        self._expect(key, value)
        places = self.length + torch.arange(key.shape[2], device=self.length.device)
        self.keys.index_copy_(2, places, key)
        self.values.index_copy_(2, places, value)
        self.length.add_(key.shape[2])
        return self.keys, self.values

    def mask(self, queries: int, causal: bool) -> torch.Tensor:
        """Which positions the newest `queries` attend to, bool [queries, capacity]."""
        places = torch.arange(self.keys.shape[2], device=self.length.device)
        ends = torch.arange(1 - queries, 1, device=self.length.device) if causal else places.new_zeros(queries)
        return places < (self.length + ends)[:, None]


class TPAttention(nn.Module):
    """out(attention(qkv(x))) with grouped-query attention: qkv is column-parallel, out row-parallel.

    Args:
        qkv: AGGemm or ColumnLinear whose three `parts` are this rank's query, key and value heads.
        out: GemmRS behind an AGGemm, GemmAR behind a ColumnLinear.
        head_size: features of a head.
        causal: whether a position attends to those before it only.
    """

    def __init__(self, qkv: AGGemm | ColumnLinear, out: GemmRS | GemmAR, head_size: int, causal: bool = True):
        super().__init__()
        self.qkv, self.out, self.head_size, self.causal = qkv, out, head_size, causal

    @classmethod
    def from_full(cls, qkv: nn.Linear | tuple, out: nn.Linear, heads: int, kv_heads: int | None = None, *, causal: bool = True,
                  group: Any = None, sequence_parallel: bool = True, sequence_dim: int = 0) -> "TPAttention":
        """From whole layers, the same on all ranks: takes this rank's shards, copies.

        Args:
            qkv: an nn.Linear of query, key and value heads one after the other, or a tuple of three.
            out: [H, heads * head_size].
            heads, kv_heads: numbers of query heads, and of key and value heads (None: as many). Heads are never cut. Where there
                are fewer key heads than ranks, several ranks hold one, and qkv is frozen.
            causal: whether a position attends to those before it only.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            sequence_parallel: whether x and the result are parts of the sequence, [S / W, B, H]; else all ranks have all of it.
            sequence_dim: which dimension of x the ranks divide.
        """
        kv_heads = kv_heads or heads
        qkv = fused(*qkv) if isinstance(qkv, (tuple, list)) else qkv
        size, rest = divmod(qkv.weight.shape[0], heads + 2 * kv_heads)
        if rest or heads % kv_heads or out.weight.shape[1] != heads * size:
            raise InvalidArgument(f"heads: expected numbers that divide the weights, found {heads} and {kv_heads} for qkv "
                                  f"{list(qkv.weight.shape)} and out {list(out.weight.shape)}")
        columns, rows = (AGGemm, GemmRS) if sequence_parallel else (ColumnLinear, GemmAR)
        parts = [heads * size, kv_heads * size, kv_heads * size]
        return cls(columns.from_full(qkv, group, parts=parts, unit=size, sequence_dim=sequence_dim),
                   rows.from_full(out, group, unit=size, sequence_dim=sequence_dim), size, causal)

    @property
    def kv_heads(self) -> int:
        """Key heads of this rank, as KVCache wants them."""
        return self.qkv.parts[1] // self.head_size

    def forward(self, x: torch.Tensor, angles: tuple | None = None, cache: KVCache | None = None,
                residual: torch.Tensor | None = None, norm: nn.Module | None = None,
                input_norm: nn.Module | None = None) -> Any:
        """x [..., H] -> [..., H].

        Args:
            x: [S / W, B, H] or, with sequence_dim 1, [B, S / W, H]; [S / W, H] for a batch of one. Where it is not sequence
                parallel, S in place of S / W.
            angles: (cos, sin) [S, head_size] of `rotary` for the positions of the whole sequence, or None.
            cache: keys and values of positions before these, to which those of x are added, or None. A StaticKVCache for
                torch.compile and CUDA graphs.
            residual: of x's shape, added to the result, or None. Where `out` is a GemmAR.
            norm: the RMS norm that follows in a decoder, or None: likewise. With it the result is (norm(y), y), as of GemmAR.
            input_norm: the RMS norm of x that comes first, where `qkv` is a ColumnLinear, or None.
        """
        more = GemmAR.takes(self.out, residual, norm)
        y = self.qkv(x, **ColumnLinear.takes(self.qkv, input_norm))
        dim = self.qkv.sequence_dim
        y = y.unsqueeze(1 - dim) if y.ndim == 2 else y
        y = y if dim else y.transpose(0, 1)                                     # [B, S, ...]
        q, k, v = (t.unflatten(-1, (-1, self.head_size)).transpose(1, 2) for t in y.split(self.qkv.parts, -1))
        if angles is not None:
            _expect_angles(angles, q)
            q, k = _rotated(q, *angles), _rotated(k, *angles)
        mask = None
        if cache is not None:
            k, v = cache.add(k, v)
            mask = cache.mask(q.shape[2], self.causal)
        done, causal, grouped = q, False, False
        if self.causal and mask is None and q.shape[2] > 1:     # an `if`: torch takes no comparison of traced sizes
            causal = True
        if q.shape[1] != k.shape[1]:
            grouped = True
        if q.shape[1]:                          # a rank may have no heads
            done = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped)
        done = done.transpose(1, 2).flatten(2)                                  # [B, S, heads * head_size]
        done = done if dim else done.transpose(0, 1)
        return self.out(done.squeeze(1 - dim) if x.ndim == 2 else done, **more)
