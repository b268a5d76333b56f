# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Parameters outside a plan as DTensors: optimizers that take lists, shared parameters, gradients of parts."""
import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.integrations.plans import OverlapColwise, OverlapRowwise
from triton_dist.integrations.replicas import replicate_parameters
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

WIDTH, INNER, WORDS = 6, 12, 7


class Model(nn.Module):
    """Embedding, an MLP with a norm of each half or third of its features, and a head with the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.heads, self.down = nn.Linear(WIDTH, INNER), nn.RMSNorm(2), nn.Linear(INNER, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.up(self.norm(self.words(ids)))
        return self.head(self.down(self.heads(x.unflatten(-1, (-1, 2))).flatten(-2)))


def step(model, ids, labels):
    """The loss, the norm of the gradients, and the loss after a step of AdamW by lists."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
    loss = nn.functional.cross_entropy(model(ids), labels)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
    optimizer.step()
    after = nn.functional.cross_entropy(model(ids), labels)
    found = loss.detach(), norm.detach(), after.detach()
    return [float(t.full_tensor() if isinstance(t, DTensor) else t) for t in found]


def ranks(compiled):
    triton_dist.initialize_distributed()
    size, rank = state().world.size, state().world.rank
    torch.manual_seed(3)
    alone = Model()
    with torch.no_grad():
        for p in alone.parameters():
            p.add_(torch.randn_like(p) / 4)
    mine = copy.deepcopy(alone)
    if rank:
        nn.init.zeros_(mine.norm.weight)            # rank 0's values count
    mesh = init_device_mesh("cpu", (size,))
    with pytest.raises(InvalidArgument, match="one of one dimension"):
        replicate_parameters(mine, init_device_mesh("cpu", (size, 1)))
    assert not isinstance(mine.norm.weight, DTensor) and type(mine.norm) is nn.LayerNorm
    parallelize_module(mine, mesh, {"up": OverlapColwise(), "down": OverlapRowwise()})
    assert replicate_parameters(mine, mesh, [mine.heads]) is mine
    assert all(isinstance(p, DTensor) for p in mine.parameters())
    assert len(list(mine.parameters())) == len(list(alone.parameters())), "the embedding's weight is still shared"
    assert isinstance(mine.norm, nn.LayerNorm) and mine.norm.weight is mine.get_parameter("norm.weight")
    ids, labels = torch.arange(5), torch.arange(1, 6)
    first = torch.compile(mine, fullgraph=True, backend="aot_eager")(ids) if compiled else copy.deepcopy(mine)(ids)
    torch.testing.assert_close(first, alone(ids))
    assert mine.to(torch.float32) is mine and all(isinstance(p, DTensor) for p in mine.parameters())
    expected = step(alone, ids, labels)
    assert step(mine, ids, labels) == pytest.approx(expected, rel=1e-4), expected
    for (name, p), q in zip(mine.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.full_tensor(), q, rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    triton_dist.finalize_distributed()


@pytest.mark.parametrize("world, compiled", [(2, False), pytest.param(3, False, marks=pytest.mark.full),
                                             pytest.param(2, True, marks=pytest.mark.full)])
def test_an_optimizer_by_lists_takes_all_parameters(world, compiled):
    run_ranks(ranks, world, compiled, heap=False)
    torch._dynamo.reset()


class Outer(nn.Module):
    """Uses parameters of modules that it does not call, and has none itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.list = nn.Linear(WIDTH, WIDTH), nn.ParameterList([nn.Parameter(torch.ones(WIDTH))])

    def forward(self, x):
        return nn.functional.linear(x, self.inner.weight, self.list[0])


def ranks_of_outer_code():
    triton_dist.initialize_distributed()
    mesh = init_device_mesh("cpu", (state().world.size,))
    model = nn.Sequential(nn.Sequential(Outer()), nn.LayerNorm(WIDTH))
    norm, outer, x = model[1], model[0][0], torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    expected = model(x)
    replicate_parameters(model, mesh)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(outer(x), model[0](x))              # as a recomputation calls it
    for name, p in model.named_parameters():
        assert model.get_parameter(name) is p
    norm.bias = model.get_parameter("0.0.inner.bias")
    assert norm.bias is outer.inner.bias and len(list(model.parameters())) == 4
    with pytest.raises(TypeError):
        model(x[0, 0], 1)
    assert isinstance(norm.weight, DTensor), "a call that fails ends"
    norm.weight = None
    assert norm.weight is None and model(x).shape == x.shape
    del norm.weight
    assert not hasattr(norm, "weight")
    with pytest.raises(AttributeError):
        del norm.weight
    norm.weight = torch.full((WIDTH,), 2.0)                         # no parameter any more, as weight_norm leaves it
    torch.testing.assert_close(model(x), nn.functional.layer_norm(outer(x), (WIDTH,), norm.weight, norm.bias.to_local()))
    triton_dist.finalize_distributed()


def test_other_code_sees_parameters_and_forward_plain_tensors():
    run_ranks(ranks_of_outer_code, 2, heap=False)


def ranks_of_a_mesh():
    triton_dist.initialize_distributed()
    torch.manual_seed(3)
    alone = Model()
    mine, ids, labels = copy.deepcopy(alone), torch.arange(6), torch.arange(1, 7)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(mine, mesh["tp"], {"up": OverlapColwise(), "down": OverlapRowwise()})
    replicate_parameters(mine, mesh["tp"], [mine.heads])
    for module in (mine.up, mine.norm, mine):
        fully_shard(module, mesh=mesh["dp"])
    assert all(p.device_mesh.ndim == 2 for p in mine.parameters())
    expected = step(alone, ids, labels)
    assert step(mine, ids, labels) == pytest.approx(expected, rel=1e-4), expected
    for (name, p), q in zip(mine.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.full_tensor(), q, rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    triton_dist.finalize_distributed()


def test_fully_shard_divides_them_over_another_dimension():
    run_ranks(ranks_of_a_mesh, 4, heap=False)


def test_a_whole_state_of_the_first_rank_is_loaded():
    def ranks():
        triton_dist.initialize_distributed()
        model, mesh, first = Model(), init_device_mesh("cpu", (2,)), state().world.rank == 0
        parallelize_module(model, mesh, {"up": OverlapColwise(), "down": OverlapRowwise()})
        replicate_parameters(model, mesh, [model.heads])
        torch.manual_seed(5)
        whole = {name: torch.randn_like(t) for name, t in Model().state_dict().items()}
        whole["head.weight"] = whole["words.weight"]
        set_model_state_dict(model, dict(whole) if first else {},
                             options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
        for name, p in model.named_parameters():
            assert torch.equal(p.full_tensor(), whole[name]), name
        triton_dist.finalize_distributed()
    run_ranks(ranks, 2, heap=False)
