# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""SHMEM calls of thread scope in branches of threads, by published names only: bash launch.sh --published thread_scope.py

Thread p puts a word to rank p, tells it, and waits for the one that rank p has put. Then thread 0 alone passes a row on.
"""
import torch
import triton.language as tl
import triton_dist
from triton_dist.kernels.nvidia.common_ops import barrier_all_intra_node_atomic_cas_block
from triton_dist.language.extra import libshmem_device
from triton_dist.language.extra.language_extra import __syncthreads, ld, st, tid
from triton_dist.utils import (NVSHMEM_SIGNAL_DTYPE, dist_print, finalize_distributed, initialize_distributed,
                               nvshmem_barrier_all_on_stream, nvshmem_create_tensor)


@triton_dist.jit(do_not_specialize=["rank", "call"])
def threads_kernel(words, signals, row, passed, seen, meeting, rank, ranks, call, N: tl.constexpr):
    thread = tid(0)
    if thread < ranks:
        libshmem_device.int_p(words + rank, 100 * call + rank, thread)
        libshmem_device.fence()
        libshmem_device.signal_op(signals + rank, 1, libshmem_device.NVSHMEM_SIGNAL_ADD, thread)
        libshmem_device.signal_wait_until(signals + thread, libshmem_device.NVSHMEM_CMP_EQ, call)
        st(seen + thread, ld(words + thread, scope="sys", semantic="acquire"))
    __syncthreads()
    if thread == 0:
        peer = (rank + 1) % ranks
        libshmem_device.putmem_signal_nbi(passed, row, N * 4, signals + ranks, call, libshmem_device.NVSHMEM_SIGNAL_SET, peer)
        libshmem_device.signal_wait_until(signals + ranks, libshmem_device.NVSHMEM_CMP_EQ, call)
    __syncthreads()
    barrier_all_intra_node_atomic_cas_block(rank, rank, ranks, meeting)


def main() -> None:
    group = initialize_distributed()
    rank, ranks = group.rank(), group.size()
    n = 48
    words = nvshmem_create_tensor((ranks,), torch.int32)
    signals = nvshmem_create_tensor((ranks + 1,), NVSHMEM_SIGNAL_DTYPE)
    row, passed = (nvshmem_create_tensor((n,), torch.float32) for _ in range(2))
    meeting = nvshmem_create_tensor((ranks,), torch.int32)
    seen = torch.zeros(ranks, dtype=torch.int32, device="cuda")
    for call in range(1, 4):
        row.copy_(torch.arange(n, device="cuda") + 1000.0 * rank + call)
        nvshmem_barrier_all_on_stream()
        threads_kernel[(1,)](words, signals, row, passed, seen, meeting, rank, ranks, call, N=n)
        torch.cuda.synchronize()
        assert seen.tolist() == [100 * call + peer for peer in range(ranks)], (call, seen)
        assert torch.equal(passed.cpu(), torch.arange(n) + 1000.0 * ((rank - 1) % ranks) + call), call
    dist_print(f"rank {rank}: {ranks} threads met {call} times", need_sync=True, allowed_ranks="all")
    finalize_distributed()


if __name__ == "__main__":
    main()
