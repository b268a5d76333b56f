# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""AG-GEMM whose gather is a kernel beside the GEMM, on SMs that the GEMM leaves to it. Both count their calls on the device."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import tile_of
from triton_dist.ops.device.packets import count_call, this_epoch
from triton_dist.ops.ag_gemm.kernels import multiply
from triton_dist.ops.internode.kernels import copy
from triton_dist.ops.device.order import gathered_chunk
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import product


@triton.jit
def first_flag(flags, epoch, piece, owner, world, MOST: tl.constexpr):
    """Of a piece of the owner's shard: int32 flags [piece][half][owner][program], room for MOST programs."""
    return flags + ((2 * piece + (epoch & 1)) * world + owner) * MOST


@jit(do_not_specialize=["pushers"])
def push_kernel(x, gathered, flags, control, team, half, count, pitch, piece, pieces, pushers, BLOCK: tl.constexpr,
                MOST: tl.constexpr):
    """Stores x, of `count` elements, into chunk `index` of the gather buffers of all peers, for a GEMM beside it.

    gathered: [2 halves of `half`][owner][pitch] elements. Blocks of a piece go round the programs, so that all of them work at
    the piece that is needed first: each rank serves its peers in a rotation of its own, the one that works on it next first.
    Who writes: every program its blocks, in the half `epoch & 1`, and after those of a piece the epoch into its own flags of the
    piece there (system scope). A piece has `pushers` flags on all ranks, whatever the number of programs, which is not larger.
    Who waits: nobody here; the GEMM beside it waits for the flags of all programs. That is also what bounds the epoch.
    """
    epoch = this_epoch(control)
    index = dl.team_rank(team)
    world = dl.team_size(team)
    program, programs = tl.program_id(0), tl.num_programs(0)
    mine = gathered + (epoch & 1).to(tl.int64) * half + index.to(tl.int64) * pitch
    for hop in range(1, world):
        peer = dl.team_world_rank(team, (index + world - hop) % world)
        theirs = dl.symm_at(mine, peer)
        for number in range(pieces):
            start = number.to(tl.int64) * piece
            n = tl.minimum(count - start, piece)
            dl.trace_start("push", (hop - 1) * pieces + number, peer)
            for first in range(program * BLOCK, n, programs * BLOCK):
                copy(theirs + start + first, x + start + first, tl.minimum(n - first, BLOCK), BLOCK)
            for flag in range(program, pushers, programs):
                dl.notify(first_flag(flags, epoch, number, index, world, MOST) + flag, peer, epoch)
            dl.trace_stop("push", (hop - 1) * pieces + number)
    count_call(control, epoch)


@jit(do_not_specialize=["index", "pushers", "m", "pieces", "piece_tiles"],
     launch_metadata=product(lambda args: args["m"] * args["world"]))
def ag_gemm_by_sms_kernel(x, gathered, weight, bias, out, flags, control, half, pushers, index, world, m, n, k, pitch, stride_w,
                          pieces, piece_tiles, MOST: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
                          EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                          BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """As ag_gemm_kernel, with chunks, pieces and flags as push_kernel of every peer, in `pushers` programs, writes them.

    Who waits: a program, before the first load of a tile of a peer's piece, acquires the flags of all programs that pushed it.
    What bounds the epoch: program 0 acquires those of the last piece of every peer, tiles or none; a program that pushed this
    piece has pushed its part of all others before.
    """
    epoch = this_epoch(control)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N // 2 if GATED else BLOCK_N)
    tiles = tiles_m * tiles_n
    gathered += (epoch & 1).to(tl.int64) * half
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        step = t // tiles
        chunk = gathered_chunk(index, step, world)
        tile_m, tile_n = tile_of(t % tiles, tiles_m, tiles_n, GROUP_M)
        lap = t // tl.num_programs(0)
        a = x
        dl.trace_start("wait", lap, chunk)
        if step > 0:
            arrived = first_flag(flags, epoch, tile_m // piece_tiles, chunk, world, MOST)
            token = dl.wait(arrived, pushers, "sys", "acquire", epoch)
            a = dl.consume_token(gathered, token) + chunk.to(tl.int64) * pitch * k
        dl.trace_stop("wait", lap)
        multiply(a, weight, bias, out, chunk, tile_m, tile_n, lap, m, n, k, stride_w, HAS_BIAS, GATED, EVEN_K, PRECISION,
                 BLOCK_M, BLOCK_N, BLOCK_K)
    if tl.program_id(0) == 0:
        for hop in range(1, world):
            last = first_flag(flags, epoch, pieces - 1, (index + hop) % world, world, MOST)
            dl.wait(last, pushers, "sys", "acquire", epoch)
    count_call(control, epoch)
