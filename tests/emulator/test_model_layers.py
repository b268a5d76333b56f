# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Layers for models: leading dimensions, gradients, vocabulary-parallel loss, KV cache, construction without memory."""
import copy

import pytest
import torch
from gpt import HEADS, KV_HEADS, SIZE, WIDTH, Block
from torch import nn
from torch.nn import functional

from triton_dist.backends.emulator import run_ranks
from triton_dist.layers import (
    TPMLP,
    AGGemm,
    AllReduceRMSNorm,
    ColumnLinear,
    GemmAR,
    GemmRS,
    KVCache,
    ParallelEmbedding,
    ParallelLMHead,
    SequenceRMSNorm,
    StaticKVCache,
    TPAttention,
    rotary,
    vocab_parallel_cross_entropy,
)
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

S, B, K, N = 12, 2, 10, 14


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(n, k, seed, bias=True):
    made = nn.Linear(k, n, bias=bias)
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(drawn(*p.shape, seed=seed + i) / 3)
    return made


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_pair_of_linears_divides_the_sequence_wherever_it_is(world, dim):
    """Values, gradients of x, of the weights, and of both biases."""
    up, down = linear(N, K, 1), linear(K, N, 5)
    x = drawn(*((S, B) if dim == 0 else (B, S)), K, seed=9).requires_grad_()
    factor = drawn(*x.shape, seed=10)
    y = down(up(x).tanh())
    (y * factor).sum().backward()

    def ranks():
        r = state().world.rank
        first, second = AGGemm.from_full(up, sequence_dim=dim), GemmRS.from_full(down, sequence_dim=dim)
        assert first.in_features == K and sum(state().world.all_gather_object(first.out_features)) == N
        mine = x.detach().chunk(world, dim)[r].clone().requires_grad_()
        hidden, gathered = first(mine, return_gathered=True)
        close(gathered, x.detach())
        found = second(hidden.tanh())
        close(found, y.detach().chunk(world, dim)[r])
        (found * factor.chunk(world, dim)[r]).sum().backward()
        close(mine.grad, x.grad.chunk(world, dim)[r])
        close(torch.cat([t for t in state().world.all_gather_object(first.weight.grad)]), up.weight.grad)
        close(torch.cat([t for t in state().world.all_gather_object(first.bias.grad)]), up.bias.grad)
        close(torch.cat([t for t in state().world.all_gather_object(second.weight.grad)], 1), down.weight.grad)
        close(second.bias.grad, down.bias.grad)
    run_ranks(ranks, world)


@pytest.mark.parametrize("shape", [(K,), (3, K), (2, 3, K), (2, 1, 3, K)])
def test_a_pair_of_linears_over_what_all_ranks_have(shape):
    up, down = linear(N, K, 1), linear(K, N, 5)
    x, residual = drawn(*shape, seed=9).requires_grad_(), drawn(*shape, seed=11)
    factor = drawn(*shape, seed=10)
    y = down(up(x).tanh()) + residual
    (y * factor).sum().backward()

    def ranks():
        mine = x.detach().clone().requires_grad_()
        found = GemmAR.from_full(down)(ColumnLinear.from_full(up)(mine).tanh(), residual=residual)
        close(found, y.detach())
        (found * factor).sum().backward()
        close(mine.grad, x.grad)
    run_ranks(ranks, 2)


@pytest.mark.parametrize("world, words", [(1, 11), (2, 11), (3, 11), (4, 3)])
def test_a_loss_over_words_that_ranks_divide(world, words):
    """Equal to torch's, with rows that do not count, words that do not divide, and a rank without any."""
    logits = (4 * drawn(S, B, words, seed=1)).requires_grad_()
    labels = torch.randint(words, (S, B), generator=torch.Generator().manual_seed(2))
    labels[0, 0], labels[3, 1] = -100, -100
    losses = {kind: functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=kind)
              for kind in ("mean", "sum", "none")}
    grad, = torch.autograd.grad(losses["mean"], logits)

    def ranks():
        r = state().world.rank
        sizes = [words // world + (p < words % world) for p in range(world)]
        first = sum(sizes[:r])
        mine = logits.detach().narrow(-1, first, sizes[r]).clone().requires_grad_()
        found = {kind: vocab_parallel_cross_entropy(mine, labels, first, words, reduction=kind) for kind in losses}
        close(found["mean"], losses["mean"].detach())
        close(found["sum"], losses["sum"].detach())
        close(found["none"].flatten(), losses["none"].detach())
        every = state().world.all_gather_object(found["none"].detach())
        assert all(torch.equal(other, every[0]) for other in every), "the same bits on all ranks"
        found["mean"].backward()
        close(mine.grad, grad.narrow(-1, first, sizes[r]))
    run_ranks(ranks, world)


@pytest.mark.parametrize("parallel", [True, False])
def test_an_embedding_and_a_head_of_some_words(parallel):
    table = nn.Embedding(11, 6)
    ids = torch.randint(11, (4, B), generator=torch.Generator().manual_seed(3))
    logits = table(ids) @ table.weight.t()

    def ranks():
        r = state().world.rank
        embedding = ParallelEmbedding.from_full(table, sequence_parallel=parallel)
        head = ParallelLMHead(embedding.weight, embedding.first, 11, sequence_parallel=parallel)
        assert head.weight is embedding.weight
        x = embedding(ids)
        close(x, table(ids).detach().chunk(2)[r] if parallel else table(ids).detach())
        close(torch.cat(state().world.all_gather_object(head(x).detach()), -1), logits.detach())
        assert torch.equal(head.greedy(x.detach()), logits.argmax(-1))
    run_ranks(ranks, 2)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_decoding_with_a_cache_gives_what_the_whole_sequence_gives(world):
    """Position by position, and by chunks of several."""
    block = Block().requires_grad_(False)
    x, angles = drawn(S, B, WIDTH, seed=1), rotary(torch.arange(S), SIZE)
    expected = block.attention(x, *angles)

    def ranks():
        layer = TPAttention.from_full(block.qkv, block.out, HEADS, KV_HEADS, sequence_parallel=False)
        close(layer(x, angles), expected)
        for kind in (KVCache, StaticKVCache):
            cache, found = kind(B, layer.kv_heads, S, SIZE, torch.float32, "cpu"), []
            for start, end in ((0, 4), (4, 5), (5, 6), (6, 9), (9, S)):
                found.append(layer(x[start:end], tuple(t[start:end] for t in angles), cache))
            close(torch.cat(found), expected)
            with pytest.raises((InvalidArgument, IndexError, RuntimeError), match="cache: expected room|index"):
                layer(x[:1], None, cache)
    run_ranks(ranks, world)


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.full)])
def test_one_graph_serves_sequences_of_any_length(world):
    def ranks():
        graphs, layer = [], TPAttention.from_full(linear(3 * 4 * SIZE, K, 1), linear(K, 4 * SIZE, 3), 4)
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=lambda graph, _: graphs.append(graph) or graph)
        for length in (6, 10, 8, 16):
            x, angles = drawn(length // world, B, K, seed=length), rotary(torch.arange(length), SIZE)
            close(compiled(x, angles), layer(x, angles))
        assert len(graphs) == 1
    run_ranks(ranks, world)


def test_one_graph_decodes_at_every_length_with_a_static_cache():
    """And what is not causal attends to the positions that there are, not to the room for more."""
    def script():
        for causal, dynamic, heads in ((True, None, 1), (False, True, 2)):
            graphs, layer = [], TPAttention.from_full(linear((4 + 2 * heads) * SIZE, K, 1), linear(K, 4 * SIZE, 3), 4, heads,
                                                      causal=causal, sequence_parallel=False)
            step = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=lambda graph, _: graphs.append(graph) or graph)
            plain, static = (kind(B, heads, S, SIZE, torch.float32, "cpu") for kind in (KVCache, StaticKVCache))
            for t in range(S):
                x = drawn(1, B, K, seed=t)
                close(step(x, None, static), layer(x, None, plain))
            assert len(graphs) == 1 and int(static.length) == S == plain.length
    run_ranks(torch.no_grad()(script), 1)


def test_key_heads_that_several_ranks_hold_are_not_trained():
    def ranks():
        layer = TPAttention.from_full(linear((4 + 2) * SIZE, K, 1), linear(K, 4 * SIZE, 3), 4, 1)
        assert not layer.qkv.weight.requires_grad and layer.out.weight.requires_grad
    run_ranks(ranks, 2)


def test_norms_of_other_libraries():
    class Theirs(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(drawn(K, seed=1)), 1e-3

    def ranks():
        norm = Theirs()
        for cls in (AllReduceRMSNorm, SequenceRMSNorm):
            assert cls.from_norm(norm).weight is norm.weight and cls.from_norm(norm).eps == 1e-3
        with pytest.raises(InvalidArgument, match="found LayerNorm"):
            SequenceRMSNorm.from_norm(nn.LayerNorm(K))
    run_ranks(ranks, 1)


def test_layers_made_on_meta_get_their_weights_later():
    up, gate, down = linear(N, K, 1), linear(N, K, 3), linear(K, N, 5)

    def ranks():
        real = TPMLP.from_full(up, down, gate)
        made = TPMLP.from_full(*(copy.deepcopy(layer).to("meta") for layer in (up, down, gate)))
        assert all(p.is_meta for p in made.parameters()) and made.up.parts == real.up.parts
        made.to_empty(device="cpu").load_state_dict(real.state_dict())
        x = drawn(S, K, seed=4)
        assert torch.equal(made(x), real(x))
    run_ranks(ranks, 2)


def test_sequences_that_do_not_divide_are_refused_before_anything_is_sent():
    def ranks():
        layer = GemmRS.from_full(linear(K, N, 1))
        with pytest.raises(InvalidArgument, match="divisible by the group size.*pad it"):
            layer(drawn(3, 2, N // 2))                                      # 6 rows do, 3 positions do not
        assert layer(drawn(4, 2, N // 2)).shape == (2, 2, K)
        with pytest.raises(InvalidArgument, match="set layer.sequence_dim"):
            AGGemm.from_full(linear(N, K, 1), sequence_dim=1)(drawn(4, K))
    run_ranks(ranks, 2)
