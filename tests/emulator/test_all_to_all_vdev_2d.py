# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""all_to_all_vdev_2d and its way back on virtual worlds: sizes, capacities, dtypes, streams, epochs, capture, gradients."""
import pytest
import torch
from chunks import BF16, Chunks2d, Offsets2d
from scenarios import (F16, F32, FIVE_ON, back_to_back, captures_by_rank, capturing, graph, overtaking,  # noqa: F401
                       past_the_wrap_and_zero, side_stream, two_groups)

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import all_to_all_vdev_2d, all_to_all_vdev_2d_offset, explain
from triton_dist.ops.all_to_all_vdev_2d import op
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
FULL = pytest.mark.full
METHODS = ["push", "unfused"]
BOTH = [Chunks2d, Offsets2d]


def to_one(rank, seed, rows, world, experts):
    return [[rows * (r == seed % world and e == 0) for e in range(experts)] for r in range(world)]


def none_at_all(rank, seed, rows, world, experts):
    return [[0] * experts for _ in range(world)]


def too_many(rank, seed, rows, world, experts):
    """Negative sizes, and more than x has."""
    return [[-3 if e else 2**40 if r == world - 1 else 3 for e in range(experts)] for r in range(world)]


@pytest.mark.every("world", "method")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("what", BOTH)
def test_shapes_in_turn(what, method, world):
    calls = [what(1, 16, method=method), what(20, 41, 3, method=method), what(30, 24, 1, method=method)]
    if what is Chunks2d:
        calls.append(what(20, 16, 3, align=8, method=method))
    run_ranks(lambda: back_to_back(calls), world, seed=world)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", [to_one, none_at_all, too_many])
@pytest.mark.parametrize("what", BOTH)
def test_unkind_sizes(what, sizes, method):
    run_ranks(lambda: back_to_back([what(16, 33, method=method, sizes=sizes), what(16, 33, method=method)]), 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("capacity", [0, 1, 13])
@pytest.mark.parametrize("what", BOTH)
def test_what_does_not_fit_is_cut_off_and_told(what, capacity, method):
    run_ranks(lambda: back_to_back([what(16, 33, method=method, capacity=capacity)], repeat=2), 3)


@pytest.mark.parametrize("dtype, kept", [(F16, torch.int64), (F32, torch.int32)])
@pytest.mark.parametrize("what", BOTH)
def test_dtypes(what, dtype, kept):
    run_ranks(lambda: back_to_back([what(12, row, dtype=dtype, kept=kept) for row in (48, 7)]), 2)


@pytest.mark.parametrize("mode", MODES)
def test_shapes_and_capacities_in_turn_and_a_slow_rank(mode):
    calls = [Chunks2d(40, 24), Offsets2d(40, 24, capacity=20), Chunks2d(9, 130, 3, align=4), Chunks2d(3, 16, sizes=none_at_all),
             Offsets2d(64, 24, sizes=to_one)]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=2), 3, mode=mode, num_sms=2)


def test_two_groups_and_two_streams():
    run_ranks(lambda: two_groups([Chunks2d(20, 40), Offsets2d(16, 33)]), 4, seed=3)
    run_ranks(lambda: side_stream([Chunks2d(20, 40), Offsets2d(16, 33)]), 2, seed=5)


@pytest.mark.parametrize("start", [pytest.param(start, marks=[FULL][:start > 0]) for start in FIVE_ON])
def test_epochs_pass_the_wrap_and_zero(start):
    growing = [Chunks2d(64, 64 * (i + 1)) for i in range(5)]
    calls = [Chunks2d(20, 40), Offsets2d(16, 33)]
    run_ranks(lambda: past_the_wrap_and_zero(calls, growing, Chunks2d.kind, start), 2, mode="late")


@pytest.mark.parametrize("align", [None, 8])
def test_there_and_back_is_the_identity(align):
    def script():
        rank = resolve().rank
        x = random_tensor(20, 4, 6, dtype=F32, seed=rank)
        splits = torch.tensor([3, 0, 7, 1, 0, 9] if rank else [0, 5, 5, 5, 5, 0])
        there, told = all_to_all_vdev_2d(x, splits, major_align=align)
        back, told = all_to_all_vdev_2d_offset(there, told, capacity=20)
        triton_dist.synchronize()
        assert torch.equal(back, x) and told[0].tolist() == splits.tolist()
    run_ranks(script, 2)


@pytest.mark.parametrize("what", BOTH)
def test_over_nodes_and_with_many_chunks_the_own_collective_serves(what, monkeypatch):
    run_ranks(lambda: back_to_back([what(9, 16, method="auto")]), 4, nodes=2)
    monkeypatch.setattr(op, "MOST_CHUNKS", 3)

    def script():
        back_to_back([what(9, 16, method="auto")])
        with pytest.raises(InvalidArgument, match="kernels take at most 3 chunks"):
            back_to_back([what(9, 16, method="push")])
    run_ranks(script, 2)


# -- gradients, graphs, explain ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("capacity", [None, 11])
@pytest.mark.parametrize("align", [None, 4])
def test_gradients_go_back(align, capacity, method):
    """Of the sum over ranks of out * g: each row's gradient is the g of where it went, zero if nowhere."""
    case = Chunks2d(12, 8, align=align, dtype=F32, capacity=capacity)
    back = Offsets2d(12, 8, dtype=F32, capacity=capacity)

    def script():
        group = resolve()
        for what, call in ((case, lambda x, s: all_to_all_vdev_2d(x, s, major_align=align, capacity=capacity, method=method)),
                           (back, lambda x, s: all_to_all_vdev_2d_offset(x, s, capacity=capacity, method=method))):
            x = what.x(group.rank, 1).requires_grad_()
            out, _ = call(x, what.given(group.rank, 1, 2))
            rows = len(out)
            gs = [random_tensor(rows, 8, dtype=F32, seed=60 + index) for index in range(2)]
            out.backward(gs[group.rank])
            triton_dist.synchronize()
            every = [what.sources(index, 1, 2) for index in range(2)]
            expected = torch.zeros_like(x)
            for rank in range(2):
                for (source, expert), at in what.placed(every, rank):
                    if source == group.rank:
                        for i, row in enumerate(every[source][rank, expert]):
                            if at + i < rows:
                                expected[row] = gs[rank][at + i]
            assert torch.equal(x.grad, expected)
    run_ranks(script, 2)


def test_capture_replays_with_what_the_tensors_hold_then():
    def script():
        group = resolve()
        case = Chunks2d(12, 8, dtype=F32)
        x, splits = torch.empty(12, 8), case.given(group.rank, 0, 2)
        all_to_all_vdev_2d(x, splits)
        with graph() as made:
            out, told = all_to_all_vdev_2d(x, splits)
        for seed in (1, 2):
            triton_dist.synchronize()
            x.copy_(case.x(group.rank, seed)), splits.copy_(case.given(group.rank, seed, 2))
            made.replay()
            triton_dist.synchronize()
            again, expected = all_to_all_vdev_2d(x, splits, method="unfused")
            assert torch.equal(told, expected)
            for size, at in expected.t().tolist():
                assert torch.equal(out[at:at + size], again[at:at + size])
        with capturing():
            with pytest.raises(InvalidArgument, match="before this graph capture|that this call has run before"):
                all_to_all_vdev_2d(torch.ones(5, 8), splits)
    run_ranks(script, 2)


def test_torch_compile_records_both():
    def script():
        group = resolve()
        case = Chunks2d(12, 8, dtype=F32)
        x, splits, out = case.x(group.rank, 1), case.given(group.rank, 1, 2), torch.full((26, 8), 7.0)

        def both(x, splits, out):
            there, told = all_to_all_vdev_2d(x, splits, out=out)
            return all_to_all_vdev_2d_offset(there, told, capacity=12)[0]
        back = torch.compile(both, fullgraph=True, backend="aot_eager")(x, splits, out)
        triton_dist.synchronize()
        rows = int(splits.sum())
        assert torch.equal(back[:rows], x[:rows]) and bool((out == 7.0).all(1).any()), "rows between chunks were written"
    run_ranks(script, 2)


def test_explain_and_debug_mode(monkeypatch):
    monkeypatch.setenv("TRITON_DIST_DEBUG", "1")

    def script():
        for name in ("all_to_all_vdev_2d", "all_to_all_vdev_2d_offset"):
            assert "push" in str(explain(name, 64, 128))
        with pytest.raises(InvalidArgument, match="capacity: expected room for all rows, found 3 for 4 rows"):
            all_to_all_vdev_2d(torch.ones(4, 8), torch.tensor([2, 2]), capacity=3)
        back_to_back([Chunks2d(4, 8)])
    run_ranks(script, 2)


@pytest.mark.parametrize("splits, more, says", [
    ([1, 2, 3], {}, r"in_splits: expected a number for each rank and expert, a multiple of the 2 ranks, found shape \[3\]"),
    ([[1, 2]], {}, "in_splits: expected"),
    ([1, 2], dict(major_align=0), "major_align: expected None or at least 1, found 0"),
    ([1, 2], dict(capacity=-1), "capacity: expected"),
    ([1, 2], dict(method="pull"), "method: expected one of auto, push, unfused"),
    ([1, 2], dict(out=torch.ones(3)), "out: expected"),
])
def test_bad_input_is_refused_on_every_rank(splits, more, says):
    def script():
        with pytest.raises(InvalidArgument, match=says):
            all_to_all_vdev_2d(torch.ones(4, 8), torch.tensor(splits), **more)
        with pytest.raises(InvalidArgument, match="in_splits_offsets: expected"):
            all_to_all_vdev_2d_offset(torch.ones(4, 8), torch.tensor([1, 2]))
        back_to_back([Chunks2d(4, 8)])
    run_ranks(script, 2)
