# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Ranks that do not call the same collectives, or launch the same communicating kernels, in the same order."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import free_symm_tensor
from triton_dist.runtime.groups import resolve

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


@case("collective/same-calls", world=3)
@case("collective/different-calls", "collective-mismatch", world=3, how="different", twin="collective/same-calls",
      also=("error", ),
      why="Rank 0 gathers where the others are in a barrier.")
@case("collective/call-left-out", "collective-mismatch", world=3, how="left-out", twin="collective/same-calls",
      also=("deadlock", ),
      why="Rank 1 does not call the second barrier.")
def host_collectives(rank, how):
    """All ranks call a barrier, a gather, a barrier."""
    world = resolve()
    if how == "different" and rank == 0:
        world.all_gather_object(rank)  # FAULT
    else:
        world.barrier()  # FAULT
    found = world.all_gather_object(rank)  # FAULT
    if how != "left-out" or rank != 1:
        world.barrier()  # FAULT
    return pairs((torch.tensor(found), torch.arange(3)))


@case("collective/same-root", world=3)
@case("collective/different-roots", "collective-mismatch", world=3, how="root", twin="collective/same-root",
      also=("error", "deadlock"),
      why="Rank 2 names another root.")
def roots(rank, how):
    """A broadcast from rank 0."""
    found = resolve().broadcast_object(rank + 5, root=1 if how and rank == 2 else 0)  # FAULT
    return pairs((torch.tensor([found]), 5))


@case("collective/same-shape")
@case("collective/different-shapes", "collective-mismatch", how="shape", twin="collective/same-shape", also=("error", ),
      why="Rank 1 asks for a larger symmetric tensor than rank 0.")
@case("collective/different-dtypes", "collective-mismatch", how="dtype", twin="collective/same-shape", also=("error", ),
      why="Same bytes, but another type on rank 1.")
def same_shape(rank, how):
    """All ranks make the same symmetric tensor."""
    shape = (2 * N, ) if how == "shape" and rank else (N, )
    dtype = torch.int32 if how == "dtype" and rank else torch.float32
    data = triton_dist.create_symm_tensor(shape, dtype)  # FAULT
    meet()
    return pairs((data, 0))


@case("collective/freed-by-all")
@case("collective/freed-by-one", "collective-mismatch", how="one", twin="collective/freed-by-all", also=("deadlock", ),
      why="Freeing is collective, and rank 1 goes on without it.")
def freed(rank, how):
    """All ranks free a symmetric tensor."""
    data = symm(N)
    if rank == 0 or not how:
        free_symm_tensor(data)  # FAULT
    return []


@case("collective/groups-in-one-order", world=3)
@case("collective/groups-in-different-orders", "collective-mismatch", world=3, how="order", twin="collective/groups-in-one-order",
      also=("deadlock", ), why="Rank 1 enters the barrier of its group first, rank 0 that of the world.")
def groups(rank, how):
    """Ranks 0 and 1 have a group of their own beside the world; all enter the barriers in the same order."""
    world = resolve()
    pair = world.new_group([0, 1])
    if how and rank == 0:
        pair.barrier()  # FAULT
        world.barrier()  # FAULT
    else:
        world.barrier()  # FAULT
        if pair is not None:
            pair.barrier()  # FAULT
    return []


@case("collective/same-number-of-rounds")
@case("collective/rounds-by-own-measure", "collective-mismatch", how="rounds", twin="collective/same-number-of-rounds",
      also=("deadlock", ), why="Each rank decides by itself how often to repeat (rule 13).")
def rounds(rank, how):
    """A number of rounds that all ranks agree on, a barrier in each."""
    count = 2 + rank if how else resolve().broadcast_object(2 + rank)
    for _ in range(count):
        resolve().barrier()  # FAULT
    return []


# -- kernels -----------------------------------------------------------------------------------------------------------
@triton_dist.jit
def shift_right(x, buffer, flag, out, N: tl.constexpr):
    i, peer = tl.arange(0, N), (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))
    dl.notify(flag, peer)
    dl.wait(flag, 1, "sys", "acquire")  # FAULT
    tl.store(out + i, tl.load(buffer + i))


@triton_dist.jit
def shift_left(x, buffer, flag, out, N: tl.constexpr):
    i, peer = tl.arange(0, N), (dl.rank() + dl.num_ranks() - 1) % dl.num_ranks()
    tl.store(dl.symm_at(buffer, peer) + i, tl.load(x + i))
    dl.notify(flag, peer)
    dl.wait(flag, 1, "sys", "acquire")  # FAULT
    tl.store(out + i, tl.load(buffer + i))


@case("collective/kernels-in-one-order", world=3)
@case("collective/kernels-in-different-orders", "collective-mismatch", world=3, how="order", also=("deadlock", ),
      twin="collective/kernels-in-one-order",
      why="Rank 0 launches the two kernels in the other order, and each waits for its peers.")
@case("collective/kernel-left-out", "collective-mismatch", world=3, how="left-out", also=("deadlock", ),
      twin="collective/kernels-in-one-order", why="Rank 0 does not launch the second kernel.")
def kernels(rank, how):
    """All ranks launch two kernels that communicate, in the same order, each with a buffer of its own."""
    buffers, words, x = [symm(N), symm(N)], [flags(1), flags(1)], filled(float(rank))
    out = [filled(-1.0), filled(-1.0)]
    order = [(0, shift_right), (1, shift_left)]
    if rank == 0:
        order = {"order": order[::-1], "left-out": order[:1]}.get(how, order)
    for k, kernel in order:
        kernel[(1, )](x, buffers[k], words[k], out[k], N=N)  # FAULT
    meet()
    return pairs((out[0], (rank + 2) % 3), (out[1], (rank + 1) % 3))


@triton_dist.jit
def in_blocks(x, buffer, flag, out, n, N: tl.constexpr):
    """Puts n elements in blocks of N, a flag behind each block; waits for as many."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    for block in range(tl.cdiv(n, N)):
        tl.store(dl.symm_at(buffer, peer) + block * N + i, tl.load(x + block * N + i))  # FAULT
        dl.notify(flag + block, peer)
    for block in range(tl.cdiv(n, N)):
        token = dl.wait(flag + block, 1, "sys", "acquire")  # FAULT
        tl.store(out + block * N + i, tl.load(dl.consume_token(buffer, token) + block * N + i))  # FAULT


@case("collective/same-tiles")
@case("collective/different-tiles", "deadlock", how="tiles", twin="collective/same-tiles",
      also=("collective-mismatch", "race"),
      why="Rank 1 takes smaller tiles, and waits for more flags than rank 0 sets (pain 39).")
def tiling(rank, how):
    """Two ranks exchange 64 elements in blocks of the same size."""
    buffer, flag, x, out = symm(N), flags(8), filled(float(rank)), filled(-1.0)
    in_blocks[(1, )](x, buffer, flag, out, N, N=16 if how and rank else 32)
    meet()
    return pairs((out, 1 - rank))
