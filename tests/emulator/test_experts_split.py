# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine in two halves: two micro-batches under way, streams, graphs, and sends that nobody receives."""
import pytest
import torch
from experts import BF16, EP, F32, anywhere
from scenarios import back_to_back, capture_invalid_on, capturing, captures_by_rank, dawdle, graph, overtaking  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.engine.order import MODES
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.ops import ep_combine, ep_combine_send, ep_dispatch, ep_dispatch_send
from triton_dist.ops.ep import chunks
from triton_dist.ops.ep.split import KINDS, Lane
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import reset, workspace
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank", "push_for_few_tokens")
FULL = pytest.mark.full
EXPERTS = 6


class Batch:
    """Tokens of a micro-batch on this rank, and what whole calls make of them."""

    def __init__(self, seed, group, tokens=5, row=24, layout="expert"):
        self.group, self.layout = group, layout
        self.seed = base = 100 * seed + group.rank
        self.x = random_tensor(tokens, row, dtype=F32, seed=base)
        self.weights = random_tensor(tokens, 2, dtype=F32, seed=base + 50)
        self.ids = anywhere(group.rank, seed, tokens, 2, EXPERTS).int()
        self.options = dict(num_experts=EXPERTS, layout=layout, group=group)
        self.y = torch.empty(0)

    def send(self, **more):
        return ep_dispatch_send(self.x, self.ids, self.weights, **self.options, **more)

    def send_back(self, came, **more):
        if self.y.shape != came.x.shape:        # else they are there, since a graph capture takes no random numbers
            self.y = random_tensor(came.x.shape.numel(), dtype=F32, seed=self.seed + 70).view(came.x.shape)
        weights = came.topk_weights if came.positions is not None else None
        return ep_combine_send(self.y, came.handle, topk_weights=weights, **more)

    def whole(self):
        return ep_dispatch(self.x, self.ids, self.weights, **self.options)

    def verify_came(self, came):
        expected = self.whole()
        triton_dist.synchronize()
        if self.layout == "expert":
            spots = expected.positions[expected.positions >= 0].long()
            assert torch.equal(came.positions, expected.positions)
            assert torch.equal(came.expert_offsets, expected.expert_offsets)
        else:
            spots = slice(int(expected.rows))
        assert torch.equal(came.x[spots], expected.x[spots]) and came.rows.tolist() == expected.rows.tolist()
        assert torch.equal(came.topk_ids, expected.topk_ids) and torch.equal(came.topk_weights, expected.topk_weights)
        return expected

    def verify(self, came, out):
        expected = self.verify_came(came)
        weights = expected.topk_weights if self.layout == "expert" else None
        again = ep_combine(self.y, expected.handle, topk_weights=weights)
        triton_dist.synchronize()
        assert torch.equal(out, again)


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=FULL)])
@pytest.mark.parametrize("method", ["push", "unfused"])
@pytest.mark.parametrize("layout", ["compact", "expert", *[pytest.param(name, marks=FULL) for name in ("indexed", "masked")]])
def test_one_half_after_the_other_is_a_whole_call(layout, method, world):
    calls = [EP(5, 24, layout=layout, method=method, residual=True, split=True),
             EP(0, 24, layout=layout, method=method, split=True),
             EP(3, 40, 3, layout=layout, method=method, bias=True, split=True)]
    run_ranks(lambda: back_to_back(calls), world, seed=world)


def test_fp8_on_the_way_and_unequal_ranks():
    calls = [EP(3, 256, quant="fp8_1x128", split=True),
             EP(lambda rank: 4 * rank, 24, layout="masked", max_tokens=4, split=True),
             EP(6, 24, 3, layout="expert", capacity=7, split=True)]
    run_ranks(lambda: back_to_back(calls), 2)


@pytest.mark.parametrize("mode", MODES)
def test_two_micro_batches_under_way(mode, monkeypatch):
    """A dispatch of one and a combine of the other travel at once. A rank is slow, and whole calls are in between."""
    monkeypatch.setattr(chunks, "MOVED", chunks.Pieces(128, 256))
    monkeypatch.setattr(chunks, "SUMMED", chunks.Pieces(64, 256))
    monkeypatch.setattr(chunks, "PASSED", 64)

    def script():
        group, found = resolve(), []
        for step in range(2):
            a, b = Batch(2 * step, group, 6), Batch(2 * step + 1, group, 4, 40, "compact")
            if group.rank == 1:
                dawdle()
            first, second = a.send(), b.send()
            came_a = first.recv()
            back_a = a.send_back(came_a)
            came_b = second.recv()
            other = Batch(50 + step, group)
            between = other.whole()
            back_b = b.send_back(came_b)
            found += [(a, came_a, back_a.recv()), (b, came_b, back_b.recv())]
            other.verify_came(between)
        triton_dist.synchronize()
        for batch, came, out in found:
            batch.verify(came, out)

    run_ranks(script, 3, mode=mode, seed=5, num_sms=2)


def test_ranks_may_receive_in_another_order_and_more_than_once():
    def script():
        group = resolve()
        a, b = Batch(1, group), Batch(2, group)
        sent = [a.send(), b.send()]
        came = [s.recv() for s in (sent if group.rank else reversed(sent))]
        came = came if group.rank else came[::-1]
        assert all(s() is c for s, c in zip(sent, came))
        triton_dist.synchronize()
        for batch, c in zip((a, b), came):
            batch.verify_came(c)

    run_ranks(script, 2)


def test_a_third_send_completes_the_first():
    def script():
        group = resolve()
        batches = [Batch(i, group) for i in range(5)]
        lanes = [workspace(group, kind, Lane) for kind in KINDS]
        before = sum(lane.sends for lane in lanes)
        sent = [batch.send() for batch in batches]
        assert sum(lane.sends for lane in lanes) == before + 5 and abs(lanes[0].sends - lanes[1].sends) <= 1
        assert [s._call.done for s in sent] == [True] * 3 + [False] * 2
        came = [s.recv() for s in sent]
        triton_dist.synchronize()
        for batch, c in zip(batches, came):
            batch.verify_came(c)

    run_ranks(script, 2, mode="late")


@pytest.mark.parametrize("who", ["all", "one"])
def test_dropped_sends_leave_the_world_as_it_was(who):
    def script():
        group = resolve()
        for i in range(5):
            sent = Batch(i, group).send()
            if who == "one" and group.rank == 0:
                sent.recv()
            del sent
        batch = Batch(9, group)
        came = batch.send().recv()
        out = batch.send_back(came).recv()
        triton_dist.synchronize()
        batch.verify(came, out)

    run_ranks(script, 2, mode="random", seed=3)


def test_workspaces_that_grow_take_what_is_under_way_first():
    def script():
        group = resolve()
        small, more, large = Batch(1, group, 4), Batch(2, group, 4), Batch(3, group, 20, 2000)
        sent = [small.send(), more.send()]
        generation = workspace(group, KINDS[0], Lane).generation
        sent.append(large.send())
        assert workspace(group, KINDS[0], Lane).generation > generation
        came = [s.recv() for s in sent]
        triton_dist.synchronize()
        for batch, c in zip((small, more, large), came):
            batch.verify_came(c)

    run_ranks(script, 2)


@pytest.mark.parametrize("mode", ["late", "random"])
def test_sends_on_a_stream_of_their_own(mode):
    def script():
        group, side = resolve(), triton_dist.new_stream()
        found = []
        for i in range(2):
            a, b = Batch(2 * i, group), Batch(2 * i + 1, group)
            b.x = b.x.t().contiguous().t()                          # strided: it is copied
            first, second = a.send(stream=side), b.send(stream=side)
            found.append((a, came := first.recv(), a.send_back(came, stream=side).recv()))
            found.append((b, came := second.recv(), b.send_back(came).recv()))
        triton_dist.synchronize()
        for batch, came, out in found:
            batch.verify(came, out)

    run_ranks(script, 2, mode=mode)


@pytest.mark.parametrize("method", ["push", "unfused"])
def test_memory_is_kept_for_the_streams_that_use_it(method, monkeypatch):
    """A GPU's allocator gives memory of a dropped tensor to the stream that it was made on, unless others are noted."""
    noted = []
    monkeypatch.setattr(type(backend()), "note_use", lambda self, t, stream: noted.append((t.data_ptr(), stream)))

    def script():
        group, side = resolve(), triton_dist.new_stream()
        batches = [Batch(i, group) for i in range(4)]
        sent = [batch.send(stream=stream, method=method) for batch, stream in zip(batches, (None, side, side, None))]
        main = triton_dist.current_stream()
        on = {stream: [i for i, (batch, call) in enumerate(zip(batches, sent))
                       if {(t.data_ptr(), stream) for t in (batch.x, batch.ids, batch.weights, call.outputs.x)} <= {*noted}]
              for stream in (main, side)}
        # The third send completes the first, and the fourth the second. Its own tensors are of the current stream.
        assert on == ({main: [1], side: [0, 1, 2]} if method == "push" else {main: [], side: [1, 2]})
        came = [call.recv() for call in sent]
        triton_dist.synchronize()
        for batch, c in zip(batches, came):
            batch.verify_came(c)

    run_ranks(script, 2)


def test_a_send_that_fails_inside_a_capture_on_one_rank_alone_harms_no_later_call():
    """It sends nothing, but counts: by the number of sends all ranks choose between two workspaces."""
    def script():
        group = resolve()
        batches = [Batch(i, group) for i in range(4)]
        batches[0].send().recv()
        triton_dist.synchronize()
        with capture_invalid_on(1):
            batches[0].send()
        for batch in batches[1:]:
            batch.verify_came(batch.send().recv())
    run_ranks(script, 2)


def test_over_nodes_the_first_half_does_it_all():
    def script():
        batch = Batch(1, resolve())
        batch.options.update(num_experts=8)
        came = batch.send(stream=triton_dist.new_stream()).recv()
        triton_dist.synchronize()
        batch.verify_came(came)

    run_ranks(script, 4, nodes=2)


# -- graphs ------------------------------------------------------------------------------------------------------------
@pytest.mark.one
@pytest.mark.parametrize("own_stream", [False, True])
def test_a_graph_holds_both_halves(own_stream):
    def script():
        group, stream = resolve(), triton_dist.new_stream() if own_stream else None
        a, b = Batch(1, group), Batch(2, group)

        def both():
            first, second = a.send(stream=stream), b.send(stream=stream)
            came = first.recv(), second.recv()
            return [*came, a.send_back(came[0], stream=stream).recv()]

        both()
        with graph() as made:
            came_a, came_b, out = both()
        for seed in (3, ):
            triton_dist.synchronize()
            for batch, of in ((a, 10 * seed), (b, 10 * seed + 1)):
                other = Batch(of, group)
                batch.x.copy_(other.x), batch.ids.copy_(other.ids), batch.weights.copy_(other.weights)
            made.replay()
            triton_dist.synchronize()
            a.verify_came(came_a), b.verify_came(came_b)
            expected = ep_combine(a.y, came_a.handle, topk_weights=came_a.topk_weights)
            triton_dist.synchronize()
            assert torch.equal(out, expected)
            eager = Batch(seed, group)
            came = eager.send().recv()
            triton_dist.synchronize()
            eager.verify_came(came)

    run_ranks(script, 2)


def test_halves_in_different_captures_are_refused():
    def script():
        group = resolve()
        a, b = Batch(1, group), Batch(2, group)
        for batch in (a, b):
            batch.send().recv()
        before = a.send()
        with capturing():
            with pytest.raises(InvalidArgument, match="before this graph capture; a graph must hold both"):
                before.recv()
            inside = b.send()
            with pytest.raises(InvalidArgument, match="sent before this graph capture has not been received"):
                a.send()
        with pytest.raises(InvalidArgument, match="in another graph capture"):
            inside.recv()
        came = before.recv()
        triton_dist.synchronize()
        a.verify_came(came)

    run_ranks(script, 2)


# -- refused -----------------------------------------------------------------------------------------------------------
def test_refused_sends_leave_the_world_as_it_was():
    def script():
        batch = Batch(1, resolve())
        came = batch.send().recv()
        batch.x.requires_grad_()
        with pytest.raises(InvalidArgument, match="ep_dispatch_send: expected tensors that need no gradient"):
            batch.send()
        with pytest.raises(InvalidArgument, match="ep_combine_send: expected tensors that need no gradient"):
            ep_combine_send(came.x.clone().requires_grad_(), came.handle)
        batch.x.requires_grad_(False)
        with pytest.raises(InvalidArgument, match="stream: expected None or a stream"):
            batch.send(stream=3)
        with pytest.raises(InvalidArgument, match="max_tokens: expected at least as many"):
            batch.send(max_tokens=2)
        with pytest.raises(InvalidArgument, match="handle: expected what ep_dispatch gave"):
            ep_combine_send(came.x, came)
        again = batch.send().recv()
        triton_dist.synchronize()
        batch.verify_came(again)

    run_ranks(script, 2)


def test_a_reset_ends_what_is_under_way():
    def script():
        batch = Batch(1, resolve())
        sent = batch.send()
        reset()
        with pytest.raises(InvalidArgument, match="the group was reset"):
            sent.recv()
        came = batch.send().recv()
        triton_dist.synchronize()
        batch.verify_came(came)

    run_ranks(script, 2)
