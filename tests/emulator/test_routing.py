# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The router's choice as one kernel, beside torch's: the same experts in the same order, and the same weights."""
from types import SimpleNamespace

import pytest
import torch

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.layers import TopKRouter, _routing
from triton_dist.testing import random_tensor

H = 32
# (experts, top_k, options of the router): DeepSeek-V3 and V2, Qwen3-MoE, Mixtral, and numbers that are no powers of two
FORMS = [(256, 8, dict(score="sigmoid", groups=8, top_groups=4, scale=2.5, bias=True)),
         (64, 6, dict(groups=8, top_groups=3, group_score="max", normalize=False, scale=16.0)), (128, 8, {}), (8, 2, {}),
         (60, 4, dict(bias=True)), (5, 5, dict(score="sigmoid")), (16, 5, dict(groups=16, top_groups=5)),
         (600, 10, dict(score="sigmoid", bias=True))]


def router_of(experts, top_k, bias=False, dtype=torch.float32, **options):
    weight = random_tensor(experts, H, dtype=dtype, seed=1) / H**0.5
    return TopKRouter(weight, top_k, bias=random_tensor(experts, dtype=torch.float32, seed=2) if bias else None, **options)


def by_torch(router, x, monkeypatch):
    """With torch's kernels. Its topk does not say which of equal scores come first, but a stable sort does."""
    def first(values, k, dim):
        found = values.sort(dim=dim, descending=True, stable=True)
        return SimpleNamespace(values=found.values[..., :k], indices=found.indices[..., :k])
    with monkeypatch.context() as patch:
        patch.setattr(_routing, "supports", lambda *_: False)
        patch.setattr(torch.Tensor, "topk", first)
        return router(x)


def by_kernel(router, x):
    """What the router gives, twice, after a look that it is the kernel that runs."""
    logits = torch.nn.functional.linear(x, router.weight)
    assert _routing.supports(logits, router.groups)
    found = router(x)
    assert all(torch.equal(a, b) for a, b in zip(found, router(x)))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("experts, top_k, options", FORMS, ids=[f"{e}-{k}" for e, k, _ in FORMS])
def test_it_chooses_as_torch_does(experts, top_k, options, dtype, monkeypatch):
    def script():
        router = router_of(experts, top_k, dtype=dtype, **options)
        for tokens in (0, 1, 21):
            x = random_tensor(tokens, H, dtype=dtype, seed=3 + tokens)
            (ids, weights), wanted = by_kernel(router, x), by_torch(router, x, monkeypatch)
            assert ids.dtype is torch.int32 and weights.dtype is torch.float32
            assert torch.equal(ids, wanted[0])
            torch.testing.assert_close(weights, wanted[1], rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        run_ranks(script, 1)


def test_of_equal_scores_the_first_experts_are_chosen():
    def script():
        router = TopKRouter(torch.zeros(12, H), 5)
        ids, weights = by_kernel(router, torch.ones(3, H))
        assert ids.tolist() == [[0, 1, 2, 3, 4]] * 3
        torch.testing.assert_close(weights, torch.full((3, 5), 0.2))
        grouped = TopKRouter(torch.zeros(16, H), 4, groups=4, top_groups=2, score="sigmoid")
        assert by_kernel(grouped, torch.ones(1, H))[0].tolist() == [[0, 1, 2, 3]]
    with torch.no_grad():
        run_ranks(script, 1)


def test_torch_chooses_where_gradients_are_wanted_or_there_is_no_world():
    router = router_of(8, 2)
    router.weight.requires_grad_()
    logits = torch.zeros(3, 8)
    assert not _routing.supports(logits, 1)

    def script():
        assert _routing.supports(logits, 1) and not _routing.supports(torch.zeros(3, 8, requires_grad=True), 1)
        assert not _routing.supports(logits.double(), 1) and not _routing.supports(torch.zeros(3, 12), 4)
        assert not _routing.supports(torch.zeros(3, 4096), 1)
        router(random_tensor(4, H, dtype=torch.float32, seed=3))[1].sum().backward()
        assert router.weight.grad is not None
    run_ranks(script, 1)
