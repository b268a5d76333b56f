# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""DeepEP's Buffer (its first interface): dispatch and combine with counts on the host. low_latency.py has the other pair."""
from dataclasses import replace
from typing import Any, NoReturn

import torch

from triton_dist.integrations import refusals
from triton_dist.integrations.deep_ep import rows
from triton_dist.integrations.deep_ep.config import Config
from triton_dist.integrations.deep_ep.events import EventHandle, EventOverlap, run
from triton_dist.integrations.deep_ep.low_latency import LowLatency
from triton_dist.ops import EPHandle, ep_combine, ep_dispatch
from triton_dist.ops.calls import checks
from triton_dist.ops.ep import checks as ep_checks
from triton_dist.ops.ep.checks import MOST_CHOICES
from triton_dist.runtime.backend import backend
from triton_dist.runtime.errors import InvalidArgument, UnsupportedFeature
from triton_dist.runtime.groups import resolve
from triton_dist.runtime.state import state
from triton_dist.runtime.streams import device
from triton_dist.runtime.workspace import side_streams


class DispatchHandle(tuple):
    """What dispatch returns for combine: six items, as DeepEP's.

    Item 0 is int32 [W, W]. In this rank's column, row i has the number of rows that came from ranks 0 to i. Item 4 is
    is_token_in_rank. The others are None, since nothing here needs them.
    """

    way: EPHandle
    limit: int | None               # capacity of the dispatch
    rows: int                       # rows that the caller has been given

    @classmethod
    def of(cls, matrix: torch.Tensor, is_token_in_rank: Any, way: EPHandle, limit: int | None, count: int) -> "DispatchHandle":
        """A handle of these."""
        made = cls((matrix, None, None, None, is_token_in_rank, None))
        made.way, made.limit, made.rows = replace(way, limit=count), limit, count
        return made


class Buffer(LowLatency):
    """DeepEP's Buffer, over one node or several. Ranks may have different numbers of tokens.

    Args:
        group: ProcessGroup, DeviceMesh of one dimension, or None for the world.
        num_nvl_bytes, num_rdma_bytes, low_latency_mode, num_qps_per_rank, allow_mnnvl, use_fabric: have no meaning here. Calls
            reserve what they need in the symmetric heap, at their first use.
        allow_nvlink_for_low_latency_mode: must be True: ranks of a node load and store each other's memory.
        explicitly_destroy: whether destroy() will be called.
        enable_shrink: must be False: ranks cannot be masked.
        comm: must be None: mpi4py is not supported.
    """

    num_sms: int = 20

    def __init__(self, group: Any, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0, low_latency_mode: bool = False,
                 num_qps_per_rank: int = 24, allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
                 explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None,
                 use_fabric: bool = False) -> None:
        if comm is not None:
            raise UnsupportedFeature("comm: expected None, since communicators of mpi4py are not supported; pass group")
        if enable_shrink:
            raise UnsupportedFeature("enable_shrink: expected False, since ranks cannot be masked here")
        if not allow_nvlink_for_low_latency_mode:
            raise UnsupportedFeature("allow_nvlink_for_low_latency_mode: expected True, since ranks of a node load and store "
                                     "each other's memory")
        self.group, self.members = group, resolve(group)
        self.rank, self.group_size = self.members.rank, self.members.size
        self.num_nvl_bytes, self.num_rdma_bytes, self.low_latency_mode = num_nvl_bytes, num_rdma_bytes, low_latency_mode
        self.explicitly_destroy, self.enable_shrink = explicitly_destroy, enable_shrink
        self._destroyed = False

    def destroy(self) -> None:
        """Ends the use of this object. Room in the heap belongs to the group and stays: see triton_dist.reset."""
        if not self.explicitly_destroy:
            raise InvalidArgument("explicitly_destroy: expected True for a buffer that is destroyed, found False")
        self._destroyed = True

    def usable(self) -> None:
        """Raises after destroy()."""
        if self._destroyed:
            raise InvalidArgument("buffer: expected one that is in use, found one that was destroyed")

    # -- what has no meaning here ------------------------------------------------------------------------------
    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: kernels are compiled for the device that is there."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Keeps an even number in Buffer.num_sms. Kernels have a program for each chunk of tokens, up to one for each SM."""
        if new_num_sms % 2:
            raise InvalidArgument(f"new_num_sms: expected an even number, found {new_num_sms}")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """A Config, which has no effect."""
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """A Config, which has no effect."""
        return Config(Buffer.num_sms)

    # -- streams -----------------------------------------------------------------------------------------------
    @staticmethod
    def capture() -> EventOverlap:
        """An event of the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_comm_stream() -> Any:
        """The stream on which calls with async_finish run."""
        return side_streams(1)[0]

    # -- counts ------------------------------------------------------------------------------------------------
    def get_dispatch_layout(self, topk_idx: torch.Tensor, num_experts: int, previous_event: Any = None,
                            async_finish: bool = False, allocate_on_comm_stream: bool = False) -> tuple:
        """How many tokens go where. Nothing is sent.

        Args:
            topk_idx: int32 or int64 [T, K], -1 for no choice.
            num_experts: E, a multiple of the number of ranks.
            previous_event, async_finish: as in dispatch. allocate_on_comm_stream: has no meaning here.

        Returns:
            (int32 [W] tokens for each rank, None, int32 [E] tokens for each expert, bool [T, W] whether a token goes to a rank,
            an EventOverlap).
        """
        self.usable()
        self.expect_shared(num_experts)
        ep_checks.choices(topk_idx, None, "topk_idx")

        def layout() -> tuple:
            backend().before_torch()
            owner = torch.where((topk_idx >= 0) & (topk_idx < num_experts), topk_idx // (num_experts // self.group_size), -1)
            inside = (owner.unsqueeze(-1) == torch.arange(self.group_size, device=owner.device)).any(1)
            return inside.sum(0, dtype=torch.int32), None, rows.counts_of(topk_idx, num_experts), inside

        found, event = run(layout, (topk_idx,), previous_event, async_finish)
        return *found, event

    def expect_shared(self, num_experts: int) -> None:
        """Raises unless ranks can share the experts equally."""
        checks.size("num_experts", num_experts)
        if num_experts < 1 or num_experts % self.group_size:
            raise InvalidArgument(f"num_experts: expected a number divisible by the {self.group_size} ranks, found "
                                  f"{num_experts}")

    # -- the exchange ------------------------------------------------------------------------------------------
    def dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: torch.Tensor | None = None,
                 num_tokens_per_rdma_rank: torch.Tensor | None = None, is_token_in_rank: torch.Tensor | None = None,
                 num_tokens_per_expert: torch.Tensor | None = None, topk_idx: torch.Tensor | None = None,
                 topk_weights: torch.Tensor | None = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
                 config: Config | None = None, previous_event: Any = None, async_finish: bool = False,
                 allocate_on_comm_stream: bool = False) -> tuple:
        """Sends each token once to each rank that has one of its experts. Collective; the host waits for counts.

        Args:
            x: [T, H], or (fp8 [T, H], scales [T, S]).
            handle: of an earlier dispatch, whose routing is used again; then topk_idx and topk_weights must be None.
            is_token_in_rank, num_tokens_per_expert: of get_dispatch_layout. They decide where tokens go if topk_idx is None.
            num_tokens_per_rank, num_tokens_per_rdma_rank: not used, since they follow from the others.
            topk_idx, topk_weights: int32 or int64 [T, K] and float32 [T, K], or None.
            expert_alignment: of the numbers in the returned list.
            num_worst_tokens: 0, or the number of rows of the results, the same on all ranks and at least W times the most tokens
                of a rank. Then the host does not wait, the list is empty, and the call can be captured in graphs.
            config, allocate_on_comm_stream: have no meaning here.
            previous_event, async_finish: the call waits for the event; with async_finish it runs on a stream of its own.

        Returns:
            (rows in the order (source rank, token), local expert numbers with -1 for those of others, weights, a list of rows for
            each local expert, a handle, an EventOverlap). After a handle: (rows, None, None, None, None, an EventOverlap).

        Raises InvalidArgument before anything is sent; where the host waits for counts, on all ranks if one refuses the call.
        """
        if handle is not None:
            with refusals.told(self.members, "dispatch"):
                self.usable()
                if topk_idx is not None or topk_weights is not None:
                    raise InvalidArgument("topk_idx: expected None, like topk_weights, with a handle, which has the routing")
                self.expect_handle(handle)
                rows.tokens_of(x, handle.way.topk_ids, None)
            recv, event = run(lambda: self._again(x, handle), (x, handle), previous_event, async_finish)
            return recv, None, None, None, None, event
        state().expect_pairs()
        try:
            self.usable()
            self._check_first(x, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment,
                              num_worst_tokens)
        except refusals.REFUSALS as error:
            self.refuse(error, host_waits=not num_worst_tokens)
        found, event = run(
            lambda: self._first(x, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights, expert_alignment,
                                num_worst_tokens),
            (x, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights), previous_event, async_finish)
        return *found, event

    def refuse(self, error: Exception, host_waits: bool = True) -> NoReturn:
        """Raises `error`, for which this rank does not make a dispatch that its peers may make.

        host_waits: in a dispatch whose ranks tell each other how many tokens they have. Then all ranks refuse it.
        """
        if not host_waits:
            with refusals.told(self.members, "dispatch"):
                raise error
        rows.most_tokens(self.members, None, device())
        raise error

    def _check_first(self, x: Any, inside: Any, per_expert: Any, topk_idx: Any, topk_weights: Any, alignment: Any,
                     worst: Any) -> None:
        """Refuses what a dispatch without a handle does not take."""
        if inside is None or per_expert is None:
            raise InvalidArgument("is_token_in_rank: expected it and num_tokens_per_expert, of get_dispatch_layout, found None")
        for name, t, dtypes, ndim in (("is_token_in_rank", inside, (torch.bool,), 2),
                                      ("num_tokens_per_expert", per_expert, (torch.int32, torch.int64), 1)):
            if not isinstance(t, torch.Tensor) or t.ndim != ndim or t.dtype not in dtypes:
                found = f"{t.dtype} of shape {list(t.shape)}" if isinstance(t, torch.Tensor) else type(t).__name__
                raise InvalidArgument(f"{name}: expected {dtypes[0]} of {ndim} dimensions, of get_dispatch_layout, found {found}")
        experts = per_expert.numel()
        self.expect_shared(experts)
        if topk_idx is None and topk_weights is not None:
            raise InvalidArgument("topk_weights: expected None, since there is no topk_idx, found some")
        if topk_idx is None and self.group_size > MOST_CHOICES:
            raise UnsupportedFeature(f"topk_idx: expected it on more than {MOST_CHOICES} ranks, found None")
        ids = torch.empty_like(inside, dtype=torch.int32) if topk_idx is None else topk_idx
        tokens = rows.tokens_of(x, ids, topk_weights)
        if tuple(inside.shape) != (tokens, self.group_size):
            raise InvalidArgument(f"is_token_in_rank: expected shape {[tokens, self.group_size]}, found {list(inside.shape)}")
        rows.alignment("expert_alignment", alignment)
        checks.size("num_worst_tokens", worst)
        if worst and worst < self.group_size * tokens:
            raise InvalidArgument(f"num_worst_tokens: expected at least {self.group_size} times the tokens of a rank, which are "
                                  f"{tokens} here, found {worst}")

    def _first(self, x: Any, is_token_in_rank: torch.Tensor, per_expert: torch.Tensor, topk_idx: torch.Tensor | None,
               topk_weights: torch.Tensor | None, alignment: int, worst: int) -> tuple:
        x, given = rows.unpacked(x), x
        tokens, experts = len(x[0]), per_expert.numel()
        backend().before_torch()
        ids = self._ids_of(is_token_in_rank, experts) if topk_idx is None else topk_idx.clone()
        most = -(-worst // self.group_size) if worst else rows.most_tokens(self.members, tokens, device())
        came = ep_dispatch(x[0], ids, topk_weights, num_experts=experts, scales=x[1], capacity=worst or None, max_tokens=most,
                           group=self.group)
        backend().before_torch()
        by_source = rows.rows_by_source(came.handle.told, self.group_size, rows.chunks_of(came, self.group_size))
        matrix = torch.zeros(self.group_size, self.group_size, dtype=torch.int32, device=by_source.device)
        matrix[:, self.rank] = by_source.cumsum(0)
        counted, count = [], worst
        if not worst:
            if topk_idx is None:
                theirs = torch.empty_like(per_expert)
                self.members.all_to_all_tensor(theirs, per_expert.contiguous())
                each = theirs.view(self.group_size, -1).sum(0)
            else:
                each = rows.counts_of(came.topk_ids, experts // self.group_size)
            count, *counted = torch.cat([came.rows, rows.aligned(each, alignment).to(torch.int32)]).tolist()
        handle = DispatchHandle.of(matrix, is_token_in_rank, came.handle, worst or None, count)
        recv = rows.repacked(came.x[:count], None if came.scales is None else came.scales[:count], given)
        recv_ids = None if topk_idx is None else came.topk_ids[:count].to(topk_idx.dtype)
        recv_weights = None if came.topk_weights is None else came.topk_weights[:count]
        return recv, recv_ids, recv_weights, counted, handle

    def _ids_of(self, is_token_in_rank: torch.Tensor, experts: int) -> torch.Tensor:
        """int32 [T, W]: the first expert of each rank that a token goes to, or -1."""
        first = torch.arange(0, experts, experts // self.group_size, dtype=torch.int32, device=is_token_in_rank.device)
        return torch.where(is_token_in_rank, first, -1).contiguous()

    def _again(self, x: Any, handle: DispatchHandle) -> Any:
        (values, scales), way = rows.unpacked(x), handle.way
        came = ep_dispatch(values, way.topk_ids, num_experts=way.num_experts, scales=scales, capacity=handle.limit,
                           max_tokens=way.max_tokens, group=self.group)
        return rows.repacked(came.x[:handle.rows], None if came.scales is None else came.scales[:handle.rows], x)

    def combine(self, x: torch.Tensor, handle: Any, topk_weights: torch.Tensor | None = None, bias: Any = None,
                config: Config | None = None, previous_event: Any = None, async_finish: bool = False,
                allocate_on_comm_stream: bool = False) -> tuple:
        """Sends rows back, where all ranks' are summed, without weights. Collective.

        Args:
            x: fp16, bf16 or fp32 [rows, H], one for each row that the dispatch gave.
            handle: of the dispatch.
            topk_weights: float32 [rows, K], summed likewise, or None.
            bias: None, or one or two [T, H], which are added. Two are added to each other first, and rounded.
            config, previous_event, async_finish, allocate_on_comm_stream: as in dispatch.

        Returns:
            ([T, H], float32 [T, K] or None, an EventOverlap).
        """
        with refusals.told(self.members, "combine"):
            self.usable()
            self.expect_handle(handle)
            if topk_weights is not None:
                rows.weights_of(topk_weights, handle.rows, None)
            checks.tensor("x", x)
            rows.bias_of(bias, len(handle.way.topk_ids), x)

        def both() -> tuple:
            backend().before_torch()
            out = ep_combine(x, handle.way, residual=rows.added_bias(bias))
            return out, None if topk_weights is None else ep_combine(topk_weights.contiguous(), handle.way)

        found, event = run(both, (x, handle, topk_weights, bias), previous_event, async_finish)
        return *found, event

    @staticmethod
    def expect_handle(handle: Any) -> None:
        """Raises unless it is of a dispatch."""
        if not isinstance(handle, DispatchHandle):
            raise InvalidArgument(f"handle: expected what dispatch gave, found {type(handle).__name__}")
