# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A GPT of 4 layers, trained by tensor and sequence parallelism, has the losses of one rank that holds everything."""
import pytest
import torch
from gpt import GPT, ParallelGPT, batches, trained
from torch._dynamo.testing import CompileCounterWithBackend

from triton_dist.backends.emulator import run_ranks
from triton_dist.runtime.groups import resolve

STEPS, FEW = 30, 3


@pytest.fixture(scope="module")
def alone():
    """Losses of the whole model by plain torch."""
    losses = trained(GPT(), STEPS)
    assert losses[-1] < losses[0] / 1.5, f"it learns nothing: {losses}"
    return losses


def near(found, alone):
    worst = max(abs(a - b) for a, b in zip(found, alone, strict=True))
    assert worst <= 1e-5, (worst, found, alone)


@pytest.mark.full
@pytest.mark.parametrize("world", [1, 2, 4])
def test_thirty_steps(world, alone):
    found = run_ranks(lambda: trained(ParallelGPT(GPT()), STEPS), world)
    assert all(losses == found[0] for losses in found), "losses are equal on all ranks, bit by bit"
    near(found[0], alone)


@pytest.mark.parametrize("world, reentrant, steps", [(2, False, FEW), *(
    pytest.param(*case, marks=pytest.mark.full) for case in (
        (1, False, STEPS), (2, False, STEPS), (4, False, STEPS), (4, True, FEW), (2, True, FEW)))])
def test_with_checkpoints(world, reentrant, steps, alone):
    near(run_ranks(lambda: trained(ParallelGPT(GPT(), reentrant), steps), world)[0], alone[:steps])


@pytest.mark.parametrize("world, checkpointed, steps", [
    *(pytest.param(*case, marks=pytest.mark.full) for case in (
        (1, None, FEW),
        (2, None, FEW), (1, None, STEPS), (2, None, STEPS), (4, None, STEPS), (1, False, FEW), (2, False, STEPS),
        (4, False, FEW)))])
def test_compiled(world, checkpointed, steps, alone):
    torch._dynamo.reset()

    def ranks():
        model = ParallelGPT(GPT(), checkpointed)
        return trained(model, steps, torch.compile(model, backend="aot_eager", fullgraph=True))
    near(run_ranks(ranks, world)[0], alone[:steps])
    torch._dynamo.reset()


@pytest.mark.full
@pytest.mark.parametrize("world", [1, 2, 4])
def test_one_graph_trains_on_twenty_lengths(world):
    """Of the whole model, forward and backward, on sequences of any length that divides over the ranks.

    Each virtual rank has a graph of its own, since their parts of the vocabulary differ.
    """
    counter, known = CompileCounterWithBackend("aot_eager"), []
    torch._dynamo.reset()

    def ranks():
        model = ParallelGPT(GPT())
        compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
        for length in range(8, 88, 4):
            (ids, labels), = batches(1, length)
            found = [torch.autograd.grad(call(ids, labels), list(model.parameters())) for call in (compiled, model)]
            assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), length
            resolve().barrier()
            known.append(counter.frame_count)
    run_ranks(ranks, world)
    assert len(set(known)) == 1 and len(known) == 20 * world
    torch._dynamo.reset()


@pytest.mark.parametrize("options", [
    dict(sequence_dim=1), pytest.param(dict(sequence_parallel=False), marks=pytest.mark.full)], ids=["[B, S, H]", "replicated"])
@pytest.mark.parametrize("world", [2, 4])
def test_other_layouts(world, options, alone):
    """Batch first; and every rank has the whole sequence."""
    dim = options.get("sequence_dim", 0)

    def ranks():
        full = GPT()
        model = ParallelGPT(full, **options)
        if not options.get("sequence_parallel", True):
            for block, whole in zip(model.blocks, full.blocks):
                block.before, block.after = whole.before, whole.after
            model.norm = full.norm
        return trained(model, FEW, sequence_dim=dim)
    near(run_ranks(ranks, world)[0], alone[:FEW])
