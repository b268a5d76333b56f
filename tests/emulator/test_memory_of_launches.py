# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which memory the launches of a plan keep by address. A graph may outlive the plan, but not the workspace that it uses."""
import pytest
import torch
from experts import EP
from scenarios import AG, AR, ARN, GAR, RS, Moves, V, back_to_back

from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime.device import places
from triton_dist.runtime.state import state

CALLS = {
    "dispatch and combine": [EP(5, 24, layout=layout) for layout in ("compact", "indexed", "expert", "masked")],
    "fp8 on the way": [EP(3, 128, layout="expert", quant="fp8_1x128", split=True)],
    "products": [AG(16, 16, 32), RS(16, 16, 32), GAR(4, 16, 32)],
    "collectives": [AR(64, "one_shot"), ARN(3, 32, "one_shot"), Moves("all_gather", 32, "auto"), V(6, 16)],
}


@pytest.mark.parametrize("name", CALLS)
def test_launches_keep_memory_of_workspaces_alone(name, monkeypatch):
    kept, prepare = [], EmulatorBackend.prepare

    def noted(self, kernel, grid, args, kwargs, varying=None):         # one element stands for a tensor that is absent
        given = places(varying, args)
        kept.extend((state().world.rank, kernel, arg) for place, arg in enumerate(args)
                    if place not in given and isinstance(arg, torch.Tensor) and arg.numel() > 1)
        return prepare(self, kernel, grid, args, kwargs, varying)

    monkeypatch.setattr(EmulatorBackend, "prepare", noted)

    def script():
        back_to_back(CALLS[name])
        me = state()
        own = [t for space in me.workspaces.values() for t in (space.control, space.data, space.flags) if t is not None]
        lasting = {t.untyped_storage().data_ptr() for t in (*own, *me.teams.values())}
        mine = [(kernel, t) for rank, kernel, t in kept if rank == me.world.rank]
        assert mine
        return [str(kernel) for kernel, t in mine if t.untyped_storage().data_ptr() not in lasting]

    assert run_ranks(script, 2) == [[], []]
