# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published low-latency all-to-all: rows for the experts of every rank, in one kernel with one program a peer.

A call uses one of two halves of the buffers, by its parity. Every call waits for all peers, so that whoever starts call n
knows that nobody still reads what call n - 2 has brought.
"""
from typing import Any

import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.dropin import host
from triton_dist.runtime.errors import InvalidArgument


@triton_dist.jit
def _copy_rows(to, origin, first, last, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows first to last of origin to the rows of `to`, from its first on."""
    columns = tl.arange(0, COLUMNS)
    for row in range(first, last, ROWS):
        rows = row + tl.arange(0, ROWS)
        for column in range(0, WIDTH, COLUMNS):
            mask = (rows < last)[:, None] & (column + columns < WIDTH)[None, :]
            offsets = column + columns[None, :]
            data = tl.load(origin + rows[:, None].to(tl.int64) * WIDTH + offsets, mask=mask)
            tl.store(to + (rows - first)[:, None].to(tl.int64) * WIDTH + offsets, data, mask=mask)


@triton_dist.jit(do_not_specialize=["call"])
def _exchange(send, recv, cumulated, recv_splits, scale, recv_scale, signal, call, HIDDEN: tl.constexpr, MAX_M: tl.constexpr,
              EXPERTS: tl.constexpr, WITH_SCALE: tl.constexpr, EXPERT_BLOCK: tl.constexpr, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr):
    """Program p: the rows for rank p, how many each of its experts gets, then a signal; and the wait for rank p's."""
    peer, rank, half = tl.program_id(0), dl.rank(), call % 2
    place = half * dl.num_ranks() + rank
    first, last = tl.load(cumulated + peer * EXPERTS), tl.load(cumulated + (peer + 1) * EXPERTS)
    _copy_rows(dl.symm_at(recv, peer) + place.to(tl.int64) * MAX_M * HIDDEN, send, first, last, HIDDEN, ROWS, COLUMNS)
    if WITH_SCALE:
        _copy_rows(dl.symm_at(recv_scale, peer) + place * MAX_M, scale, first, last, 1, ROWS, 1)
    experts = tl.arange(0, EXPERT_BLOCK)
    ends = cumulated + peer * EXPERTS + experts
    counts = tl.load(ends + 1, mask=experts < EXPERTS) - tl.load(ends, mask=experts < EXPERTS)
    tl.store(dl.symm_at(recv_splits, peer) + place * EXPERTS + experts, counts, mask=experts < EXPERTS)
    dl.notify(signal + place, peer, call)
    dl.wait(signal + half * dl.num_ranks() + peer, 1, "sys", "acquire", call)


class AllToAllContext:
    """Buffers of fast_all_to_all: for max_m rows from each rank, of two calls."""

    def __init__(self, max_m: int, hidden: int, rank: int, num_tot_experts: int, WORLD_SIZE: int, experts_per_rank: int,
                 dtype: torch.dtype = torch.bfloat16, scale_dtype: torch.dtype = torch.float):
        self.max_m, self.hidden, self.rank, self.WORLD_SIZE = max_m, hidden, rank, WORLD_SIZE
        self.num_tot_experts, self.experts_per_rank = num_tot_experts, experts_per_rank
        self.dtype, self.scale_dtype, self.call_count = dtype, scale_dtype, 1
        self.recv_buf = host.nvshmem_create_tensor((2 * WORLD_SIZE * max_m, hidden), dtype)
        self.scale_recv_buf = host.nvshmem_create_tensor((2 * WORLD_SIZE * max_m,), scale_dtype)
        self.split_recv_buf = host.nvshmem_create_tensor((2 * num_tot_experts,), torch.int32)
        self.signal_buf = host.nvshmem_create_tensor((2 * WORLD_SIZE,), host.NVSHMEM_SIGNAL_DTYPE)

    def finalize(self) -> None:
        """Collective: frees the buffers."""
        for tensor in (self.recv_buf, self.scale_recv_buf, self.split_recv_buf, self.signal_buf):
            host.nvshmem_free_tensor_sync(tensor)


def create_all_to_all_context(max_m: int, hidden: int, rank: int, num_tot_experts: int, WORLD_SIZE: int, experts_per_rank: int,
                              dtype: torch.dtype = torch.bfloat16, scale_dtype: torch.dtype = torch.float) -> AllToAllContext:
    """Collective: the context of fast_all_to_all."""
    return AllToAllContext(max_m, hidden, rank, num_tot_experts, WORLD_SIZE, experts_per_rank, dtype, scale_dtype)


def fast_all_to_all(ctx: AllToAllContext, send_tensor: torch.Tensor, send_split_cumsum: torch.Tensor,
                    send_scale: torch.Tensor | None) -> list:
    """Collective: rows of send_tensor to the ranks of their experts.

    Args:
        ctx: the context.
        send_tensor: [rows, hidden], sorted by expert.
        send_split_cumsum: int32 [experts + 1]: where each expert's rows begin.
        send_scale: [rows], one for each row, or None.

    Returns:
        [rows for each own expert by rank of origin, int32 [experts]; rows [W * max_m, hidden], max_m of each rank; scales or
        None], valid until the call after the next.
    """
    if send_tensor.shape[0] > ctx.max_m:
        raise InvalidArgument(f"send_tensor: expected at most {ctx.max_m} rows, found {send_tensor.shape[0]}")
    scale = ctx.scale_recv_buf if send_scale is None else send_scale.contiguous()
    columns = min(1024, triton.next_power_of_2(ctx.hidden))
    _exchange[(ctx.WORLD_SIZE,)](
        send_tensor.contiguous(), ctx.recv_buf, send_split_cumsum, ctx.split_recv_buf, scale, ctx.scale_recv_buf,
        ctx.signal_buf, ctx.call_count, HIDDEN=ctx.hidden, MAX_M=ctx.max_m, EXPERTS=ctx.experts_per_rank,
        WITH_SCALE=send_scale is not None,
        EXPERT_BLOCK=triton.next_power_of_2(ctx.experts_per_rank), ROWS=max(1, 4096 // columns), COLUMNS=columns)
    half, rows = ctx.call_count % 2, ctx.WORLD_SIZE * ctx.max_m
    ctx.call_count += 1
    scales = None if send_scale is None else ctx.scale_recv_buf[half * rows:(half + 1) * rows]
    return [ctx.split_recv_buf[half * ctx.num_tot_experts:(half + 1) * ctx.num_tot_experts],
            ctx.recv_buf[half * rows:(half + 1) * rows], scales]


def all_to_all_post_process(ctx: AllToAllContext, input_splits: torch.Tensor, recv_buffer: torch.Tensor,
                            scale_buffer: torch.Tensor | None = None) -> tuple[Any, Any]:
    """(rows, scales or None) that have come, one rank's after another's, without the gaps."""
    counts = input_splits.reshape(ctx.WORLD_SIZE, -1).sum(1).tolist()
    spans = [slice(rank * ctx.max_m, rank * ctx.max_m + count) for rank, count in enumerate(counts)]
    scales = None if scale_buffer is None else torch.cat([scale_buffer[span] for span in spans])
    return torch.cat([recv_buffer[span] for span in spans]), scales
