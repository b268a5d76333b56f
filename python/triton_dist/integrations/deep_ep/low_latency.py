# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's low-latency pair: rows by expert in a layout of fixed size, counts on the device, and hooks that receive."""
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Callable

import torch

from triton_dist.integrations import refusals
from triton_dist.integrations.deep_ep import rows
from triton_dist.integrations.deep_ep.events import run
from triton_dist.ops import EPDispatched, ep_combine, ep_combine_send, ep_dispatch, ep_dispatch_send
from triton_dist.ops.calls import checks
from triton_dist.ops.ep import checks as ep_checks
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import Group


class LowLatencyHandle(Sequence):
    """What low_latency_dispatch returns for low_latency_combine: five items, as DeepEP's.

    Items: int32 [E / W, W * max] the source token of each row, -1 where there is none; int64 [E / W, W] where the rows of each
    rank begin << 32 | how many there are; the most tokens of a rank; H; E. The first two are made when they are asked for.
    """

    def __init__(self, came: EPDispatched, world: int, most: int, hidden: int, experts: int):
        self.came, self._world, self._rest = came, world, (most, hidden, experts)
        self.buffer: torch.Tensor | None = None             # of get_next_low_latency_combine_buffer

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) or range(5)[index] < 2:
            backend().before_torch()
            return (self._sources(), self._ranges(), *self._rest)[index]
        return self._rest[range(5)[index] - 2]

    def _sources(self) -> torch.Tensor:
        shape = self.came.x.shape[:2]
        tokens = self.came.topk_weights.view(torch.int32)   # type: ignore[union-attr]  # the numbers that travelled as weights
        return rows.scattered(tokens, self.came.positions, shape.numel(), -1).view(shape)   # type: ignore[arg-type]

    def _ranges(self) -> torch.Tensor:
        came, world = self.came, self._world
        local, limit = came.x.shape[0], len(came.topk_ids)
        source = rows.source_of_rows(rows.rows_by_source(came.handle.told, world, rows.chunks_of(came, world)), limit)
        cell = torch.where(came.topk_ids >= 0, came.topk_ids * world + source[:, None], -1)
        counts = rows.counts_of(cell, local * world).view(local, world).long()
        return (counts.cumsum(1) - counts) << 32 | counts


class LowLatency:
    """The low-latency half of Buffer."""

    group: Any
    members: Group
    group_size: int
    usable: Callable[[], None]
    expect_shared: Callable[[int], None]

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int,
                                       num_experts: int) -> int:
        """Bytes of the symmetric heap that a workspace of these calls takes: both halves, bf16 rows and 24 words beside each."""
        return 2 * num_ranks * num_max_dispatch_tokens_per_rank * (2 * hidden + 96)

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Does nothing: buffers need no cleaning here."""

    def low_latency_dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, num_max_dispatch_tokens_per_rank: int,
                             num_experts: int, cumulative_local_expert_recv_stats: torch.Tensor | None = None,
                             dispatch_wait_recv_cost_stats: torch.Tensor | None = None, use_fp8: bool = True,
                             round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
                             return_recv_hook: bool = False) -> tuple:
        """Rows by expert, each expert's in the order (source rank, token). Collective; no host waits. Can be captured in graphs.

        Args:
            x: fp16, bf16 or fp32 [T, H], T up to num_max_dispatch_tokens_per_rank, and different on ranks if need be.
            topk_idx: int32 or int64 [T, K], -1 for no choice. Keep it for the combine.
            num_max_dispatch_tokens_per_rank, num_experts: the same on all ranks.
            cumulative_local_expert_recv_stats: int32 [E / W], to which the rows of each expert are added.
            dispatch_wait_recv_cost_stats: must be None.
            use_fp8: rows become float8_e4m3fn with a scale for each 128 columns.
            round_scale: scales are powers of two. Rows are then quantised before they are sent, by torch.
            use_ue8m0: scales are given as exponents, 4 in an int32; needs round_scale.
            async_finish: the call runs on a stream of its own. Not with return_recv_hook.
            return_recv_hook: rows are only sent; results have their content after the hook was called (ep_dispatch_send).

        Returns:
            ([E / W, W * max, H], or (fp8 of that shape, scales [E / W, W * max, H / 128] with neighbouring rows), int32 [E / W]
            rows of each expert, a handle, an EventOverlap, the hook or None).
        """
        most = num_max_dispatch_tokens_per_rank
        with refusals.told(self.members, "low_latency_dispatch"):
            self.usable()
            _refuse_stats("dispatch_wait_recv_cost_stats", dispatch_wait_recv_cost_stats)
            self.expect_shared(num_experts)
            rows.stats_of(cumulative_local_expert_recv_stats, num_experts // self.group_size)
            tokens = rows.tokens_of(x, topk_idx, None)
            checks.size("num_max_dispatch_tokens_per_rank", most)
            if tokens > most:
                raise InvalidArgument(f"num_max_dispatch_tokens_per_rank: expected at least as many as this rank has, {tokens}, "
                                      f"found {most}")
            if use_ue8m0 and not round_scale or round_scale and not use_fp8:
                raise InvalidArgument("use_ue8m0: expected round_scale and use_fp8 with it, and use_fp8 with round_scale")
            if use_fp8 and x.shape[1] % (512 if use_ue8m0 else 128):
                raise InvalidArgument(f"x: expected rows of a multiple of {512 if use_ue8m0 else 128} for fp8, found "
                                      f"{x.shape[1]}")
            _only_one(async_finish, return_recv_hook)
        options = dict(num_experts=num_experts, layout="masked", max_tokens=most, capacity=self.group_size * most,
                       group=self.group)

        def send() -> tuple:
            backend().before_torch()
            values, scales = rows.power_of_two_scales(x) if round_scale else (x, None)
            call = ep_dispatch_send if return_recv_hook else ep_dispatch
            found: Any = call(values, topk_idx, rows.number_of(x, topk_idx.shape[1]), scales=scales,
                              quant="fp8_1x128" if use_fp8 and not round_scale else None, **options)
            came = found.outputs if return_recv_hook else found
            kept = None
            if use_fp8:
                width = came.scales.shape[2] // (4 if use_ue8m0 else 1)
                kept = rows.column_major(came.scales.new_empty((*came.scales.shape[:2], width),
                                                               dtype=torch.int32 if use_ue8m0 else torch.float32))

            def finish() -> None:
                backend().before_torch()
                if kept is not None:
                    kept.copy_(rows.exponents(came.scales) if use_ue8m0 else came.scales)
                if cumulative_local_expert_recv_stats is not None:
                    cumulative_local_expert_recv_stats.add_(came.expert_rows)

            def hook() -> None:
                found.recv()
                finish()

            if not return_recv_hook:
                finish()
            return came, kept, hook

        (came, kept, hook), event = run(send, (x, topk_idx, cumulative_local_expert_recv_stats), None, async_finish)
        handle = LowLatencyHandle(came, self.group_size, most, x.shape[1], num_experts)
        return (came.x if kept is None else (came.x, kept), came.expert_rows, handle, event, hook if return_recv_hook else None)

    def low_latency_combine(self, x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor, handle: Any,
                            use_logfmt: bool = False, zero_copy: bool = False, async_finish: bool = False,
                            return_recv_hook: bool = False, out: torch.Tensor | None = None,
                            combine_wait_recv_cost_stats: torch.Tensor | None = None) -> tuple:
        """The weighted sum of each token's rows. Collective; no host waits.

        Each rank sums its own experts' rows in fp32 and sends one row for each token. So it needs the weights, which travel
        first, in a small dispatch of their own.

        Args:
            x: fp16, bf16 or fp32 [E / W, W * max, H], laid out as the dispatch's.
            topk_idx: as in the dispatch. topk_weights: float32 [T, K].
            handle: of the dispatch.
            use_logfmt: must be False. combine_wait_recv_cost_stats: must be None.
            zero_copy: takes the tensor that get_next_low_latency_combine_buffer gave, in place of x.
            async_finish, return_recv_hook: as in low_latency_dispatch. Weights are received before the call returns.
            out: [T, H] of x's dtype, or None.

        Returns:
            ([T, H], an EventOverlap, the hook or None).
        """
        with refusals.told(self.members, "low_latency_combine"):
            self.usable()
            _refuse_stats("combine_wait_recv_cost_stats", combine_wait_recv_cost_stats)
            if use_logfmt:
                raise UnsupportedFeature("use_logfmt: expected False, since sums travel in the dtype of x")
            _expect_low_latency(handle)
            _only_one(async_finish, return_recv_hook)
            tokens, k = handle.came.handle.topk_ids.shape
            ep_checks.choices(topk_idx, tokens, "topk_idx")     # peers have sums of as many tokens as were sent
            rows.weights_of(topk_weights, tokens, k)
            if zero_copy and handle.buffer is None:
                raise InvalidArgument("zero_copy: expected rows in the tensor of get_next_low_latency_combine_buffer(handle); "
                                      "call it first")
        x = handle.buffer if zero_copy else x
        way = replace(handle.came.handle, topk_ids=topk_idx)

        def send() -> Any:
            backend().before_torch()
            weights = ep_dispatch(topk_weights, topk_idx, topk_weights, num_experts=way.num_experts, max_tokens=way.max_tokens,
                                  group=self.group).topk_weights
            call = ep_combine_send if return_recv_hook else ep_combine
            found: Any = call(x, way, topk_weights=weights, out=out)
            return (found.outputs, found) if return_recv_hook else (found, None)

        (summed, sent), event = run(send, (x, topk_idx, topk_weights, way, out), None, async_finish)

        def hook() -> None:
            sent.recv()
            backend().before_torch()

        return summed, event, hook if return_recv_hook else None

    def get_next_low_latency_combine_buffer(self, handle: Any) -> torch.Tensor:
        """Ordinary memory [E / W, W * max, H] of bf16 for the rows of a combine with zero_copy."""
        _expect_low_latency(handle)
        if handle.buffer is None:
            handle.buffer = torch.empty(handle.came.x.shape, dtype=torch.bfloat16, device=handle.came.x.device)
        return handle.buffer

    # -- ranks that are masked ---------------------------------------------------------------------------------
    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Raises if a rank is to be masked."""
        if mask:
            raise UnsupportedFeature("mask: expected False, since ranks cannot be masked here")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes zeros: no rank is masked."""
        mask_status.zero_()

    def low_latency_clean_mask_buffer(self) -> None:
        """Does nothing: no rank is masked."""


def _refuse_stats(name: str, value: Any) -> None:
    if value is not None:
        raise UnsupportedFeature(f"{name}: expected None, since kernels do not measure how long they wait; triton-dist trace "
                                 "shows it")


def _only_one(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise InvalidArgument("return_recv_hook: expected False with async_finish; the hook says when rows are received")


def _expect_low_latency(handle: Any) -> None:
    if not isinstance(handle, LowLatencyHandle):
        raise InvalidArgument(f"handle: expected what low_latency_dispatch gave, found {type(handle).__name__}")
