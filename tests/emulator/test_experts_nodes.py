# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_dispatch and ep_combine over nodes: layouts, routings, what travels, order of sums, capture, refusals, the checker."""
from unittest import mock

import pytest
import torch
from experts import BF16, EP, F8, F32, anywhere, to_nobody, to_one, to_the_first
from scenarios import F16, FIVE_ON, back_to_back, captures_by_rank, graph, overtaking, past_the_wrap_and_zero, \
    side_stream  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.twins import shmem
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.checker import check_kernel
from triton_dist.ops import dispatch_grouped_gemm, ep_combine, ep_dispatch, grouped_gemm_combine
from triton_dist.ops.ep import chunks
from triton_dist.ops.explain import explain
from triton_dist.runtime.errors import InvalidArgument, OutOfHeap
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
FULL = pytest.mark.full
FEW = ["compact", pytest.param("indexed", marks=FULL), "expert", pytest.param("masked", marks=FULL)]
WORLDS = [(4, 2), *[pytest.param(*world, marks=FULL) for world in ((2, 2), (4, 4), (6, 3), (8, 2), (8, 4))]]


def Far(*args, **kwargs):
    """EP over nodes."""
    return EP(*args, **{"method": "two_level", **kwargs})


def everyone_far(rank, seed, tokens, k, experts):
    """Each token to as many ranks as it has choices, beginning with the one behind its own."""
    return (rank + 1 + torch.arange(k))[None, :].expand(tokens, k).contiguous() * 2 % experts


@pytest.fixture
def rounds(monkeypatch):
    """A row a round of a dispatch, two rows a round of a combine."""
    monkeypatch.setattr(chunks, "MOVED", chunks.Pieces(128, 128))
    monkeypatch.setattr(chunks, "ROUNDED", chunks.Pieces(1024, 1024))
    monkeypatch.setattr(chunks, "NODES", chunks.Pieces(256, 128))


@pytest.mark.one
@pytest.mark.parametrize("world, nodes", WORLDS)
@pytest.mark.parametrize("layout", FEW)
def test_shapes_in_turn(layout, world, nodes):
    align = 4 if layout in ("indexed", "expert") else 1
    calls = [Far(1, 16, 3, 1, layout, weights=False, residual=True), Far(6, 41, 4, 3, layout, align, bias=True)]
    run_ranks(lambda: back_to_back(calls), world, nodes=nodes, seed=world, num_sms=4)


@pytest.mark.one
@pytest.mark.parametrize("layout", FEW)
@pytest.mark.parametrize("routing", [to_one, to_the_first, to_nobody, everyone_far])
def test_unkind_routing(routing, layout, rounds):
    calls = [Far(6, 24, 3, layout=layout, routing=routing), Far(4, 24, layout=layout)]
    run_ranks(lambda: back_to_back(calls), 4, nodes=2, seed=3, num_sms=2)


@pytest.mark.parametrize("layout", FEW)
def test_ranks_with_other_numbers_of_tokens_and_with_none(layout):
    calls = [Far(lambda rank: (0, 4, 2, 5)[rank], 24, layout=layout, max_tokens=5, residual=True),
             Far(lambda rank: 0, 24, layout=layout, max_tokens=5), Far(0, 24, layout=layout)]
    run_ranks(lambda: back_to_back(calls), 4, nodes=2, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("layout, capacity", [("compact", 0), ("compact", 7), ("indexed", 7), ("expert", 7), ("masked", 2)])
def test_what_does_not_fit_is_cut_off_and_told(layout, capacity):
    run_ranks(lambda: back_to_back([Far(6, 24, 3, 2, layout, capacity=capacity)]), 4, nodes=2, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("dtype, scales, kept", [(F16, 0, torch.int64), (F32, 0, torch.int32), (F8, 1, torch.int32),
                                                 (F8, 3, torch.int64)])
@pytest.mark.parametrize("layout", FEW)
def test_dtypes_and_scales(layout, dtype, scales, kept, rounds):
    run_ranks(lambda: back_to_back([Far(5, 48, layout=layout, dtype=dtype, scales=scales, kept=kept)]), 4, nodes=2, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("layout", FEW)
def test_rows_become_fp8_on_the_way(layout, rounds):
    calls = [Far(5, 256, layout=layout, quant="fp8_1x128"),
             Far(lambda rank: 2 * rank, 128, layout=layout, quant="fp8_1x128", max_tokens=6)]
    run_ranks(lambda: back_to_back(calls), 4, nodes=2, num_sms=2)


@pytest.mark.one
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("latency", [0, 200])
def test_shapes_in_turn_and_a_slow_rank(latency, mode, rounds, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_NODE_LATENCY", str(latency))
    calls = [Far(6, 48), Far(12, 24, layout="expert", combine=False), Far(3, 16, routing=to_nobody),
             Far(5, 40, 4, layout="masked")]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=1), 4, nodes=2, mode=mode, num_sms=2)


@pytest.mark.parametrize("start", [pytest.param(start, marks=[FULL][:start > 0]) for start in FIVE_ON])
def test_epochs_pass_the_wrap_and_zero(start):
    growing = [Far(2, 1200 * (i + 1), 1, combine=False) for i in range(5)]
    calls = [Far(3, 40, combine=False), Far(2, 33, combine=False)]
    run_ranks(lambda: past_the_wrap_and_zero(calls, growing, EP.kind, start), 4, nodes=2, mode="late", num_sms=2)


def test_groups_and_streams():
    """Two groups of one rank a node each, the world between them; and another stream."""
    def script():
        world, call = resolve(triton_dist.initialize_distributed()), Far(5, 24, layout="expert")
        across = [world.new_group(ranks) for ranks in ([0, 2], [1, 3])][world.rank % 2]
        pending = [call(seed, group) for seed, group in enumerate([across, world, across])]
        triton_dist.synchronize()
        for verify in pending:
            verify()
        side_stream([Far(5, 40), Far(3, 33, layout="expert")])
    run_ranks(script, 4, nodes=2, mode="late", num_sms=2)


# -- what travels, and in what order sums are taken ------------------------------------------------------------------------
@pytest.mark.one
@pytest.mark.parametrize("scales", [0, 2])
def test_a_row_crosses_once_to_each_node(scales):
    """All bytes that are put: rows and their choices once for each other node that has an expert of them, and heads of boxes."""
    put = []

    def pieces(to, source, nbytes, made=shmem.pieces):
        put.append(nbytes)
        return made(to, source, nbytes)

    def script():
        rank = resolve().rank
        x, k, m = torch.ones(6, 40, dtype=BF16), 4, 6
        ids, weights = anywhere(rank, 1, m, k, 8), torch.ones(m, k)
        came = ep_dispatch(x, ids, weights, num_experts=8, scales=torch.ones(m, scales) if scales else None)
        triton_dist.synchronize()
        resolve().barrier()
        sent = sum(put)
        resolve().barrier()
        ep_combine(came.x, came.handle)
        triton_dist.synchronize()
        resolve().barrier()
        return sent, sum(put) - sent, ids

    with mock.patch.object(shmem, "pieces", pieces):
        found = run_ranks(script, 4, nodes=2)
    crossing = sum(int(((ids >= 0) & (ids // 4 != rank // 2)).any(1).sum()) for rank, (_, _, ids) in enumerate(found))
    heads = 4 * 16 * 6      # each rank has a chunk for each token
    assert 0 < crossing < 24
    assert found[0][0] == heads + crossing * (80 + 4 * 8 + 4 * scales)
    assert found[0][1] == heads + crossing * (80 + 4)


@pytest.mark.one
@pytest.mark.parametrize("layout", FEW)
@pytest.mark.parametrize("mode", ["late", "random"])
def test_dispatches_have_the_bits_of_the_unfused_ones_and_their_handles_serve_both(layout, mode):
    """In all schedules. A combine sums over places, then over nodes, each sum rounded once."""
    def script(method, other):
        rank = resolve().rank
        ids = anywhere(rank, 1, 6, 4, 8).int()
        came = ep_dispatch(random_tensor(6, 128, dtype=BF16, seed=rank), ids, random_tensor(6, 4, dtype=F32, seed=9),
                           num_experts=8, layout=layout, quant="fp8_1x128", method=method)
        y = random_tensor(came.x.shape[:-1].numel(), 40, dtype=BF16, seed=7 + rank).view(*came.x.shape[:-1], 40)
        weights = came.topk_weights if layout in ("expert", "masked") else None
        back = [ep_combine(y, came.handle, topk_weights=weights, residual=(r := random_tensor(6, 40, dtype=BF16, seed=rank)),
                           method=how) for how in ("two_level", other)]
        # what each rank has of each token, by combines of which the others' rows are zeros
        parts = [ep_combine(y if rank == index else torch.zeros_like(y), came.handle, topk_weights=weights, method="unfused")
                 for index in range(4)]
        triton_dist.synchronize()
        sums = [(parts[n].float() + parts[n + 1].float()).bfloat16().float() for n in (0, 2)]
        assert torch.equal(back[0], (sums[0] + sums[1] + r.float()).bfloat16())
        torch.testing.assert_close(back[1], back[0], rtol=0.03, atol=0.03)
        rows = int(came.rows)
        spots = slice(rows) if weights is None else came.positions[came.positions >= 0].long()
        flat = came.x.view(torch.uint8).view(-1, 128)
        return [back[0], came.handle.told, came.topk_ids, came.topk_weights, flat[spots], came.scales.view(-1, 1)[spots]]

    first = run_ranks(script, 4, "unfused", "unfused", nodes=2, num_sms=2)
    again = run_ranks(script, 4, "two_level", "unfused", nodes=2, mode=mode, seed=2, num_sms=2)
    assert all(torch.equal(a, b) for one, other in zip(first, again) for a, b in zip(one, other))


def test_gradients_over_nodes():
    """Dispatch and combine are each other's: the sum over choices of weight * (expert + 1) * x."""
    def script():
        rank = resolve().rank
        ids = anywhere(rank, 2, 5, 3, 8)
        x, weights = random_tensor(5, 12, dtype=F32, seed=rank), random_tensor(5, 3, dtype=F32, seed=rank + 10)
        leaves = [t.double().requires_grad_() for t in (x, weights)]
        factor = torch.where(ids >= 0, ids + 1.0, 0.0)
        (leaves[0] * (leaves[1] * factor).sum(1, keepdim=True)).square().sum().backward()
        x.requires_grad_(), weights.requires_grad_()
        came = ep_dispatch(x, ids, weights, num_experts=8, layout="expert", method="two_level")
        triton_dist.synchronize()
        expert = torch.bucketize(torch.arange(len(came.x)), came.expert_offsets[1:-1], right=True)
        there = (torch.arange(len(came.x)) < came.expert_offsets[-1])[:, None]
        y = torch.where(there, came.x, 0.0) * (expert + 2 * rank + 1.0)[:, None]
        out = ep_combine(y, came.handle, topk_weights=came.topk_weights, method="two_level")
        out.square().sum().backward()
        triton_dist.synchronize()
        for t, leaf in zip((x, weights), leaves):
            torch.testing.assert_close(t.grad.double(), leaf.grad, rtol=1e-4, atol=1e-4)

    run_ranks(script, 4, nodes=2, num_sms=2)


def test_dispatch_grouped_gemm_runs_the_two_ops_in_turn():
    def script():
        rank, (x, weights) = resolve().rank, (random_tensor(5, n, dtype=F32, seed=resolve().rank) for n in (16, 3))
        up, down = random_tensor(8, 12, 16, dtype=F32, seed=98), random_tensor(8, 16, 12, dtype=F32, seed=99)
        ids = anywhere(rank, 4, 5, 3, 8).int()
        mine = slice(2 * rank, 2 * rank + 2)
        h, came = dispatch_grouped_gemm(x, ids, weights, up[mine], num_experts=8, act=None)
        out = grouped_gemm_combine(h, down[mine], came)
        triton_dist.synchronize()
        by_expert = torch.einsum("eho,eoi,ti->teh", down.double(), up.double(), x.double())
        chosen = torch.where(ids >= 0, weights, 0.0).double()
        expected = (by_expert[torch.arange(5)[:, None], ids.clamp(min=0).long()] * chosen[..., None]).sum(1)
        assert_matches(out, expected, k=12 * 16 * 3, roundings=4)

    with mock.patch("triton_dist.ops.ep_dispatch.op.ep_dispatch_unfused", side_effect=AssertionError):
        run_ranks(script, 4, nodes=2, num_sms=2)


# -- which method, capture, refusals ---------------------------------------------------------------------------------------
def test_auto_is_two_level_over_nodes_and_says_so():
    def script():
        for op in ("ep_dispatch", "ep_combine"):
            said = explain(op, 64, 128)
            assert said.chosen.startswith("two_level") and "the ranks are on 2 nodes" in str(said)
        back_to_back([Far(5, 24, layout="expert", method="auto", combine=False)])

    with mock.patch("triton_dist.ops.ep_dispatch.op.ep_dispatch_unfused", side_effect=AssertionError):
        run_ranks(script, 4, nodes=2, num_sms=2)


@pytest.mark.parametrize("method, nodes, says", [("two_level", 1, "all ranks are on one node"),
                                                 ("push", 2, "can load and store"),
                                                 ("self_flagged", 2, "can load and store")])
def test_a_method_that_is_not_for_this_topology_is_refused_and_leaves_the_world_as_it_was(method, nodes, says):
    def script():
        with pytest.raises(InvalidArgument, match=says):
            ep_dispatch(torch.ones(4, 16), torch.zeros(4, 2, dtype=torch.int32), num_experts=4, method=method)
        back_to_back([Far(4, 16, method="auto")])

    run_ranks(script, 4, nodes=nodes)


def test_where_the_heap_has_no_room_auto_is_unfused_and_two_level_an_error(monkeypatch):
    def script():
        given = torch.ones(4, 2**16, dtype=BF16), torch.full((4, 1), 3 - resolve().rank, dtype=torch.int32)
        with pytest.raises(OutOfHeap, match="raise TRITON_DIST_HEAP_SIZE"):
            ep_dispatch(*given, num_experts=4, method="two_level")
        came = ep_dispatch(*given, num_experts=4)
        assert came.rows.tolist() == [4] and bool((came.x[:4] == 1).all())

    monkeypatch.setenv("TRITON_DIST_HEAP_SIZE", "4M")
    with pytest.warns(RuntimeWarning, match="ep_dispatch runs by 'unfused', which is slower"):
        run_ranks(script, 4, nodes=2, num_sms=2)


def test_a_group_of_unequal_nodes_takes_its_own_collective_and_says_so():
    def script():
        group = resolve(triton_dist.initialize_distributed()).new_group([0, 1, 2])
        if group is not None:
            with pytest.warns(RuntimeWarning, match="not equally many of each node, side by side"):
                Far(5, 24, method="auto")(0, group)()

    run_ranks(script, 4, nodes=2, num_sms=2)


def test_capture_replays_with_what_the_tensors_hold_then():
    def script():
        rank = resolve().rank
        x, ids = random_tensor(5, 24, dtype=F32, seed=rank), torch.zeros(5, 2, dtype=torch.int32)

        def around():
            came = ep_dispatch(x, ids, num_experts=8, layout="expert")
            return came, ep_combine(came.x, came.handle)
        around()
        with graph() as made:
            came, out = around()
        for seed in (1, 2):
            triton_dist.synchronize()
            ids.copy_(anywhere(rank, seed, 5, 2, 8))
            made.replay()
            triton_dist.synchronize()
            every = [anywhere(index, seed, 5, 2, 8) for index in range(4)]
            assert came.expert_rows.tolist() == [sum(int((of == rank * 2 + e).sum()) for of in every) for e in range(2)]
            torch.testing.assert_close(out, x * (ids >= 0).sum(1, keepdim=True))

    run_ranks(script, 4, nodes=2, num_sms=2)


def test_capture_of_what_has_not_run_is_an_error():
    def script():
        with graph():
            with pytest.raises(InvalidArgument, match="that this call has run before"):
                ep_dispatch(torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int32), num_experts=4)
        back_to_back([Far(4, 8)])

    run_ranks(script, 4, nodes=2, num_sms=2)


# -- the checker -----------------------------------------------------------------------------------------------------------
CHECKED = [Far(5, 24, layout="expert"), Far(6, 16, 3, layout="masked", capacity=3), Far(3, 24, layout="indexed", combine=False),
           Far(lambda rank: 4 * (rank == 1), 24, max_tokens=4), Far(4, 128, quant="fp8_1x128")]


def test_it_is_clean(rounds):
    report = check_kernel(lambda: overtaking(CHECKED[:2], slow=0, repeat=1), 4, 1, modes=["random"], nodes=2, num_sms=2)
    assert report.clean and report.accesses, str(report)


@pytest.mark.full
@pytest.mark.parametrize("world, nodes, schedules", [(4, 2, 20), (6, 3, 10), (8, 2, 5), (2, 2, 20)])
def test_all_layouts_are_clean(world, nodes, schedules, rounds):
    report = check_kernel(lambda: overtaking(CHECKED, slow=0, repeat=1), world, schedules, nodes=nodes, num_sms=2)
    assert report.clean and report.schedules == schedules, str(report)
