# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch with the first product of experts, and the last product with combine, as users call them."""
from typing import Any

import torch

from triton_dist.ops.calls.agree import refuse
from triton_dist.ops.dispatch_grouped_gemm.op import dispatch_grouped_gemm_rows
from triton_dist.ops.ep.calls import EPDispatched, brought, ep_combine, ep_dispatch
from triton_dist.ops.grouped_gemm.op import grouped_gemm
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import resolve


def dispatch_grouped_gemm(x: torch.Tensor,
                          topk_ids: torch.Tensor,
                          topk_weights: torch.Tensor | None,
                          weight: torch.Tensor,
                          *,
                          num_experts: int,
                          act: str | None = "silu_mul",
                          max_tokens: int | None = None,
                          group: Any = None,
                          method: str = "auto") -> tuple[torch.Tensor, EPDispatched]:
    """Sends each token to the ranks that have its experts, and multiplies it there by the weight of each of them.

    Gives the same bits as ep_dispatch followed by grouped_gemm. The fused methods multiply this rank's own rows while rows of
    other ranks travel. Collective over `group`. The host waits for nothing, so the call can be captured in graphs.

    Args:
        x: fp16, bf16 or fp32 [T, H]. If max_tokens is given, T may differ over the ranks, and be 0.
        topk_ids: int32 or int64 [T, K], as for ep_dispatch.
        topk_weights: contiguous float32 [T, K], or None: sent with the rows, for the combine.
        weight: [E / W, N, H] of x's dtype: those of this rank's experts.
        num_experts: E, a multiple of the number of ranks. The same on all ranks, and so are N and the arguments below.
        act: "silu_mul": as for grouped_gemm, then the result has N / 2 columns; or None.
        max_tokens: the most tokens that a rank may have; None: T, which is then the same on all ranks.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        method: "ws" (fused, with the Hopper core), "portable" (fused, with the Triton kernel), "unfused" (the two ops in turn) or
            "auto". "auto" is fused where the core can serve the call and an estimate says that this is at least 8 % faster than
            the two ops in turn. With TRITON_DIST_AUTOTUNE=1 the ways are measured instead.

    Returns:
        (h, came). `h` has a row for each choice, in the order (expert, source rank, token, choice). Rows after the last one
        are not written. `came` is the result of a dispatch with layout "expert", with h as its x. Pass it to
        grouped_gemm_combine or ep_combine.
        Gradients flow through x, topk_weights and weight. Calls with gradients run the two ops in turn.
        In graphs: run the same call once before capture. Raises InvalidArgument before anything is sent.

    Example:
        h, came = dispatch_grouped_gemm(x, ids, weights, w13, num_experts=64)
        x = grouped_gemm_combine(h, w2, came, residual=x)
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, topk_weights, weight)):
        return _in_turn(x, topk_ids, topk_weights, weight, num_experts, act, max_tokens, group, method)
    h, ids, weights, told, positions = dispatch_grouped_gemm_rows(x,
                                                                  topk_ids,
                                                                  topk_weights,
                                                                  weight,
                                                                  num_experts=num_experts,
                                                                  act=act,
                                                                  max_tokens=max_tokens,
                                                                  group=group,
                                                                  method=method)
    tokens = x.shape[0] if max_tokens is None else max_tokens
    outputs = h, None, ids, weights, told, positions, None
    return h, brought(outputs, topk_ids, topk_weights, num_experts, "expert", tokens, False, group)


def grouped_gemm_combine(h: torch.Tensor,
                         weight: torch.Tensor,
                         came: EPDispatched,
                         *,
                         bias: torch.Tensor | None = None,
                         residual: torch.Tensor | None = None,
                         out: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies each row by the weight of its expert, and sends the sums of choices back to the tokens.

    It is grouped_gemm, then ep_combine. Collective over the dispatch's group.

    Args:
        h: [rows, K], as dispatch_grouped_gemm gave it, or something with as many rows.
        weight: [E / W, H, K] of h's dtype: those of this rank's experts.
        came: of dispatch_grouped_gemm, or of ep_dispatch with layout "expert". Its weights of choices count.
        bias, residual, out: as for ep_combine.

    Returns:
        out [T, H]. Gradients flow through h, weight, the weights of choices, bias and residual.

    Example:
        x = grouped_gemm_combine(h, w2, came, residual=x)
    """
    if not isinstance(came, EPDispatched) or came.handle.layout != "expert":
        raise InvalidArgument("came: expected what dispatch_grouped_gemm gave, or a dispatch of layout 'expert', found "
                              f"{came.handle.layout if isinstance(came, EPDispatched) else type(came).__name__}")
    if isinstance(h, torch.Tensor) and (h.ndim != 2 or h.shape[0] != came.handle.room):
        error = InvalidArgument(f"h: expected {[came.handle.room, 'K']}, a row for each that the dispatch has room for, found "
                                f"shape {list(h.shape)}")
        refuse(resolve(came.handle.group), "grouped_gemm_combine", error)
        raise error
    y = grouped_gemm(h, weight, offsets=came.expert_offsets, counts=came.expert_rows)
    return ep_combine(y, came.handle, topk_weights=came.topk_weights, bias=bias, residual=residual, out=out)


def _in_turn(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None, weight: torch.Tensor, num_experts: int,
             act: str | None, max_tokens: int | None, group: Any, method: str) -> tuple[torch.Tensor, EPDispatched]:
    """With gradients."""
    if method not in ("auto", "unfused"):
        raise InvalidArgument(f"method: expected 'auto' or 'unfused' where gradients are wanted, found {method!r}")
    came = ep_dispatch(x,
                       topk_ids,
                       topk_weights,
                       num_experts=num_experts,
                       layout="expert",
                       max_tokens=max_tokens,
                       group=group)
    h = grouped_gemm(came.x, weight, offsets=came.expert_offsets, counts=came.expert_rows, act=act)
    return h, came
