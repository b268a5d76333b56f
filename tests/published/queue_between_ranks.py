# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A queue between neighbours, by published names only: bash launch.sh --published queue_between_ranks.py

Producers of a rank fill slots of the next rank's queue, and its consumers empty them. A slot's flag counts: odd is full.
"""
import argparse

import nvshmem.core
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cuda.language_extra import __syncthreads
from triton_dist.utils import (NVSHMEM_SIGNAL_DTYPE, dist_print, initialize_distributed, nvshmem_barrier_all_on_stream,
                               nvshmem_create_tensor, nvshmem_free_tensor_sync)

SLOTS, BLOCK = 8, 128


@triton.jit
def queue_kernel(source, out, queue, flags, items, rank, ranks, SLOTS: tl.constexpr, BLOCK: tl.constexpr,
                 PRODUCERS: tl.constexpr, CONSUMERS: tl.constexpr):
    pid = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if pid < PRODUCERS:
        peer = (rank + 1) % ranks
        for item in range(pid, items, PRODUCERS):
            slot, turn = item % SLOTS, item // SLOTS
            token = dl.wait(dl.symm_at(flags, peer) + slot, 1, "sys", "acquire", waitValue=2 * turn)
            data = tl.load(dl.consume_token(source, token) + item * BLOCK + lanes)
            tl.store(dl.symm_at(queue, peer) + slot * BLOCK + lanes, data)
            __syncthreads()
            dl.notify(flags + slot, peer, signal=2 * turn + 1, sig_op="set", comm_scope="intra_node")
    else:
        for item in range(pid - PRODUCERS, items, CONSUMERS):
            slot, turn = item % SLOTS, item // SLOTS
            token = dl.wait(flags + slot, 1, "sys", "acquire", waitValue=2 * turn + 1)
            data = tl.load(dl.consume_token(queue, token) + slot * BLOCK + lanes)
            tl.store(out + item * BLOCK + lanes, data)
            __syncthreads()
            dl.notify(flags + slot, rank, signal=2 * turn + 2, sig_op="set", comm_scope="intra_node")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=40)
    items = parser.parse_args().items
    group = initialize_distributed()
    rank, ranks = group.rank(), group.size()
    queue = nvshmem_create_tensor((SLOTS * BLOCK,), torch.float32)
    flags = nvshmem_create_tensor((SLOTS,), NVSHMEM_SIGNAL_DTYPE)
    for turn in range(2):
        flags.fill_(0)
        source = torch.randn((items * BLOCK,), dtype=torch.float32).cuda()
        out = torch.empty_like(source)
        nvshmem_barrier_all_on_stream(torch.cuda.current_stream())
        queue_kernel[(20,)](source, out, queue, flags, items, rank, ranks, SLOTS, BLOCK, 16, 4, num_warps=4)
        torch.cuda.synchronize()
        every = [torch.empty_like(source) for _ in range(ranks)]
        torch.distributed.all_gather(every, source, group=group)
        assert torch.equal(out, every[(rank - 1) % ranks]), f"rank {rank}, turn {turn}"
    dist_print(f"rank {rank}: the queue passed {items} items", need_sync=True, allowed_ranks="all")
    nvshmem_free_tensor_sync(queue)
    nvshmem_free_tensor_sync(flags)
    nvshmem.core.finalize()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
