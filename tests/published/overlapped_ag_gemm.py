# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""All-gather and GEMM overlapped, by published names only: bash launch.sh --published overlapped_ag_gemm.py

The copy engine pushes shards on a side stream, a flag after each. The GEMM reads tiles by descriptors that it makes itself,
and waits for the shard of a tile before it loads it.
"""
import argparse
from typing import Optional

import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from cuda import cudart
from triton_dist.kernels.common_ops import set_signal
from triton_dist.kernels.nvidia import ag_gemm, create_ag_gemm_context
from triton_dist.test.utils import assert_allclose
from triton_dist.utils import (CUDA_CHECK, dist_print, finalize_distributed, initialize_distributed,
                               nvshmem_barrier_all_on_stream, nvshmem_create_tensors, rand_tensor)


@triton.jit
def gemm_kernel(gathered, weight, out, M, N, K, ready, rank, ranks, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    rows = M // ranks
    row_tile = (tile // tiles_n + rank * (rows // BLOCK_M)) % tiles_m
    x = tl.make_tensor_descriptor(gathered, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    w = tl.make_tensor_descriptor(weight, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    y = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    m, n = row_tile * BLOCK_M, (tile % tiles_n) * BLOCK_N
    first, last = m // rows, (min(m + BLOCK_M, M) - 1) // rows
    token = dl.wait(ready + first, last - first + 1, "sys", "acquire", waitValue=1)
    x = dl.consume_token(x, token)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        total = tl.dot(x.load([m, k]), w.load([n, k]).T, total)
    y.store([m, n], total.to(tl.float16))


def push(local: torch.Tensor, gathered: list, ready: list, rank: int, stream: torch.cuda.Stream) -> None:
    for step in range(1, len(gathered)):
        peer = (rank + step) % len(gathered)
        there = gathered[peer].data_ptr() + rank * local.nbytes
        err, = cudart.cudaMemcpyAsync(there, local.data_ptr(), local.nbytes, cudart.cudaMemcpyKind.cudaMemcpyDefault,
                                      stream.cuda_stream)
        CUDA_CHECK(err)
        set_signal(ready[peer][rank], 1, stream)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--n", type=int, default=96)
    parser.add_argument("--k", type=int, default=128)
    args = parser.parse_args()
    group = initialize_distributed()
    rank, ranks = group.rank(), group.size()
    M, N, K = args.rows * ranks, args.n, args.k
    gathered = nvshmem_create_tensors((M, K), torch.float16, rank, ranks)
    ready = nvshmem_create_tensors((ranks,), torch.int32, rank, ranks)
    stream = torch.cuda.Stream(priority=-1)

    def alloc(size: int, alignment: int, on: Optional[int]):
        return torch.empty(size, device="cuda", dtype=torch.int8)

    triton.set_allocator(alloc)
    for _ in range(2):
        local = rand_tensor((args.rows, K), torch.float16, device="cuda") * 0.1
        weight = rand_tensor((N, K), torch.float16, device="cuda") * 0.1
        out = torch.empty((M, N), device="cuda", dtype=torch.float16)
        ready[rank].fill_(0)
        gathered[rank][rank * args.rows:(rank + 1) * args.rows].copy_(local)
        ready[rank][rank] = 1
        nvshmem_barrier_all_on_stream(torch.cuda.current_stream())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            push(local, gathered, ready, rank, stream)
        grid = lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]), )
        gemm_kernel[grid](gathered[rank], weight, out, M, N, K, ready[rank], rank, ranks, BLOCK_M=32, BLOCK_N=32, BLOCK_K=64)
        torch.cuda.current_stream().wait_stream(stream)
        whole = torch.empty((M, K), dtype=torch.float16, device="cuda")
        torch.distributed.all_gather_into_tensor(whole, local, group=group)
        assert_allclose(out, whole @ weight.T, rtol=1e-2, atol=1e-2, verbose=False)
        nvshmem_barrier_all_on_stream(torch.cuda.current_stream())
    ctx = create_ag_gemm_context(M, N * ranks, K, torch.float16, rank, ranks, num_local_ranks=ranks)
    assert_allclose(ag_gemm(local, weight.T, ctx=ctx), whole @ weight.T, rtol=1e-2, atol=1e-2, verbose=False)
    ctx.finalize()
    dist_print(f"rank {rank}: gathered and multiplied {M} x {N} x {K}", need_sync=True, allowed_ranks="all")
    finalize_distributed()


if __name__ == "__main__":
    main()
