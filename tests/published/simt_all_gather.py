# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An all-gather whose threads signal, by published names only: bash launch.sh --published simt_all_gather.py

Every program pushes a part of this rank's row to every peer. When a program's part is there, its thread p tells rank p, and
waits for the part of rank p.
"""
import torch
import triton_dist
import triton.language as tl
import triton_dist.language as dl
from triton_dist.language.extra.language_extra import __syncthreads, atomic_add, ld, num_threads, st, tid
from triton_dist.profiler_utils import perf_func
from triton_dist.test.utils import assert_allclose
from triton_dist.utils import (dist_print, finalize_distributed, initialize_distributed, nvshmem_barrier_all_on_stream,
                               nvshmem_create_tensor, rand_tensor)


@triton_dist.jit(do_not_specialize=["rank", "call"])
def push_kernel(row, gathered, flags, counter, rank, ranks, elements, call, BLOCK: tl.constexpr):
    thread = tid(0)
    part = tl.program_id(0)
    offsets = part * BLOCK + tl.arange(0, BLOCK)
    data = tl.load(row + offsets, mask=offsets < elements)
    for peer in range(ranks):
        tl.store(dl.symm_at(gathered, peer) + rank * elements + offsets, data, mask=offsets < elements)
    __syncthreads()
    own = flags + part * ranks
    if thread < ranks:
        st(dl.symm_at(own + rank, thread), call, scope="sys", semantic="release")
        while ld(own + thread, scope="sys", semantic="acquire") != call:
            pass
    __syncthreads()
    if thread == 0:
        atomic_add(counter, 1, scope="gpu", semantic="relaxed")


@triton_dist.jit
def thread_copy_kernel(source, out, elements):
    with dl.simt_exec_region() as (thread, threads):
        for i in range(thread, elements, threads):
            st(out + i, ld(source + i))
    if tid(0) >= num_threads():
        st(out, 0.0)


def main() -> None:
    group = initialize_distributed()
    rank, ranks = group.rank(), group.size()
    elements, block = 1000, 256
    programs = -(-elements // block)
    gathered = nvshmem_create_tensor((ranks, elements), torch.float32)
    flags = nvshmem_create_tensor((programs * ranks,), torch.int32)
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    calls = [0]

    def gather(row: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        push_kernel[(programs,)](row, gathered, flags, counter, rank, ranks, elements, calls[0], BLOCK=block)
        out = torch.empty_like(gathered)
        thread_copy_kernel[(1,)](gathered, out, ranks * elements)
        nvshmem_barrier_all_on_stream(torch.cuda.current_stream())
        return out

    for _ in range(2):
        row = rand_tensor((elements,), torch.float32, device="cuda")
        wanted = torch.empty((ranks, elements), dtype=torch.float32, device="cuda")
        torch.distributed.all_gather_into_tensor(wanted, row, group=group)
        assert_allclose(gather(row), wanted, rtol=0, atol=0, verbose=False)
    out, ms = perf_func(lambda: gather(row), iters=1, warmup_iters=1)
    assert counter.item() == calls[0] * programs and ms > 0
    dist_print(f"rank {rank}: gathered {ranks} rows of {elements}", need_sync=True, allowed_ranks="all")
    finalize_distributed()


if __name__ == "__main__":
    main()
