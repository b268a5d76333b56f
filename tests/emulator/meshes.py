# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Run by test_plans.py on each of 4 ranks: groups of torch in graphs, and FSDP2 on the other dimension of a mesh."""
import copy

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import triton_dist
from triton_dist import ops
from triton_dist.integrations.plans import OverlapColwise, OverlapRowwise
from triton_dist.runtime.state import state

from gpt import GPT, ParallelGPT, batches
from plans import WIDTH, Model, whole

STEPS = 3


def in_graphs(mesh):
    """A mesh, its ProcessGroup and its name are the same group, eager and in a graph."""
    x = torch.full((2, 4), float(state().world.rank))
    expected = [float(r) for r in dist.get_process_group_ranks(mesh.get_group()) for _ in range(2)]
    for group in (mesh, mesh.get_group(), mesh.get_group().group_name):
        call = torch.compile(lambda t, group=group: ops.all_gather(t, group=group) + 1, fullgraph=True, backend="aot_eager")
        assert ops.all_gather(x, group=group)[:, 0].tolist() == expected
        assert (call(x) - 1)[:, 0].tolist() == expected


def trained(model, data, dp, tp):
    """Losses of steps, each the mean over all data."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, target in data:
        mine, wanted = (t.chunk(dp.size())[dp.get_local_rank()].chunk(tp.size(), 1)[tp.get_local_rank()] if tp else t
                        for t in (x, target))
        loss = (model(mine) - wanted).square().sum() / x.numel()
        (loss * (dp.size() if dp else 1)).backward()                # FSDP takes the mean over its ranks
        total = loss.detach().clone()
        if tp:
            dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses


def two_by_two():
    triton_dist.initialize_distributed()
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def gpt(steps, checkpointed=None, compiled=False):
    """Losses of a GPT divided by layers over one dimension, and by FSDP2, a block at a time, over the other.

    checkpointed: as of ParallelGPT. compiled: each block is, in one graph.
    """
    mesh = two_by_two()
    model = ParallelGPT(GPT(), checkpointed, group=mesh["tp"].get_group())
    for block in model.blocks if compiled else ():
        block.compile(fullgraph=True, backend="aot_eager")
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["dp"])
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for ids, labels in batches(steps):
        mine = (t.chunk(2, 1)[mesh["dp"].get_local_rank()] for t in (ids, labels))
        loss = model(*mine)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total, dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        losses.append(float(total))
    triton_dist.finalize_distributed()
    return losses


def main():
    mesh = two_by_two()
    in_graphs(mesh["tp"])
    in_graphs(mesh["dp"])
    generator = torch.Generator().manual_seed(3)
    data = [torch.randn(2, 4, 8, WIDTH, generator=generator).unbind(0) for _ in range(STEPS)]
    alone = Model(1)
    divided = parallelize_module(copy.deepcopy(alone), mesh["tp"], {
        "norm": SequenceParallel(), "up": OverlapColwise(sequence_parallel=True), "down": OverlapRowwise(sequence_parallel=True)})
    fully_shard(divided, mesh=mesh["dp"])
    found, expected = trained(divided, data, mesh["dp"], mesh["tp"]), trained(alone, data, None, None)
    assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-5, (found, expected)
    for (name, p), q in zip(divided.named_parameters(), alone.parameters()):
        torch.testing.assert_close(whole(p), q, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    if state().world.rank == 0:
        print("2 x 2: right", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
