# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Dispatch and combine as users call them: tensors with names, and a handle that leads the way back."""
import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from triton_dist.ops.ep_combine.op import ep_combine_rows
from triton_dist.ops.ep_dispatch.op import ep_dispatch_rows
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument
from triton_dist.runtime.groups import size_of
from triton_dist.runtime.state import state


@dataclass(frozen=True, eq=False)
class EPHandle:
    """What ep_combine needs to know about a dispatch. It may be used any number of times, also after other dispatches.

    Attributes:
        topk_ids: the argument of the dispatch itself, not a copy. Do not write to it while the handle is in use: a combine would
            wait for rows that nobody sends.
        told: int32 on the device: how many rows came, and from which tokens.
        positions: int32 [limit, K] or None: the row of each choice in the order of experts.
        limit: number of tokens that the result has room for.
        room: number of rows in the order of experts that fit; of all experts together for "masked", 0 for "compact".
        num_experts, max_tokens, layout, group: arguments of the dispatch.
    """
    topk_ids: torch.Tensor
    told: torch.Tensor
    positions: torch.Tensor | None
    limit: int
    room: int
    num_experts: int
    max_tokens: int
    layout: str
    group: Any


@dataclass(frozen=True, eq=False)
class EPDispatched:
    """The result of a dispatch. R is the number of rows that there is room for.

    Attributes:
        x: "compact" and "indexed": [R, H], one row for each token, in the order (source rank, token). "expert": one row for each
            choice, in the order of experts. "masked": [E / W, capacity, H].
        scales: float32, a row for each row of x; None if none were sent.
        topk_ids: int32 [R, K]: a row's experts, counted from this rank's first one; -1 for experts of other ranks and for rows
            that are not used.
        topk_weights: float32 [R, K]: their weights, 0 where topk_ids is -1; None if none were given.
        rows: int32 [1] on the device: number of tokens that came. If it is larger than R, the rest was cut off.
        expert_rows: int32 [E / W] on the device: choices of each of this rank's experts, including those cut off; None for
            "compact".
        expert_offsets: int32 [E / W + 1] on the device: where the rows of each expert begin, and the end; None for "compact". An
            end beyond the capacity of "expert" says that rows were cut off.
        positions: int32 [R, K]: for each choice its row in the order of experts, -1 if there is none; None for "compact".
        sources: "indexed": int32, for each row in the order of experts its row of x; not set between experts. Otherwise None.
        handle: for ep_combine.
    """
    x: torch.Tensor
    scales: torch.Tensor | None
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor | None
    rows: torch.Tensor
    expert_rows: torch.Tensor | None
    expert_offsets: torch.Tensor | None
    positions: torch.Tensor | None
    sources: torch.Tensor | None
    handle: EPHandle


def ep_dispatch(x: torch.Tensor,
                topk_ids: torch.Tensor,
                topk_weights: torch.Tensor | None = None,
                *,
                num_experts: int,
                scales: torch.Tensor | None = None,
                layout: str = "compact",
                align: int = 1,
                capacity: int | None = None,
                max_tokens: int | None = None,
                quant: str | None = None,
                group: Any = None,
                out: torch.Tensor | None = None,
                method: str = "auto") -> EPDispatched:
    """Sends each token to the ranks that have its experts, once to each. Collective over `group`.

    Rank r has experts r * E / W to (r + 1) * E / W. The host waits for nothing, so the call can be captured in graphs. The order
    of rows is fixed: the same inputs give the same bits.

    Args:
        x: [T, H] of any dtype on `triton_dist.device()`. If max_tokens is given, T may differ over the ranks, and be 0.
        topk_ids: int32 or int64 [T, K], contiguous, K up to 16: each token's experts, counted over all ranks. A number of no
            expert, such as -1, is ignored. If a token has a number twice, these are two choices.
        topk_weights: contiguous float32 [T, K], or None: sent with the rows.
        num_experts: E, a multiple of the number of ranks. The same on all ranks, and so are the arguments below.
        scales: contiguous float32 [T, S], or None: scales of rows in fp8, one for each token or for each 128 columns; sent with
            the rows.
        layout: "compact": one row for each token, in the order (source rank, token). "indexed": the same, and the place of each
            choice in the order of experts, for a grouped GEMM that gathers rows. "expert": a row for each choice, in the order
            (expert, source rank, token). "masked": [E / W, capacity, H], each expert's rows from row 0 on.
        align: each expert's rows begin at a multiple of this ("indexed", "expert"). Rows of x between experts are zeros; those
            after the last one are not written.
        capacity: number of rows of x, for "masked" of each expert. None: W * max_tokens, K times that for "expert", and the
            rows that `align` adds. Rows that do not fit are cut off, and the result says so (see EPDispatched). With
            TRITON_DIST_DEBUG=1 the call then raises an error.
        max_tokens: the most tokens that a rank may have; None: T, which is then the same on all ranks. It decides how much of
            the symmetric heap is used, 2 * W * max_tokens rows; over N nodes 4 * N * max_tokens more.
        quant: "fp8_1x128": rows are sent as float8_e4m3fn with a scale for each 128 columns: amax / 448, amax at least 1e-4. A
            NaN stays NaN and does not count for amax. An infinity makes the scale infinite, so all 128 are NaN when scaled back.
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        out: contiguous, of the shape of the result's x, or None to allocate. With quant its address is a multiple of 4 bytes.
        method: "self_flagged" (one kernel for few tokens; rows of whole vectors of 16 bytes), "push" (kernels for more tokens),
            "two_level" (over nodes: a row crosses once to each node), "unfused" (the group's own collective; the host waits) or
            "auto": over nodes "two_level"; inside a node "self_flagged" if a rank may send up to 256 rows of up to 3.5 MiB
            together to others, otherwise "push".

    Returns:
        An EPDispatched. Gradients flow through x and topk_weights, by ep_combine, unless rows are fp8.
        In graphs: run the same call once before capture. Raises InvalidArgument before anything is sent.

    Example:
        came = ep_dispatch(x, ids, weights, num_experts=64, layout="expert")
        y = experts(came.x, came.expert_offsets)
        x = ep_combine(y, came.handle, topk_weights=came.topk_weights, residual=x)
    """
    outputs = ep_dispatch_rows(x,
                               topk_ids,
                               topk_weights,
                               scales,
                               num_experts=num_experts,
                               layout=layout,
                               align=align,
                               capacity=capacity,
                               max_tokens=max_tokens,
                               quant=quant,
                               group=group,
                               out=out,
                               method=method)
    tokens = x.shape[0] if max_tokens is None else max_tokens
    found = brought(outputs, topk_ids, topk_weights, num_experts, layout, tokens, scales is not None or quant is not None,
                    group)
    if not torch.compiler.is_compiling():
        refuse_cuts(found)
    return found


def brought(outputs: Sequence, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None, num_experts: int, layout: str,
            max_tokens: int, scaled: bool, group: Any) -> EPDispatched:
    """The result of a dispatch, from the outputs of ep_dispatch_rows. scaled: whether there are scales."""
    got, scales_out, ids, weights, told, positions, sources = outputs
    local = num_experts // size_of(group)
    ordered, rest = layout != "compact", told[-2 * local - 1:]
    placed = positions if layout in ("expert", "masked") else None
    room = math.prod(got.shape[:-1]) if placed is not None else sources.shape[0] if ordered else 0
    return EPDispatched(got, scales_out if scaled else None, ids, None if topk_weights is None else weights, told[:1],
                        rest[:local] if ordered else None, rest[local:] if ordered else None,
                        positions if ordered else None, sources if layout == "indexed" else None,
                        EPHandle(topk_ids, told, placed, ids.shape[0], room, num_experts, max_tokens, layout, group))


def ep_combine(y: torch.Tensor,
               handle: EPHandle,
               *,
               topk_weights: torch.Tensor | None = None,
               positions: torch.Tensor | None = None,
               bias: torch.Tensor | None = None,
               residual: torch.Tensor | None = None,
               out: torch.Tensor | None = None,
               method: str = "auto") -> torch.Tensor:
    """Sends the outputs of experts back to the ranks of their tokens, and sums them. Collective over the dispatch's group.

    Args:
        y: fp16, bf16 or fp32 [R, H], with the rows of the dispatch's x; H may differ.
        handle: of the dispatch.
        topk_weights: float32 [R, K] of the dispatch: factors of the choices' rows. None: 1. Only for rows by expert.
        positions: those of an "indexed" dispatch, if y has a row for each choice in the order of experts. Otherwise None.
        bias: [H] or None, of y's dtype: added once to each token. Pass the same on every rank.
        residual: [T, H] or None, of y's dtype: added to each token.
        out: contiguous [T, H] of y's dtype, or None to allocate.
        method: as in ep_dispatch.

    Returns:
        out [T, H]. Each rank sums its own experts' rows in fp32, in the order of choices, and rounds once to y's dtype. The
        token's rank sums these in fp32, in the order of ranks, with bias and residual, and rounds once. A token without choices
        gets bias and residual. Rows that were cut off count as zero. Over nodes ("two_level") the ranks of each node are summed
        first, in order, with one rounding to y's dtype, and then the nodes, in order.
        Gradients flow through y, topk_weights, bias and residual. The gradient of the bias is that of this rank's tokens.
        In graphs: as ep_dispatch. Raises InvalidArgument before anything is sent.

    Example:
        x = ep_combine(y, came.handle, topk_weights=came.topk_weights)
    """
    expect_handle(handle)
    placed = handle.positions if positions is None else positions
    return ep_combine_rows(y,
                           handle.topk_ids,
                           handle.told,
                           placed,
                           topk_weights,
                           bias,
                           residual,
                           num_experts=handle.num_experts,
                           rows=handle.limit if placed is None else handle.room,
                           max_tokens=handle.max_tokens,
                           group=handle.group,
                           out=out,
                           method=method)


def expect_handle(handle: Any) -> None:
    """Raises unless it is the handle of a dispatch."""
    if not isinstance(handle, EPHandle):
        raise InvalidArgument(f"handle: expected what ep_dispatch gave as `handle`, found {type(handle).__name__}")


def refuse_cuts(found: EPDispatched) -> None:
    """Under TRITON_DIST_DEBUG raises where rows were cut off, and waits for the device."""
    if not state().debug or backend().is_capturing():
        return
    backend().synchronize()
    layout = found.handle.layout
    rows, room = int(found.rows), found.topk_ids.shape[0]
    if rows > room:
        raise InvalidArgument(f"capacity: expected room for all rows, found {room} for {rows} rows; pass more")
    if layout == "expert" and int(found.expert_offsets[-1]) > found.x.shape[0]:  # pyright: ignore
        raise InvalidArgument(f"capacity: expected room for all rows by expert, found {found.x.shape[0]} for "
                              f"{int(found.expert_offsets[-1])} rows; pass more")  # pyright: ignore
    if layout == "masked" and int(found.expert_rows.max()) > found.x.shape[1]:  # pyright: ignore
        raise InvalidArgument(f"capacity: expected room for each expert's rows, found {found.x.shape[1]} for "
                              f"{int(found.expert_rows.max())} rows; pass more")  # pyright: ignore
