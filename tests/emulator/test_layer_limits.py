# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Where a layer would compute something else than the module it is made of: it does the same, or refuses it with the reason."""
import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.integrations.plans import OverlapColwise, OverlapRowwise
from triton_dist.layers import (
    AGGemm,
    AllReduceRMSNorm,
    ColumnLinear,
    GemmAR,
    KVCache,
    ParallelEmbedding,
    ParallelLMHead,
    SequenceRMSNorm,
    StaticKVCache,
    TPMLP,
    TPAttention,
    replicated,
    rotary,
    summed,
    vocab_parallel_cross_entropy,
)
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

N = 8


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(a, b, tolerance=1e-4):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class Plus(nn.Module):
    """An RMS norm that multiplies by weight + `more`, as models of Hugging Face write it."""
    more = 1.0

    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(drawn(N, seed=3)), 1e-5

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return y * (self.more + self.weight)


class Plain(Plus):
    more = 0.0


class Centred(Plus):
    def forward(self, x):
        return super().forward(x - x.mean(-1, keepdim=True))


class OfTwo(Plus):
    def forward(self, x, gate):
        raise NotImplementedError


# -- norms -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_that_adds_one_to_its_weight(dtype):
    """It is not taken for one that multiplies by its weight, and its small weights are not lost in bf16."""
    norm, x = Plus().to(dtype), drawn(4, N, seed=1).to(dtype)
    with torch.no_grad():
        norm.weight.div_(256)
    expected = Plus.forward(norm.float(), x.float())
    norm.to(dtype)

    def ranks():
        half = torch.eye(N, dtype=dtype) / 2
        for call in (lambda: GemmAR(half)(x, norm=norm), lambda: ColumnLinear(half)(x, norm=norm),
                     lambda: AllReduceRMSNorm.from_norm(norm), lambda: SequenceRMSNorm.from_norm(norm)):
            with pytest.raises(InvalidArgument, match="found Plus, which multiplies by 1 . weight; pass"):
                call()
        whole = AllReduceRMSNorm.from_norm(norm, weight_bias=1)
        unit = 1e-5 if dtype is torch.float32 else 2**-8                    # a rounding, and none of 1 + weight
        for y in (GemmAR(half)(x, norm=whole)[0], SequenceRMSNorm.from_norm(norm, weight_bias=1)(x),
                  SequenceRMSNorm.from_norm(whole)(x), ColumnLinear(half * 2)(x, norm=whole),
                  AllReduceRMSNorm.from_norm(whole)(x / 2)[0]):
            torch.testing.assert_close(y.float(), expected, rtol=unit, atol=1e-6)
    run_ranks(ranks, 2)


def test_norms_that_compute_something_else():
    def ranks():
        with pytest.raises(InvalidArgument, match="found Centred, which computes something else"):
            AllReduceRMSNorm.from_norm(Centred())
        assert AllReduceRMSNorm.from_norm(Plain()).weight_bias == 0
        flagged = Plain()                       # norms of one class may differ
        flagged.more = 1.0
        with pytest.raises(InvalidArgument, match="found Plain, which multiplies by 1 . weight; pass"):
            AllReduceRMSNorm.from_norm(flagged)
        assert AllReduceRMSNorm.from_norm(OfTwo(), weight_bias=1).weight_bias == 1      # it cannot be asked
        x = drawn(2, N).double()
        torch.testing.assert_close(SequenceRMSNorm.from_norm(Plus(), weight_bias=1)(x), Plus().double()(x), rtol=0, atol=1e-12)
    run_ranks(ranks, 1)


# -- linear layers -----------------------------------------------------------------------------------------------------
def test_an_activation_that_there_is_not_and_dimensions_from_the_end():
    def ranks():
        with pytest.raises(InvalidArgument, match="act: expected None or one of silu_mul, found 'gelu'"):
            ColumnLinear(drawn(N, N))(drawn(2, N), act="gelu")
        for make in (lambda: AGGemm(drawn(N, N), sequence_dim=-2),
                     lambda: ParallelLMHead(drawn(N, N), 0, N, sequence_dim=-2)):
            with pytest.raises(InvalidArgument, match="sequence_dim: expected a dimension counted from the first.*found -2"):
                make()
    run_ranks(ranks, 1)


def test_linear_layers_with_a_forward_of_their_own():
    class Scaled(nn.Linear):
        def forward(self, input):
            return super().forward(input) * 2

    hooked = nn.Linear(N, N, bias=False)
    hooked.forward = lambda x: x

    def ranks():
        for layer in (Scaled(N, N, bias=False), hooked):
            for make in (lambda: AGGemm.from_full(layer), lambda: TPMLP.from_full(nn.Linear(N, N), nn.Linear(N, N), layer),
                         lambda: ParallelLMHead.from_full(layer),
                         lambda: TPAttention.from_full((layer, nn.Linear(N, N), nn.Linear(N, N)), nn.Linear(N, N), 2)):
                with pytest.raises(InvalidArgument, match="linear: expected an nn.Linear with its own forward"):
                    make()
    run_ranks(ranks, 1)


def test_ranks_without_heads():
    qkv, out, x = nn.Linear(N, 3 * N), nn.Linear(N, N), drawn(4, 2, N)

    def ranks():
        whole = TPAttention.from_full(qkv, out, 2, sequence_parallel=False)(x)
        parts = TPAttention.from_full(qkv, out, 2)(x.chunk(4)[state().world.rank].clone())
        close(parts, whole.chunk(4)[state().world.rank])
        return whole.detach()
    alone = run_ranks(lambda: TPAttention.from_full(qkv, out, 2)(x).detach(), 1)[0]
    for whole in run_ranks(ranks, 4):
        close(whole, alone)


# -- attention ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cls", [KVCache, StaticKVCache])
def test_a_cache_of_another_batch_or_of_all_heads(cls):
    cache = cls(4, 2, N, 4, torch.float32, "cpu")
    for shape in ((1, 2, 1, 4), (4, 1, 1, 4), (4, 2, 1, 1)):
        with pytest.raises(InvalidArgument, match=r"key: expected shape \[4, 2, 'S', 4\] of this cache"):
            cache.add(torch.ones(shape), torch.ones(shape))
    with pytest.raises(InvalidArgument, match="value: "):
        cache.add(torch.ones(4, 2, 1, 4), torch.ones(4, 1, 1, 4))
    assert int(cache.length) == 0 and not cache.keys.any()


def test_angles_of_other_positions():
    def ranks():
        layer = TPAttention.from_full(nn.Linear(N, 3 * N), nn.Linear(N, N), 2)
        cos, sin = rotary(torch.arange(4), 4)
        x = drawn(2, 2, N)
        for wrong in ((cos[:1], sin[:1]), (cos.expand(2, 4, 4), sin.expand(2, 4, 4)), (cos[:, :2], sin[:, :2])):
            with pytest.raises(InvalidArgument, match=r"angles: expected cos and sin of shape \[4, 4\]"):
                layer(x, wrong)
        close(layer(x, (cos[None], sin[None])), layer(x, (cos, sin)))
    run_ranks(ranks, 2)


# -- plans -------------------------------------------------------------------------------------------------------------
def test_layers_of_plans_take_dtensors_that_are_divided_as_they_expect():
    linear, x = nn.Linear(N, N), drawn(2, 4, N)

    def ranks():
        triton_dist.initialize_distributed()
        mesh, r = init_device_mesh("cpu", (2,)), state().world.rank
        for style, good in ((OverlapColwise(), Replicate()), (OverlapColwise(sequence_parallel=True), Shard(1)),
                            (OverlapRowwise(), Shard(2)), (OverlapRowwise(sequence_parallel=True), Shard(-1))):
            layer = parallelize_module(copy.deepcopy(linear), mesh, style)
            for bad in {Replicate(), Shard(0), Shard(1), Shard(2)} - {good, Shard(2) if good == Shard(-1) else good}:
                with pytest.raises(InvalidArgument, match="x: expected a DTensor placed as .*; redistribute it"):
                    layer(distribute_tensor(x, mesh, [bad]))
            y = layer(d := distribute_tensor(x, mesh, [good]))
            if good == Shard(2):
                close(torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")(d), y)
            whole = linear(x)
            if isinstance(style, OverlapColwise):
                whole = whole.chunk(2, -1)[r]
            elif style.sequence_parallel:
                whole = whole.chunk(2, 1)[r]
            close(y, whole)
    run_ranks(ranks, 2, heap=False)


# -- vocabulary --------------------------------------------------------------------------------------------------------
def test_what_embeddings_do_beside_giving_rows():
    class Scaled(nn.Embedding):
        def forward(self, input):
            return super().forward(input) * 4

    full, ids = nn.Embedding(N, 4, padding_idx=5), torch.tensor([[1, 5], [5, 6]])
    full(ids).sum().backward()

    def ranks():
        layer = ParallelEmbedding.from_full(full, sequence_parallel=False)
        layer(ids).sum().backward()
        assert torch.equal(layer.weight.grad, full.weight.grad.chunk(2)[state().world.rank])
        for odd, words in ((nn.Embedding(N, 4, max_norm=1.0), "max_norm"), (nn.Embedding(N, 4, sparse=True), "sparse"),
                           (nn.Embedding(N, 4, scale_grad_by_freq=True), "scale_grad_by_freq"),
                           (Scaled(N, 4), "a forward of Scaled")):
            with pytest.raises(InvalidArgument, match=f"found {words}"):
                ParallelEmbedding.from_full(odd)
        assert ParallelLMHead.from_full(Scaled(N, 4)).vocab_size == N           # of a tied head only the weight counts
    run_ranks(ranks, 2)


def test_a_loss_where_all_words_of_a_rank_are_masked():
    logits, labels = drawn(3, N), torch.tensor([0, 1, 3])
    logits[:, N // 2:] = -torch.inf
    alone = logits.clone().requires_grad_()
    expected = functional.cross_entropy(alone, labels)
    expected.backward()

    def ranks():
        mine = logits.chunk(2, 1)[r := state().world.rank].clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, labels, r * N // 2, N)
        loss.backward()
        close(loss, expected.detach())
        close(mine.grad, alone.grad.chunk(2, 1)[r])
    run_ranks(ranks, 2)


def test_a_loss_of_one_row_without_a_batch():
    logits, label = drawn(N), torch.tensor(3)

    def ranks():
        mine = logits.chunk(2)[r := state().world.rank]
        close(vocab_parallel_cross_entropy(mine, label, r * N // 2, N), functional.cross_entropy(logits, label))
    run_ranks(ranks, 2)


def test_second_derivatives_are_refused_as_those_of_ops_are():
    def ranks():
        x, labels = drawn(3, N).requires_grad_(), torch.zeros(3, dtype=torch.int64)
        for of in (lambda: replicated(x).square().sum(), lambda: summed(x).square().sum(),
                   lambda: vocab_parallel_cross_entropy(x, labels, 0, N)):
            with pytest.raises(InvalidArgument, match="create_graph=True; leave that out"):
                torch.autograd.grad(of(), x, create_graph=True)
            assert torch.autograd.grad(of(), x)[0].shape == x.shape
    run_ranks(ranks, 1)
