# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The GEMM-RS kernel for machines without a switch: every tile goes straight to the rank that sums it."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import matmul_tile, tile_of
from triton_dist.ops.device.packets import count_call, this_epoch
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import leading, product

MOST_ROWS = 128                 # of a tile; taller ones spill, as the addresses of a tile's sum need registers too


@jit(do_not_specialize=["m"], launch_metadata=product(lambda args: leading(args["x"]), passes=2))
def gemm_rs_scatter_kernel(x, weight, bias, out, slots, flags, control, team, half, m, n, k, pitch, stride_x, stride_w,
                           HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
                           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """out [m, n] = this rank's rows of the sum over ranks of x [world * m, k] @ weight [n, k]^T, plus bias [n].

    Rank c sums chunk c. A rank computes a tile for each peer in turn, the peer after it first, then the next tile, so that
    it stores over all links at once. It computes the tiles of its own chunk last.
    Who writes: a tile's program stores its product into the rows of slot s of the chunk's owner, from s * pitch on, where this
    rank is the owner's s + 1st successor. It then releases the epoch into flags[tile, epoch & 1, s] there (system scope).
    Who waits: the owner's program of the same tile acquires the flags of all peers at system scope, then adds the slots to its
    own product in their order.
    What bounds the epoch: slots and flags alternate between two halves by the epoch's parity. An owner has acquired this epoch
    from every peer before it ends.
    """
    index = dl.team_rank(team)
    world = dl.team_size(team)
    peers = world - 1
    epoch = this_epoch(control)
    slots += (epoch & 1).to(tl.int64) * half
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        mine = t >= tiles * peers
        turn = t % tl.maximum(peers, 1)
        tile = tl.where(mine, t - tiles * peers, t // tl.maximum(peers, 1))
        chunk = tl.where(mine, index, (index + 1 + turn) % world)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        lap = t // tl.num_programs(0)
        dl.trace_start("mma", lap, chunk)
        acc = matmul_tile(x + chunk.to(tl.int64) * m * stride_x, stride_x, tl.minimum(rows, m - 1), weight, stride_w,
                          tl.minimum(cols, n - 1), k, BLOCK_K, EVEN_K, PRECISION)
        dl.trace_stop("mma", lap)
        where = rows.to(tl.int64)[:, None] * n + cols[None, :]
        arrivals = flags + (2 * tile + (epoch & 1)) * peers
        if mine:
            dl.trace_start("wait", lap, chunk)
            token = dl.wait(arrivals, peers, "sys", "acquire", epoch)
            dl.trace_stop("wait", lap)
            arrived = dl.consume_token(slots, token)
            step = pitch.to(tl.int64) * n
            for place in range(peers):
                acc += tl.load(arrived + place * step + where, mask=inside, other=0.0).to(tl.float32)
            if HAS_BIAS:
                acc += tl.load(bias + tl.minimum(cols, n - 1)).to(tl.float32)[None, :]
            dl.trace_start("store", lap, chunk)
            tl.store(out + where, acc.to(out.dtype.element_ty), mask=inside)
            dl.trace_stop("store", lap)
        else:
            owner = dl.team_world_rank(team, chunk)
            place = peers - 1 - turn
            slot = dl.symm_at(slots, owner) + place.to(tl.int64) * pitch * n
            dl.trace_start("push", lap, owner)
            tl.store(slot + where, acc.to(slots.dtype.element_ty), mask=inside)
            dl.notify(arrivals + place, owner, epoch)
            dl.trace_stop("push", lap)
    count_call(control, epoch)
