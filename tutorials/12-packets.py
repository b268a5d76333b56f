# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Packets: a small all-reduce of one hop, called again and again.

    bash launch.sh 12-packets.py

A notify behind data costs a fence, which waits until the data has arrived. A packet needs none: each int64 word carries 32
bits of data and the number of the call, written and read as one, so that who polls the number has the data. Calls count from
1, since 0 is the content of fresh memory. Two halves take turns: what a slow rank still reads of call n is not overwritten
before call n + 2, and nobody gets there before all have sent n + 1, hence have read n.

Small kernels live off their launch: this one may start while the one ahead still runs, and waits for it by gdc_wait before it
touches anything (on GPUs from sm_90 on; elsewhere the option and both calls do nothing).
"""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

N, BLOCK, CALLS = 1000, 256, 5


@triton_dist.jit(do_not_specialize=["call"])          # or a number such as 16 would be compiled for itself
def all_reduce(x, packets, out, call, n, BLOCK: tl.constexpr):
    """out [n] = sum over ranks of x [n], fp32, in the order of ranks. packets: int64 [2 halves][rank][n], symmetric."""
    dl.gdc_wait()
    dl.gdc_launch_dependents()
    me, world = dl.rank(), dl.num_ranks()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    half = packets + (call & 1) * world * n
    mine = tl.load(x + offsets, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    for hop in range(world):
        peer = (me + hop) % world
        dl.ll_store(dl.symm_at(half, peer) + me * n + offsets, mine, call, mask=inside)
    total = tl.zeros((BLOCK,), tl.float32)
    for source in range(world):
        total += dl.ll_load(half + source * n + offsets, call, mask=inside).to(tl.float32, bitcast=True)
    tl.store(out + offsets, total, mask=inside)


def main():
    triton_dist.initialize_distributed()
    rank, world, device = torch.distributed.get_rank(), torch.distributed.get_world_size(), triton_dist.device()
    packets = triton_dist.create_symm_tensor((2, world, N), torch.int64, name="packets")
    inputs = [torch.arange(N, dtype=torch.float32, device=device) + 100 * call + rank for call in range(1, CALLS + 1)]
    sums = [torch.empty(N, device=device) for _ in inputs]
    for call, (x, total) in enumerate(zip(inputs, sums), 1):
        all_reduce[(-(-N // BLOCK),)](x, packets, total, call, N, BLOCK=BLOCK, launch_pdl=True)
    triton_dist.synchronize()
    right = sum(torch.equal(total, world * (x - rank) + world * (world - 1) / 2) for x, total in zip(inputs, sums))
    print(f"rank {rank}: {right} of {CALLS} sums are right", flush=True)
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
