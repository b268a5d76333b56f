# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Calls of adapters that one rank refuses, or all: what each rank is told, and whether the world can be used afterwards."""
import pytest
import torch
from experts import BF16, F32

import triton_dist
from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.integrations import deep_ep, megatron
from triton_dist.integrations.flashinfer import AllReduceFusionPattern, allreduce_fusion, create_allreduce_fusion_workspace
from triton_dist.ops import all_reduce
from triton_dist.runtime.errors import CollectiveMismatch, InvalidArgument, TritonDistError
from triton_dist.runtime.groups import resolve

EXPERTS, TOKENS, HIDDEN = 4, 3, 128


class Given:
    """What the calls of one rank take."""

    def __init__(self):
        self.buffer, self.elastic = deep_ep.Buffer(None), deep_ep.ElasticBuffer(None, num_max_tokens_per_rank=4)
        self.x = torch.ones(TOKENS, HIDDEN, dtype=BF16)
        self.ids, self.weights = torch.tensor([[0, 3]] * TOKENS), torch.ones(TOKENS, 2)

    def layout(self):
        _, _, per_expert, inside, _ = self.buffer.get_dispatch_layout(self.ids, EXPERTS)
        return dict(is_token_in_rank=inside, num_tokens_per_expert=per_expert)

    def dispatch(self, **changes):
        return self.buffer.dispatch(**dict(dict(x=self.x, topk_idx=self.ids, topk_weights=self.weights, **self.layout()),
                                           **changes))

    def low_latency(self, **changes):
        return self.buffer.low_latency_dispatch(**dict(dict(x=self.x, topk_idx=self.ids, num_max_dispatch_tokens_per_rank=4,
                                                            num_experts=EXPERTS, use_fp8=False), **changes))

    def low_latency_combine(self, **changes):
        rows, _, handle, *_ = self.low_latency()
        return self.buffer.low_latency_combine(**dict(dict(x=rows, topk_idx=self.ids, topk_weights=self.weights, handle=handle),
                                                      **changes))

    def combine(self, **changes):
        rows, _, weights, _, handle, _ = self.dispatch()
        return self.buffer.combine(**dict(dict(x=rows, handle=handle, topk_weights=weights), **changes))

    def expanded(self, **changes):
        return self.elastic.dispatch(**dict(dict(x=self.x, topk_idx=self.ids, num_experts=EXPERTS), **changes))


HOST_WAITS = {          # what one rank passes: what it is told
    "another dtype of weights": (lambda g: g.dispatch(topk_weights=g.weights.double()), r"topk_weights: expected float32 \[3"),
    "fewer weights": (lambda g: g.dispatch(topk_weights=g.weights[:1]), r"topk_weights: .*found torch.float32 of shape \[1"),
    "weights without experts": (lambda g: g.dispatch(topk_idx=None), "topk_weights: expected None"),
    "fewer experts": (lambda g: g.dispatch(topk_idx=g.ids[:1]), r"topk_idx: .*found shape \[1, 2\]"),
    "experts of another dtype": (lambda g: g.dispatch(topk_idx=g.ids.float()), "topk_idx: .*found torch.float32"),
    "an alignment of 0": (lambda g: g.dispatch(expert_alignment=0), "expert_alignment: expected .* at least 1, found 0"),
    "a negative alignment": (lambda g: g.dispatch(expert_alignment=-4), "expert_alignment: .*found -4"),
    "no layout": (lambda g: g.dispatch(is_token_in_rank=None), "is_token_in_rank: .*found None"),
    "a layout of numbers": (lambda g: g.dispatch(is_token_in_rank=torch.ones(3, 2)), "is_token_in_rank: expected torch.bool"),
    "a layout of other tokens": (lambda g: g.dispatch(is_token_in_rank=torch.ones(1, 2, dtype=torch.bool)),
                                 r"is_token_in_rank: expected shape \[3, 2\]"),
    "an odd number of experts": (lambda g: g.dispatch(num_tokens_per_expert=torch.zeros(5, dtype=torch.int32)), "num_experts: "),
    "rows without scales": (lambda g: g.dispatch(x=(g.x, None)), r"x\[1\]: expected a torch.Tensor"),
    "no rows": (lambda g: g.dispatch(x=None), "x: expected a torch.Tensor"),
    "Megatron's probabilities in another dtype": (
        lambda g: megatron.fused_dispatch(g.x, g.ids, g.weights.double(), EXPERTS, None), "token_probs: expected a float32"),
}


@pytest.mark.parametrize("what", HOST_WAITS)
def test_a_dispatch_that_one_rank_refuses_is_made_by_none_and_the_world_goes_on(what):
    call, said = HOST_WAITS[what]

    def script():
        given, rank = Given(), resolve().rank
        for one in (0, 1):
            with pytest.raises(InvalidArgument, match=said if rank == one else "another rank has refused this call"):
                call(given) if rank == one else given.dispatch()
        with pytest.raises(InvalidArgument, match=said):
            call(given)
        assert given.dispatch()[0].shape == (2 * TOKENS, HIDDEN)
    run_ranks(script, 2)


ALL = {                 # what all ranks pass: what they are told
    "too few rows in all": (lambda g: g.dispatch(num_worst_tokens=5), "num_worst_tokens: .*found 5"),
    "weights of a sum in another dtype": (lambda g: g.combine(topk_weights=torch.ones(6, 2, dtype=BF16)), "topk_weights: "),
    "a bias of other rows": (lambda g: g.combine(bias=g.x[:1]), r"bias: expected shape \[3, 128\]"),
    "three biases": (lambda g: g.combine(bias=(g.x,) * 3), "bias: .*a tuple of 3"),
    "low latency: experts of fewer tokens": (lambda g: g.low_latency_combine(topk_idx=g.ids[:1], topk_weights=g.weights[:1]),
                                             r"topk_idx: .*found shape \[1, 2\]"),
    "low latency: no weights": (lambda g: g.low_latency_combine(topk_weights=None), "topk_weights: .*found NoneType"),
    "low latency: a row": (lambda g: g.low_latency(x=g.x[0]), "x: expected 2 dimensions"),
    "low latency: a name": (lambda g: g.low_latency(num_max_dispatch_tokens_per_rank="4"), "num_max.*found '4'"),
    "low latency: too many tokens": (lambda g: g.low_latency(num_max_dispatch_tokens_per_rank=2), "num_max.*, 3, found 2"),
    "a layout of a list": (lambda g: g.buffer.get_dispatch_layout([[0, 3]], EXPERTS), "topk_idx: .*found list"),
    "a layout of fractions": (lambda g: g.buffer.get_dispatch_layout(g.weights, EXPERTS), "topk_idx: .*found torch.float32"),
    "elastic: weights of other rows": (lambda g: g.elastic.combine(torch.ones(6, HIDDEN), g.expanded(do_expand=True)[3],
                                                                   topk_weights=torch.ones(5)), r"topk_weights: .* \[6\], found"),
    "low latency: counts of other experts": (
        lambda g: g.low_latency(cumulative_local_expert_recv_stats=torch.zeros(1, dtype=torch.int32)),
        r"cumulative_local_expert_recv_stats: expected None or int32 \[2\], found torch.int32 of shape \[1\]"),
    "elastic: counts as fractions": (lambda g: g.expanded(cumulative_local_expert_recv_stats=torch.zeros(2)),
                                     r"cumulative_local_expert_recv_stats: .*found torch.float32 of shape \[2\]"),
    "elastic: experts by name": (lambda g: g.expanded(num_experts="4"), "num_experts: .*found '4'"),
    "elastic: a negative alignment": (lambda g: g.expanded(expert_alignment=-4), "expert_alignment: .*found -4"),
}


def test_what_all_ranks_refuse_leaves_the_world_as_it_was():
    def script():
        given = Given()
        for call, said in ALL.values():
            with pytest.raises(InvalidArgument, match=said):
                call(given)
            assert bool((given.low_latency_combine()[0] == 2).all())
        assert bool((given.combine(bias=(given.x, None))[0] == 3).all())
    run_ranks(script, 2)


def fused(code):
    x = torch.ones(2, 64, dtype=BF16)
    space = create_allreduce_fusion_workspace(max_token_num=4, hidden_dim=64, dtype=BF16)
    return allreduce_fusion(x, space, code, residual_in=x, rms_gamma=x[0])


ONE = {                 # what most ranks call, what one of them does, what that is told
    "low latency": (Given.low_latency, lambda g: g.low_latency(num_experts=5), "num_experts: .*found 5"),
    "low latency combine": (Given.low_latency_combine, lambda g: g.low_latency_combine(use_logfmt=True), "use_logfmt: "),
    "combine": (Given.combine, lambda g: g.combine(handle=None), "handle: .*found NoneType"),
    "elastic": (Given.expanded, lambda g: g.expanded(num_experts=None), "topk_idx: expected it and num_experts"),
    "a fixed number": (lambda g: g.dispatch(num_worst_tokens=8), lambda g: g.dispatch(num_worst_tokens=5), "found 5"),
    "flashinfer": (lambda g: fused(AllReduceFusionPattern.kARResidualRMSNorm),
                   lambda g: fused(AllReduceFusionPattern.kARResidualRMSNormFP4Quant), "pattern: kARResidualRMSNormFP4Quant"),
}


@pytest.mark.parametrize("what", ONE)
def test_peers_are_told_what_one_rank_refuses_and_later_calls_end_at_once(what):
    call, other, said = ONE[what]

    def script():
        given, one = Given(), resolve().rank == 1
        with pytest.raises(TritonDistError, match=said if one else f"refused: .*{said}"):
            other(given) if one else call(given)
            triton_dist.synchronize()
        for later in (given.dispatch, given.low_latency, given.expanded, lambda: all_reduce(torch.ones(2, dtype=F32)),
                      triton_dist.reset):
            with pytest.raises(CollectiveMismatch, match="refused"):
                later()
        triton_dist.synchronize()
        resolve().barrier()                 # before it, a peer may still store into this rank's heap
        if one:                             # this rank leaves alone: it does not wait for its peers
            triton_dist.finalize_distributed()
    run_ranks(script, 2)
