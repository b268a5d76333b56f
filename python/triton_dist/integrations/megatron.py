# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Megatron-Core's fused_dispatch and fused_combine, which its MoEFlexTokenDispatcher calls, over this package.

    from triton_dist.integrations import megatron
    megatron.install()                          # before the model is built: Megatron's dispatcher takes these functions

It needs DeepEP's backend of the flex dispatcher (moe_token_dispatcher_type "flex"). Those of HybridEP and NCCL EP are not here:
hybrid_ep_dispatch and hybrid_ep_combine are None, as in a Megatron without them.
"""
import importlib
from typing import Any

import torch

from triton_dist.integrations.deep_ep import Buffer
from triton_dist.runtime.errors import InvalidArgument

hybrid_ep_dispatch = hybrid_ep_combine = None

_MODULES = ("megatron.core.transformer.moe.fused_a2a", "megatron.core.transformer.moe.token_dispatcher")
_NAMES = ("fused_dispatch", "fused_combine", "set_deepep_num_sms")


class _Dispatch(torch.autograd.Function):
    """Its gradient sends gradients of rows and of weights back, where they are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, indices: torch.Tensor, probs: torch.Tensor, experts: int, group: Any,
                is_async: bool) -> tuple:
        buffer = Buffer(group)
        _, _, per_expert, inside, _ = buffer.get_dispatch_layout(indices, experts)
        rows, ids, weights, counts, handle, event = buffer.dispatch(x,
                                                                    topk_idx=indices,
                                                                    topk_weights=probs,
                                                                    is_token_in_rank=inside,
                                                                    num_tokens_per_expert=per_expert,
                                                                    async_finish=is_async)
        event.current_stream_wait()
        ctx.buffer, ctx.handle, ctx.is_async = buffer, handle, is_async
        ctx.mark_non_differentiable(ids)
        return rows, ids, weights, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx: Any, rows: torch.Tensor, _: Any, weights: torch.Tensor, *__: Any) -> tuple:
        to_x, to_probs, event = ctx.buffer.combine(rows.contiguous(), ctx.handle, topk_weights=weights.float(),
                                                   async_finish=ctx.is_async)
        event.current_stream_wait()
        return to_x, None, to_probs, None, None, None


class _Combine(torch.autograd.Function):
    """Its gradient is a dispatch by the same routing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, handle: Any, is_async: bool) -> torch.Tensor:
        ctx.buffer, ctx.handle, ctx.is_async = Buffer(group), handle, is_async
        out, _, event = ctx.buffer.combine(x.contiguous(), handle, async_finish=is_async)
        event.current_stream_wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        rows, *_, event = ctx.buffer.dispatch(grad.contiguous(), handle=ctx.handle, async_finish=ctx.is_async)
        event.current_stream_wait()
        return rows, None, None, None


def fused_dispatch(x: torch.Tensor, token_indices: torch.Tensor, token_probs: torch.Tensor, num_experts: int, group: Any,
                   async_finish: bool = False, allocate_on_comm_stream: bool = False) -> tuple:
    """Tokens to the ranks that have their experts. Differentiable in x and token_probs. Collective; the host waits for counts.

    Args:
        x: [T, H]; T may differ over the ranks, and be 0.
        token_indices: int32 or int64 [T, K], -1 for no choice.
        token_probs: float32 [T, K].
        num_experts: E, a multiple of the number of ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        async_finish: runs on a stream of its own, for which the current one waits.
        allocate_on_comm_stream: has no meaning here.

    Returns:
        (rows, local expert numbers [rows, K] with -1 for those of others, their probabilities, int64 [E / W] on the CPU rows of
        each local expert, a handle).
    """
    if not isinstance(token_probs, torch.Tensor) or token_probs.dtype != torch.float32:
        Buffer(group).refuse(InvalidArgument(
            "token_probs: expected a float32 tensor, found "
            f"{getattr(token_probs, 'dtype', type(token_probs).__name__)}; convert it with .float()"))
    return _Dispatch.apply(x.contiguous(), token_indices, token_probs, num_experts, group, async_finish)


def fused_combine(x: torch.Tensor, group: Any, handle: Any, async_finish: bool = False,
                  allocate_on_comm_stream: bool = False) -> tuple:
    """The sums of rows back to their tokens. Differentiable in x. Collective.

    Args:
        x: a row for each that the dispatch gave.
        group, handle: of the dispatch.
        async_finish, allocate_on_comm_stream: as in fused_dispatch.

    Returns:
        ([T, H], None).
    """
    return _Combine.apply(x, group, handle, async_finish), None


def set_deepep_num_sms(num_sms: int) -> None:
    """Keeps an even number, which has no effect: see Buffer.set_num_sms."""
    Buffer.set_num_sms(num_sms)


def install() -> None:
    """Puts these functions in place of those of megatron.core, which has to be installed."""
    for name in _MODULES:
        module = importlib.import_module(name)
        for function in _NAMES:
            setattr(module, function, globals()[function])
