# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_dispatch and ep_combine on virtual worlds: layouts, routings, capacities, dtypes, unequal ranks, epochs, capture."""
from unittest import mock

import pytest
import torch
from experts import BF16, EP, F8, F32, anywhere, to_nobody, to_one, to_the_first
from scenarios import F16, FIVE_ON, back_to_back, capturing, captures_by_rank, graph, overtaking, past_the_wrap_and_zero, \
    side_stream, two_groups  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import ep_combine, ep_dispatch
from triton_dist.ops.ep import chunks
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import workspace
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
FULL = pytest.mark.full
LAYOUTS = ["compact", "indexed", "expert", "masked"]
ONE = [*[pytest.param(name, marks=FULL) for name in LAYOUTS if name != "expert"], "expert"]
FEW = ["compact", pytest.param("indexed", marks=FULL), "expert", pytest.param("masked", marks=FULL)]
METHODS = ["push", "unfused"]


@pytest.mark.every("world", "method")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_in_turn(layout, method, world):
    align = 4 if layout in ("indexed", "expert") else 1
    calls = [
        EP(1, 16, 3, 1, layout, method=method, weights=False, residual=True),
        EP(6 if world < 8 else 2, 41, 4, 3, layout, align, method=method, bias=True)
    ]
    run_ranks(lambda: back_to_back(calls), world, seed=world, num_sms=8 if world < 8 else 3)


@pytest.mark.one
@pytest.mark.parametrize("layout", ONE)
@pytest.mark.parametrize("routing", [to_one, to_the_first, to_nobody])
def test_unkind_routing(routing, layout):
    calls = [EP(4, 24, layout=layout, routing=routing), EP(4, 24, layout=layout)]
    run_ranks(lambda: back_to_back(calls), 3, seed=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", FEW)
def test_ranks_with_other_numbers_of_tokens_and_with_none(layout, method):
    calls = [
        EP(lambda rank: (0, 4, 2)[rank], 24, layout=layout, max_tokens=5, method=method, residual=True),
        EP(lambda rank: 0, 24, layout=layout, max_tokens=5, method=method),
        EP(0, 24, layout=layout, method=method)
    ]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout, capacity", [("compact", 0), ("compact", 7), ("indexed", 7), ("expert", 7),
                                              pytest.param("expert", 0, marks=FULL), ("masked", 2)])
def test_what_does_not_fit_is_cut_off_and_told(layout, capacity, method):
    run_ranks(lambda: back_to_back([EP(6, 24, 3, 2, layout, capacity=capacity, method=method)], repeat=1), 2)


@pytest.mark.one
@pytest.mark.parametrize("dtype, scales, kept", [pytest.param(F16, 0, torch.int64, marks=FULL), (F32, 0, torch.int32),
                                                 pytest.param(F8, 1, torch.int32, marks=FULL), (F8, 3, torch.int64)])
@pytest.mark.parametrize("layout", FEW)
def test_dtypes_and_scales(layout, dtype, scales, kept):
    run_ranks(lambda: back_to_back([EP(5, 48, layout=layout, dtype=dtype, scales=scales, kept=kept)]), 2)


@pytest.mark.one
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", FEW)
def test_rows_become_fp8_on_the_way(layout, method):
    calls = [EP(3, 256, layout=layout, quant="fp8_1x128", method=method),
             EP(lambda rank: 2 * rank, 256, layout=layout, quant="fp8_1x128", method=method, max_tokens=2)]
    run_ranks(lambda: back_to_back(calls), 2)


def test_fp8_by_integers_has_the_bits_of_torch():
    """All halves of the range, ties among them, and what is beyond it."""
    from triton_dist.ops.device.float8 import e4m3
    import triton
    import triton.language as tl

    @triton_dist.jit
    def kernel(x, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, e4m3(tl.load(x + at, mask=at < n, other=0.0)), mask=at < n)

    def script():
        values = torch.arange(256, dtype=torch.uint8).view(F8).float()
        values = values[~values.isnan()].sort().values
        between = (values[1:] + values[:-1]) / 2
        x = torch.cat([
            values, between,
            between.nextafter(values[1:]),
            between.nextafter(values[:-1]),
            random_tensor(500, dtype=F32, seed=1),
            torch.tensor([449.0, -1e9, float("inf"), 1e-9])
        ])
        out = torch.empty(len(x), dtype=torch.int8)
        kernel[(1, )](x, out, len(x), BLOCK=triton.next_power_of_2(len(x)))
        triton_dist.synchronize()
        assert torch.equal(out.view(torch.uint8), x.clamp(-448, 448).to(F8).view(torch.uint8))

    run_ranks(script, 1)


def test_fp8_of_rows_with_nan_infinity_and_zeros(monkeypatch):
    """A NaN stays alone; an infinity makes its 128 columns NaN. All methods agree, by 128 columns at a time, from any address."""
    monkeypatch.setattr(chunks, "ROUNDED", chunks.Pieces(256, 256, 128))
    special = [float("nan"), float("inf"), -float("inf"), 3e38, 1e-30]

    def script(method):
        x = torch.empty(8 * 256 + 1)[1:].view(8, 256).copy_(random_tensor(8, 256, dtype=F32, seed=1))
        x[range(5), 5] = torch.tensor(special)
        x[5] = -float("nan")
        x[6] = 0.0
        to_the_next = torch.full((8, 1), 1 - resolve().rank)
        came = ep_dispatch(x, to_the_next, num_experts=2, quant="fp8_1x128", max_tokens=8, capacity=8, method=method)
        triton_dist.synchronize()
        back = came.x.float().unflatten(1, (2, 128)) * came.scales.unsqueeze(-1)
        assert bool(back[1:3, 0].isnan().all() and back[5].isnan().all() and (back[6] == 0).all())
        assert bool(back[0, 0, 5].isnan()) and int(back.isnan().sum()) == 1 + 2 * 128 + 256
        return came.x.float(), came.scales

    unfused = run_ranks(script, 2, "unfused")[0]
    for method in ("push", "self_flagged"):
        for ours, others in zip(run_ranks(script, 2, method)[0], unfused):
            torch.testing.assert_close(ours, others, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("world", [2, 3])
def test_a_combine_of_rows_wider_than_a_tile(world):
    width = 4 << 10                                                         # bytes, of SUMMED
    assert chunks.SUMMED.tile == width
    calls = [EP(2, width // 4 + 8, k=1, dtype=F32), EP(2, width // 2 + 8, bias=True, residual=True, layout="expert")]
    run_ranks(lambda: back_to_back(calls, repeat=1), world, num_sms=4)


@pytest.mark.parametrize("layout", ONE)
@pytest.mark.parametrize("mode", ["late", "random"])
def test_both_methods_and_all_schedules_give_the_same_bits(layout, mode):
    def script(method):
        came = ep_dispatch(x := random_tensor(6, 128, dtype=BF16, seed=resolve().rank),
                           anywhere(resolve().rank, 1, 6, 4, 6).int(),
                           random_tensor(6, 4, dtype=F32, seed=9),
                           num_experts=6,
                           layout=layout,
                           quant="fp8_1x128",
                           method=method)
        y = random_tensor(came.x.shape[:-1].numel(), 40, dtype=BF16, seed=7).view(*came.x.shape[:-1], 40)
        weights = came.topk_weights if layout in ("expert", "masked") else None
        out = ep_combine(y, came.handle, topk_weights=weights, method=method)
        triton_dist.synchronize()
        assert len(x) == 6
        rows = int(came.rows)
        spots = slice(rows) if weights is None else came.positions[came.positions >= 0].long()
        flat = came.x.view(torch.uint8).view(-1, 128)
        return [out, came.topk_ids, came.topk_weights, flat[spots], came.scales.view(-1, 1)[spots]]

    first = run_ranks(script, 3, "unfused", num_sms=4)
    again = run_ranks(script, 3, "push", mode=mode, seed=2, num_sms=4)
    assert all(torch.equal(a, b) for one, other in zip(first, again) for a, b in zip(one, other))


@pytest.mark.parametrize("world, k", [(2, 9), (3, 5), (1, 3)])
def test_a_combine_adds_the_choices_that_are_here_in_their_order(world, k, monkeypatch):
    """More and fewer than are loaded at once, with those of other ranks in between. The bits of the unfused way."""
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(128, 1024))

    def script():
        group = resolve()
        for seed, routing in enumerate((anywhere, to_one)):
            results = [EP(4, 40, k, 2, "expert", dtype=BF16, routing=routing, method=method, residual=True)(seed, group)
                       for method in METHODS]
            triton_dist.synchronize()
            ours, others = [verify() for verify in results]
            assert torch.equal(ours, others)

    run_ranks(script, world)


@pytest.mark.parametrize("mode", MODES)
def test_shapes_in_turn_and_a_slow_rank(mode, monkeypatch):
    for name in ("MOVED", "PLACED"):
        monkeypatch.setattr(chunks, name, chunks.Pieces(128, 256))  # rounds
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(64, 256))
    monkeypatch.setattr(chunks, "PASSED", 64)
    calls = [
        EP(6, 48),
        EP(9, 24, layout="expert", combine=False),
        EP(3, 16, routing=to_nobody),
        EP(5, 40, 3, layout="masked")
    ]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=1), 3, mode=mode, num_sms=2)


def test_two_groups_and_two_streams():
    calls = [EP(5, 40), EP(3, 33, layout="expert")]
    run_ranks(lambda: two_groups([EP(3, 33, layout="expert")], repeat=1), 4, seed=3)
    run_ranks(lambda: side_stream(calls), 2, seed=5)


@pytest.mark.parametrize("start", [pytest.param(start, marks=[FULL][:start > 0]) for start in FIVE_ON])
def test_epochs_pass_the_wrap_and_zero(start):
    growing = [EP(3, 600 * (i + 1), combine=False) for i in range(5)]
    run_ranks(
        lambda: past_the_wrap_and_zero([EP(5, 40, combine=False), EP(3, 33, combine=False)], growing, EP.kind, start),
        2,
        mode="late")


@pytest.mark.parametrize("method", ["push", "self_flagged"])
def test_a_handle_serves_many_combines_and_two_dispatches_are_alive_at_once(method):
    def script():
        rank = resolve().rank
        xs = [random_tensor(4, 24, dtype=F32, seed=10 * i + rank) for i in range(2)]
        ids = torch.tensor([[0, 3], [1, 1], [2, -1], [-1, -1]])
        came = [ep_dispatch(x, ids, num_experts=4, layout="expert", method=method) for x in xs]
        triton_dist.synchronize()
        back = [[ep_combine(c.x.clone(), c.handle, method=method) for c in came] for _ in range(2)]
        triton_dist.synchronize()
        for of_both in back:
            for out, x in zip(of_both, xs):
                assert torch.equal(out, x * torch.tensor([2.0, 2.0, 1.0, 0.0])[:, None])

    run_ranks(script, 2)


@pytest.mark.parametrize("method", ["push", "self_flagged"])
def test_an_indexed_dispatch_is_combined_by_its_positions(method):
    def script():
        x, ids = random_tensor(4, 24, dtype=F32, seed=resolve().rank), torch.tensor([[0, 3], [1, 1], [2, -1], [-1, -1]])
        came = ep_dispatch(x, ids, num_experts=4, layout="indexed", method=method)
        triton_dist.synchronize()
        total = int(came.expert_offsets[-1])
        y = torch.zeros(len(came.sources), 24)
        y[:total] = came.x[came.sources[:total].long()]
        out = ep_combine(y, came.handle, positions=came.positions, method=method)
        triton_dist.synchronize()
        assert torch.equal(out, x * torch.tensor([2.0, 2.0, 1.0, 0.0])[:, None])

    run_ranks(script, 2)


# -- capture, debug ----------------------------------------------------------------------------------------------------
def test_capture_replays_with_what_the_tensors_hold_then():
    def script():
        group = resolve()
        x, ids = random_tensor(5, 24, dtype=F32, seed=group.rank), torch.zeros(5, 2, dtype=torch.int32)
        ep_dispatch(x, ids, num_experts=4, layout="expert", method="push")
        with graph() as made:
            came = ep_dispatch(x, ids, num_experts=4, layout="expert", method="push")
        for seed in (1, 2):
            triton_dist.synchronize()
            ids.copy_(anywhere(group.rank, seed, 5, 2, 4))
            made.replay()
            triton_dist.synchronize()
            every = [anywhere(index, seed, 5, 2, 4) for index in range(group.size)]
            wanted = [sum(int((ids == group.rank * 2 + e).sum()) for ids in every) for e in range(2)]
            assert came.expert_rows.tolist() == wanted

    run_ranks(script, 2)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_capture_of_what_has_not_run_is_an_error(method):
    def script():
        with capturing():
            with pytest.raises(InvalidArgument, match="before this graph capture|that this call has run before"):
                ep_dispatch(torch.ones(4, 8), torch.zeros(4, 2, dtype=torch.int32), num_experts=2, method=method)
        back_to_back([EP(4, 8)])

    run_ranks(script, 2)


@pytest.mark.one
@pytest.mark.parametrize("layout, capacity, says", [("compact", 3, "room for all rows, found 3 for 4 rows"),
                                                    ("expert", 7, "all rows by expert, found 7 for 8 rows"),
                                                    ("masked", 6, "each expert's rows, found 6 for 8 rows")])
def test_debug_mode_tells_of_what_was_cut_off(layout, capacity, says, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_DEBUG", "1")

    def script():
        ids = torch.full((4, 2), 2 * resolve().rank)  # each rank's tokens to itself
        with pytest.raises(InvalidArgument, match=says):
            ep_dispatch(torch.ones(4, 8), ids, num_experts=4, layout=layout, capacity=capacity)
        back_to_back([EP(4, 8, layout=layout)])

    run_ranks(script, 2)


def test_the_second_call_allocates_nothing_symmetric():
    def script():
        from triton_dist.runtime.heap import heap
        calls = [EP(9, 40), EP(3, 24, layout="masked")]
        back_to_back(calls)
        live = set(heap()._live)
        back_to_back(calls)
        assert set(heap()._live) == live and workspace(resolve(), EP.kind).data is not None

    run_ranks(script, 2)


def test_more_tokens_than_kernels_take(monkeypatch):
    monkeypatch.setattr("triton_dist.ops.ep.checks.MOST_EACH", 2)

    def script():
        back_to_back([EP(9, 24, method="auto")])
        with pytest.raises(InvalidArgument, match="kernels take at most 4 tokens"):
            ep_dispatch(torch.ones(9, 8), torch.zeros(9, 1, dtype=torch.int32), num_experts=2, method="push")

    with mock.patch.object(chunks, "most_chunks", lambda: 2), mock.patch("triton_dist.ops.ep.checks.most_chunks",
                                                                         lambda: 2):
        run_ranks(script, 2)
