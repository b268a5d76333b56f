# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A virtual world that has ended leaves nothing: its heap, plans, groups and threads of programs go with it."""
import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import triton_dist
from triton_dist.backends.emulator import run_ranks
from triton_dist.backends.emulator.worlds.virtual import World
from triton_dist.checker import check_kernel
from triton_dist.ops import ag_gemm, all_reduce, gemm_rs
from triton_dist.runtime.graphs import prepare_graphs
from triton_dist.runtime.groups import resolve

pytestmark = pytest.mark.usefixtures("few_objects")
ROWS, WIDTH = 8, 16


def nothing():
    pass


def tensors():
    triton_dist.peer_tensor(triton_dist.create_symm_tensor((64, ), torch.float32), 0)


def ops():
    x, w = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH)
    for _ in range(2):
        gemm_rs(ag_gemm(x, w), w)
        all_reduce(x, group=resolve().new_group([0, 1]) if resolve().rank < 2 else resolve().new_group([2]))
    with prepare_graphs():
        ag_gemm(x, w)


def gradients():
    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    ag_gemm(x, torch.ones(WIDTH, WIDTH, requires_grad=True)).sum().backward()


def process_groups():
    mesh = init_device_mesh("cpu", (dist.get_world_size(), ))
    x = torch.ones(4)
    dist.all_reduce(x, group=mesh.get_group())
    all_reduce(torch.ones(4), group=mesh)


def fails():
    ops()
    raise ArithmeticError("on purpose")


def hangs():
    ops()
    if resolve().rank:
        resolve().barrier()


def worlds_alive() -> int:
    gc.collect()
    return sum(type(found) is World for found in gc.get_objects())


@pytest.mark.parametrize("script", [nothing, tensors, ops, gradients, process_groups])
def test_nothing_is_left_of_a_world(script):
    run_ranks(script, 3)                                   # what is imported at a first use may keep what it meets
    before = worlds_alive()
    for _ in range(2):
        run_ranks(script, 3)
    assert worlds_alive() <= before <= 1                   # one that another test has left may have gone


@pytest.mark.parametrize("script", [fails, hangs])
def test_nothing_is_left_of_a_world_that_failed(script):
    before = worlds_alive()
    for _ in range(2):
        with pytest.raises((ArithmeticError, RuntimeError)):
            run_ranks(script, 3)
    assert worlds_alive() == before


def test_nothing_is_left_of_the_schedules_of_a_check():
    before, most = worlds_alive(), []

    def script():
        ops()
        if resolve().rank == 0:
            most.append(worlds_alive())
    assert check_kernel(script, 3, schedules=4).clean
    assert max(most) <= before + 2, "beside a schedule's world at most the one before it"
    assert worlds_alive() == before
