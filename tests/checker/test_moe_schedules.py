# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Mixture of experts with unkind routing, against float64: each op and method, and the layer, on up to a hundred schedules.

Each script has the calls of one method in a row, while a rank is slow: choices that repeat, all of one expert, none for some
ranks, none at all, no tokens on all ranks but one and on all, and more rows than there is room for.
"""
import pytest
import torch
from chunks import Chunks2d, Offsets2d
from experts import BF16, EP, F32, anywhere, to_nobody, to_one, to_the_first
from scenarios import V, overtaking
from test_all_to_all_vdev import all_to_one, one_sender, wrong
from test_all_to_all_vdev_2d import to_one as sizes_of_one, too_many
from test_dispatch_grouped_gemm import Product, small_tiles  # noqa: F401
from torch.nn.functional import silu

from triton_dist.checker import check_kernel
from triton_dist.layers import EPMoE, TopKRouter
from triton_dist.ops.dispatch_grouped_gemm import op, plan
from triton_dist.ops.ep import chunks, self_flagged
from triton_dist.testing import assert_matches, random_tensor

pytestmark = pytest.mark.usefixtures("small_tiles")
H, INNER, K = 32, 16, 2


def repeated(rank, seed, tokens, k, experts):
    """All choices of a token are one expert."""
    return anywhere(rank, seed, tokens, 1, experts).expand(tokens, k).contiguous()


def last_alone(rank):
    """Tokens of rank 1, and of no other."""
    return 2 * (rank == 1)


def ep(method, **more):
    """All layouts and routings of a method."""
    def call(tokens, row=24, **own):
        return EP(tokens, row, share=1, method=method, **{**more, **own})
    return [call(3), call(2, layout="expert", routing=to_one), call(2, 16, layout="masked", capacity=2, routing=to_one),
            call(3, routing=to_the_first), call(last_alone, 24, layout="expert", max_tokens=2), call(0),
            call(2, 16, layout="indexed", routing=repeated), call(2, capacity=1), call(2, layout="expert", routing=to_nobody),
            call(2, 128, quant="fp8_1x128", combine=False)]


def products(method, dtype=F32):
    alone = dict(method=method, dtype=dtype, whole=False)
    return [Product(3, 16, 8, **alone), Product(17, 24, 8, routing=to_one, **alone), Product(3, routing=to_the_first, **alone),
            Product(last_alone, max_tokens=2, **alone), Product(0, **alone), Product(3, routing=repeated, **alone)]


class Layer:
    """A call of EPMoE, with its gradients if they are wanted. routing: None for a TopKRouter."""

    def __init__(self, tokens, routing=None, grad=False, max_tokens=None, share=2):
        self.tokens, self.routing, self.grad, self.max_tokens, self.share = tokens, routing, grad, max_tokens, share

    def given(self, index, seed, world):
        """(x, ids, weights of choices, the gradient of the result) of a rank; of a TopKRouter no choices."""
        tokens, base = self.tokens(index) if callable(self.tokens) else self.tokens, 1000 * seed + index
        x, to = (random_tensor(tokens, H, dtype=BF16, seed=base + i) for i in (0, 200))
        if self.routing is None:
            return x, None, None, to
        ids = self.routing(index, seed, tokens, K, self.share * world).int()
        return x, ids, random_tensor(tokens, K, dtype=F32, seed=base + 100), to

    def __call__(self, seed, group):
        experts = self.share * group.size
        every = [self.given(index, seed, group.size) for index in range(group.size)]
        x, ids, by, to = every[group.rank]
        gate_up = random_tensor(experts, 2 * INNER, H, dtype=BF16, seed=seed) / 4
        down = random_tensor(experts, H, INNER, dtype=BF16, seed=seed + 50) / 4
        choose = TopKRouter(random_tensor(experts, H, dtype=BF16, seed=seed) / 4, K) if ids is None else lambda x: (ids, by)
        for t in (x, gate_up, down):
            t.requires_grad_(self.grad)
        moe = EPMoE.from_full(choose, gate_up, down, group, max_tokens=self.max_tokens)
        with torch.set_grad_enabled(self.grad):
            out = moe(x)
        if self.grad:
            out.backward(to)

        def verify():
            with torch.no_grad():
                routed = [(x, *choose(x), to) for x, *_, to in every] if ids is None else every
            wide = [t.detach().double().requires_grad_(self.grad) for t in (gate_up, down, *(x for x, *_ in every))]
            wanted = [by_choice(t, ids, by, *wide[:2]) for t, (_, ids, by, _) in zip(wide[2:], routed)]
            assert_matches(out.detach(), wanted[group.rank].detach(), k=H + INNER, roundings=8)
            if self.grad:
                sum((out * to.double()).sum() for out, (*_, to) in zip(wanted, every)).backward()
                mine = slice(group.rank * self.share, (group.rank + 1) * self.share)
                for found, grad in ((moe.weight, wide[0].grad[mine]), (moe.down, wide[1].grad[mine]),
                                    *([] if ids is None else [(x, wide[2 + group.rank].grad)])):
                    assert_matches(found.grad, grad, k=4 * (H + INNER), roundings=16)
            return out.detach()
        return verify


def by_choice(x, ids, by, gate_up, down):
    """Every choice of every token, in float64."""
    total = 0 * (x + gate_up.sum() + down.sum())
    for expert in range(len(down)):
        for token, j in (ids == expert).nonzero().tolist():
            gate, up = (x[token] @ gate_up[expert].t()).chunk(2)
            row = by[token, j].double() * ((silu(gate) * up) @ down[expert].t())
            total = total + torch.zeros_like(x).index_put((torch.tensor(token), ), row)
    return total


LAYERS = [Layer(5), Layer(2, to_one), Layer(2, repeated), Layer(3, to_the_first), Layer(last_alone, anywhere, max_tokens=2),
          Layer(0), Layer(4, to_one), Layer(2, to_nobody), Layer(5, anywhere)]
TRAINED = [Layer(3, anywhere, True), Layer(2, to_one, True), Layer(last_alone, anywhere, True, max_tokens=2),
           Layer(2, to_the_first, True), Layer(0, anywhere, True), Layer(3, None, True)]
INSIDE = {  # a node: name -> calls
    "ep, push": ep("push"), "ep, self_flagged": ep("self_flagged"), "ep, two halves": ep("push", split=True),
    "ep, unfused": ep("unfused"),
    "dispatch_grouped_gemm, portable": products("portable"), "dispatch_grouped_gemm, ws": products("ws", BF16),
    "dispatch_grouped_gemm, unfused": products("unfused"),
    "all_to_all_vdev": [V(6, 24), V(12, 24, splits=all_to_one), V(12, 16, capacity=5, splits=all_to_one),
                        V(9, 24, splits=one_sender), V(5, 40, splits=wrong), V(0, 24)],
    "all_to_all_vdev_2d": [Chunks2d(6, 24), Chunks2d(9, 16, sizes=sizes_of_one), Chunks2d(9, 24, sizes=sizes_of_one, capacity=5),
                           Chunks2d(5, 24, sizes=too_many), Chunks2d(0, 24)],
    "all_to_all_vdev_2d_offset": [Offsets2d(20, 24), Offsets2d(30, 16, sizes=sizes_of_one), Offsets2d(0, 24),
                                  Offsets2d(30, 24, sizes=sizes_of_one, capacity=5), Offsets2d(25, 24, sizes=too_many)],
    "EPMoE": LAYERS, "EPMoE with gradients": TRAINED,
}
OVER_NODES = {"ep, two_level": ep("two_level"), "EPMoE": LAYERS, "EPMoE with gradients": TRAINED,
              "dispatch_grouped_gemm, auto": products("auto")}
WORLDS = (2, 10), (4, 100), (8, 5)          # with so many schedules
CASES = [*((name, calls, world, 1, schedules) for name, calls in INSIDE.items() for world, schedules in WORLDS),
         *((name, calls, 4, 2, 100 if name in ("ep, two_level", "EPMoE") else 20) for name, calls in OVER_NODES.items())]


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """A row or two a round, several rounds of a chunk; EPMoE has few tokens up to two rows, and many beyond."""
    for name in ("MOVED", "PLACED", "ROUNDED"):
        monkeypatch.setattr(chunks, name, chunks.Pieces(128, 128))
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(64, 256))
    monkeypatch.setattr(chunks, "NODES", chunks.Pieces(256, 128))
    monkeypatch.setattr(plan, "PIECES", chunks.Pieces(128, 128))
    monkeypatch.setattr(op, "COMM_SMS", (2, ))
    monkeypatch.setattr(self_flagged, "AUTO_ROWS", 4)


def check(calls, world, nodes, schedules, **options):
    report = check_kernel(lambda: overtaking(calls, slow=1, repeat=1), world, schedules, nodes=nodes, num_sms=4, **options)
    assert report.clean and report.schedules == schedules, str(report)


@pytest.mark.full
@pytest.mark.parametrize("name, calls, world, nodes, schedules", [
    pytest.param(*case, id=f"{case[0]}, {case[2]} ranks, {case[3]} nodes") for case in CASES])
def test_it_is_clean_on_many_schedules(name, calls, world, nodes, schedules):
    check(calls, world, nodes, schedules)


def test_a_layer_in_training_is_clean():
    """Torch computes gradients of rows that have not come, and nothing makes use of them."""
    check([Layer(2, to_one, True), Layer(1, None, True)], 2, 1, 1, modes=["random"])
