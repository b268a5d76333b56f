# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Run by test_plans.py on each rank: a model by plan, against the same model of one rank.

    bash launch.sh --nproc_per_node 2 tests/emulator/plans.py save FOLDER
"""
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import triton_dist
from triton_dist.integrations.plans import OverlapColwise, OverlapRowwise
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.state import state

WIDTH, INNER = 8, 12


class Model(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.down(torch.tanh(self.up(self.norm(x))))


def parallel(seed, mesh, sequence_parallel):
    options = dict(sequence_parallel=sequence_parallel)
    plan = {"up": OverlapColwise(**options), "down": OverlapRowwise(**options)}
    if sequence_parallel:
        plan["norm"] = SequenceParallel()                           # a style of torch's beside ours
    return parallelize_module(Model(seed), mesh, plan)


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def same_as_one_rank(mesh, sequence_parallel, compiled):
    world = state().world
    alone, divided = Model(1), parallel(1 if world.rank == 0 else 2, mesh, sequence_parallel)      # rank 0's weights are taken
    if not sequence_parallel:
        divided.norm.load_state_dict(alone.norm.state_dict())
    x, factor = torch.randn(2, 2, 4 * world.size, WIDTH, generator=torch.Generator().manual_seed(3)).unbind(0)
    expected = alone(x)
    (expected * factor).sum().backward()
    r, parts = (world.rank, world.size) if sequence_parallel else (0, 1)
    call = torch.compile(divided, backend="aot_eager") if compiled else divided
    y = call(x.chunk(parts, 1)[r])
    torch.testing.assert_close(y, expected.detach().chunk(parts, 1)[r], rtol=1e-4, atol=1e-5)
    (y * factor.chunk(parts, 1)[r]).sum().backward()
    for (name, p), q in zip(divided.named_parameters(), alone.parameters()):
        torch.testing.assert_close(whole(p.grad), q.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    if sequence_parallel:
        norms = [float(whole(nn.utils.clip_grad_norm_(m.parameters(), 1e9))) for m in (divided, alone)]
        assert abs(norms[0] - norms[1]) < 1e-4 * norms[1], norms


def main(what, folder):
    triton_dist.initialize_distributed()
    world = state().world
    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("tp",))
    if what == "save":
        for sequence_parallel in (False, True):
            same_as_one_rank(mesh["tp"], sequence_parallel, compiled=False)
        same_as_one_rank(mesh["tp"], False, compiled=True)
        try:
            parallelize_module(Model(1), mesh["tp"], {"norm": OverlapColwise()})
            raise AssertionError("a norm is no linear layer")
        except InvalidArgument as error:
            assert "expected an nn.Linear, found LayerNorm" in str(error)
        model = parallel(1, mesh["tp"], True)
        dcp.save(get_model_state_dict(model), checkpoint_id=folder)
    else:
        model = parallel(5, mesh["tp"], True)
        found = get_model_state_dict(model)
        dcp.load(found, checkpoint_id=folder)
        set_model_state_dict(model, found)
        for (name, p), q in zip(model.named_parameters(), Model(1).parameters()):
            assert isinstance(p, DTensor) and torch.equal(p.full_tensor(), q), name
            assert (p.placements[0] == Replicate()) == (name not in ("up.weight", "up.bias", "down.weight"))
    if world.rank == 0:
        print(f"{what} on {world.size}: right", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main(*sys.argv[1:])
