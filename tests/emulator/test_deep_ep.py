# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's Buffer over this package, in the way its own tests look at it: what arrives, in which order, and what comes back."""
import inspect
import sys

import pytest
import torch
from experts import BF16, F32, F8, anywhere
from scenarios import captures_by_rank, graph  # noqa: F401

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.integrations import deep_ep
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

pytestmark = pytest.mark.usefixtures("captures_by_rank")
HIDDEN, K, SHARE = 256, 3, 2
FULL = pytest.mark.full

# Arguments and defaults of deepseek-ai/DeepEP, deep_ep/buffers/legacy.py and event.py at commit 189df34.
SIGNATURES = {
    "Buffer.__init__": dict(group=..., num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
                            allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, explicitly_destroy=False,
                            enable_shrink=False, comm=None),
    "Buffer.set_num_sms": dict(new_num_sms=...),
    "Buffer.get_low_latency_rdma_size_hint": dict(num_max_dispatch_tokens_per_rank=..., hidden=..., num_ranks=...,
                                                  num_experts=...),
    "Buffer.get_dispatch_config": dict(num_ranks=...),
    "Buffer.get_combine_config": dict(num_ranks=...),
    "Buffer.get_dispatch_layout": dict(topk_idx=..., num_experts=..., previous_event=None, async_finish=False,
                                       allocate_on_comm_stream=False),
    "Buffer.dispatch": dict(x=..., handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
                            num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, num_worst_tokens=0,
                            config=None, previous_event=None, async_finish=False, allocate_on_comm_stream=False),
    "Buffer.combine": dict(x=..., handle=..., topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
                           allocate_on_comm_stream=False),
    "Buffer.clean_low_latency_buffer": dict(num_max_dispatch_tokens_per_rank=..., hidden=..., num_experts=...),
    "Buffer.low_latency_dispatch": dict(x=..., topk_idx=..., num_max_dispatch_tokens_per_rank=..., num_experts=...,
                                        cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True,
                                        round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=False),
    "Buffer.low_latency_combine": dict(x=..., topk_idx=..., topk_weights=..., handle=..., use_logfmt=False, zero_copy=False,
                                       async_finish=False, return_recv_hook=False, out=None, combine_wait_recv_cost_stats=None),
    "Buffer.low_latency_update_mask_buffer": dict(rank_to_mask=..., mask=False),
    "Buffer.low_latency_query_mask_buffer": dict(mask_status=...),
    "Buffer.low_latency_clean_mask_buffer": {},
    "Buffer.get_next_low_latency_combine_buffer": dict(handle=...),
    "Buffer.destroy": {}, "Buffer.capture": {}, "Buffer.is_sm90_compiled": {}, "Buffer.get_comm_stream": {},
    "EventOverlap.__init__": dict(event=None, extra_tensors=None),
    "EventOverlap.current_stream_wait": dict(release_handle=False),
    "EventOverlap.register_hook_after_wait": dict(hook_after_wait=...),
    "Config.__init__": dict(num_sms=20, num_max_nvl_chunked_send_tokens=6, num_max_nvl_chunked_recv_tokens=256,
                            num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=256),
    "Config.get_nvl_buffer_size_hint": dict(hidden_bytes=..., num_ranks=...),
    "Config.get_rdma_buffer_size_hint": dict(hidden_bytes=..., num_ranks=...),
}


def arguments(name, of=deep_ep):
    """{argument: default, ... for none} of a method."""
    cls, _, method = name.partition(".")
    parameters = inspect.signature(getattr(getattr(of, cls), method)).parameters.values()
    return {p.name: ... if p.default is p.empty else p.default for p in parameters if p.name != "self"}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults_are_those_of_the_package(name):
    ours = arguments(name)
    assert list(ours.items())[:len(SIGNATURES[name])] == list(SIGNATURES[name].items())
    assert all(default is not ... for default in list(ours.values())[len(SIGNATURES[name]):]), "what we add has a default"


def given(rank, tokens, experts, seed=0):
    """(x, ids, weights) of a rank. x has the rank in all columns but the last 128, which have the token's number."""
    x = torch.full((tokens, HIDDEN), float(rank - 4), dtype=BF16)
    x[:, -128:] = torch.arange(tokens, dtype=BF16)[:, None]
    ids = torch.stack([torch.randperm(experts, generator=torch.Generator().manual_seed(100 * seed + 10 * rank + t))[:K]
                       for t in range(tokens)]) if tokens else torch.empty(0, K, dtype=torch.int64)
    ids[anywhere(rank, seed, tokens, K, 4) == 0] = -1
    return x, ids, random_tensor(tokens, K, dtype=F32, seed=rank + 50).abs() + 0.1


def fp8(x):
    values = x.float().unflatten(1, (-1, 128))
    scales = values.abs().amax(-1).clamp_min(1e-4) / 448
    return (values / scales[:, :, None]).to(F8).view(x.shape), scales


def plain(x):
    """Values of rows, or of fp8 rows with scales of floats or of exponents."""
    if not isinstance(x, tuple):
        return x.float()
    rows, scales = x[0], x[1]
    if scales.dtype == torch.int32:
        raw = scales.clone(memory_format=torch.contiguous_format)      # contiguous() would keep a stride of one column
        scales = (raw.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
    return (rows.float().unflatten(-1, (-1, 128)) * scales.contiguous().unsqueeze(-1)).flatten(-2)


def near(a, b):
    """The measure of DeepEP's tests: 0 for equal tensors."""
    a, b = a.double() + 1, b.double() + 1
    total = float((a * a + b * b).sum())
    return 1 - 2 * float((a * b).sum()) / total if total else 0.0


def coming(rank, world, tokens, share=SHARE):
    """[(source, token, local expert numbers)] that come to a rank, and all ranks' inputs."""
    every = [given(r, tokens(r), share * world) for r in range(world)]
    rows = []
    for source, (_, ids, _) in enumerate(every):
        for token, of in enumerate(ids.tolist()):
            local = [i - rank * share if i // share == rank and i >= 0 else -1 for i in of]
            if max(local) >= 0:
                rows.append((source, token, local))
    return rows, every


# -- counts on the host --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=FULL)])
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("with_topk", [True, False])
@pytest.mark.parametrize("is_async", [False, True])
def test_dispatch_and_combine(is_async, with_topk, kind, world):
    def tokens(rank):
        return 0 if rank == 1 else 5 + rank

    def script():
        group = resolve()
        rank, experts = group.rank, SHARE * world
        buffer = deep_ep.Buffer(group, int(1e6), 0)
        rows, every = coming(rank, world, tokens)
        x, ids, weights = every[rank]
        per_rank, per_rdma, per_expert, inside, _ = buffer.get_dispatch_layout(ids, experts)
        owner = torch.where(ids >= 0, ids // SHARE, -1)
        assert inside.tolist() == [[r in of for r in range(world)] for of in owner.tolist()]
        assert per_rank.tolist() == inside.sum(0).tolist() and per_rdma is None
        assert per_expert.tolist() == [int((ids == e).sum()) for e in range(experts)]
        more = dict(topk_idx=ids, topk_weights=weights) if with_topk else {}
        previous = buffer.capture() if is_async else None
        got, got_ids, got_weights, counts, handle, event = buffer.dispatch(
            fp8(x) if kind == "fp8" else x, num_tokens_per_rank=per_rank, is_token_in_rank=inside,
            num_tokens_per_expert=per_expert, expert_alignment=4, previous_event=previous, async_finish=is_async,
            config=deep_ep.Config(24, 8, 256), **more)
        assert (event.event is not None) == is_async
        event.current_stream_wait()
        values = plain(got)
        assert len(values) == len(rows)
        for row, (source, token, _) in zip(values, rows):
            assert near(row[:128], torch.full((128,), source - 4.0)) < 1e-5 and near(row[128:], torch.full((128,), token)) < 1e-5
        ends = handle[0][:, rank].tolist()
        assert ends == [sum(source <= r for source, _, _ in rows) for r in range(world)] and handle[4] is inside
        each = [sum(local.count(e) for _, _, local in rows) for e in range(SHARE)]
        assert counts == [-(-n // 4) * 4 for n in each]
        if with_topk:
            assert got_ids.dtype == torch.int64 and got_ids.tolist() == [local for _, _, local in rows]
            expected = [[w if e >= 0 else 0.0 for e, w in zip(local, every[source][2][token].tolist())]
                        for source, token, local in rows]
            assert got_weights.tolist() == expected
        else:
            assert got_ids is got_weights is None
        again, *nothing, event = buffer.dispatch(fp8(x) if kind == "fp8" else x, handle=handle, async_finish=is_async)
        event.current_stream_wait()
        assert torch.equal(plain(again), values) and nothing == [None] * 4
        bias = random_tensor(*x.shape, dtype=BF16, seed=7)
        back, back_weights, event = buffer.combine(values.to(BF16), handle, topk_weights=got_weights,
                                                   bias=(bias, bias) if with_topk else None, async_finish=is_async)
        event.current_stream_wait()
        sums = (inside.sum(1)[:, None] * x.float()) + (2 * bias.float() if with_topk else 0)
        assert near(back, sums) < 5e-6 * (200 if kind == "fp8" else 1)
        if with_topk:
            assert torch.equal(back_weights, torch.where(ids >= 0, weights, 0.0))

    run_ranks(script, world, seed=world)


def test_memory_is_kept_for_both_streams_of_asynchronous_calls(monkeypatch):
    """A GPU's allocator gives memory of a dropped tensor to the stream that it was made on, unless others are noted."""
    noted = []
    monkeypatch.setattr(type(backend()), "note_use", lambda self, t, stream: noted.append((t.data_ptr(), stream)))

    def are_noted(stream, *tensors):
        return {(t.data_ptr(), stream) for t in tensors} <= {*noted}

    def script():
        group = resolve()
        buffer, main, side = deep_ep.Buffer(group), triton_dist.current_stream(), deep_ep.Buffer.get_comm_stream()
        rank, experts = group.rank, SHARE * group.size
        x, ids, weights = coming(rank, group.size, lambda rank: 5)[1][rank]
        _, _, per_expert, inside, _ = buffer.get_dispatch_layout(ids, experts)
        more = dict(is_token_in_rank=inside, num_tokens_per_expert=per_expert, topk_idx=ids, topk_weights=weights)
        got, _, _, _, before, _ = buffer.dispatch(x, **more)
        assert not [stream for _, stream in noted if stream in (main, side)]
        bias, also = x.clone(), x.clone()
        back, _, event = buffer.combine(got, before, bias=(bias, also), async_finish=True)
        assert are_noted(side, got, bias, also, before.way.topk_ids, before.way.told) and are_noted(main, back)
        event.current_stream_wait()
        got, *_, handle, event = buffer.dispatch(x, async_finish=True, **more)
        assert are_noted(side, x, ids, weights, inside, per_expert)
        assert are_noted(main, got, handle.way.topk_ids, handle.way.told)
        event.current_stream_wait()
        came, _, kept, event, _ = buffer.low_latency_dispatch(x, ids, 5, experts, use_fp8=False, async_finish=True)
        assert are_noted(main, came, kept.came.handle.told)
        event.current_stream_wait()
        out = torch.empty_like(x)
        _, event, _ = buffer.low_latency_combine(came, ids, weights, kept, async_finish=True, out=out)
        assert are_noted(side, came, kept.came.handle.told, out)
        event.current_stream_wait()
        triton_dist.synchronize()

    run_ranks(script, 2)


def test_a_fixed_number_of_rows_is_captured():
    def script():
        group = resolve()
        buffer = deep_ep.Buffer(group)
        x, ids, weights = given(group.rank, 4, 4)
        ids = ids.clone()

        def call():
            _, _, per_expert, inside, _ = buffer.get_dispatch_layout(ids, 4)
            return buffer.dispatch(x, is_token_in_rank=inside, num_tokens_per_expert=per_expert, topk_idx=ids,
                                   topk_weights=weights, num_worst_tokens=10)

        got, got_ids, _, counts, handle, _ = call()
        rows, _ = coming(group.rank, 2, lambda rank: 4)
        assert counts == [] and got.shape == (10, HIDDEN) and got_ids[:len(rows)].tolist() == [local for _, _, local in rows]
        assert bool((got_ids[len(rows):] == -1).all())
        back, _, _ = buffer.combine(got, handle)
        inside = buffer.get_dispatch_layout(ids, 4)[3]
        assert near(back, inside.sum(1)[:, None] * x.float()) < 5e-6
        with pytest.raises(InvalidArgument, match="num_worst_tokens: expected at least 2 times the tokens"):
            buffer.dispatch(x, is_token_in_rank=inside, num_tokens_per_expert=torch.zeros(4, dtype=torch.int32),
                            topk_idx=ids, num_worst_tokens=7)

    run_ranks(script, 2)


# -- low latency ---------------------------------------------------------------------------------------------------------
MOST = 6


@pytest.mark.one
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=FULL)])
@pytest.mark.parametrize("form", ["bf16", "fp8", "fp8 rounded", "fp8 ue8m0"])
@pytest.mark.parametrize("how", ["whole", "hook", "async"])
def test_the_low_latency_pair(how, form, world, monkeypatch):
    monkeypatch.setitem(globals(), "HIDDEN", 512)

    def tokens(rank):
        return MOST - rank

    def script():
        group = resolve()
        rank, experts = group.rank, SHARE * world
        buffer = deep_ep.Buffer(group, num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(MOST, HIDDEN, world, experts),
                                low_latency_mode=True, num_qps_per_rank=SHARE)
        _, every = coming(rank, world, tokens)
        x, ids, weights = every[rank]
        options = dict(use_fp8=form != "bf16", round_scale=form in ("fp8 rounded", "fp8 ue8m0"), use_ue8m0=form == "fp8 ue8m0")
        hooks = dict(return_recv_hook=how == "hook", async_finish=how == "async")
        stats = torch.ones(SHARE, dtype=torch.int32)
        for turn in range(2):
            got, count, handle, event, hook = buffer.low_latency_dispatch(x, ids, MOST, experts, stats, **options, **hooks)
            assert (hook is not None) == (how == "hook") and (event.event is not None) == (how == "async")
            if hook is not None:
                hook()
            event.current_stream_wait()
            triton_dist.synchronize()
        values = plain(got)
        assert values.shape == (SHARE, world * MOST, HIDDEN)
        if form != "bf16":
            assert got[0].dtype == F8 and got[1].stride()[-2] == 1, "neighbouring rows of scales are neighbours"
        sources, ranges, most, hidden, total = handle
        assert (most, hidden, total) == (MOST, HIDDEN, experts) and len(handle) == 5 and handle[-1] == experts
        for e in range(SHARE):
            expected = [(source, token) for source, (_, of, _) in enumerate(every) for token in range(len(of))
                        for i in of[token].tolist() if i == rank * SHARE + e]
            assert int(count[e]) == len(expected) and int(stats[e]) == 1 + 2 * len(expected)
            assert sources[e].tolist() == [token for _, token in expected] + [-1] * (world * MOST - len(expected))
            for r in range(world):
                begin, rows = int(ranges[e, r]) >> 32, int(ranges[e, r]) & 0xFFFFFFFF
                assert [source for source, _ in expected[begin:begin + rows]] == [r] * sum(s == r for s, _ in expected)
            for row, (source, token) in zip(values[e], expected):
                assert near(row[:-128], torch.full((HIDDEN - 128,), source - 4.0)) < 0.007
                assert near(row[-128:], torch.full((128,), float(token))) < 0.007
        out = torch.empty(len(x), HIDDEN, dtype=BF16)
        y = values.to(BF16)
        if how == "hook":
            buffer.get_next_low_latency_combine_buffer(handle).copy_(y)
            y = torch.zeros_like(y)
        back, event, hook = buffer.low_latency_combine(y, ids, weights, handle, zero_copy=how == "hook", out=out, **hooks)
        if hook is not None:
            hook()
        event.current_stream_wait()
        triton_dist.synchronize()
        wanted = x.float() * weights.masked_fill(ids < 0, 0).sum(1)[:, None]
        assert back is out and not bool(back.isnan().any()) and near(back, wanted) < (7e-4 if form != "bf16" else 1e-5)

    run_ranks(script, world, seed=world)


def test_low_latency_calls_of_two_micro_batches_are_under_way_at_once():
    def script():
        group = resolve()
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        pairs = [given(group.rank, 4, 4, seed) for seed in (1, 2)]
        sent = [buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False, return_recv_hook=True) for x, ids, _ in pairs]
        for (x, ids, weights), (got, _, handle, _, hook) in zip(pairs, sent):
            hook()
            back, _, hook = buffer.low_latency_combine(got.clone(), ids, weights, handle, return_recv_hook=True)
            hook()
            assert near(back, x.float() * weights.masked_fill(ids < 0, 0).sum(1)[:, None]) < 1e-5

    run_ranks(script, 2, mode="late")


def test_the_low_latency_pair_is_captured():
    def script():
        group = resolve()
        buffer = deep_ep.Buffer(group, low_latency_mode=True)
        x, ids, weights = given(group.rank, 4, 4)
        buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
        with graph() as made:
            got, count, *_ = buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
        for seed in (3, 4):
            triton_dist.synchronize()
            ids.copy_(given(group.rank, 4, 4, seed)[1])
            made.replay()
            triton_dist.synchronize()
            every = [given(r, 4, 4, seed)[1] for r in range(2)]
            assert count.tolist() == [sum(int((of == 2 * group.rank + e).sum()) for of in every) for e in range(2)]

    run_ranks(script, 2)


# -- refused -------------------------------------------------------------------------------------------------------------
def test_what_cannot_be_done_names_the_argument_and_leaves_the_world_as_it_was():
    def script():
        group = resolve()
        for name, how in (("comm", dict(comm=object())), ("enable_shrink", dict(enable_shrink=True)),
                          ("allow_nvlink_for_low_latency_mode", dict(allow_nvlink_for_low_latency_mode=False))):
            with pytest.raises(UnsupportedFeature, match=f"^{name}: expected"):
                deep_ep.Buffer(group, **how)
        buffer = deep_ep.Buffer(group, explicitly_destroy=True)
        x, ids, weights = given(group.rank, 4, 4)
        got, _, handle, _, _ = buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
        cost = torch.zeros(2, 2, dtype=torch.int64)
        for name, kind, call in (
            ("dispatch_wait_recv_cost_stats", UnsupportedFeature,
             lambda: buffer.low_latency_dispatch(x, ids, 4, 4, dispatch_wait_recv_cost_stats=cost)),
            ("combine_wait_recv_cost_stats", UnsupportedFeature,
             lambda: buffer.low_latency_combine(got, ids, weights, handle, combine_wait_recv_cost_stats=cost)),
            ("use_logfmt", UnsupportedFeature, lambda: buffer.low_latency_combine(got, ids, weights, handle, use_logfmt=True)),
            ("zero_copy", InvalidArgument, lambda: buffer.low_latency_combine(got, ids, weights, handle, zero_copy=True)),
            ("use_ue8m0", InvalidArgument, lambda: buffer.low_latency_dispatch(x, ids, 4, 4, use_ue8m0=True)),
            ("return_recv_hook", InvalidArgument,
             lambda: buffer.low_latency_dispatch(x, ids, 4, 4, async_finish=True, return_recv_hook=True)),
            ("handle", InvalidArgument, lambda: buffer.low_latency_combine(got, ids, weights, (1, 2, 3, 4, 5))),
            ("handle", InvalidArgument, lambda: buffer.combine(x, (1, 2, 3, 4, 5, 6))),
            ("is_token_in_rank", InvalidArgument, lambda: buffer.dispatch(x, topk_idx=ids)),
            ("num_experts", InvalidArgument, lambda: buffer.get_dispatch_layout(ids, 3)),
            ("mask", UnsupportedFeature, lambda: buffer.low_latency_update_mask_buffer(1, True)),
            ("new_num_sms", InvalidArgument, lambda: deep_ep.Buffer.set_num_sms(3)),
        ):
            with pytest.raises(kind, match=f"^{name}: expected"):
                call()
        buffer.low_latency_update_mask_buffer(1)
        buffer.low_latency_query_mask_buffer(status := torch.ones(2, dtype=torch.int32))
        assert not status.any()
        back, _, _ = buffer.low_latency_combine(got.clone(), ids, weights, handle)
        assert near(back, x.float() * weights.masked_fill(ids < 0, 0).sum(1)[:, None]) < 1e-5
        buffer.destroy()
        with pytest.raises(InvalidArgument, match="buffer: expected one that is in use"):
            buffer.low_latency_dispatch(x, ids, 4, 4)

    run_ranks(script, 2)


def test_install_puts_it_in_place_of_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)
    monkeypatch.delitem(sys.modules, "deep_ep.utils", raising=False)
    deep_ep.install()
    try:
        from deep_ep import Buffer  # type: ignore[import-not-found]
        from deep_ep.utils import EventHandle, EventOverlap  # type: ignore[import-not-found]
        assert Buffer is deep_ep.Buffer and EventHandle is deep_ep.EventHandle and EventOverlap is deep_ep.EventOverlap
        monkeypatch.setitem(sys.modules, "deep_ep", sys)
        with pytest.raises(InvalidArgument, match="imported already"):
            deep_ep.install()
    finally:
        for name in ("deep_ep", "deep_ep.utils"):
            sys.modules.pop(name, None)
