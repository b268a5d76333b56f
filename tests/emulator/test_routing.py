# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Which experts the router chooses: as one kernel the same as torch, in the same order and with the same weights."""
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from scenarios import capturing, captures_by_rank  # noqa: F401
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from triton_dist.backends.emulator.worlds.virtual import run_ranks
from triton_dist.compat.torch import neg_view
from triton_dist.layers import TopKRouter, _routing
from triton_dist.layers._routing import choose_kernel
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


def test_torch_chooses_what_the_kernel_does_not_take():
    logits = torch.zeros(3, 8)
    assert not _routing.supports(logits, 1), "there is no world"

    def script():
        assert _routing.supports(logits, 1) and _routing.supports(torch.zeros(3, 8, requires_grad=True), 1)
        assert not _routing.supports(logits.double(), 1) and not _routing.supports(torch.zeros(3, 12), 4)
        assert not _routing.supports(torch.zeros(3, 4096), 1) and not _routing.supports(torch.zeros(2, 3, 8), 1)
        router = router_of(8, 2)
        x = random_tensor(6, H, dtype=torch.float32, seed=3)
        for found, wanted in zip(router(x.view(2, 3, H)), router(x)):
            torch.testing.assert_close(found, wanted.view(2, 3, 2))
    run_ranks(script, 1)


def test_the_same_experts_are_chosen_with_and_without_gradients():
    """Of scores that are equal too, which those of bf16 often are: a checkpoint computes what it has dropped with gradients."""
    def script():
        weight, x = torch.randint(-1, 2, (64, H)).bfloat16(), torch.randint(-1, 2, (40, H)).bfloat16()
        router = TopKRouter(weight.requires_grad_(), 6, score="sigmoid", groups=8, top_groups=3, bias=torch.randn(64).round())
        ids, weights = router(x)
        with torch.no_grad():
            wanted = by_kernel(router, x)
        assert torch.equal(ids, wanted[0])
        torch.testing.assert_close(weights, wanted[1], rtol=1e-5, atol=1e-7)
        weights.square().sum().backward()
        scores = (x.float() @ (of_torch := weight.detach().float().requires_grad_()).t()).bfloat16().float().sigmoid()
        kept = scores.gather(-1, ids.long())
        (kept / (kept.sum(-1, keepdim=True) + 1e-20)).square().sum().backward()
        torch.testing.assert_close(router.weight.grad.float(), of_torch.grad, rtol=2**-6, atol=2**-7)
    run_ranks(script, 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_follows_tensors_through_torch_follows_them_through_the_router():
    """torch.jit.trace, torch.func, make_fx, torch.fx and forward-mode AD see torch's operators and no kernels."""
    def script():
        router, (x, other, along) = router_of(8, 2).requires_grad_(False), (
            random_tensor(3, H, dtype=torch.float32, seed=seed) for seed in (3, 4, 5))
        wanted = router(other)
        for recorded in (torch.jit.trace(router, (x, ), check_trace=False), torch.fx.symbolic_trace(router),
                         make_fx(lambda x: router(x))(x)):
            assert torch.equal(recorded(other)[0], wanted[0])
            torch.testing.assert_close(recorded(other)[1], wanted[1])
        both = torch.vmap(router)(torch.stack([x, other]))
        assert torch.equal(both[0][1], wanted[0])
        step = 1e-3
        difference = (router(other + step * along)[1] - router(other - step * along)[1]) / (2 * step)
        _, tangent = torch.func.jvp(lambda x: router(x)[1], (other, ), (along, ))
        torch.testing.assert_close(tangent, difference, rtol=1e-2, atol=1e-3)
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(router(forward_ad.make_dual(other, along))[1])
            torch.testing.assert_close(found.tangent, tangent)
    run_ranks(script, 1)


def test_a_negated_view_may_be_the_bias():
    def script():
        router = router_of(8, 2, bias=True)
        x = random_tensor(4, H, dtype=torch.float32, seed=3)
        negated = TopKRouter(router.weight, 2, bias=neg_view(-router.bias))
        assert torch.equal(by_kernel(negated, x)[0], by_kernel(router, x)[0])
    with torch.no_grad():
        run_ranks(script, 1)


def test_inside_graph_capture_no_kernel_is_compiled(captures_by_rank):
    """torch chooses there until the kernel has run outside, with tokens of that dtype."""
    def script():
        router = router_of(24, 3)
        x = random_tensor(4, H, dtype=torch.float32, seed=3)
        with capturing(), mock.patch.object(choose_kernel, "run", side_effect=AssertionError):
            before = router(x)
        found = router(x)
        with capturing(), mock.patch.object(choose_kernel, "run", side_effect=RuntimeError("launched")), \
                pytest.raises(RuntimeError, match="launched"):
            router(x)
        assert torch.equal(found[0], before[0])
    with torch.no_grad():
        run_ranks(script, 1)


def test_inside_graph_capture_no_kernel_is_compiled_for_another_alignment(captures_by_rank):
    """A binary for addresses of whole 16 bytes does not serve others."""
    def script():
        memory, options = random_tensor(4 * 60 + 1, dtype=torch.float32, seed=3), dict(
            sigmoid=True, normalize=True, scale=1.0, groups=1, top_groups=1, top2=False)
        with mock.patch.object(_routing, "_compiled", set()):
            for begin in (0, 1):
                logits = memory[begin:begin + 4 * 60].view(4, 60)
                with capturing():
                    assert _routing.chosen(logits, 4, None, **options) is None
                assert _routing.chosen(logits, 4, None, **options) is not None
                with capturing():
                    assert _routing.chosen(logits, 4, None, **options) is not None
    run_ranks(script, 1)
