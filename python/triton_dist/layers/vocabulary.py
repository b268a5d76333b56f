# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Embedding and head of which each rank has some tokens of the vocabulary, and a loss that does not gather logits."""
from typing import Any

import torch
from torch import nn

from triton_dist.layers import _rows
from triton_dist.layers._held import Held
from triton_dist.layers._shards import Shards
from triton_dist.layers.linear import plain_linear
from triton_dist.layers.replicated import refuse_second, replicated, summed
from triton_dist.ops import ag_gemm, all_gather, reduce_scatter
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import name_of, resolve


class _Vocabulary(Held):
    """Holds weights of the tokens first, first + 1, ... of `vocab_size`."""

    def __init__(self, weight: torch.Tensor, first: int, vocab_size: int, group: Any = None, *, sequence_parallel: bool = True,
                 sequence_dim: int = 0):
        super().__init__(weight, None, group)
        self.first, self.vocab_size = first, vocab_size
        self.sequence_parallel, self.sequence_dim = sequence_parallel, _rows.dimension(sequence_dim)

    @classmethod
    def from_full(cls, full: nn.Module, group: Any = None, *, sequence_parallel: bool = True, sequence_dim: int = 0) -> Any:
        """Takes this rank's shard of a whole nn.Embedding, or nn.Linear without bias, with weight [V, H], the same on all ranks.

        The first V % W ranks have one row more than the others.

        Args:
            full: the whole layer.
            group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
            sequence_parallel: whether activations are parts of the sequence, [S / W, B, H]; else all ranks have all of it.
            sequence_dim: which dimension of activations the ranks divide.
        """
        if not isinstance(full, (nn.Embedding, nn.Linear)) or getattr(full, "bias", None) is not None:
            raise InvalidArgument(f"full: expected an nn.Embedding or an nn.Linear without bias, found {full}")
        if isinstance(full, nn.Linear):
            plain_linear(full)
        shards = Shards(full.weight.shape[0], resolve(group))
        return cls(shards.parameter(full.weight), shards.starts[0], full.weight.shape[0], group,
                   sequence_parallel=sequence_parallel, sequence_dim=sequence_dim)

    def extra_repr(self) -> str:
        return f"tokens {self.first} to {self.first + self.weight.shape[0]} of {self.vocab_size}"


class ParallelEmbedding(_Vocabulary):
    """Embedding with weight [V, H], of which each rank has consecutive rows (a shard of the vocabulary).

    Args:
        weight: [V_local, H], the rows of this rank.
        first: token id of the first of these rows.
        vocab_size: V, the size of the whole vocabulary.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        sequence_parallel: True: the result is this rank's part of the sequence. False: all ranks have all of it.
        sequence_dim: which dimension of the result the ranks divide.
        padding_idx: token id whose row gets no gradient, as of an nn.Embedding, or None.
    """

    def __init__(self, weight: torch.Tensor, first: int, vocab_size: int, group: Any = None, *, sequence_parallel: bool = True,
                 sequence_dim: int = 0, padding_idx: int | None = None):
        super().__init__(weight, first, vocab_size, group, sequence_parallel=sequence_parallel, sequence_dim=sequence_dim)
        self.padding_idx = padding_idx

    @classmethod
    def from_full(cls, full: nn.Module, group: Any = None, **options: Any) -> Any:
        """As of the base class. Takes padding_idx over, and refuses what else an embedding may do to its rows."""
        made = super().from_full(full, group, **options)
        odd = [name for name in ("max_norm", "scale_grad_by_freq", "sparse") if getattr(full, name, None)]
        if isinstance(full, nn.Embedding) and type(full).forward is not nn.Embedding.forward:
            odd.append(f"a forward of {type(full).__name__}")
        if odd:
            raise InvalidArgument(f"full: expected an embedding that gives rows as they are, found {', '.join(odd)}; pass the "
                                  "weight to the layer, and do the rest to what it gives")
        made.padding_idx = getattr(full, "padding_idx", None)
        return made

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [S, B] ([B, S] with sequence_dim 1, or [S]), the same on all ranks -> [S / W, B, H] ([B, S / W, H], [S / W, H])."""
        mine = (ids >= self.first) & (ids < self.first + self.weight.shape[0])
        weight = self.weight if self.weight.shape[0] else nn.functional.pad(self.weight, (0, 0, 0, 1))
        padding = None if self.padding_idx is None else self.padding_idx - self.first
        padding = padding if padding is not None and 0 <= padding < self.weight.shape[0] else None
        found = nn.functional.embedding(torch.where(mine, ids - self.first, 0), weight, padding)
        found = torch.where(mine.unsqueeze(-1), found, 0)
        if not self.sequence_parallel:
            return summed(found, self.group)
        dim = self.sequence_dim if ids.ndim > 1 else 0
        _rows.must_divide(found, dim, self.group)
        return _rows.shaped(reduce_scatter(_rows.flat(found, dim).contiguous(), group=self.group), found, dim)


class ParallelLMHead(_Vocabulary):
    """Logits x @ weight [V, H]^T, of which each rank computes those of its shard of the vocabulary.

    Arguments as for ParallelEmbedding. Pass an embedding's parameter as `weight` to tie the two.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [S / W, B, H] (or [S, B, H], where it is not sequence parallel) -> this rank's logits [S, B, V_local]."""
        if not self.sequence_parallel:
            return nn.functional.linear(replicated(x, self.group), self.weight)
        dim = self.sequence_dim if x.ndim > 2 else 0
        return _rows.shaped(ag_gemm(_rows.flat(x, dim), self.weight, group=self.group), x, dim)

    def loss(self, x: torch.Tensor, labels: torch.Tensor, ignore_index: int = -100, reduction: str = "mean") -> torch.Tensor:
        """Cross entropy of `labels` [S, B] ([B, S] with sequence_dim 1). Every rank passes the labels of the whole sequence.

        As torch.nn.functional.cross_entropy, in fp32 and equal on all ranks. See vocab_parallel_cross_entropy.
        """
        return vocab_parallel_cross_entropy(self(x), labels, self.first, self.vocab_size, self.group, ignore_index, reduction)

    def greedy(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids [S, B] with the largest logits, equal on all ranks. Of equal logits the first id counts."""
        logits = self(x).float()
        if not logits.shape[-1]:
            logits = nn.functional.pad(logits, (0, 1), value=-torch.inf)
        best, at = logits.max(-1)
        best, at = (all_gather(t.unsqueeze(0).contiguous(), group=self.group) for t in (best, at + self.first))
        return at.gather(0, best.argmax(0, keepdim=True)).squeeze(0)


class _CrossEntropy(torch.autograd.Function):
    """Of logits [N, V_local] and labels [N]: the loss of each row."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, first: int, group: str) -> torch.Tensor:
        own, wide = logits.shape[-1], logits.float()
        mine = (labels >= first) & (labels < first + own)
        at = torch.where(mine, labels - first, 0).unsqueeze(-1)
        if own:
            most, picked = wide.amax(-1), wide.gather(-1, at).squeeze(-1)
        else:
            most, picked = wide.new_full(labels.shape, -torch.inf), wide.new_zeros(labels.shape)
        floor = most.clamp(min=torch.finfo(most.dtype).min)             # of a shard in which all words are masked
        total = (wide - floor.unsqueeze(-1)).exp().sum(-1)
        every = all_gather(torch.stack([most, total, torch.where(mine, picked, 0)]).unsqueeze(0), group=group)
        most, totals, picked = every.unbind(1)
        top = most.amax(0)
        total = (totals * (most - top).exp()).sum(0)
        ctx.save_for_backward(logits, top, total, mine, at)
        return total.log() + top - picked.sum(0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        refuse_second("vocab_parallel_cross_entropy")
        logits, top, total, mine, at = ctx.saved_tensors
        found = (logits.float() - top.unsqueeze(-1)).exp() / total.unsqueeze(-1)
        if logits.shape[-1]:
            found = found.scatter_add(-1, at, -mine.to(found.dtype).unsqueeze(-1))
        return (found * grad.unsqueeze(-1)).to(logits.dtype), None, None, None


def vocab_parallel_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, first: int, vocab_size: int, group: Any = None,
                                 ignore_index: int = -100, reduction: str = "mean") -> torch.Tensor:
    """Cross entropy of logits of which each rank has a shard of the vocabulary. Collective over `group`.

    Logits are never gathered: 12 bytes for each row and rank are sent.

    Args:
        logits: [..., V_local] of the token ids first, first + 1, ...
        labels: [...] int64, the same on all ranks. Rows with `ignore_index`, or with an id outside the vocabulary, do not count.
        first: this rank's first token id.
        vocab_size: V, the size of the whole vocabulary.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        ignore_index: label of rows that do not count.
        reduction: "mean" over rows that count, "sum" or "none".

    Returns the loss in fp32, equal on all ranks; its gradient must be, too.
    """
    if reduction not in ("mean", "sum", "none"):
        raise InvalidArgument(f"reduction: expected 'mean', 'sum' or 'none', found {reduction!r}")
    if labels.shape != logits.shape[:-1]:
        raise InvalidArgument(f"labels: expected shape {list(logits.shape[:-1])}, found {list(labels.shape)}")
    rows = _CrossEntropy.apply(_rows.matrix(logits), labels.flatten(), first, name_of(group)).view(labels.shape)
    counts = (labels != ignore_index) & (labels >= 0) & (labels < vocab_size)
    rows = torch.where(counts, rows, 0)
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / counts.sum()
