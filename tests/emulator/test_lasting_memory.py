# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which memory ops keep after a call: memory of the symmetric heap, and tensors made by `backend().outside_pools`.

The first call of an op may be the warm-up of torch.compile's CUDA graphs, in whose memory pool nothing may live on.
"""
import gc
from types import FunctionType, ModuleType
from typing import Any, Callable, Iterator
from unittest import mock

import torch

from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.runtime import device
from triton_dist.runtime.state import state

from test_call_histories import OF_OPS, Call

WORLD = 2


def reachable(root: Any) -> Iterator[torch.Tensor]:
    """Tensors that live as long as `root`."""
    seen, left = set(), [root]
    while left:
        found = left.pop()
        emulated = type(found).__module__.startswith("triton_dist.backends.emulator")
        if id(found) in seen or emulated or isinstance(found, (type, ModuleType)):
            continue
        seen.add(id(found))
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, FunctionType):
            left += [cell.cell_contents for cell in found.__closure__ or ()] + list(found.__defaults__ or ())
        else:
            left += gc.get_referents(found)


def test_what_the_runtime_keeps_of_calls():
    kept: set = set()

    def lasting(self: Any, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        made = make()
        if isinstance(made, torch.Tensor):
            kept.add(made.untyped_storage().data_ptr())
        return made

    def host() -> tuple:
        for name in sorted(OF_OPS):
            for seed in range(3):
                call = Call(0, seed)
                call.draw.seed(seed)
                try:
                    OF_OPS[name](call)()
                except Exception:               # some draws are refused
                    pass
        arena = state().heap.arena
        symmetric = [range(base, base + arena.nbytes) for base in arena.bases]
        others = [(tuple(t.shape), t.dtype) for memory in (state().workspaces, state().teams, state().records)
                  for t in reachable(memory) if t.numel() and not {t.data_ptr(), t.untyped_storage().data_ptr()} & kept
                  and not any(t.data_ptr() in addresses for addresses in symmetric)]
        return others, len(state().records)
    device._absent.cache_clear()
    with mock.patch.object(EmulatorBackend, "outside_pools", lasting):
        for others, ops in run_ranks(host, WORLD):
            assert not others and ops
    assert kept
