# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GEMM-RS kernel of a group that spans nodes: rings inside each node, and tiles put from node to node."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import matmul_tile, tile_of
from triton_dist.ops.internode.kernels import arrived_from_node, send, word_of
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import leading, product


@jit(do_not_specialize=["m"], launch_metadata=product(lambda args: leading(args["x"]), passes=2))
def gemm_rs_nodes_kernel(x, weight, bias, out, slots, flags, control, team, half, each, m, n, k, pitch, stride_x, stride_w,
                         HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
                         BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """out [m, n] = this rank's rows of the sum over ranks of x [world * m, k] @ weight [n, k]^T, plus bias [n].

    Rank i is at place i % each of node i // each. For every node in turn, the own one last, the ranks of a node run the ring of
    gemm_rs_kernel for the chunks of that node's ranks, so that the node's sum of a chunk ends at the chunk's place.
    Who writes: the next rank of the node gets sums of a ring, in rows of `slots`, and a flag for each tile and hop. A tile that
    is done for another node is stored to `sums` and put from there to `heard` of its owner, with a signal behind it.
    Who waits: the same tile one hop later, for that flag; a tile of the own chunk, at its last hop, for each other node's signal.
    What bounds the epoch: the chain of a node's tile passes through its ranks, and its owner acquires one from every node. Slots,
    sums and heard alternate between two halves. A tile's flags, 64-bit words with the epoch in their upper half, lie together,
    so that each has one writer for good. The last program out advances the epoch.
    """
    index = dl.team_rank(team)
    world = dl.team_size(team)
    nodes, node, place = world // each, index // each, index % each
    hops = each - 1
    successor = dl.team_world_rank(team, node * each + (place + 1) % each)
    epoch = tl.load(control) + 1
    slots += (epoch & 1).to(tl.int64) * half
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    sums = slots + (nodes * hops).to(tl.int64) * pitch * n
    heard = sums + (nodes * tiles).to(tl.int64) * BLOCK_M * BLOCK_N
    words = nodes * each                              # flags of a tile: of each hop for each node, then of each node's signal
    inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        step = t // tiles
        tile = t % tiles
        lap = step // each
        hop = step % each
        to = (node + 1 + lap) % nodes
        chunk = to * each + (place + 2 * each - 1 - hop) % each
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        acc = matmul_tile(x + chunk.to(tl.int64) * m * stride_x, stride_x, tl.minimum(rows, m - 1), weight, stride_w,
                          tl.minimum(cols, n - 1), k, BLOCK_K, EVEN_K, PRECISION)
        where = rows.to(tl.int64)[:, None] * n + cols[None, :]
        mine = flags + tile * words
        ring = mine + to * hops + hop                 # of the slot that this hop fills, behind that which it takes
        slot = slots + (to * hops + hop).to(tl.int64) * pitch * n
        if hop > 0:
            token = dl.wait(ring - 1, 1, "sys", "acquire", word_of(epoch), cmp="ge")
            acc += tl.load(dl.consume_token(slot, token) - pitch.to(tl.int64) * n + where, mask=inside, other=0.0).to(tl.float32)
        if hop < hops:
            tl.store(dl.symm_at(slot, successor) + where, acc.to(slots.dtype.element_ty), mask=inside)
            dl.notify(ring, successor, word_of(epoch))
        elif lap < nodes - 1:
            whole = sums + (to * tiles + tile).to(tl.int64) * BLOCK_M * BLOCK_N
            tl.store(whole + inner, acc.to(slots.dtype.element_ty))
            send(heard + (node * tiles + tile).to(tl.int64) * BLOCK_M * BLOCK_N, whole, BLOCK_M * BLOCK_N,
                 mine + nodes * hops + node, epoch, dl.team_world_rank(team, to * each + place))
        else:
            for hop_node in range(1, nodes):
                source = (node + hop_node) % nodes
                token = arrived_from_node(mine + nodes * hops + source, epoch, "ge")
                part = dl.consume_token(heard, token) + (source * tiles + tile).to(tl.int64) * BLOCK_M * BLOCK_N
                acc += tl.load(part + inner).to(tl.float32)
            if HAS_BIAS:
                acc += tl.load(bias + tl.minimum(cols, n - 1)).to(tl.float32)[None, :]
            tl.store(out + where, acc.to(out.dtype.element_ty), mask=inside)
    if tl.atomic_add(control + 1, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(control + 1, 0)
        tl.store(control, epoch)
