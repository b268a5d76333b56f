# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""ep_dispatch and ep_combine of few tokens, whose rows are their own flags: as test_experts.py, and what such rows can hold."""
import pytest
import torch
from experts import BF16, EP, F8, F32, anywhere, to_nobody, to_one, to_the_first
from scenarios import F16, FIVE_ON, back_to_back, captures_by_rank, graph, overtaking, past_the_wrap_and_zero, side_stream, \
    two_groups  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import OPS, ep_combine, ep_dispatch, explain
from triton_dist.ops.ep import self_flagged
from triton_dist.ops.ep.self_flagged import KIND, METHOD
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
FULL = pytest.mark.full
LAYOUTS = ["compact", "indexed", "expert", "masked"]
ONE = [*[pytest.param(name, marks=FULL) for name in LAYOUTS if name != "expert"], "expert"]
FEW = ["compact", pytest.param("indexed", marks=FULL), "expert", pytest.param("masked", marks=FULL)]
FIRST_KEY = -4096037


class Few(EP):
    """An EP by this method."""
    kind = KIND

    def __init__(self, *args, method=METHOD, **more):
        super().__init__(*args, method=method, **more)


@pytest.mark.every("world")
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_in_turn(layout, world):
    align = 4 if layout in ("indexed", "expert") else 1
    calls = [Few(1, 16, 3, 1, layout, weights=False, residual=True),
             Few(3 if world < 8 else 1, 40, 4, 2, layout, align, bias=True)]
    run_ranks(lambda: back_to_back(calls, repeat=1), world, seed=world, num_sms=8 if world < 8 else 3)


@pytest.mark.one
@pytest.mark.parametrize("layout", ONE)
@pytest.mark.parametrize("routing", [to_one, to_the_first, to_nobody])
def test_unkind_routing(routing, layout):
    run_ranks(lambda: back_to_back([Few(3, 24, layout=layout, routing=routing), Few(2, 24, layout=layout)], repeat=1), 3, seed=3)


@pytest.mark.one
@pytest.mark.parametrize("layout", FEW)
def test_ranks_with_other_numbers_of_tokens_and_with_none(layout):
    calls = [
        Few(lambda rank: (0, 4, 2)[rank], 24, layout=layout, max_tokens=5, residual=True),
        Few(lambda rank: 0, 24, layout=layout, max_tokens=5),
        Few(0, 24, layout=layout)
    ]
    run_ranks(lambda: back_to_back(calls, repeat=1), 3)


@pytest.mark.parametrize("layout, capacity", [pytest.param("compact", 0, marks=FULL), ("compact", 3), ("expert", 7),
                                              pytest.param("expert", 0, marks=FULL), pytest.param("masked", 2, marks=FULL)])
def test_what_does_not_fit_is_taken_cut_off_and_told(layout, capacity):
    """The next calls find empty slots."""
    run_ranks(lambda: back_to_back([Few(3, 24, 3, 2, layout, capacity=capacity)] * 3, repeat=1), 2)


@pytest.mark.one
@pytest.mark.parametrize("dtype, scales, kept", [pytest.param(F16, 0, torch.int64, marks=FULL), (F32, 0, torch.int32),
                                                 pytest.param(F8, 1, torch.int32, marks=FULL), (F8, 3, torch.int64)])
@pytest.mark.parametrize("layout", FEW)
def test_dtypes_and_scales(layout, dtype, scales, kept):
    run_ranks(lambda: back_to_back([Few(5, 48, layout=layout, dtype=dtype, scales=scales, kept=kept)]), 2)


@pytest.mark.one
@pytest.mark.parametrize("layout", FEW)
def test_rows_become_fp8_on_the_way(layout):
    calls = [Few(3, 256, layout=layout, quant="fp8_1x128"),
             Few(lambda rank: 2 * rank, 256, layout=layout, quant="fp8_1x128", max_tokens=2)]
    run_ranks(lambda: back_to_back(calls), 2)


@pytest.fixture
def several_pieces(monkeypatch):
    """Rows of several pieces, which several programs share."""
    monkeypatch.setattr(self_flagged, "MOST_THREADS", 128)


@pytest.mark.parametrize("layout", ONE)
@pytest.mark.parametrize("quant", [None, pytest.param("fp8_1x128", marks=FULL)])
def test_the_bits_are_those_of_the_unfused_way_in_all_schedules(layout, quant, several_pieces):
    def script(method):
        x = random_tensor(3, 4096, dtype=BF16, seed=resolve().rank)
        weights = random_tensor(3, 4, dtype=F32, seed=9)
        came = ep_dispatch(x, anywhere(resolve().rank, 1, 3, 4, 6).int(), weights, num_experts=6, layout=layout, quant=quant,
                           method=method)
        y = random_tensor(came.x.shape[:-1].numel(), 2056, dtype=BF16, seed=7).view(*came.x.shape[:-1], 2056)
        by = came.topk_weights if layout in ("expert", "masked") else None
        out = ep_combine(y, came.handle, topk_weights=by, method=method)
        triton_dist.synchronize()
        spots = slice(int(came.rows)) if by is None else came.positions[came.positions >= 0].long()
        flat = came.x.view(torch.uint8).view(-1, 4096 * came.x.itemsize)
        found = [out, came.topk_ids, came.topk_weights, came.handle.told, flat[spots]]
        found += [] if layout == "compact" else [came.positions, came.expert_rows, came.expert_offsets]
        return found + ([came.scales.view(-1, 32)[spots]] if quant else [])

    for mode, seed, sms in (("late", 1, 1), ("random", 2, 4)):
        first = run_ranks(script, 3, "unfused", num_sms=sms)
        again = run_ranks(script, 3, METHOD, mode=mode, seed=seed, num_sms=sms)
        for one, other in zip(first, again):
            for which, (a, b) in enumerate(zip(one, other, strict=True)):
                assert torch.equal(a, b), f"result {which} differs"


def test_every_word_arrives_as_it_is():
    """Rows of zeros, of words that look empty once xored, and of the keys that are tried one after the other."""
    def script():
        group = resolve()
        x = torch.zeros(6, 512, dtype=torch.int32)
        x[1] = FIRST_KEY
        x[2, 17] = FIRST_KEY
        x[3] = FIRST_KEY + torch.arange(512)
        x[4] = -1
        x[5] = random_tensor(512, dtype=F32, seed=3).view(torch.int32)
        ids = torch.full((6, 1), (group.rank + 1) % group.size)
        weights = torch.tensor([0.0, -0.0, float("nan"), 1.0, FIRST_KEY, 2.0]).view(6, 1)
        for _ in range(3):
            came = ep_dispatch(x.view(F32), ids, weights, num_experts=group.size, method=METHOD)
            triton_dist.synchronize()
            assert torch.equal(came.x[:6].view(torch.int32), x)
            assert torch.equal(came.topk_weights[:6].view(torch.int32), weights.view(torch.int32))

    run_ranks(script, 2)


@pytest.mark.parametrize("dtype", [BF16, pytest.param(F16, marks=FULL), pytest.param(F32, marks=FULL)])
def test_sums_of_zeros_have_the_signs_that_they_have_unfused(dtype):
    """A word of zeros travels as one of another sign, which a sum that begins with 0 does not show."""
    def script(method):
        ids = torch.tensor([[0, 1], [1, 0], [0, -1], [1, 1]])
        came = ep_dispatch(torch.ones(4, 16), ids, num_experts=2, method=method)
        y = torch.zeros(8, 16, dtype=dtype)
        y[::3] = -0.0
        y[1::3, ::2] = -0.0
        y[2, 3] = 2.0
        out = ep_combine(y, came.handle, residual=-torch.zeros(4, 16, dtype=dtype), method=method)
        triton_dist.synchronize()
        return out.view(torch.int16)

    assert all(torch.equal(a, b) for a, b in zip(run_ranks(script, 2, METHOD), run_ranks(script, 2, "unfused")))


@pytest.mark.parametrize("mode", MODES)
def test_a_slow_rank_and_one_program_at_a_time(mode, several_pieces):
    calls = [
        Few(2, 1056),
        Few(6, 24, layout="expert", combine=False),
        Few(1, 16, routing=to_nobody),
        Few(2, 40, 4, layout="masked")
    ]
    run_ranks(lambda: overtaking(calls, slow=1, repeat=1), 3, mode=mode, num_sms=1)


def test_two_groups_and_two_streams():
    calls = [Few(2, 40), Few(1, 32, layout="expert"), EP(2, 40)]  # ways that are mixed
    run_ranks(lambda: two_groups([Few(2, 32, layout="expert")], repeat=1), 4, seed=3)
    run_ranks(lambda: side_stream(calls[1:]), 2, seed=5)


@pytest.mark.parametrize("start", [pytest.param(start, marks=[FULL][:start > 0]) for start in FIVE_ON])
def test_epochs_pass_the_wrap_and_zero(start):
    growing = [Few(1, 24000 * 2**i, 1, combine=False) for i in range(5)]  # the first one as well
    run_ranks(
        lambda: past_the_wrap_and_zero([Few(5, 40, combine=False), Few(3, 32, combine=False)], growing, KIND, start),
        2,
        mode="late")


def test_capture_replays_with_what_the_tensors_hold_then():
    def script():
        group = resolve()
        x, ids = random_tensor(3, 24, dtype=F32, seed=group.rank), torch.zeros(3, 2, dtype=torch.int32)

        def call():
            came = ep_dispatch(x, ids, num_experts=4, layout="expert", method=METHOD)
            return ep_combine(came.x, came.handle, method=METHOD)

        call()
        with graph() as made:
            out = call()
        for seed in (1, 2):
            triton_dist.synchronize()
            ids.copy_(anywhere(group.rank, seed, 3, 2, 4))
            made.replay()
            triton_dist.synchronize()
            assert torch.equal(out, x * (ids >= 0).sum(1, keepdim=True))

    run_ranks(script, 2)


def test_tensors_that_begin_between_two_vectors():
    def script():
        x = random_tensor(4, 24, dtype=F32, seed=resolve().rank)
        odd = torch.empty(4 * 24 + 1)[1:].view(4, 24)
        odd.copy_(x)
        ids = torch.tensor([[0, 3], [1, 1], [2, -1], [-1, -1]])
        out = torch.full((8 * 24 + 1, ), -7.0)[1:].view(8, 24)
        came = ep_dispatch(odd, ids, num_experts=4, out=out, method=METHOD)
        sums = torch.empty(4 * 24 + 3)[3:].view(4, 24)
        assert ep_combine(came.x, came.handle, out=sums, residual=odd, method=METHOD) is sums and came.x is out
        triton_dist.synchronize()
        assert torch.equal(sums, x * torch.tensor([3.0, 2.0, 2.0, 1.0])[:, None])
        assert bool((out[int(came.rows):] == -7.0).all())

    run_ranks(script, 2)


@pytest.mark.parametrize("row, k, more, says", [
    (6, 1, {}, "rows of whole vectors of 16 bytes, found rows of 24 bytes"),
    (8, 2, dict(layout="indexed", capacity=3), "rows of an indexed dispatch may be cut off"),
    (2**15, 1, dict(max_tokens=2**9), "it carries at most"),
    (8, 16, dict(max_tokens=2**11), "fewer than 32768 choices"),
])
def test_what_it_does_not_serve(row, k, more, says):
    """It is refused where it was asked for, and "auto" takes another way."""
    def script():
        x, ids = torch.ones(2, row), torch.zeros(2, k, dtype=torch.int32)
        with pytest.raises(InvalidArgument, match=f"method: 'self_flagged' is not possible here: .*{says}"):
            ep_dispatch(x, ids, num_experts=2, method=METHOD, **more)
        if k < 16:
            ep_dispatch(x, ids, num_experts=2, **more)

    run_ranks(script, 2)


@pytest.mark.parametrize("row_bytes, tokens, k, world, taken", [
    (14336, 256, 8, 2, True),  # hidden 7168 in bf16
    (7168, 256, 8, 2, True),  # in fp8
    (7168, 257, 8, 2, False),
    (14352, 256, 8, 2, False),
    (14336, 256, 8, 1, True),
    (14336, 85, 8, 4, True),
    (14336, 86, 8, 4, False),
    (14336, 36, 8, 8, True),
    (14336, 37, 8, 8, False),
    (14336, 128, 2, 8, True),  # a token goes to two ranks at most
    (16, 1, 1, 2, True),
])
def test_auto_takes_it_for_few_rows(row_bytes, tokens, k, world, taken):
    found, why = self_flagged.pays(row_bytes, tokens, k, world)
    assert found == taken and ("are few" in why) == taken and ("more than" in why) != taken


def test_auto_and_explain_name_the_same_method():
    def script(tokens):
        group, op = resolve(), OPS["ep_dispatch"]
        planned = op.candidates(op.at(tokens * group.size, 512, 1, BF16, group), group)[0].method
        explained = explain("ep_dispatch", tokens * group.size, 512)
        back = explain("ep_combine", tokens * group.size, 512)
        assert explained.choice.method == back.choice.method == planned
        return planned, explained.reason

    assert run_ranks(script, 2, 256)[0] == (METHOD, "up to 256 rows of a rank with 1024 bytes each are few")
    assert run_ranks(script, 2, 257)[0] == ("push", "up to 257 rows of a rank are more than 256")
