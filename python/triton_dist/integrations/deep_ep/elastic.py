# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's second interface, ElasticBuffer: one dispatch for compact rows and for rows by expert."""
from dataclasses import dataclass, replace
from typing import Any

import torch

from triton_dist.integrations import refusals
from triton_dist.integrations.deep_ep import rows
from triton_dist.integrations.deep_ep.events import EventHandle, run
from triton_dist.ops import EPDispatched, EPHandle as Way, ep_combine, ep_dispatch
from triton_dist.ops.calls import checks
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.workspace import side_streams


@dataclass(eq=False)
class EPHandle:
    """What ElasticBuffer.dispatch returns for combine, and for a dispatch with the same routing.

    Attributes:
        do_expand: whether there is a row for each choice.
        num_experts, expert_alignment, num_max_tokens_per_rank, num_sms: as given.
        topk_idx: a copy, unless do_handle_copy was False.
        num_recv_tokens, num_expanded_tokens: rows, and rows by expert; without do_cpu_sync the room for them.
        num_recv_tokens_per_expert_list: rows of each expert, aligned; empty without do_cpu_sync.
        psum_num_recv_tokens_per_scaleup_rank: int32 [W]: rows that came from rank 0 to i.
        psum_num_recv_tokens_per_expert: int32 [E / W]: aligned rows of expert 0 to i; with do_expand where expert i's rows end.
        num_unaligned_recv_tokens_per_expert: int32 [E / W] with do_expand, else None.
        recv_src_metadata: int32 [rows, 2 + K]: source rank * max + token, the row itself, then with do_expand the row by expert
            of each choice, -1 for none.
        dst_buffer_slot_idx, token_metadata_at_forward, channel_linked_list: None, since nothing here needs them.
    """
    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: torch.Tensor
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list
    psum_num_recv_tokens_per_scaleup_rank: torch.Tensor
    psum_num_recv_tokens_per_expert: torch.Tensor
    num_unaligned_recv_tokens_per_expert: torch.Tensor | None
    recv_src_metadata: torch.Tensor
    way: Way
    positions: torch.Tensor | None
    dst_buffer_slot_idx: None = None
    token_metadata_at_forward: None = None
    channel_linked_list: None = None


class ElasticBuffer:
    """DeepEP's ElasticBuffer, for dispatch and combine. Rows always have the same order.

    Args:
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        num_max_tokens_per_rank: the most tokens of a rank, where a dispatch is not given it.
        allow_multiple_reduction: False is refused by a combine of rows by expert: each rank sums and rounds its own ones first.
        num_cpu_bytes: must be 0: there is no memory of the host in the heap.
        explicitly_destroy: whether destroy() will be called.

    The other arguments have no meaning here: calls reserve what they need in the symmetric heap, and TRITON_DIST_WAIT_TIMEOUT
    bounds waits.
    """

    def __init__(self, group: Any, num_bytes: int | None = None, num_cpu_bytes: int = 0, num_max_tokens_per_rank: int = 0,
                 hidden: int = 0, num_topk: int = 0, use_fp8_dispatch: bool = False, deterministic: bool = False,
                 allow_hybrid_mode: bool = True, allow_multiple_reduction: bool = True, prefer_overlap_with_compute: bool = True,
                 sl_idx: int = 3, num_allocated_qps: int = 0, num_cpu_timeout_secs: int = 300, num_gpu_timeout_secs: int = 100,
                 explicitly_destroy: bool = False):
        if num_cpu_bytes:
            raise UnsupportedFeature("num_cpu_bytes: expected 0, since the heap has no memory of the host, found "
                                     f"{num_cpu_bytes}")
        self.group, self.members = group, resolve(group)
        self.rank_idx, self.num_ranks = self.members.rank, self.members.size
        self.num_max_tokens_per_rank, self.num_bytes = num_max_tokens_per_rank, num_bytes or 0
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction, self.prefer_overlap_with_compute = allow_multiple_reduction, prefer_overlap_with_compute
        self.num_allocated_qps, self.explicitly_destroy, self._destroyed = num_allocated_qps, explicitly_destroy, False
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = divmod(self.rank_idx, self.num_scaleup_ranks)
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("engram_", "pp_", "agrs_", "create_agrs_", "destroy_agrs_", "get_engram_", "get_pp_", "get_agrs_")):
            raise AttributeError(f"{name}: this ElasticBuffer has dispatch and combine only; triton_dist.ops has collectives")
        raise AttributeError(name)

    def destroy(self) -> None:
        """Ends the use of this object. Room in the heap belongs to the group and stays: see triton_dist.reset."""
        if not self.explicitly_destroy:
            raise InvalidArgument("explicitly_destroy: expected True for a buffer that is destroyed, found False")
        self._destroyed = True

    @staticmethod
    def get_buffer_size_hint(group: Any, num_max_tokens_per_rank: int, hidden: int, num_topk: int = 0,
                             use_fp8_dispatch: bool = False, allow_hybrid_mode: bool = True,
                             allow_multiple_reduction: bool = True) -> int:
        """Bytes of the symmetric heap that calls of these sizes take, in multiples of 2 MiB. No buffer has to be given them."""
        nbytes = 2 * resolve(group).size * num_max_tokens_per_rank * (2 * hidden + 8 * num_topk + 4)
        return -(-nbytes // 2**21) * 2**21

    def get_theoretical_num_sms(self, num_experts: int, num_topk: int, num_scaleout_topk: int = 0, rdma_gbs: float = 0,
                                nvlink_gbs: float = 0, sm_read_gbs: float = 200, sm_write_gbs: float = 50) -> int:
        """The most SMs that kernels use here: all, an even number."""
        return max(2, backend().num_sms() // 2 * 2)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """0: there are no queue pairs here."""
        return 0

    def get_physical_domain_size(self) -> tuple[int, int]:
        """(nodes, ranks of each)."""
        nodes = len(self.members.nodes)
        return nodes, self.num_ranks // nodes

    def get_logical_domain_size(self) -> tuple[int, int]:
        """The same."""
        return self.get_physical_domain_size()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits on the host for this rank's work and then for all ranks."""
        backend().synchronize()
        self.members.barrier()

    @staticmethod
    def capture() -> EventHandle:
        """An event of the current stream."""
        return EventHandle()

    @staticmethod
    def get_comm_stream() -> Any:
        """The stream on which calls with async_with_compute_stream run."""
        return side_streams(1)[0]

    # -- the exchange ------------------------------------------------------------------------------------------
    def dispatch(self, x: Any, topk_idx: torch.Tensor | None = None, topk_weights: torch.Tensor | None = None,
                 cumulative_local_expert_recv_stats: torch.Tensor | None = None, num_experts: int | None = None,
                 num_max_tokens_per_rank: int | None = None, expert_alignment: int | None = None, num_sms: int = 0,
                 num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
                 async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False, handle: EPHandle | None = None,
                 do_handle_copy: bool = True, do_cpu_sync: bool | None = None, do_expand: bool = False,
                 do_zero_padding: bool = False, use_tma_aligned_col_major_sf: bool = False) -> tuple:
        """Sends each token once to each rank that has one of its experts. Collective.

        Args:
            x: [T, H], or (fp8 [T, H], scales of float32 [T, S] or of packed int32).
            topk_idx, topk_weights: int32 or int64 [T, K] and float32 [T, K] or None. With a handle topk_idx must be None.
            cumulative_local_expert_recv_stats: int32 [E / W], to which the rows of each expert are added.
            num_experts, num_max_tokens_per_rank: the same on all ranks; of the handle or the constructor where None.
            expert_alignment: None for 1, or the handle's.
            previous_event, previous_event_before_epilogue: the call waits for both before it begins.
            async_with_compute_stream: the call runs on a stream of its own.
            handle: of an earlier dispatch, whose routing and counts are used again.
            do_cpu_sync: None: True without a handle. Then the host waits and results have as many rows as came; otherwise they
                have room for all that can come.
            do_expand: a row for each choice, by expert; each expert's begin at a multiple of expert_alignment.
            do_zero_padding: with do_expand, scales and weights between experts are 0. Rows there are 0 in any case.
            use_tma_aligned_col_major_sf: neighbouring rows of the scales are neighbours in memory, columns begin at 16 bytes.
            num_sms, num_qps, allocate_on_comm_stream: have no meaning here.

        Returns:
            (rows or (rows, scales), local expert numbers [rows, K] with -1 for those of others, or None with do_expand; weights
            [rows, K], or [rows by expert] with do_expand, or None; an EPHandle; an EventOverlap).
        """
        with refusals.told(self.members, "dispatch"):
            self._usable()
            if handle is not None:
                self._expect(handle)
                if topk_idx is not None:
                    raise InvalidArgument("topk_idx: expected None with a handle, which has the routing")
                if do_cpu_sync:
                    raise InvalidArgument("do_cpu_sync: expected None or False with a handle, which has the counts")
                given = dict(num_experts=num_experts, expert_alignment=expert_alignment,
                             num_max_tokens_per_rank=num_max_tokens_per_rank)
                for name, value in given.items():
                    if value not in (None, kept := getattr(handle, name)):
                        raise InvalidArgument(f"{name}: expected None or the handle's {kept}, found {value}")
                if do_expand != handle.do_expand:
                    raise InvalidArgument(f"do_expand: expected the handle's {handle.do_expand}, found {do_expand}")
                topk_idx, num_experts, expert_alignment = handle.topk_idx, handle.num_experts, handle.expert_alignment
                num_max_tokens_per_rank = handle.num_max_tokens_per_rank
            if topk_idx is None or num_experts is None:
                raise InvalidArgument("topk_idx: expected it and num_experts, or a handle, found None")
            most = num_max_tokens_per_rank or self.num_max_tokens_per_rank
            if not most:
                raise InvalidArgument("num_max_tokens_per_rank: expected it here or in the constructor, found neither")
            if do_zero_padding and not do_expand:
                raise InvalidArgument("do_zero_padding: expected do_expand with it, found False")
            rows.alignment("expert_alignment", 1 if expert_alignment is None else expert_alignment)
            checks.size("num_experts", num_experts)
            rows.stats_of(cumulative_local_expert_recv_stats, num_experts // self.num_ranks)
            rows.tokens_of(x, topk_idx, topk_weights)
        request = _Request(num_experts, most, expert_alignment or 1, num_sms, do_handle_copy and handle is None,
                           handle is None and do_cpu_sync is not False, do_expand, do_zero_padding, use_tma_aligned_col_major_sf)
        ids = topk_idx
        found, event = run(lambda: self._dispatch(x, ids, topk_weights, cumulative_local_expert_recv_stats, request, handle),
                           (x, topk_idx, topk_weights, cumulative_local_expert_recv_stats, handle), previous_event,
                           async_with_compute_stream, previous_event_before_epilogue)
        return *found, event

    def _dispatch(self, x: Any, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, stats: torch.Tensor | None,
                  request: "_Request", handle: EPHandle | None) -> tuple:
        backend().before_torch()
        (values, scales), world = rows.unpacked(x), self.num_ranks
        ids = topk_idx.clone() if request.copies else topk_idx
        numbers = rows.number_of(values, 1)                 # travel as one scale more
        came = ep_dispatch(values, ids, topk_weights, num_experts=request.experts, max_tokens=request.most, group=self.group,
                           scales=numbers if scales is None else torch.cat([scales, numbers], 1),
                           layout="expert" if request.expands else "compact", align=request.align if request.expands else 1)
        backend().before_torch()
        counts = rows.counts_of(came.topk_ids, request.experts // world)
        if stats is not None:
            stats.add_(counts)
        if handle is None:
            handle = self._handle(came, counts, ids, request)
        count = handle.num_expanded_tokens if request.expands else handle.num_recv_tokens
        weights = came.topk_weights
        kept = None if scales is None else came.scales[:, :-1]          # type: ignore[index]
        if request.expands:
            if weights is not None:
                weights = rows.scattered(weights, came.positions, len(came.x), 0.0)     # type: ignore[arg-type]
            if kept is not None and request.zeroes:
                ones = torch.ones_like(came.topk_ids, dtype=torch.bool)
                there = rows.scattered(ones, came.positions, len(came.x), False)        # type: ignore[arg-type]
                kept = torch.where(there[:, None], kept, 0.0)
        if kept is not None:
            kept = kept[:count]
            kept = rows.column_major(kept, 4).copy_(kept) if request.column_major else kept.contiguous()
        recv = came.x[:count] if kept is None else (came.x[:count], kept.view(x[1].dtype))
        return (recv, None if request.expands else came.topk_ids[:count].to(topk_idx.dtype),
                None if weights is None else weights[:count], handle)

    def _handle(self, came: EPDispatched, counts: torch.Tensor, ids: torch.Tensor, request: "_Request") -> EPHandle:
        world, limit = self.num_ranks, len(came.topk_ids)
        wide = rows.aligned(counts, request.align)
        psum = wide.cumsum(0)
        ends = (psum - wide + counts) if request.expands else psum
        recv, expanded, listed = limit, len(came.x) if request.expands else 0, []
        if request.waits:
            recv, *listed = torch.cat([came.rows, wide.to(torch.int32)]).tolist()
            expanded = sum(listed) if request.expands else 0
        by_source = rows.rows_by_source(came.handle.told, world, rows.chunks_of(came, world))
        numbers = came.scales[:, -1].contiguous().view(torch.int32)     # type: ignore[index]
        spots = torch.full_like(came.topk_ids, -1)
        if request.expands:
            spots = came.positions                                      # type: ignore[assignment]
            numbers = numbers[spots.amax(1).clamp(min=0).long()]
        index = torch.arange(limit, dtype=torch.int32, device=numbers.device)
        source = rows.source_of_rows(by_source, limit).to(torch.int32) * request.most + numbers
        metadata = torch.cat([torch.where(index < came.rows, source, -1)[:, None], index[:, None], spots], 1)
        return EPHandle(request.expands, request.experts, request.align, request.most, request.sms, ids, recv, expanded, listed,
                        by_source.cumsum(0).to(torch.int32), ends.to(torch.int32), counts if request.expands else None,
                        metadata[:recv], replace(came.handle, limit=recv, room=expanded), came.positions)

    def combine(self, x: torch.Tensor, handle: EPHandle, topk_weights: torch.Tensor | None = None, bias: Any = None,
                num_sms: int = 0, num_qps: int = 0, previous_event: Any = None, previous_event_before_epilogue: Any = None,
                async_with_compute_stream: bool = False, allocate_on_comm_stream: bool = False) -> tuple:
        """Sends rows back, where all ranks' are summed, without weights. Collective.

        Args:
            x: fp16, bf16 or fp32, a row for each that the dispatch gave.
            handle: of the dispatch.
            topk_weights: float32 [rows, K], or [rows by expert] with do_expand, which go back likewise; or None.
            bias: None, or one or two [T, H], which are added. Two are added to each other first, and rounded.
            previous_event, previous_event_before_epilogue, async_with_compute_stream: as in dispatch.
            num_sms, num_qps, allocate_on_comm_stream: have no meaning here.

        Returns:
            ([T, H], float32 [T, K] or None, an EventOverlap).
        """
        with refusals.told(self.members, "combine"):
            self._usable()
            self._expect(handle)
            if handle.do_expand and not self.allow_multiple_reduction:
                raise UnsupportedFeature("allow_multiple_reduction: expected True to combine rows by expert, since each rank "
                                         "sums and rounds its own ones first")
            if topk_weights is not None:
                rows.weights_of(topk_weights, *([handle.num_expanded_tokens] if handle.do_expand else
                                                [handle.num_recv_tokens, None]))
            checks.tensor("x", x)
            rows.bias_of(bias, len(handle.topk_idx), x)

        def both() -> tuple:
            backend().before_torch()
            way, weights = handle.way, topk_weights
            out = ep_combine(x, way, residual=rows.added_bias(bias))
            if weights is None:
                return out, None
            if handle.positions is not None:
                weights = rows.weights_back(weights, handle.positions)
                way = replace(way, positions=None, limit=weights.shape[0])
            return out, ep_combine(weights.contiguous(), way)

        found, event = run(both, (x, handle, topk_weights, bias), previous_event, async_with_compute_stream,
                           previous_event_before_epilogue)
        return *found, event

    def _usable(self) -> None:
        if self._destroyed:
            raise InvalidArgument("buffer: expected one that is in use, found one that was destroyed")

    @staticmethod
    def _expect(handle: Any) -> None:
        if not isinstance(handle, EPHandle):
            raise InvalidArgument(f"handle: expected what dispatch gave, found {type(handle).__name__}")


@dataclass(frozen=True)
class _Request:
    """What a dispatch is asked for, beside its tensors."""
    experts: int
    most: int
    align: int
    sms: int
    copies: bool
    waits: bool
    expands: bool
    zeroes: bool
    column_major: bool
