# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""nn.Modules over the ops."""
from triton_dist.layers.attention import KVCache, StaticKVCache, TPAttention, rotary
from triton_dist.layers.linear import AGGemm, ColumnLinear, GemmAR, GemmRS
from triton_dist.layers.mlp import TPMLP
from triton_dist.layers.moe import EPMoE
from triton_dist.layers.norm import AllReduceRMSNorm, SequenceRMSNorm
from triton_dist.layers.replicated import replicated, summed
from triton_dist.layers.router import TopKRouter
from triton_dist.layers.tp_moe import TPMoE
from triton_dist.layers.vocabulary import ParallelEmbedding, ParallelLMHead, vocab_parallel_cross_entropy

__all__ = [
    "AGGemm", "AllReduceRMSNorm", "ColumnLinear", "EPMoE", "GemmAR", "GemmRS", "KVCache", "ParallelEmbedding", "ParallelLMHead",
    "SequenceRMSNorm", "StaticKVCache", "TPAttention", "TPMLP", "TPMoE", "TopKRouter", "replicated", "rotary", "summed",
    "vocab_parallel_cross_entropy",
]
