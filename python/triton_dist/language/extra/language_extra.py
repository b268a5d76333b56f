# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Device functions of single threads: who am I in my program, loads, stores and atomics of one thread, warp shuffles.

    from triton_dist.language.extra.language_extra import tid, ld, st, __syncthreads

A scalar that comes from `tid` differs from thread to thread. Branches and loops on it are divergent: each thread goes its
own way, and inside them only functions of this module, scalar arithmetic and SHMEM calls of thread scope may be called.
`__syncthreads` brings the threads together again. Blocks (`tl.arange`, `tl.load` of a block, `tl.dot`) and functions that need
all threads (`dl.wait`, `dl.notify`, SHMEM calls of block scope) belong outside. Names and arguments are the published ones.

Scopes are "cta", "gpu" and "sys"; "workgroup", "agent" and "system" mean the same. All functions are compiled
for all GPUs, and emulated thread by thread. A word written by a plain `tl.store` of a scalar is written by the first thread.
"""
from triton_dist.language.thread_words import (
    atomic_add_per_warp, ballot, ld_vector, load_v2_b64, load_v4_b32, load_v4_s32, load_v4_u32, make_vector, pack,
    pack_b32_v2, shuffle, shuffle_down, shuffle_up, shuffle_xor, st_v2_u32, st_v4_b32, st_v4_u32, st_vector,
    sync_grid, unpack, zeros_vector)
from triton_dist.language.threads import (
    arrive_inc, atomic_add, atomic_cas, atomic_exch, clock, fence, globaltimer, laneid, ld, ld_acquire, ld_b32,
    membar, ntid, num_threads, num_warps, red_release, simt_exec_region, smid, st, st_b32, syncthreads,
    threads_per_warp, tid, wait_eq)

__syncthreads, __fence, __ballot_sync = syncthreads, fence, ballot
__shfl_sync_i32, __shfl_up_sync_i32 = shuffle, shuffle_up
__shfl_down_sync_i32, __shfl_xor_sync_i32 = shuffle_down, shuffle_xor

__all__ = [
    "__ballot_sync", "__fence", "__shfl_down_sync_i32", "__shfl_sync_i32", "__shfl_up_sync_i32",
    "__shfl_xor_sync_i32", "__syncthreads", "arrive_inc", "atomic_add", "atomic_add_per_warp", "atomic_cas",
    "atomic_exch", "ballot", "clock", "fence", "globaltimer", "laneid", "ld", "ld_acquire", "ld_b32", "ld_vector",
    "load_v2_b64", "load_v4_b32", "load_v4_s32", "load_v4_u32", "make_vector", "membar", "ntid", "num_threads",
    "num_warps", "pack", "pack_b32_v2", "red_release", "shuffle", "shuffle_down", "shuffle_up", "shuffle_xor",
    "simt_exec_region", "smid", "st", "st_b32", "st_v2_u32", "st_v4_b32", "st_v4_u32", "st_vector", "sync_grid",
    "syncthreads", "threads_per_warp", "tid", "unpack", "wait_eq", "zeros_vector",
]
