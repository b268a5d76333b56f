# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""Conflicting accesses of the same bytes with nothing between them, remote and local, and neighbours that do not conflict."""
import torch
import triton.language as tl

import triton_dist
import triton_dist.language as dl

from .common import N, filled, flags, meet, pairs, symm
from .registry import case


# -- two writers -------------------------------------------------------------------------------------------------------
@triton_dist.jit
def put_at(x, buffer, to, offset, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, to) + offset + i, tl.load(x + i), mask=i < n)  # FAULT


@case("conflict/put-put", world=3)
@case("conflict/put-put-same-range", "race", world=3, how="same", twin="conflict/put-put",
      why="Both write the whole range and nothing orders them.")
@case("conflict/put-put-overlap-by-four", "race", world=3, how="overlap", twin="conflict/put-put",
      why="The last four elements of one range are the first of the other.")
@case("conflict/put-put-wrong-mask", "race", world=3, how="mask", twin="conflict/put-put",
      why="The mask lets one element more through than the sender's part has.")
def put_put(rank, how):
    """Ranks 0 and 1 put into parts of one buffer of rank 2."""
    buffer, part = symm(2 * N), N // 2
    start = {"same": 0, "overlap": part - 4}.get(how, part)
    if rank < 2:
        put_at[(1, )](filled(rank + 1.0), buffer, 2, start * rank, part + (how == "mask"), N=N)
    meet()
    return pairs((buffer[:N], torch.tensor([1.0, 2.0]).repeat_interleave(part) if rank == 2 else 0))


@triton_dist.jit
def store_bytes(words, to, at, WORD: tl.constexpr):
    if WORD:
        tl.store(dl.symm_at(words, to).to(tl.pointer_type(tl.int32)), 0x01010101)  # FAULT
    else:
        tl.store(dl.symm_at(words, to) + at, 1)  # FAULT


@case("conflict/bytes-of-one-word", world=3)
@case("conflict/byte-under-a-word", "race", world=3, how="word", twin="conflict/bytes-of-one-word",
      why="A 32-bit store covers the byte that the other rank writes.")
def bytes_of_a_word(rank, how):
    """Ranks 0 and 1 write different bytes of one word of rank 2, each with a byte store."""
    words = symm(4, dtype=torch.int8)
    if rank < 2:
        store_bytes[(1, )](words, 2, 3 * rank, WORD=how == "word" and rank == 0)
    meet()
    return pairs((words, torch.tensor([1, 0, 0, 1], dtype=torch.int8) if rank == 2 else 0))


@triton_dist.jit
def put_every_second(x, buffer, to, first, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(dl.symm_at(buffer, to) + 2 * i + first, tl.load(x + i))


@case("conflict/interleaved-elements", world=3)
def interleaved(rank):
    """Rank 0 writes the even and rank 1 the odd elements of one buffer: ranges overlap, elements do not."""
    buffer = symm(2 * N)
    if rank < 2:
        put_every_second[(1, )](filled(rank + 1.0), buffer, 2, rank, N=N)
    meet()
    return pairs((buffer, torch.tensor([1.0, 2.0]).repeat(N) if rank == 2 else 0))


@triton_dist.jit
def put_tile(buffer, to, column, pitch, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    where = rows[:, None] * pitch + column + cols[None, :]
    tl.store(dl.symm_at(buffer, to) + where, tl.zeros([ROWS, COLS], tl.float32) + dl.rank() + 1)  # FAULT


@case("conflict/column-tiles", world=3)
@case("conflict/column-tiles-overlap", "race", world=3, how="overlap", twin="conflict/column-tiles",
      why="The second tile starts one column too early.")
def column_tiles(rank, how):
    """Ranks 0 and 1 write the left and the right columns of a row-major matrix of rank 2."""
    buffer = symm(8, 16)
    if rank < 2:
        put_tile[(1, )](buffer, 2, rank * (7 if how else 8), 16, ROWS=8, COLS=8)
    meet()
    return pairs((buffer, torch.tensor([1.0, 2.0]).repeat_interleave(8).repeat(8, 1) if rank == 2 else 0))


@triton_dist.jit
def grid_put(buffer, to, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    start = 0 if HOW == "same" else tl.program_id(0) * N
    tl.store(dl.symm_at(buffer, to) + start + i, tl.zeros([N], tl.float32) + tl.program_id(0) + 1)  # FAULT


@case("conflict/grid-put")
@case("conflict/grid-put-same-range", "race", how="same", twin="conflict/grid-put",
      why="All programs of the grid write the same range of the peer.")
def grid_of_puts(rank, how):
    """Three programs of one grid put into a peer's buffer, each into its part."""
    buffer = symm(3 * N)
    grid_put[(3, )](buffer, 1 - rank, HOW=how, N=N)
    meet()
    return pairs((buffer, torch.tensor([1.0, 2.0, 3.0]).repeat_interleave(N)))


# -- a writer and a reader ---------------------------------------------------------------------------------------------
@triton_dist.jit
def put_and_local(x, buffer, flag, out, HOW: tl.constexpr, LOAD: tl.constexpr, N: tl.constexpr):
    """Rank 0 puts into rank 1; rank 1 loads or stores the same bytes."""
    i = tl.arange(0, N)
    if dl.rank() == 0:
        tl.store(dl.symm_at(buffer, 1) + i, tl.load(x + i))  # FAULT
        dl.notify(flag, 1)
    else:
        if HOW == "":
            dl.wait(flag, 1, "sys", "acquire")
        if LOAD:
            tl.store(out + i, tl.load(buffer + i))  # FAULT
        else:
            tl.store(buffer + i, tl.zeros([N], tl.float32) + 7)  # FAULT
        if HOW != "":
            dl.wait(flag, 1, "sys", "acquire")


def put_against(rank, how, load):
    buffer, flag, out = symm(N), flags(), filled(-1.0)
    put_and_local[(1, )](filled(5.0), buffer, flag, out, HOW=how, LOAD=load, N=N)
    meet()
    return pairs((out, 5 if load and rank else -1), (buffer, 0 if not rank else 5 if load else 7))


@case("conflict/put-load")
@case("conflict/put-load-too-early", "race", how="early", twin="conflict/put-load",
      why="The load comes before the wait for the put.")
def put_load(rank, how):
    """Rank 1 loads what rank 0 puts."""
    return put_against(rank, how, True)


@case("conflict/put-store")
@case("conflict/put-store-too-early", "race", how="early", twin="conflict/put-store",
      why="The local store and the put are unordered: either may be the last.")
def put_store(rank, how):
    """Rank 1 stores over what rank 0 has put."""
    return put_against(rank, how, False)


@triton_dist.jit
def get_kernel(buffer, out, HOW: tl.constexpr, N: tl.constexpr):
    """Every rank stores into its own buffer; then reads its successor's."""
    i = tl.arange(0, N)
    tl.store(buffer + i, tl.zeros([N], tl.float32) + dl.rank())  # FAULT
    if HOW != "open":
        dl.barrier_all()
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(out + i, tl.load(dl.symm_at(buffer, peer) + i))  # FAULT
    if HOW == "again":
        tl.store(buffer + i, tl.zeros([N], tl.float32) + 9)  # FAULT


@case("conflict/get-store", world=3)
@case("conflict/get-store-no-barrier", "race", world=3, how="open", twin="conflict/get-store",
      why="Nothing orders the peer's store before the read of its memory.")
@case("conflict/store-after-get", "race", world=3, how="again", twin="conflict/get-store",
      why="The owner stores again with no barrier behind the readers.")
def get_store(rank, how):
    """Every rank reads its successor's buffer after a barrier."""
    buffer, out = symm(N), filled(-1.0)
    get_kernel[(1, )](buffer, out, HOW=how, N=N)
    meet()
    return pairs((out, (rank + 1) % 3))


@triton_dist.jit
def third_party(buffer, flag, out, HOW: tl.constexpr, N: tl.constexpr):
    """Rank 1 writes rank 2's memory; rank 0 reads it there."""
    i = tl.arange(0, N)
    if dl.rank() == 1:
        tl.store(dl.symm_at(buffer, 2) + i, tl.zeros([N], tl.float32) + 4)  # FAULT
        dl.notify(flag, 2 if HOW == "owner" else 0)
    if dl.rank() == 2 and HOW == "owner":
        dl.wait(flag, 1, "sys", "acquire")
    if dl.rank() == 0:
        if HOW == "":
            dl.wait(flag, 1, "sys", "acquire")
        tl.store(out + i, tl.load(dl.symm_at(buffer, 2) + i))  # FAULT


@case("conflict/third-rank-reads", world=3)
@case("conflict/third-rank-reads-unordered", "race", world=3, how="owner", twin="conflict/third-rank-reads",
      why="The writer tells the owner of the memory, not the rank that reads it.")
def third_rank(rank, how):
    """Rank 1 puts into rank 2, rank 0 gets it from there, told by rank 1."""
    buffer, flag, out = symm(N), flags(), filled(-1.0)
    third_party[(1, )](buffer, flag, out, HOW=how, N=N)
    meet()
    return pairs((out, -1 if rank else 4))


@triton_dist.jit
def read_all(buffer, out, W: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for peer in range(W):
        tl.store(out + (tl.program_id(0) * W + peer) * N + i, tl.load(dl.symm_at(buffer, peer) + i))


@case("conflict/many-readers", world=4)
def many_readers(rank):
    """All programs of all ranks read all buffers; readers never conflict."""
    buffer, out = symm(N), filled(-1.0, 8 * N)
    buffer.fill_(rank)
    meet()
    read_all[(2, )](buffer, out, W=4, N=N)
    meet()
    return pairs((out, torch.arange(4.0).repeat_interleave(N).repeat(2)))


# -- local memory ------------------------------------------------------------------------------------------------------
@triton_dist.jit
def local_grid(out, HOW: tl.constexpr, N: tl.constexpr):
    i, pid = tl.arange(0, N), tl.program_id(0)
    start = pid * (N - 1) if HOW == "overlap" else pid * N
    tl.store(out + start + i, tl.zeros([N], tl.float32) + pid)  # FAULT


@case("conflict/local-tiles", world=1)
@case("conflict/local-tiles-overlap", "race", world=1, how="overlap", twin="conflict/local-tiles",
      why="Neighbouring programs of a grid share one element of the output.")
def local_tiles(rank, how):
    """The programs of a grid write tiles of a local tensor."""
    out = filled(-1.0, 3 * N)
    local_grid[(3, )](out, HOW=how, N=N)
    meet()
    return pairs((out, torch.arange(3.0).repeat_interleave(N)))


@triton_dist.jit
def produce(data, N: tl.constexpr):
    i, pid = tl.arange(0, N), tl.program_id(0)
    tl.store(data + pid * N + i, tl.zeros([N], tl.float32) + pid)


@triton_dist.jit
def consume(data, out, P: tl.constexpr, N: tl.constexpr):
    i, pid = tl.arange(0, N), tl.program_id(0)
    tl.store(out + pid * N + i, tl.load(data + (pid + 1) % P * N + i))


@triton_dist.jit
def produce_and_consume(data, out, P: tl.constexpr, N: tl.constexpr):
    i, pid = tl.arange(0, N), tl.program_id(0)
    tl.store(data + pid * N + i, tl.zeros([N], tl.float32) + pid)  # FAULT fused
    tl.store(out + pid * N + i, tl.load(data + (pid + 1) % P * N + i))  # FAULT fused


@case("conflict/local-neighbour", world=1)
@case("conflict/local-neighbour-in-one-grid", "race", world=1, how="fused", twin="conflict/local-neighbour",
      why="Programs of one grid are not ordered; the neighbour's tile may not be there yet.")
def local_neighbour(rank, how):
    """A program reads the tile of its neighbour, written by the kernel before."""
    data, out = filled(-1.0, 3 * N), filled(-1.0, 3 * N)
    if how:
        produce_and_consume[(3, )](data, out, P=3, N=N)
    else:
        produce[(3, )](data, N=N)
        consume[(3, )](data, out, P=3, N=N)
    meet()
    return pairs((out, torch.tensor([1.0, 2.0, 0.0]).repeat_interleave(N)))
