# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Addresses: past the end of a tensor, on a rank that has none, after a free, before the first write."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import free_symm_tensor, peer_tensor
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve

from .common import N, filled, meet, pairs, streams, symm
from .registry import case


# -- bounds ------------------------------------------------------------------------------------------------------------
@triton_dist.jit
def store_at(data, start, n, to, HOW: tl.constexpr, N: tl.constexpr):
    """Stores n elements from `start` into a peer's tensor."""
    i = tl.arange(0, N)
    if HOW == "no-mask":
        tl.store(dl.symm_at(data, to) + start + i, tl.zeros([N], tl.float32) + 1)  # FAULT
    else:
        tl.store(dl.symm_at(data, to) + start + i, tl.zeros([N], tl.float32) + 1, mask=i < n)  # FAULT


@triton_dist.jit
def load_at(data, start, n, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(data + start + i, mask=i < n, other=0.0))  # FAULT


@case("memory/store-inside")
@case("memory/store-past-the-end", "out-of-bounds", how="past", twin="memory/store-inside",
      why="The block starts 16 elements too late and runs into the neighbour on the heap.")
@case("memory/store-without-mask", "out-of-bounds", how="no-mask", twin="memory/store-inside",
      why="The last block of the tensor is not full and needs a mask.")
@case("memory/store-before-the-start", "out-of-bounds", how="before", twin="memory/store-inside",
      why="A negative offset reaches the tensor before.")
def store_inside(rank, how):
    """A put of the last 32 elements of a peer's tensor; the heap has neighbours on both sides."""
    below, data, above = symm(N, name="below"), symm(2 * N, name="data"), symm(N, name="above")
    start = {"past": 112, "before": -16}.get(how, 96)
    store_at[(1, )](data, start, N // 2, 1 - rank, HOW=how, N=N)
    meet()
    return pairs((data[96:], 1), (data[:96], 0), (below, 0), (above, 0))


@case("memory/load-inside")
@case("memory/load-past-the-end", "out-of-bounds", how="past", twin="memory/load-inside",
      why="The load reads the first elements of the neighbour on the heap.")
@case("memory/load-in-the-padding", "out-of-bounds", how="padding", twin="memory/load-inside",
      why="The tensor has 40 elements; the load goes on into the padding behind it.")
def load_inside(rank, how):
    """A load of a whole tensor of 40 elements, which the heap pads to 64."""
    data, neighbour, out = symm(40, name="data"), symm(N, name="neighbour"), filled(-1.0)
    load_at[(1, )](data, 24 if how == "past" else 0, {"past": N, "padding": 48}.get(how, 40), out, N=N)
    meet()
    return pairs((out, 0), (neighbour, 0))


@triton_dist.jit
def store_local(data, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(data + i, tl.zeros([N], tl.float32) + 1, mask=i < n)  # FAULT


@case("memory/local-inside", world=1)
@case("memory/local-past-the-end", "out-of-bounds", world=1, how="past", twin="memory/local-inside",
      why="A local tensor of 40 elements gets 41.")
def local_inside(rank, how):
    """A store of a whole local tensor."""
    data = filled(0.0, 40)
    store_local[(1, )](data, 41 if how else 40, N=N)
    meet()
    return pairs((data, 1))


@triton_dist.jit
def store_to_next(data, WRAP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    to = dl.rank() + 1
    if WRAP:
        to = to % dl.num_ranks()
    tl.store(dl.symm_at(data, to) + i, tl.zeros([N], tl.float32) + 1)  # FAULT


@case("memory/next-rank")
@case("memory/rank-that-does-not-exist", "out-of-bounds", how="no-wrap", twin="memory/next-rank",
      why="The last rank puts to rank 2 of a world of 2.")
def next_rank(rank, how):
    """A put to the next rank, round the ring."""
    data = symm(N)
    store_to_next[(1, )](data, WRAP=how == "", N=N)
    meet()
    return pairs((data, 1))


@case("memory/symmetric-target")
@case("memory/target-not-symmetric", "out-of-bounds", how="local", twin="memory/symmetric-target",
      why="symm_at of an ordinary tensor is no address of anything.")
def symmetric_target(rank, how):
    """A put into a symmetric tensor of the peer."""
    data = filled(0.0) if how else symm(N)
    store_at[(1, )](data, 0, N, 1 - rank, HOW="", N=N)
    meet()
    return pairs((data, 1))


@case("memory/tensor-of-a-group", world=3)
@case("memory/rank-outside-the-group", "out-of-bounds", world=3, how="outside", twin="memory/tensor-of-a-group",
      why="Rank 0 is not in the group, and has no such tensor.")
@case("memory/index-taken-for-a-rank", "out-of-bounds", world=3, how="index", twin="memory/tensor-of-a-group",
      why="The index in the group is used as a world rank (rule 20).")
def tensor_of_a_group(rank, how):
    """Ranks 1 and 2 have a tensor of their group and put into each other's."""
    group = resolve().new_group([1, 2])
    if group is None:
        meet()
        return []
    data = triton_dist.create_symm_tensor((N, ), torch.float32, group)
    peer = 1 - group.rank
    to = {"outside": 0, "index": peer}.get(how, group.world_ranks[peer])
    store_at[(1, )](data, 0, N, to, HOW="", N=N)
    meet()
    return pairs((data, 1))


# -- lifetime ----------------------------------------------------------------------------------------------------------
@case("memory/freed-at-the-end")
@case("memory/put-after-free", "use-after-free", how="put", twin="memory/freed-at-the-end",
      why="The put goes into a tensor that has been freed.")
@case("memory/put-after-free-into-a-new-tensor", "use-after-free", how="reused", twin="memory/freed-at-the-end",
      why="The freed range belongs to another tensor now.")
@case("memory/load-after-free", "use-after-free", how="load", twin="memory/freed-at-the-end",
      why="The load reads a tensor that has been freed.")
@case("memory/copy-after-free", "use-after-free", how="copy", twin="memory/freed-at-the-end",
      why="The copy engine writes into a tensor that has been freed.")
def freed(rank, how):
    """A tensor is freed behind its last use."""
    data, out, new = symm(N, name="old"), filled(-1.0), None
    there = peer_tensor(data, 1 - rank)
    if how:
        free_symm_tensor(data)
    if how == "reused":
        new = symm(N, name="new")
    if how == "load":
        load_at[(1, )](data, 0, N, out, N=N)
    elif how == "copy":
        side, = streams(1)
        backend().copy(there, out, side)  # FAULT
    else:
        store_at[(1, )](data, 0, N, 1 - rank, HOW="", N=N)
    meet()
    found = pairs((data, 1))
    if not how:
        free_symm_tensor(data)
    return found + (pairs((new, 0)) if new is not None else [])


@triton_dist.jit
def slow_put(flag, data, N: tl.constexpr):
    """Waits for its own rank's flag before it puts into the peer's tensor."""
    i, peer = tl.arange(0, N), 1 - dl.rank()
    dl.wait(flag, 1, "gpu", "acquire")
    tl.store(dl.symm_at(data, peer) + i, tl.zeros([N], tl.float32) + 1)  # FAULT


@triton_dist.jit
def let_go(flag):
    dl.notify(flag, dl.rank(), comm_scope="gpu")


@case("memory/freed-behind-a-side-stream")
@case("memory/freed-and-used-on-a-side-stream", "use-after-free", how="early", twin="memory/freed-behind-a-side-stream",
      why="The tensor is freed before the kernel that uses it is put on its stream.")
def side_stream(rank, how):
    """A kernel on a side stream puts into a tensor; the tensor is freed when the kernel is over."""
    flag, data = triton_dist.create_symm_tensor((1, ), torch.int32), symm(N)
    side, = streams(1)
    if how:
        free_symm_tensor(data)
    else:
        let_go[(1, )](flag)
    with triton_dist.use_stream(side):
        slow_put[(1, )](flag, data, N=N)
    if how:
        let_go[(1, )](flag)
    meet()
    found = pairs((data, 1))
    if not how:
        free_symm_tensor(data)
    return found


# -- never written -----------------------------------------------------------------------------------------------------
@triton_dist.jit
def write_some(scratch, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(scratch + i, tl.zeros([N], tl.float32) + 2, mask=i < n)


@triton_dist.jit
def read_all(scratch, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(scratch + i))  # FAULT


@case("memory/scratch-written-first", world=1)
@case("memory/scratch-never-written", "uninitialized-read", world=1, how="none", twin="memory/scratch-written-first",
      why="Nothing has written the scratch memory.")
@case("memory/scratch-written-in-part", "uninitialized-read", world=1, how="part", twin="memory/scratch-written-first",
      why="The last 16 elements are read and have never been written.")
def scratch(rank, how):
    """A kernel writes scratch memory of torch.empty, another reads it."""
    space, out = torch.empty(N), filled(-1.0)
    if how != "none":
        write_some[(1, )](space, N - 16 if how else N, N=N)
    read_all[(1, )](space, out, N=N)
    meet()
    return pairs((out, 2))


@case("memory/scratch-written-by-a-copy", world=1, classes=("memory", "copy"))
@case("memory/scratch-copied-in-part", "uninitialized-read", world=1, how="part", twin="memory/scratch-written-by-a-copy",
      classes=("memory", "copy"), why="The copy covers the first half only.")
def scratch_by_copy(rank, how):
    """The copy engine writes scratch memory, a kernel reads it."""
    space, source, out = torch.empty(N), filled(2.0), filled(-1.0)
    stream, = streams(1)
    n = N // 2 if how else N
    backend().copy(space[:n], source[:n], stream)
    with triton_dist.use_stream(stream):
        read_all[(1, )](space, out, N=N)
    meet()
    return pairs((out, 2))
