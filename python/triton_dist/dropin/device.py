# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The published device helpers of common_ops: barriers of a grid and of ranks, searches in sorted arrays."""
from typing import Any

import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.compat.triton import constexpr_function
from triton_dist.dropin import host, stream_calls
from triton_dist.language.extra.language_extra import atomic_cas, ld, st, sync_grid, syncthreads, tid
from triton_dist.runtime.groups import resolve


@triton_dist.jit
def unsafe_barrier_on_this_grid(ptr):
    """Barrier of all programs of the grid, by a word that was 0 before its first use. All must be resident."""
    sync_grid(ptr)


@triton_dist.jit
def barrier_on_this_grid(ptr, use_cooperative: tl.constexpr):
    """The same. A cooperative launch makes sure that all programs are resident; the word is used either way."""
    sync_grid(ptr)


@triton_dist.jit
def barrier_all_intra_node_atomic_cas_block(local_rank, rank, local_world_size, symm_flag_ptr):
    """Barrier of the ranks of a node, by one program of each. symm_flag_ptr: symmetric integers [local_world_size], zeros.

    Thread i raises this rank's flag on rank i, then takes back the one that rank i has raised here."""
    syncthreads()
    peer = tid(0)
    if peer < local_world_size:
        there = dl.symm_at(symm_flag_ptr + local_rank, rank - local_rank + peer)
        while atomic_cas(there, 0, 1, "sys", "release") != 0:
            pass
        while atomic_cas(symm_flag_ptr + peer, 1, 0, "sys", "acquire") != 1:
            pass
    syncthreads()


@triton_dist.jit
def _meet_once(local_rank, rank, num_ranks, symm_flags, target_value):
    syncthreads()
    peer = tid(0)
    if peer < num_ranks:
        st(dl.symm_at(symm_flags + local_rank, rank - local_rank + peer), target_value, scope="sys", semantic="release")
        while ld(symm_flags + peer, scope="sys", semantic="acquire") != target_value:
            pass
    syncthreads()


@triton_dist.jit
def barrier_all_intra_node_non_atomic_block(local_rank, rank, num_ranks, symm_flags, target_value):
    """Barrier of the ranks of a node without atomics, by one program of each.

    symm_flags: symmetric integers [2 * num_ranks]. target_value: another one at each call. The second half is met in as well,
    so that nobody raises a flag of the next call while a peer still looks for this one."""
    _meet_once(local_rank, rank, num_ranks, symm_flags, target_value)
    _meet_once(local_rank, rank, num_ranks, symm_flags + num_ranks, target_value)


@triton_dist.jit
def barrier_all_intra_node_non_atomic(local_rank, rank, num_ranks, symm_flags, target_value, use_cooperative: tl.constexpr):
    """The same for all programs of all ranks. symm_flags has one word more, for the barrier of the grid."""
    first = tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0
    barrier_on_this_grid(symm_flags + 2 * num_ranks, use_cooperative)
    if first:
        barrier_all_intra_node_non_atomic_block(local_rank, rank, num_ranks, symm_flags, target_value)
    barrier_on_this_grid(symm_flags + 2 * num_ranks, use_cooperative)


@triton_dist.jit
def barrier_all_same_program(local_rank, rank, num_ranks, symm_flags, target_value):
    """Barrier of the programs of one number, one of each rank. symm_flags: symmetric integers [programs, 2 * num_ranks]."""
    own = symm_flags + tl.program_id(0) * 2 * num_ranks
    barrier_all_intra_node_non_atomic_block(local_rank, rank, num_ranks, own, target_value)


class BarrierAllContext:
    """What barrier_all_on_stream needs. is_intra_node: the ranks of this node meet by flags, not all by SHMEM."""

    def __init__(self, is_intra_node: bool):
        self.is_intra_node, self.target_value = is_intra_node, 0
        if is_intra_node:
            world = resolve()
            self.rank, self.local_rank, self.num_local_ranks = world.rank, world.local_rank, world.ranks_per_node
            self.symm_barrier = host.nvshmem_create_tensor((2 * self.num_local_ranks,), torch.int32)


def barrier_all_on_stream(ctx: Any = None, stream: Any = None) -> None:
    """Puts a barrier of all ranks, or those of this node, on a stream."""
    if ctx is None or not ctx.is_intra_node:
        host.nvshmem_barrier_all_on_stream(stream)
        return
    ctx.target_value += 1
    with stream_calls.on(stream):
        barrier_all_intra_node_non_atomic_block[(1,)](ctx.local_rank, ctx.rank, ctx.num_local_ranks, ctx.symm_barrier,
                                                      ctx.target_value)


@constexpr_function
def log2(n: Any) -> int:
    """Rounded down, at compile time."""
    return int(n).bit_length() - 1


@constexpr_function
def next_power_of_2(n: Any) -> int:
    """The least power of two that is not below n, at compile time."""
    return triton.next_power_of_2(int(n))


@triton_dist.jit
def bisect_left_kernel(sorted_values_ptr, target_values, N: tl.constexpr):
    """For each target, how many of the N sorted values are below it."""
    found = tl.zeros_like(target_values).to(tl.int32)
    for i in range(N):
        found += (tl.load(sorted_values_ptr + i) < target_values).to(tl.int32)
    return found


@triton_dist.jit
def bisect_right_kernel(sorted_values_ptr, target_values, N: tl.constexpr):
    """For each target, how many of the N sorted values are not above it."""
    found = tl.zeros_like(target_values).to(tl.int32)
    for i in range(N):
        found += (tl.load(sorted_values_ptr + i) <= target_values).to(tl.int32)
    return found


bisect_left_kernel_aligned, bisect_right_kernel_aligned = bisect_left_kernel, bisect_right_kernel
