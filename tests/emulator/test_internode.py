# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ops over nodes: 2-D gathers and reductions, shapes, modes, latency, epochs, and what the checker says."""
import pytest
import torch
from scenarios import AG, BF16, F16, F32, RS, back_to_back, near_the_wrap, overtaking

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import all_gather_2d, reduce_scatter_2d
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, poisoned, random_tensor

NODES = [(4, 2), (8, 2), (8, 4), (4, 4), (6, 3)]          # ranks, nodes
SHAPES = [(64, 64), (1, 9), (9, 50), (70, 33), (3, 200)]


class Gather:
    """One all_gather_2d call of [m, k] a rank."""
    kind = "all_gather_2d"

    def __init__(self, m, k, dtype=F16):
        self.m, self.k, self.dtype = m, k, dtype

    def __call__(self, seed, group):
        x = random_tensor(self.m, self.k, dtype=self.dtype, seed=1000 * seed + group.rank)
        out = poisoned(self.m * group.size, self.k, dtype=self.dtype)
        assert all_gather_2d(x, group=group, out=out) is out

        def verify():
            expected = torch.empty_like(out)
            group.all_gather_tensor(expected, x)
            assert torch.equal(out, expected)
            return out
        return verify


class Scatter:
    """One reduce_scatter_2d call to [m, k] a rank."""
    kind = "reduce_scatter_2d"

    def __init__(self, m, k, dtype=F16):
        self.m, self.k, self.dtype = m, k, dtype

    def __call__(self, seed, group):
        x = random_tensor(self.m * group.size, self.k, dtype=self.dtype, seed=1000 * seed + group.rank)
        out = poisoned(self.m, self.k, dtype=self.dtype)
        assert reduce_scatter_2d(x, group=group, out=out) is out

        def verify():
            expected = torch.empty(self.m, self.k, dtype=torch.float64)
            group.reduce_scatter_tensor(expected, x.double())
            assert_matches(out, expected, k=group.size, roundings=len(group.nodes))
            return out
        return verify


FORMS = [Gather, Scatter]


@pytest.mark.parametrize("ranks, nodes", NODES)
@pytest.mark.parametrize("form", FORMS)
def test_ragged_shapes_back_to_back(form, ranks, nodes):
    run_ranks(lambda: back_to_back([form(*shape) for shape in SHAPES]), ranks, nodes=nodes, seed=ranks)


@pytest.mark.one
@pytest.mark.parametrize("latency", [0, 200])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", FORMS)
def test_modes_and_latency(form, mode, latency, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", str(latency))
    calls = [form(70, 40), form(9, 50), form(1, 8)]
    for seed in range(2):
        run_ranks(lambda: overtaking(calls, slow=seed), 4, nodes=2, mode=mode, seed=seed)


@pytest.mark.one
@pytest.mark.parametrize("mode", ["random", "late", "skew", "priority"])
@pytest.mark.parametrize("form", FORMS)
def test_several_pieces_a_call(form, mode):
    """Calls of one, two and four programs in turn: flags keep their writers."""
    calls = [form(128, 128), form(8, 16), form(64, 100)]
    run_ranks(lambda: overtaking(calls, slow=1), 4, nodes=2, mode=mode, num_sms=32)


@pytest.mark.parametrize("form", FORMS)
def test_epochs_pass_the_wrap(form):
    run_ranks(lambda: near_the_wrap([form(20, 24), form(40, 16)], [form.kind]), 4, nodes=2, mode="late")


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mode", ["random", "late"])
def test_dtypes_and_the_same_bits_under_any_schedule(form, dtype, mode):
    def script():
        return back_to_back([form(20, 30, dtype)])[0]
    first = run_ranks(script, 4, nodes=2, mode="eager")
    for got, expected in zip(run_ranks(script, 4, nodes=2, seed=5, mode=mode), first):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("form", FORMS)
def test_empty_calls_and_one_node(form):
    run_ranks(lambda: back_to_back([form(0, 8), form(8, 0), form(8, 8)]), 4, nodes=2)
    run_ranks(lambda: back_to_back([form(8, 8)]), 3)


@pytest.mark.parametrize("form", FORMS)
def test_groups_that_no_kernel_serves_take_torchs_collective(form):
    """Ranks 0, 1, 2 of two nodes of two; and a group whose nodes' members are not side by side."""
    def script():
        world = resolve(triton_dist.initialize_distributed())
        for ranks in ([0, 1, 2], [0, 2, 1, 3]):
            group = world.new_group(ranks)
            if group is not None:
                with pytest.warns(RuntimeWarning, match="not equally many of each node, side by side"):
                    form(8, 8)(0, group)()
    run_ranks(script, 4, nodes=2)


@pytest.mark.parametrize("call", [Gather(8, 8), Scatter(8, 8), AG(8, 8, 8), RS(8, 8, 8)], ids=lambda call: call.kind)
def test_without_shmem_calls_it_says_why_it_is_unfused(call, monkeypatch):
    from triton_dist.backends.emulator.backend import EmulatorBackend
    monkeypatch.setattr(EmulatorBackend, "no_shmem", lambda self: "kernels cannot send")
    monkeypatch.setattr(type(call), "method", "auto", raising=False)

    def script():
        with pytest.warns(RuntimeWarning, match=r"ranks \[0, 1, 2, 3\] are on 2 nodes, and kernels cannot send"):
            back_to_back([call])
    run_ranks(script, 4, nodes=2)


@pytest.mark.parametrize("form", FORMS)
def test_sub_groups_over_nodes(form):
    """Two groups, each of one rank a node, and the world between them."""
    def script():
        world = resolve(triton_dist.initialize_distributed())
        pairs = [world.new_group([0, 2]), world.new_group([1, 3])]
        mine = pairs[world.rank % 2]
        for verify in [form(20, 30)(seed, group) for seed in range(3) for group in (world, mine)]:
            verify()
    run_ranks(script, 4, nodes=2, mode="late")


@pytest.mark.one
@pytest.mark.parametrize("ranks, nodes", [(4, 2), (8, 4)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedules", [2, pytest.param(7, marks=pytest.mark.full)])
def test_clean_under_the_checker(schedules, form, ranks, nodes):
    report = check_kernel(lambda: back_to_back([form(20, 30), form(3, 50), form(64, 64)]), ranks, schedules, nodes=nodes)
    assert report.clean and report.accesses, str(report)


# -- GEMMs -------------------------------------------------------------------------------------------------------------
GEMMS = [(64, 64, 64), (1, 1, 1), (9, 10, 50), (70, 33, 130), (3, 200, 17)]


class CoreAG(AG):
    method = "ws"


@pytest.mark.parametrize("ranks, nodes", NODES)
@pytest.mark.parametrize("op", [AG, RS])
def test_gemms_of_ragged_shapes_back_to_back(op, ranks, nodes):
    run_ranks(lambda: back_to_back([op(*shape, bias=True) for shape in GEMMS]), ranks, nodes=nodes, seed=ranks)


@pytest.mark.one
@pytest.mark.parametrize("latency", [0, 200])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", [AG, RS])
def test_gemms_in_all_modes(op, mode, latency, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", str(latency))
    calls = [op(70, 40, 96), op(9, 40, 50), op(70, 20, 96), op(1, 8, 16)]
    for seed in range(2):
        run_ranks(lambda: overtaking(calls, slow=seed, repeat=2), 4, nodes=2, mode=mode, seed=seed)


@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_gemms_of_ranks_with_nothing_to_compute(mode):
    calls = [AG(20, lambda r: 24 * (r == 1), 40), RS(20, 24, lambda r: 40 * (r == 1)), AG(40, lambda r: 0, 16),
             RS(40, 24, lambda r: 0)]
    for seed in range(2):
        run_ranks(lambda: overtaking(calls, slow=3, repeat=2), 4, nodes=2, mode=mode, seed=seed)


@pytest.mark.one
@pytest.mark.parametrize("op", [AG, RS])
def test_gemm_epochs_pass_the_wrap(op):
    run_ranks(lambda: near_the_wrap([op(20, 24, 40), op(40, 16, 40)], [op.kind]), 4, nodes=2, mode="late")


@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_the_core_takes_what_the_gather_over_nodes_brings(mode):
    calls = [CoreAG(136, 40, 64), CoreAG(16, 72, 160, bias=True), CoreAG(70, 40, 96)]
    run_ranks(lambda: back_to_back(calls), 4, nodes=2, mode=mode, num_sms=16)


@pytest.mark.parametrize("mode", ["random", "late", "skew", "priority"])
def test_a_shard_in_several_pieces(mode):
    calls = [AG(256, 24, 64), AG(64, 24, 8), AG(128, 24, 64)]
    run_ranks(lambda: overtaking(calls, slow=1), 4, nodes=2, mode=mode, num_sms=32)


@pytest.mark.parametrize("op", [AG, RS])
def test_a_device_that_runs_one_program_at_a_time(op):
    run_ranks(lambda: back_to_back([op(70, 40, 96), op(9, 40, 50)], repeat=2), 4, nodes=2, num_sms=1)


def test_hop_dtype_float32():
    run_ranks(lambda: back_to_back([RS(40, 72, 96, dtype=BF16, hop_dtype=h) for h in (F32, None, F32)]), 4, nodes=2)


def test_the_gathered_input_is_returned():
    def script():
        world = resolve(triton_dist.initialize_distributed())
        for verify in [AG(20, 30, 40)(seed, world, return_gathered=True) for seed in range(3)]:
            verify()
    run_ranks(script, 4, nodes=2)


@pytest.mark.one
@pytest.mark.parametrize("op", [AG, RS])
@pytest.mark.parametrize("mode", ["random", "late", "skew"])
def test_gemms_repeat_bit_by_bit(op, mode):
    def script():
        return back_to_back([op(40, 72, 96, dtype=BF16)])[0]
    first = run_ranks(script, 4, nodes=2, mode="eager")
    for got, expected in zip(run_ranks(script, 4, nodes=2, seed=7, mode=mode), first):
        assert torch.equal(got, expected)


CLEAN = {"ag_gemm": [AG(70, 40, 96, bias=True), AG(9, 41, 50)], "gemm_rs": [RS(70, 40, 96, bias=True), RS(9, 41, 50)],
         "core": [CoreAG(72, 40, 64), CoreAG(16, 72, 160)]}


@pytest.mark.parametrize("name, ranks, nodes, schedules", [
    ("ag_gemm", 4, 2, 2), ("gemm_rs", 6, 3, 2), ("core", 4, 2, 2),
    *(pytest.param(*case, marks=pytest.mark.full) for case in (
        ("ag_gemm", 4, 2, 7), ("ag_gemm", 8, 4, 3), ("gemm_rs", 4, 2, 7), ("gemm_rs", 8, 4, 2),
        ("core", 8, 4, 7), ("gemm_rs", 8, 4, 28), ("ag_gemm", 8, 2, 28)))])
def test_gemms_are_clean_under_the_checker(name, ranks, nodes, schedules):
    report = check_kernel(lambda: back_to_back(CLEAN[name]), ranks, schedules, nodes=nodes)
    assert report.clean and report.schedules == schedules, str(report)


def test_what_is_moved_is_what_the_formula_says():
    """Data by the formulas, and flags: 4 or 8 bytes for each piece or tile."""
    m, n, k, calls = 64, 128, 64, 3

    def traffic(call, flags):
        report = check_kernel(lambda: back_to_back([call] * calls), 4, 1, nodes=2)
        assert report.clean, str(report)
        extra = {link: nbytes - report.formula[link] for link, nbytes in report.links.items()}
        assert extra == {link: calls * flags[abs(link[0] - link[1])] for link in extra} and set(report.formula) == set(extra)
        return {link: nbytes // calls for link, nbytes in report.formula.items()}
    shard, chunk = 2 * m * k, 2 * m * n
    beside, across = [(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 0), (1, 3), (3, 1)]
    sends = {**dict.fromkeys(beside, 2 * shard), **dict.fromkeys(across, shard)}
    assert traffic(AG(m, n, k), {1: 8, 2: 8}) == sends                     # two flags beside, a signal across
    assert traffic(Gather(m, k), {1: 8, 2: 8}) == sends
    assert traffic(Scatter(m, k), {1: 8, 2: 8}) == sends
    tiles = n // 64
    assert traffic(RS(m, n, k), {1: 16 * tiles, 2: 8 * tiles}) == {
        **dict.fromkeys(beside, 2 * chunk), **dict.fromkeys(across, chunk)}
