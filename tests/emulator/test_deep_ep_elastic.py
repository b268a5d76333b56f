# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's ElasticBuffer and Megatron's fused functions over this package."""
import sys
import types

import pytest
import torch
from experts import BF16, F32
from test_deep_ep import HIDDEN, K, SHARE, arguments, coming, fp8, given, near, plain

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.integrations import deep_ep, megatron
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.testing import random_tensor

MOST = 8

# Arguments and defaults of deepseek-ai/DeepEP, deep_ep/buffers/elastic.py at commit 0297fc8.
SIGNATURES = {
    "ElasticBuffer.__init__": dict(group=..., num_bytes=None, num_cpu_bytes=0, num_max_tokens_per_rank=0, hidden=0, num_topk=0,
                                   use_fp8_dispatch=False, deterministic=False, allow_hybrid_mode=True,
                                   allow_multiple_reduction=True, prefer_overlap_with_compute=True, sl_idx=3, num_allocated_qps=0,
                                   num_cpu_timeout_secs=300, num_gpu_timeout_secs=100, explicitly_destroy=False),
    "ElasticBuffer.get_buffer_size_hint": dict(group=..., num_max_tokens_per_rank=..., hidden=..., num_topk=0,
                                               use_fp8_dispatch=False, allow_hybrid_mode=True, allow_multiple_reduction=True),
    "ElasticBuffer.barrier": dict(use_comm_stream=True, with_cpu_sync=False, sequential=True),
    "ElasticBuffer.get_theoretical_num_sms": dict(num_experts=..., num_topk=..., num_scaleout_topk=0, rdma_gbs=0, nvlink_gbs=0,
                                                  sm_read_gbs=200, sm_write_gbs=50),
    "ElasticBuffer.get_theoretical_num_qps": dict(num_sms=...),
    "ElasticBuffer.dispatch": dict(x=..., topk_idx=None, topk_weights=None, cumulative_local_expert_recv_stats=None,
                                   num_experts=None, num_max_tokens_per_rank=None, expert_alignment=None, num_sms=0, num_qps=0,
                                   previous_event=None, previous_event_before_epilogue=None, async_with_compute_stream=False,
                                   allocate_on_comm_stream=False, handle=None, do_handle_copy=True, do_cpu_sync=None,
                                   do_expand=False, do_zero_padding=False, use_tma_aligned_col_major_sf=False),
    "ElasticBuffer.combine": dict(x=..., handle=..., topk_weights=None, bias=None, num_sms=0, num_qps=0, previous_event=None,
                                  previous_event_before_epilogue=None, async_with_compute_stream=False,
                                  allocate_on_comm_stream=False),
    "ElasticBuffer.destroy": {}, "ElasticBuffer.capture": {}, "ElasticBuffer.get_comm_stream": {},
    "ElasticBuffer.get_physical_domain_size": {}, "ElasticBuffer.get_logical_domain_size": {},
}
# Of NVIDIA/Megatron-LM, megatron/core/transformer/moe/fused_a2a.py at commit 02ad939.
MEGATRON = {
    "megatron.fused_dispatch": dict(x=..., token_indices=..., token_probs=..., num_experts=..., group=..., async_finish=False,
                                    allocate_on_comm_stream=False),
    "megatron.fused_combine": dict(x=..., group=..., handle=..., async_finish=False, allocate_on_comm_stream=False),
    "megatron.set_deepep_num_sms": dict(num_sms=...),
}


@pytest.mark.parametrize("name", [*SIGNATURES, *MEGATRON])
def test_arguments_and_defaults_are_those_of_the_packages(name):
    of = types.SimpleNamespace(megatron=megatron) if name in MEGATRON else deep_ep
    assert list(arguments(name, of).items()) == list({**SIGNATURES, **MEGATRON}[name].items())


def tokens(rank):
    return 0 if rank == 1 else 5 + rank


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("align, sync", [(1, True), (8, False)])
def test_compact_rows(align, sync, kind, world):
    def script():
        group = resolve()
        rank, experts = group.rank, SHARE * world
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MOST, hidden=HIDDEN, num_topk=K)
        rows, every = coming(rank, world, tokens)
        x, ids, weights = every[rank]
        sent = fp8(x) if kind == "fp8" else x
        stats = torch.zeros(SHARE, dtype=torch.int32)
        got, got_ids, got_weights, handle, event = buffer.dispatch(
            sent, ids, weights, stats, experts, expert_alignment=align, do_cpu_sync=sync, async_with_compute_stream=True,
            previous_event=buffer.capture(), allocate_on_comm_stream=True)
        event.current_stream_wait()
        assert handle.topk_idx is not ids and handle.num_recv_tokens == (len(rows) if sync else world * MOST)
        n = len(rows)
        counts = [sum(local.count(e) for _, _, local in rows) for e in range(SHARE)]
        wide = [-(-count // align) * align for count in counts]
        assert stats.tolist() == counts and handle.num_recv_tokens_per_expert_list == (wide if sync else [])
        assert handle.psum_num_recv_tokens_per_expert.tolist() == [sum(wide[:e + 1]) for e in range(SHARE)]
        assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == [sum(s <= r for s, _, _ in rows) for r in range(world)]
        assert handle.recv_src_metadata[:n, 0].tolist() == [source * MOST + token for source, token, _ in rows]
        assert got_ids[:n].tolist() == [local for _, _, local in rows] and bool((got_ids[n:] == -1).all())
        assert got_weights[:n].tolist() == [[w if e >= 0 else 0.0 for e, w in zip(local, every[source][2][token].tolist())]
                                            for source, token, local in rows]
        values = plain(got)[:n]
        for row, (source, token, _) in zip(values, rows):
            assert near(row, every[source][0][token].float()) < 1e-5
        again, again_ids, nothing, same, _ = buffer.dispatch(sent, handle=handle)
        assert same is handle and nothing is None and torch.equal(plain(again)[:n], values) and torch.equal(again_ids, got_ids)
        y = torch.zeros_like(plain(got)).to(BF16)
        y[:n] = values.to(BF16)
        bias = random_tensor(*x.shape, dtype=BF16, seed=7)
        back, back_weights, _ = buffer.combine(y, handle, got_weights, bias)
        inside = torch.stack([(ids // SHARE == r).any(1) & True for r in range(world)]).sum(0)
        assert near(back, inside[:, None] * x.float() + bias.float()) < (1e-3 if kind == "fp8" else 5e-6)
        assert torch.equal(back_weights, torch.where(ids >= 0, weights, 0.0))

    run_ranks(script, world, seed=world)


@pytest.mark.one
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("align, sync", [(1, True), (8, False), (8, True)])
def test_rows_by_expert(align, sync, kind, world):
    def script():
        group = resolve()
        rank, experts = group.rank, SHARE * world
        buffer = deep_ep.ElasticBuffer(group, num_max_tokens_per_rank=MOST)
        rows, every = coming(rank, world, tokens)
        x, ids, weights = every[rank]
        sent = fp8(x) if kind == "fp8" else x
        options = dict(do_expand=True, do_zero_padding=True, use_tma_aligned_col_major_sf=True)
        got, nothing, got_weights, handle, _ = buffer.dispatch(sent, ids, weights, num_experts=experts, expert_alignment=align,
                                                               do_cpu_sync=sync, do_handle_copy=False, **options)
        assert nothing is None and handle.topk_idx is ids
        counts = [sum(local.count(e) for _, _, local in rows) for e in range(SHARE)]
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == counts
        expected, begin = {}, 0
        for e in range(SHARE):
            of = [(source, token, local.index(e)) for source, token, local in rows if e in local]
            expected.update({begin + i: who for i, who in enumerate(of)})
            assert int(handle.psum_num_recv_tokens_per_expert[e]) == begin + len(of)
            begin += -(-len(of) // align) * align
        values = plain(got)
        if sync:
            assert handle.num_expanded_tokens == begin == len(values) == len(got_weights)
        if kind == "fp8" and len(got[1]):
            assert got[1].stride(0) == 1 and got[1].stride(1) % 4 == 0
        for spot in range(begin):
            if spot in expected:
                source, token, j = expected[spot]
                assert near(values[spot], every[source][0][token].float()) < 1e-5
                assert float(got_weights[spot]) == float(every[source][2][token, j])
            else:
                assert not values[spot].any() and not got_weights[spot]
        spots = handle.recv_src_metadata[:len(rows), 2:].tolist()
        assert handle.recv_src_metadata[:len(rows), 0].tolist() == [source * MOST + token for source, token, _ in rows]
        assert {spot: who for (source, token, local), line in zip(rows, spots) for j, spot in enumerate(line)
                if spot >= 0 for who in [(source, token, j)]} == expected
        again, _, again_weights, _, _ = buffer.dispatch(sent, topk_weights=weights, handle=handle, **options)
        assert torch.equal(plain(again)[:begin], values[:begin]) and torch.equal(again_weights[:begin], got_weights[:begin])
        back, back_weights, event = buffer.combine(values.to(BF16), handle, got_weights, async_with_compute_stream=True)
        event.wait()
        chosen = (ids >= 0).sum(1)[:, None]
        assert near(back, chosen * x.float()) < (1e-3 if kind == "fp8" else 5e-6)
        assert torch.equal(back_weights, torch.where(ids >= 0, weights, 0.0))

    run_ranks(script, world, seed=world)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_waits_for_both_events_on_the_stream_on_which_it_runs(is_async):
    class Event:
        """Notes which streams wait for it."""
        def __init__(self):
            self.waits = []

        def current_stream_wait(self):
            self.waits.append("current")

        def wait_on(self, stream):
            self.waits.append(stream)

    def script():
        buffer = deep_ep.ElasticBuffer(None, num_max_tokens_per_rank=4)
        x, ids, _ = given(resolve().rank, 4, 4)
        first, second, third, fourth = (Event() for _ in range(4))
        got, _, _, handle, _ = buffer.dispatch(x, ids, num_experts=4, previous_event=first, previous_event_before_epilogue=second,
                                               async_with_compute_stream=is_async)
        buffer.combine(got, handle, previous_event=third, previous_event_before_epilogue=fourth,
                       async_with_compute_stream=is_async)
        stream = buffer.get_comm_stream() if is_async else "current"
        assert [event.waits for event in (first, second, third, fourth)] == 4 * [[stream]]
        triton_dist.synchronize()

    run_ranks(script, 2)


def test_what_cannot_be_done_names_the_argument():
    def script():
        group = resolve()
        with pytest.raises(UnsupportedFeature, match="^num_cpu_bytes: expected 0"):
            deep_ep.ElasticBuffer(group, num_cpu_bytes=1 << 21)
        buffer = deep_ep.ElasticBuffer(group, allow_multiple_reduction=False, explicitly_destroy=True)
        x, ids, weights = given(group.rank, 4, 4)
        options = dict(num_experts=4, num_max_tokens_per_rank=4)
        got, _, _, handle, _ = buffer.dispatch(x, ids, do_expand=True, **options)
        for name, kind, call in (
            ("num_max_tokens_per_rank", InvalidArgument, lambda: buffer.dispatch(x, ids, num_experts=4)),
            ("topk_idx", InvalidArgument, lambda: buffer.dispatch(x)),
            ("topk_idx", InvalidArgument, lambda: buffer.dispatch(x, ids, handle=handle)),
            ("do_cpu_sync", InvalidArgument, lambda: buffer.dispatch(x, handle=handle, do_cpu_sync=True)),
            ("expert_alignment", InvalidArgument, lambda: buffer.dispatch(x, handle=handle, expert_alignment=4)),
            ("do_expand", InvalidArgument, lambda: buffer.dispatch(x, handle=handle)),
            ("do_zero_padding", InvalidArgument, lambda: buffer.dispatch(x, ids, do_zero_padding=True, **options)),
            ("allow_multiple_reduction", UnsupportedFeature, lambda: buffer.combine(got, handle)),
            ("handle", InvalidArgument, lambda: buffer.combine(got, (1, 2))),
        ):
            with pytest.raises(kind, match=f"^{name}: expected"):
                call()
        with pytest.raises(AttributeError, match="pp_send: this ElasticBuffer has dispatch and combine only"):
            buffer.pp_send(x, 1)
        assert not hasattr(buffer, "agrs_new_session") and buffer.get_physical_domain_size() == (1, 2)
        assert buffer.get_buffer_size_hint(group, 4, 64) % 2**21 == 0 and buffer.get_theoretical_num_sms(4, 2) % 2 == 0
        buffer.barrier()
        buffer.destroy()
        with pytest.raises(InvalidArgument, match="one that was destroyed"):
            buffer.dispatch(x, ids, **options)

    run_ranks(script, 2)


# -- Megatron ------------------------------------------------------------------------------------------------------------
@pytest.mark.one
@pytest.mark.parametrize("is_async", [False, True])
def test_megatrons_functions_and_their_gradients(is_async):
    """Loss: sum over tokens of g * sum over its choices of prob * 2 * x. So its gradients are known."""
    def script():
        group = resolve()
        rank, world = group.rank, group.size
        rows, every = coming(rank, world, tokens)
        x, ids, probs = every[rank]
        x, probs = x.float().requires_grad_(), probs.clone().requires_grad_()
        got, got_ids, got_probs, counts, handle = megatron.fused_dispatch(x, ids, probs, SHARE * world, group, is_async)
        assert counts.device.type == "cpu"
        assert counts.tolist() == [sum(local.count(e) for _, _, local in rows) for e in range(SHARE)]
        assert got_ids.tolist() == [local for _, _, local in rows]
        y = 2 * got * torch.where(got_ids >= 0, got_probs, 0.0).sum(1, keepdim=True)
        out, nothing = megatron.fused_combine(y, group, handle, is_async)
        triton_dist.synchronize()
        assert nothing is None
        weight = torch.where(ids >= 0, probs, 0.0).sum(1, keepdim=True)
        torch.testing.assert_close(out, 2 * weight * x, rtol=1e-5, atol=1e-5)
        g = random_tensor(*x.shape, dtype=F32, seed=rank + 9)
        out.backward(g)
        triton_dist.synchronize()
        torch.testing.assert_close(x.grad, 2 * weight.detach() * g, rtol=1e-5, atol=1e-5)
        to_probs = torch.where(ids >= 0, 2 * (x * g).sum(1, keepdim=True).detach(), 0.0)
        torch.testing.assert_close(probs.grad, to_probs, rtol=1e-4, atol=1e-4)
        with pytest.raises(InvalidArgument, match="token_probs: expected a float32 tensor, found torch.bfloat16"):
            megatron.fused_dispatch(x, ids, probs.to(BF16), SHARE * world, group)

    run_ranks(script, 3)


def test_install_puts_them_in_megatrons_modules(monkeypatch):
    names = ("megatron", "megatron.core", "megatron.core.transformer", "megatron.core.transformer.moe", *megatron._MODULES)
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    megatron.install()
    for name in megatron._MODULES:
        assert sys.modules[name].fused_dispatch is megatron.fused_dispatch
        assert sys.modules[name].set_deepep_num_sms is megatron.set_deepep_num_sms
    megatron.set_deepep_num_sms(24)
    assert deep_ep.Buffer.num_sms == 24
    megatron.set_deepep_num_sms(20)
    assert megatron.hybrid_ep_dispatch is None


@pytest.mark.parametrize("tokens", [3, 0])
def test_a_rank_to_which_nothing_is_sent(tokens):
    """It has no rows, nor weights of them, in any of the interfaces; nor has any rank if there are no tokens."""
    def script():
        x, weights = torch.full((tokens, HIDDEN), 2.0, dtype=BF16), torch.full((tokens, 2), 0.5)
        ids = torch.zeros(tokens, 2, dtype=torch.int64)
        ids[:, 1] = -1                                          # all go to expert 0, which rank 0 has
        coming = (2 * tokens if resolve().rank == 0 else 0)
        wanted = torch.cat([weights[:, :1], 0 * weights[:, 1:]], 1)
        elastic, buffer = deep_ep.ElasticBuffer(None, num_max_tokens_per_rank=4), deep_ep.Buffer(None)
        for expands in (False, True):
            rows, _, given, handle, _ = elastic.dispatch(x, topk_idx=ids, topk_weights=weights, num_experts=4, do_expand=expands)
            back, back_weights, _ = elastic.combine(rows, handle, topk_weights=given)
            assert len(rows) == coming and torch.equal(back, x) and torch.equal(back_weights, wanted)
        _, _, per_expert, inside, _ = buffer.get_dispatch_layout(ids, 4)
        rows, _, given, counts, handle, _ = buffer.dispatch(x, topk_idx=ids, topk_weights=weights, is_token_in_rank=inside,
                                                            num_tokens_per_expert=per_expert)
        back, back_weights, _ = buffer.combine(rows, handle, topk_weights=given)
        assert counts == [coming, 0] and torch.equal(back, x) and torch.equal(back_weights, wanted)
        rows, _, handle, *_ = buffer.low_latency_dispatch(x, ids, 4, 4, use_fp8=False)
        back, *_ = buffer.low_latency_combine(rows, ids, weights, handle)
        assert torch.equal(back, x / 2)
        leaves = x.float().requires_grad_(), weights.clone().requires_grad_()
        rows, _, given, counts, handle = megatron.fused_dispatch(leaves[0], ids, leaves[1], 4, None)
        out, _ = megatron.fused_combine(rows * given[:, :1], None, handle)
        out.sum().backward()
        triton_dist.synchronize()
        assert counts.tolist() == [coming, 0] and all(leaf.grad.shape == leaf.shape for leaf in leaves)
        assert bool((leaves[0].grad == 0.5).all()) and bool((leaves[1].grad[:, 0] == 2.0 * HIDDEN).all())
    run_ranks(script, 2)
