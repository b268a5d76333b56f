# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A low-latency all-to-all of tokens, by published names only: bash launch.sh --published low_latency_all_to_all.py

One program a peer sends its rows and their number by SHMEM, then a signal; it waits for that peer's. Buffers are double.
"""
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda.language_extra import tid
from triton_dist.kernels.nvidia import all_to_all_post_process, create_all_to_all_context, fast_all_to_all
from triton_dist.language.extra import libshmem_device
from triton_dist.utils import (NVSHMEM_SIGNAL_DTYPE, dist_print, finalize_distributed, initialize_distributed,
                               nvshmem_create_tensor)

MAX_ROWS, HIDDEN, EXPERTS_PER_RANK = 16, 64, 2


@triton.jit
def exchange_kernel(send, recv, counts, recv_counts, signals, begins, rank, ranks, call, MAX_ROWS: tl.constexpr,
                    HIDDEN: tl.constexpr, EXPERTS: tl.constexpr):
    peer, thread, half = tl.program_id(0), tid(axis=0), call % 2
    first, last = tl.load(begins + peer * EXPERTS), tl.load(begins + (peer + 1) * EXPERTS)
    experts = peer * EXPERTS + tl.arange(0, EXPERTS)
    tl.store(counts + experts, tl.load(begins + experts + 1) - tl.load(begins + experts))
    place = half * ranks + rank
    libshmem_device.putmem_nbi_block(recv + place * MAX_ROWS * HIDDEN, send + first * HIDDEN, (last - first) * HIDDEN * 2, peer)
    libshmem_device.putmem_nbi_block(recv_counts + place * EXPERTS, counts + peer * EXPERTS, EXPERTS * 4, peer)
    libshmem_device.fence()
    if thread == 0:
        libshmem_device.signal_op(signals + place, call, libshmem_device.NVSHMEM_SIGNAL_SET, peer)
        libshmem_device.signal_wait_until(signals + half * ranks + peer, libshmem_device.NVSHMEM_CMP_EQ, call)


def main() -> None:
    group = initialize_distributed()
    rank, ranks = group.rank(), group.size()
    experts = ranks * EXPERTS_PER_RANK
    send = nvshmem_create_tensor((MAX_ROWS, HIDDEN), torch.bfloat16)
    recv = nvshmem_create_tensor((2, ranks, MAX_ROWS, HIDDEN), torch.bfloat16)
    counts = nvshmem_create_tensor((experts,), torch.int32)
    recv_counts = nvshmem_create_tensor((2, ranks, EXPERTS_PER_RANK), torch.int32)
    signals = nvshmem_create_tensor((2 * ranks,), NVSHMEM_SIGNAL_DTYPE)
    ctx = create_all_to_all_context(MAX_ROWS, HIDDEN, rank, experts, ranks, EXPERTS_PER_RANK)
    for call in range(1, 5):
        torch.manual_seed(17 * call)
        every = [torch.bincount(torch.randint(0, experts, (int(torch.randint(1, MAX_ROWS + 1, ())),)), minlength=experts)
                 for _ in range(ranks)]
        rows = [torch.randn(int(c.sum()), HIDDEN).to(torch.bfloat16) for c in every]
        begins = [torch.cat([torch.zeros(1), c.cumsum(0)]).to(torch.int32) for c in every]
        own = slice(rank * EXPERTS_PER_RANK, (rank + 1) * EXPERTS_PER_RANK)
        mine = rows[rank].cuda()
        send[:mine.shape[0]].copy_(mine)
        exchange_kernel[(ranks,)](send, recv, counts, recv_counts, signals, begins[rank].cuda(), rank, ranks, call,
                                  MAX_ROWS=MAX_ROWS, HIDDEN=HIDDEN, EXPERTS=EXPERTS_PER_RANK)
        torch.cuda.synchronize()
        splits, buffer, _ = fast_all_to_all(ctx, mine, begins[rank].cuda(), None)
        together, _ = all_to_all_post_process(ctx, splits, buffer)
        wanted = [rows[peer][begins[peer][own.start]:begins[peer][own.stop]] for peer in range(ranks)]
        for peer in range(ranks):
            got = recv_counts[call % 2, peer].cpu()
            assert torch.equal(got, every[peer][own].int()), (call, peer)
            assert torch.equal(recv[call % 2, peer, :int(got.sum())].cpu(), wanted[peer]), (call, peer)
        assert torch.equal(together.cpu(), torch.cat(wanted)), call
    ctx.finalize()
    dist_print(f"rank {rank}: four exchanges between {experts} experts", need_sync=True, allowed_ranks="all")
    finalize_distributed()


if __name__ == "__main__":
    main()
