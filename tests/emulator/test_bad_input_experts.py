# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Wrong arguments of dispatch and combine: what is said of them on each rank, that nothing is lost, and repeated calls."""
import pytest
import torch
from scenarios import back_to_back
from experts import EP, F32

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import ep_combine, ep_combine_send, ep_dispatch, grouped_gemm_combine
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

I32 = torch.int32
X, IDS, WEIGHTS = torch.ones(4, 8), torch.tensor([[0, 1]] * 4, dtype=I32), torch.ones(4, 2)


def sent(x=X, ids=IDS, weights=None, num_experts=4, **how):
    return lambda: ep_dispatch(x, ids, weights, num_experts=num_experts, **how)


def back(y=None, **how):
    def call():
        came = ep_dispatch(X, IDS, WEIGHTS, num_experts=4, layout="expert")
        ep_combine(came.x.clone() if y is None else y, came.handle, **how)

    return call


def other_rows(layout, shape, how):
    """A combine of rows that are other ones than the dispatch has made room for."""

    def call():
        came = ep_dispatch(X, IDS, WEIGHTS, num_experts=4, layout=layout)
        ep_combine(torch.ones(*shape, 8), came.handle, **{name: came.positions for name in how})

    return call


def product(h):
    def call():
        came = ep_dispatch(X, IDS, WEIGHTS, num_experts=4, layout="expert")
        grouped_gemm_combine(h, torch.ones(2, 8, 8), came)

    return call


AT_ODD = torch.empty(8 * 128 + 1, dtype=torch.float8_e4m3fn)[1:].view(8, 128)

WRONG = [
    (sent(x=torch.ones(8)), "x: expected 2 dimensions"),
    (sent(ids=IDS[:3]), r"topk_ids: expected int32 or int64 \[4, K\].*found shape \[3, 2\]"),
    (sent(ids=[[0]]), "topk_ids: expected .* found list"),
    (sent(ids=IDS.float()), "topk_ids: expected torch.int32 or torch.int64"),
    (sent(ids=IDS.t().contiguous().t()), "topk_ids: expected a contiguous tensor"),
    (sent(ids=torch.zeros(4, 17, dtype=I32)), "topk_ids: expected 1 to 16 experts a token, found 17"),
    (sent(weights=WEIGHTS.double()), "topk_weights: expected a contiguous float32 tensor"),
    (sent(weights=WEIGHTS.half()), "topk_weights: expected a contiguous float32 tensor"),
    (sent(weights=WEIGHTS[:, :1]), "topk_weights: expected a contiguous float32 tensor of shape"),
    (sent(num_experts=3), "num_experts: expected a number divisible by the 2 ranks, found 3"),
    (sent(num_experts=0), "num_experts: expected a number"),
    (sent(num_experts=2.0), "num_experts: expected a whole number"),
    (sent(scales=torch.ones(3, 1)), "scales: expected a contiguous float32 tensor of shape"),
    (sent(scales=torch.ones(4)), "scales: expected None or float32"),
    (sent(layout="dense"), "layout: expected one of compact, indexed, expert, masked, found 'dense'"),
    (sent(align=8), "align: expected at least 1, and 1 for layout 'compact', found 8"),
    (sent(layout="expert", align=0), "align: expected at least 1"),
    (sent(quant="int4"), "quant: expected None or one of fp8_1x128"),
    (sent(quant="fp8_1x128"), "quant: 'fp8_1x128' takes rows of .* multiple of 128"),
    (sent(capacity=-1), "capacity: expected a size of at least 0"),
    (sent(layout="masked", capacity=2**30), "capacity: expected fewer rows"),  # for each of two experts: positions are int32
    (sent(max_tokens=3), "max_tokens: expected at least as many as this rank has, 4, found 3"),
    (sent(out=torch.ones(3, 8)), r"out: expected shape \[8, 8\], found \[3, 8\]"),
    (sent(x=torch.ones(4, 128), quant="fp8_1x128", out=AT_ODD), "out: expected an address that is a multiple of 4 bytes"),
    (sent(method="ring"), "method: expected one of auto, self_flagged, push, two_level, unfused"),
    (back(y=torch.ones(4)), "y: expected .rows, H."),
    (back(y=torch.ones(16, 8).double()), "y: expected float16, bfloat16 or float32"),
    (back(topk_weights=torch.ones(3, 2)), "topk_weights: expected a contiguous float32 tensor of shape"),
    (back(bias=torch.ones(7)), "bias: expected None or a tensor of shape .8."),
    (back(residual=torch.ones(3, 8)), "residual: expected None or shape .4, 8., found .3, 8."),
    (back(residual=torch.ones(4, 8).half()), "residual: expected torch.float32"),
    (back(out=torch.ones(3, 8)), r"out: expected shape \[4, 8\]"),
    (lambda: ep_combine(torch.ones(8, 8), ep_dispatch(X, IDS, WEIGHTS, num_experts=4).handle, topk_weights=torch.ones(8, 2)),
     "topk_weights: expected None"),
    (lambda: ep_combine(X, "handle"), "handle: expected what ep_dispatch gave"),
    *[(other_rows(layout, rows, how), says) for layout, rows, how, says in [
        ("compact", (7,), {}, r"y: expected \[8, 'H'\], .* room for 8 rows, found shape \[7, 8\]"),
        ("compact", (9,), {}, "room for 8 rows, found"),
        ("indexed", (7,), {}, "room for 8 rows, found"),
        ("indexed", (8,), dict(positions=True), "room for 16 rows by expert, found"),
        ("expert", (15,), {}, "room for 16 rows by expert, found"),
        ("masked", (2, 7), {}, r"y: expected \[16, 'H'\], or \[2, 8, 'H'\], .* found shape \[2, 7, 8\]"),
        ("masked", (2, 9), {}, "room for 16 rows by expert"),
        ("masked", (4, 4), {}, "room for 16 rows by expert"),
    ]],
    (lambda: ep_combine_send(torch.ones(7, 8), ep_dispatch(X, IDS, num_experts=4).handle), "room for 8 rows, found"),
    (product(torch.ones(15, 8)), r"h: expected \[16, 'K'\], .* found shape \[15, 8\]"),
    (product(torch.ones(2, 8, 8)), r"h: expected \[16, 'K'\]"),
]


def test_wrong_arguments_are_refused_on_each_rank_and_the_world_goes_on():
    def script():
        for call, says in WRONG:
            with pytest.raises(InvalidArgument, match=says):
                call()
        back_to_back([EP(3, 8)])

    run_ranks(script, 2)


@pytest.mark.parametrize("differs", [dict(layout="expert"), dict(capacity=5), dict(num_experts=8), dict(max_tokens=9)])
def test_ranks_that_differ_are_told(differs):
    def script():
        how = dict(num_experts=4) | (differs if resolve().rank else {})
        with pytest.raises(CollectiveMismatch):
            ep_dispatch(X, IDS, **how)

    run_ranks(script, 2)


def test_too_few_rows_on_one_rank_are_told_to_all():
    def script():
        came = ep_dispatch(X, IDS, num_experts=4)
        ep_combine(torch.ones(8 - resolve().rank, 8), came.handle)

    with pytest.raises((InvalidArgument, CollectiveMismatch), match="room for 8 rows, found shape .7, 8."):
        run_ranks(script, 2)


def test_ranks_with_other_numbers_of_tokens_are_told_what_to_pass():
    def script():
        tokens = 3 + resolve().rank
        with pytest.raises(CollectiveMismatch, match="max_tokens=3"):
            ep_dispatch(X[:tokens], IDS[:tokens], num_experts=4)

    run_ranks(script, 2)


def test_a_repeated_call_is_not_looked_at_again(long_ways, compares_nothing):
    def script():
        x = random_tensor(4, 24, dtype=F32, seed=resolve().rank)
        for _ in range(3):
            came = ep_dispatch(x, IDS, WEIGHTS, num_experts=4, layout="expert")
            triton_dist.synchronize()
            out = ep_combine(came.x.clone(), came.handle, topk_weights=came.topk_weights)
            triton_dist.synchronize()
            assert torch.equal(out, 2 * x)

    run_ranks(script, 2)
    assert long_ways.count("ep_dispatch") == 2 and long_ways.count("ep_combine") == 2
