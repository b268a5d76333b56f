# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The backward pass of ag_gemm, which gathers x by copies beside gemm_rs: on virtual worlds, in graphs, and under the checker."""
from unittest import mock

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from mutants import edited, load, source_of
from scenarios import capturing, captures_by_rank, dawdle

import triton_dist
from triton_dist import ops
from triton_dist.backends.emulator.backend import EmulatorBackend
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops.ag_gemm import dgrad
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.workspace import workspace
from triton_dist.testing import ag_gemm_float64, assert_matches, random_tensor

KERNEL = "triton_dist.ops.ag_gemm.arrived_kernel"
SHAPES = ((5, 9, 24), (3, 16, 40), (5, 9, 24))         # rows of a rank, columns of the weight, K


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(dgrad, "LEAST_BYTES", 0)


def steps(shapes=SHAPES, method="portable", slow=None, forward=True):
    """Calls of the operator back to back, ag_gemm's between; then all results are checked, against float64 and bit by bit."""
    group, done = resolve(), []
    for seed, (m, n, k) in enumerate(shapes):
        x = random_tensor(m, k, dtype=torch.float16, seed=10 * seed + group.rank)
        weight = random_tensor(n, k, dtype=torch.float16, seed=100 * seed + group.rank)
        grad = random_tensor(m * group.size, n, dtype=torch.float16, seed=1000 * seed + group.rank)
        if group.rank == slow:
            dawdle()
        out = ops.ag_gemm(x, weight, method=method) if forward else None
        done.append((x, weight, out, grad, *ops.gemm_rs_beside_gather(grad, weight.t(), x, "@%d" % group.size, method)))
    triton_dist.synchronize()
    for x, weight, out, grad, grad_x, gathered in done:
        everyone = torch.empty_like(gathered)
        group.all_gather_tensor(everyone, x)
        assert torch.equal(gathered, everyone)
        total = grad.double() @ weight.double()
        group.all_reduce_tensor(total)
        assert_matches(grad_x, total.chunk(group.size)[group.rank], k=weight.shape[0] * group.size, roundings=group.size)
        if out is not None:
            assert_matches(out, ag_gemm_float64(x, weight, group), k=x.shape[1])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_results_and_the_workspace_that_both_share(world):
    def script():
        steps()
        return workspace(resolve(), "ag_gemm").calls_begun()
    assert run_ranks(script, world, mode="late") == [3 if world == 1 else 6] * world


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_overtaken(mode):
    for slow in (0, 2):
        run_ranks(lambda: steps(slow=slow, forward=slow == 0), 3, mode=mode, seed=slow)


def test_in_graphs(captures_by_rank):
    """Copies that a graph can hold, in the workspace of ag_gemm in graphs."""
    def script():
        with triton_dist.prepare_graphs():
            steps(forward=False)
        kind = "ag_gemm in graphs"
        assert workspace(resolve(), kind).calls_begun() == 0
        with capturing():
            steps(forward=False)
        return workspace(resolve(), kind).calls_begun()
    assert run_ranks(script, 2) == [3] * 2


def test_gradients_are_those_of_a_kept_gather_bit_by_bit_and_one_operator_in_a_graph():
    def script():
        x, weight = (random_tensor(*shape, dtype=torch.float32, seed=seed + resolve().rank) for seed, shape in (
            (1, (4, 24)), (2, (8, 24))))
        found, graphs = [], []

        def layer(x, weight, saved):
            return ops.ag_gemm(x, weight, save_gathered=saved).square().sum()

        def backend(graph, inputs):
            graphs.append(graph.code)
            return graph
        compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend))
        for call, saved in ((layer, True), (layer, False), (compiled, False)):
            leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
            call(*leaves, saved).backward()
            found.append([leaf.grad for leaf in leaves])
        assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))
        assert sum("gemm_rs_beside_gather" in code for code in graphs) == 1
    run_ranks(script, 2)


@pytest.mark.parametrize("why", ["few bytes", "no stream memory operations", "unfused"])
def test_where_copies_do_not_serve_a_collective_comes_first(why, monkeypatch):
    if why == "few bytes":
        monkeypatch.setattr(dgrad, "LEAST_BYTES", 1 << 20)
    if why.startswith("no"):
        monkeypatch.setattr(EmulatorBackend, "has_stream_memory_ops", lambda self: False)

    def script():
        steps(method="unfused" if why == "unfused" else "portable", forward=False)
        assert (resolve().key, "ag_gemm") not in state().workspaces
    run_ranks(script, 2)


def test_where_the_heap_has_no_room_a_collective_comes_first(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "4M")
    with pytest.warns(RuntimeWarning, match="gather beside gemm_rs runs by 'unfused'"):
        run_ranks(lambda: steps([(1024, 8, 512)], forward=False), 2)


# -- under the checker ------------------------------------------------------------------------------------------------------
WAIT = 'dl.wait(flags, index, "sys", "acquire", epoch, cmp="ge")'
REST = 'dl.wait(flags + index + 1, world - 1 - index, "sys", "acquire", epoch, cmp="ge")'
MUTANTS = {
    "it does not wait for the ranks before": [(WAIT, "None")],
    "it does not wait for the ranks after": [(REST, "None")],
    "it waits at gpu scope": [(WAIT, WAIT.replace("sys", "gpu")), (REST, REST.replace("sys", "gpu"))],
    "it waits for the last epoch": [(WAIT, WAIT.replace("epoch,", "epoch - 1,")), (REST, REST.replace("epoch,", "epoch - 1,"))],
}


@pytest.mark.parametrize("forward", [False, True])
def test_unchanged_it_is_clean(forward):
    report = check_kernel(lambda: steps(slow=1, forward=forward), 3, 3, modes=MODES)
    assert report.clean and report.accesses, str(report)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_reported(name, tmp_path):
    kernel = load("arrived_kernel", edited(source_of(KERNEL), MUTANTS[name]), tmp_path).arrived_kernel
    with mock.patch.object(dgrad, "arrived_kernel", kernel):
        report = check_kernel(lambda: steps(slow=1, forward=False), 3, 12, modes=MODES)
    assert not report.clean, str(report)
