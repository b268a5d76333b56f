# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""dispatch_grouped_gemm on virtual worlds: fused against the two ops in turn, bit by bit, and against float64."""
from unittest import mock

import pytest
import remembered
import torch
from experts import BF16, F32, anywhere, begins_of, rows_of, to_nobody, to_one, to_the_first
from scenarios import F16, back_to_back, captures_by_rank, capturing, graph, near_the_wrap, overtaking, side_stream, \
    two_groups  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.cores.hopper.cores import cores, hopper_tiles
from triton_dist.ops import dispatch_grouped_gemm, explain, grouped_gemm_combine
from triton_dist.ops.dispatch_grouped_gemm import op, plan
from triton_dist.ops.ep import chunks
from triton_dist.runtime.capabilities import GemmConfig
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, poisoned, random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank", "push_for_few_tokens", "small_tiles")
FULL = pytest.mark.full
FUSED = ["portable", "ws"]
ON_HOPPER = cores(hopper_tiles, preferred=True)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 rows of the portable kernel, so that few tokens make whole tiles; the core's have 64."""
    from triton_dist.backends.emulator.backend import EmulatorBackend
    monkeypatch.setattr(EmulatorBackend, "gemm_config",
                        lambda self, dtype, m: GemmConfig(16, 32, 32, group_m=2, num_warps=4, num_stages=2))


class Product:
    """A dispatch with the first product of experts, a number of tokens or a function of the rank; and the way back.

    whole: compared with the two ops in turn as well.
    """
    kind = "tokens to experts"

    def __init__(self, tokens, row=16, n=8, k=2, share=2, act="silu_mul", dtype=F32, routing=anywhere, weights=True,
                 max_tokens=None, method="portable", kept=torch.int32, back=True, whole=True):
        self.tokens, self.row, self.n, self.k, self.share, self.act, self.dtype = tokens, row, n, k, share, act, dtype
        self.routing, self.weights, self.max_tokens, self.method, self.kept = routing, weights, max_tokens, method, kept
        self.back, self.whole = back, whole

    def given(self, index, seed, world):
        """(x, ids, weights of choices, experts' weights, those of the way back) of a rank."""
        tokens = self.tokens(index) if callable(self.tokens) else self.tokens
        base = 1000 * seed + index
        x = random_tensor(tokens, self.row, dtype=self.dtype, seed=base)
        ids = self.routing(index, seed, tokens, self.k, self.share * world).to(self.kept)
        by = random_tensor(tokens, self.k, dtype=F32, seed=base + 100) if self.weights else None
        n = self.n * (1 if self.act is None else 2)
        weight = random_tensor(self.share, n, self.row, dtype=self.dtype, seed=base + 200)
        return x, ids, by, weight, random_tensor(self.share, self.row, self.n, dtype=self.dtype, seed=base + 300)

    def __call__(self, seed, group):
        world = group.size
        every = [self.given(index, seed, world) for index in range(world)]
        x, ids, by, weight, down = every[group.rank]
        options = dict(num_experts=self.share * world, act=self.act, max_tokens=self.max_tokens, group=group)
        h, came = dispatch_grouped_gemm(x, ids, by, weight, method=self.method, **options)
        out = poisoned(len(x), self.row, dtype=self.dtype)
        if self.back:
            grouped_gemm_combine(h, down, came, residual=x, out=out)

        def verify():
            rows = rows_of(every, group.rank, self.share, None)
            counts = [sum(local.count(e) for _, _, local in rows) for e in range(self.share)]
            begins = begins_of(counts, 1)
            assert came.x is h and came.expert_rows.tolist() == counts and came.expert_offsets.tolist() == begins
            assert int(came.rows) == len(rows)
            if self.whole:
                self.same_in_turn(h[:begins[-1]], came, out, (x, ids, by, weight), down, options)
            for e in range(self.share):
                taken = [every[source][0][token] for source, token, local in rows for _ in range(local.count(e))]
                if taken:
                    product = torch.stack(taken).double() @ weight[e].double().t()
                    if self.act is not None:
                        gate, up = product.chunk(2, -1)
                        product = torch.nn.functional.silu(gate) * up
                    assert_matches(h[begins[e]:begins[e + 1]], product, k=self.row, roundings=2)
            return h[:begins[-1]].clone()

        return verify

    def same_in_turn(self, h, came, out, given, down, options):
        """The two ops in turn give the same bits."""
        turned, other = dispatch_grouped_gemm(*given, method="unfused", **options)
        triton_dist.synchronize()
        assert torch.equal(h, turned[:len(h)]), "fused and in turn differ"
        for a, b in ((came.positions, other.positions), (came.topk_ids, other.topk_ids), (came.handle.told, other.handle.told)):
            assert torch.equal(a, b)
        assert self.weights and torch.equal(came.topk_weights, other.topk_weights) or came.topk_weights is None
        if self.back:
            again = grouped_gemm_combine(turned, down, other, residual=given[0])
            triton_dist.synchronize()
            assert torch.equal(out, again)


def first_of_tiles(calls, world=2, **options):
    """Runs calls, and gives the most rows of whole own tiles that a first product had on any rank."""
    most, kept = [], plan.Fused._lists

    def lists(self, parts):
        most.append(parts)
        return kept(self, parts)

    with mock.patch.object(plan.Fused, "_lists", lists):
        run_ranks(lambda: back_to_back(calls, **options), world, seed=world)
    return max(int(parts[len(parts) // 6:len(parts) // 3].sum()) for parts in most[2:])


@pytest.mark.one
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("method", FUSED)
def test_shapes_in_turn(method, world):
    dtype = F32 if method == "portable" else BF16
    calls = [Product(1, method=method, dtype=dtype, weights=False), Product(20, 40, 24, 4, 2, None, dtype, method=method)]
    if world == 1:
        for call in calls:
            call.method = "auto"  # nothing travels
    run_ranks(lambda: back_to_back(calls), world, seed=world)


@pytest.mark.one
@pytest.mark.parametrize("method, tokens", [("portable", 60), ("ws", 150)])
def test_own_whole_tiles_are_multiplied_first(method, tokens):
    call = Product(tokens, 32, 16, 4, 2, dtype=BF16, method=method, back=False)
    assert first_of_tiles([call], repeat=1) > 0


@pytest.mark.one
@pytest.mark.parametrize("head", [1, 2])
def test_own_tiles_of_some_experts_go_first(head, monkeypatch):
    monkeypatch.setattr(plan.Estimate, "head", lambda self, experts: head)
    assert first_of_tiles([Product(60, k=4, share=3, back=False)], repeat=1) > 0


@pytest.mark.one
@pytest.mark.parametrize("method, tokens, world", [("portable", 20, 2), pytest.param("ws", 80, 4, marks=FULL),
                                                   ("portable", 30, 4), pytest.param("portable", 12, 6, marks=FULL)])
def test_rows_travel_in_two_steps(method, tokens, world, monkeypatch):
    monkeypatch.setattr(plan, "near_of", lambda choice, world: world // 2)
    calls = [Product(tokens, 32, 16, 4, 2, dtype=BF16, method=method, back=False), Product(9, 24, 8, method="portable")]
    assert first_of_tiles(calls, world, repeat=1) > 0


@pytest.mark.one
@pytest.mark.parametrize("routing", [to_one, to_nobody, pytest.param(to_the_first, marks=FULL)])
def test_unkind_routing(routing):
    run_ranks(lambda: back_to_back([Product(20, routing=routing), Product(9, back=False)]), 3, seed=3)


def test_ranks_with_other_numbers_of_tokens_and_with_none():
    calls = [
        Product(lambda rank: (0, 20, 9)[rank], max_tokens=20),
        Product(lambda rank: 0, max_tokens=20, back=False),
        Product(0),
        Product(lambda rank: (17, 0, 0)[rank], max_tokens=20, kept=torch.int64, back=False)
    ]
    run_ranks(lambda: back_to_back(calls), 3)


@pytest.mark.parametrize("tile, sms", [(128, 3), pytest.param(64, 2, marks=FULL)])
def test_many_chunks_share_few_programs(tile, sms, monkeypatch):
    """Several rounds of rows in a chunk, and a number of chunks that the programs do not divide."""
    monkeypatch.setattr(plan, "PIECES", chunks.Pieces(tile, tile))
    monkeypatch.setattr(op, "COMM_SMS", (sms, ))
    run_ranks(lambda: back_to_back([Product(37, 24), Product(20, 16, dtype=F16, back=False)], repeat=1), 2, num_sms=8)


@pytest.mark.parametrize("start", [2**31 - 4, pytest.param(-5, marks=FULL)])
def test_epochs_wrap(start):
    calls = [Product(20, back=False, whole=False), Product(9, 24, 16, back=False)]
    run_ranks(lambda: near_the_wrap(calls, [Product.kind], start, repeat=2), 2)


def test_ranks_run_ahead():
    products = [Product(20, back=False, whole=False), Product(9, 24, back=False, whole=False)]
    run_ranks(lambda: overtaking(products, slow=1, repeat=2), 3)


def test_two_groups_and_streams():
    run_ranks(lambda: two_groups([Product(9, whole=False)], repeat=1), 4)
    run_ranks(lambda: side_stream([Product(9, whole=False), Product(5, whole=False)]), 2)


def test_a_weight_that_tma_cannot_read_is_copied():
    def script():
        group = resolve()
        call = Product(20, 32, 16, dtype=BF16, method="ws")
        x, ids, by, weight, _ = call.given(group.rank, 1, group.size)
        odd = torch.empty(weight.numel() + 1, dtype=BF16)[1:].view(weight.shape).copy_(weight)
        results = [dispatch_grouped_gemm(x, ids, by, w, num_experts=4, method=method)[0]
                   for w, method in ((weight, "ws"), (odd if group.rank else weight, "ws"))]
        triton_dist.synchronize()
        rows = sum(int(((i >= 2 * group.rank) & (i < 2 * group.rank + 2)).sum())
                   for _, i, *_ in (call.given(r, 1, group.size) for r in range(group.size)))
        assert rows and torch.equal(results[0][:rows], results[1][:rows])

    run_ranks(script, 2)


def test_a_graph_follows_routing_that_changes():
    def script():
        group = resolve()
        call = Product(12, back=False)
        x, ids, by, weight, _ = call.given(group.rank, 1, group.size)
        options = dict(num_experts=4, method="portable")
        dispatch_grouped_gemm(x, ids, by, weight, **options)
        with graph() as made:
            h, came = dispatch_grouped_gemm(x, ids, by, weight, **options)
        for seed in (1, 2):
            triton_dist.synchronize()
            ids.copy_(anywhere(group.rank, seed, 12, 2, 4))
            made.replay()
            wanted, other = dispatch_grouped_gemm(x, ids, by, weight, num_experts=4, method="unfused")
            triton_dist.synchronize()
            rows = int(other.expert_offsets[-1])
            assert rows and torch.equal(came.expert_rows, other.expert_rows) and torch.equal(h[:rows], wanted[:rows])

    run_ranks(script, 2)


def test_capture_of_what_has_not_run_is_an_error():
    def script():
        x, ids, _, weight, _ = Product(4).given(0, 1, 2)
        with capturing():
            with pytest.raises(InvalidArgument, match="before this graph capture"):
                dispatch_grouped_gemm(x, ids, None, weight, num_experts=4, method="portable")
        back_to_back([Product(4)])

    run_ranks(script, 2)


WRONG = [
    (dict(weight=torch.ones(3, 4, 8)), r"weight: expected \[2, N, 8\], for each"),
    (dict(weight=torch.ones(2, 4, 6)), r"weight: expected \[2, N, 8\], for each"),
    (dict(weight=torch.ones(2, 4, 8).half()), "weight: expected torch.float32"),
    (dict(weight=torch.ones(2, 3, 8)), "weight: expected an even number of rows"),
    (dict(act="gelu"), "act: expected None or one of silu_mul"),
    (dict(method="push"), "method: expected one of auto, ws, portable, unfused"),
    (dict(method="ws"), "method: 'ws' is not possible here: the core multiplies fp16 and bf16"),
    (dict(num_experts=5), "num_experts: expected a number divisible by"),
    (dict(max_tokens=3), "max_tokens: expected at least as many"),
    (dict(topk_ids=torch.zeros(3, 2, dtype=torch.int32)), "topk_ids: expected int32 or int64"),
]


def test_wrong_arguments_are_refused_on_each_rank_and_the_world_goes_on():
    def script():
        for changed, says in WRONG:
            given = dict(x=torch.ones(4, 8), topk_ids=torch.zeros(4, 2, dtype=torch.int32), topk_weights=None,
                         weight=torch.ones(2, 4, 8), num_experts=4, method="portable") | changed
            with pytest.raises(InvalidArgument, match=says):
                dispatch_grouped_gemm(**given)
        with pytest.raises(InvalidArgument, match="came: expected what dispatch_grouped_gemm gave"):
            grouped_gemm_combine(torch.ones(4, 2), torch.ones(2, 8, 2), "came")
        back_to_back([Product(9)], repeat=1)

    run_ranks(script, 2)


def test_gradients_are_those_of_the_two_ops():
    def script():
        group = resolve()
        every = [Product(6).given(index, 1, group.size) for index in range(group.size)]
        leaves = [[t.double().requires_grad_() for t in (x, by, w, down)] for x, _, by, w, down in every]
        expected = 0
        for (x, by, _, _), (_, ids, *_) in zip(leaves, every):
            for token, of in enumerate(ids.tolist()):
                for j, e in enumerate(of):
                    if e >= 0:
                        _, _, w, down = leaves[e // 2]
                        gate, up = (x[token] @ w[e % 2].t()).chunk(2)
                        y = by[token, j] * ((torch.nn.functional.silu(gate) * up) @ down[e % 2].t())
                        expected = expected + y.sum()
        expected.backward()
        x, ids, by, w, down = (t.requires_grad_() if t.is_floating_point() else t for t in every[group.rank])
        h, came = dispatch_grouped_gemm(x, ids, by, w, num_experts=4)
        grouped_gemm_combine(h, down, came).sum().backward()
        triton_dist.synchronize()
        for found, wanted in zip((x, by, w, down), leaves[group.rank]):
            assert_matches(found.grad, wanted.grad, k=64, roundings=8)
        with pytest.raises(InvalidArgument, match="method: expected 'auto' or 'unfused' where gradients"):
            dispatch_grouped_gemm(x, ids, by, w, num_experts=4, method="portable")

    run_ranks(script, 2)


def test_auto_and_explain_follow_the_shape(monkeypatch):
    """Fused where that is faster by more than the estimate errs: many rows of each expert, on few ranks."""
    monkeypatch.undo()
    monkeypatch.setattr(op, "PAYS", 1.012)  # no call reaches as much as it is: rows that come by expert hide the exchange, too
    op_ = op.DISPATCH_GROUPED_GEMM

    def script():
        group = resolve()

        def method(tokens, experts, k, row, n):
            agreed = op_._agreed(row, n, BF16, k, True, experts, "silu_mul", tokens, "auto", group)
            ways = op_.candidates(agreed, group)
            return op_.rule(agreed, group, ways)[0].method

        with mock.patch("triton_dist.backends.emulator.backend.EmulatorBackend.core", lambda self, name: ON_HOPPER[name]):
            found = [method(*shape) for shape in ((8192, 128, 8, 2048, 1536), (4096, 128, 8, 2048, 1536),
                                                  (1024, 128, 8, 2048, 1536), (128, 128, 8, 2048, 1536),
                                                  (8192, 128, 8, 2047, 1536), (8192, 128, 8, 7168, 4096))]
        text = str(explain("dispatch_grouped_gemm", 64, 32, 64))
        return found, "unfused" in text

    assert run_ranks(script, 2, num_sms=132) == [(["ws", *["unfused"] * 5], True)] * 2
    assert run_ranks(script, 8, num_sms=132)[0][0] == ["unfused"] * 6       # an eighth of the rows cannot hide seven


def test_with_more_ranks_two_steps_are_only_measured(monkeypatch):
    """A rank's own rows make few whole tiles there. Two steps have not run on GPUs, so auto takes them only where it measures."""
    monkeypatch.setattr(op, "PAYS", 1.012)

    def script(tokens, row, n, experts):
        with mock.patch("triton_dist.backends.emulator.backend.EmulatorBackend.core", lambda self, name: ON_HOPPER[name]):
            agreed = op.DISPATCH_GROUPED_GEMM._agreed(row, n, BF16, 8, True, experts, None, tokens, "auto", resolve())
            ways = op.DISPATCH_GROUPED_GEMM.candidates(agreed, resolve())
            return op.DISPATCH_GROUPED_GEMM.rule(agreed, resolve(), ways)[0].method, {way.pieces for way in ways}

    assert run_ranks(script, 8, 4096, 7168, 4096, 256, num_sms=132) == [("unfused", {0, 1, 2})] * 8
    assert run_ranks(script, 2, 8192, 2048, 1536, 128, num_sms=132) == [("ws", {0, 1})] * 2


@pytest.mark.full
def test_ways_are_measured_on_request(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_DIST_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DIST_AUTOTUNE", "1")
    monkeypatch.setattr(op, "COMM_SMS", (2, 1))

    def script():
        back_to_back([Product(20, dtype=BF16, method="auto", back=False, whole=False)])
        found = remembered.decisions("dispatch_grouped_gemm")[0]
        assert found.shape.dtype == "bfloat16, 2 of 4 experts, silu_mul" and (found.shape.m, found.shape.k) == (40, 16)
        return {(way.method, way.comm_sms) for way in found.entry.ms}

    ways = {("unfused", 0), ("ws", 2), ("ws", 1), ("portable", 2)}
    assert run_ranks(script, 2) == [ways, ways]


def test_compiled_it_is_one_operator():
    def script():
        group = resolve()
        x, ids, by, w, _ = Product(20).given(group.rank, 1, group.size)

        def call(x, ids, by, w):
            h, came = dispatch_grouped_gemm(2 * x, ids, by, w, num_experts=4, method="portable")
            return h, came.expert_rows, came.positions

        eager = call(x, ids, by, w)
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, ids, by, w)
        triton_dist.synchronize()
        rows = int(eager[1].sum())
        assert rows and torch.equal(eager[0][:rows], compiled[0][:rows])
        assert torch.equal(eager[1], compiled[1]) and torch.equal(eager[2], compiled[2])

    with torch.no_grad():
        run_ranks(script, 2)
