# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The portable AG-GEMM kernel."""
import triton
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import matmul_tile, silu_mul, tile_of
from triton_dist.ops.device.order import gathered_chunk
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import product


@triton.jit
def multiply(a, weight, bias, out, chunk, tile_m, tile_n, lap, m, n, k, stride_w, HAS_BIAS: tl.constexpr,
             GATED: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """A tile of chunk `chunk` of out [world, m, n], whose rows of the gathered x are a [m, k]; the program's `lap`-th.

    GATED: it has BLOCK_N // 2 columns. Gate and up of a column are summed side by side, so that a thread has both.
    """
    dl.trace_start("mma", lap, chunk)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    if GATED:
        lane = tl.arange(0, BLOCK_N)
        features = lane % 2 * n + tl.minimum(tile_n * (BLOCK_N // 2) + lane // 2, n - 1)
    else:
        features = tl.minimum(tile_n * BLOCK_N + tl.arange(0, BLOCK_N), n - 1)
    acc = matmul_tile(a, k, tl.minimum(rows, m - 1), weight, stride_w, features, k, BLOCK_K, EVEN_K, PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + features).to(tl.float32)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // 2, 2)))
        acc = silu_mul(gate, up)
    dl.trace_stop("mma", lap)
    dl.trace_start("store", lap, chunk)
    cols = tile_n * acc.shape[1] + tl.arange(0, acc.shape[1])
    to = out + (chunk.to(tl.int64) * m + rows)[:, None] * n + cols[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=(rows < m)[:, None] & (cols < n)[None, :])
    dl.trace_stop("store", lap)


@jit(do_not_specialize=["epoch", "index", "m", "pieces", "piece_tiles"],
     launch_metadata=product(lambda args: args["m"] * args["world"]))
def ag_gemm_kernel(x, gathered, weight, bias, out, flags, epoch, index, world, m, n, k, pitch, stride_w,
                   pieces, piece_tiles, HAS_BIAS: tl.constexpr, GATED: tl.constexpr, EVEN_K: tl.constexpr,
                   PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                   GROUP_M: tl.constexpr):
    """out [world * m, n] = all_gather(x [m, k]) @ weight [n, k]^T + bias [n].

    GATED: weight has 2 * n rows and bias 2 * n elements, and out is silu(the first n) * the others.

    Who writes: the copy engine of each peer stores its x into rows from peer * pitch of `gathered`, piece by piece,
    and behind each piece the call's epoch into flags[piece * world + peer] (system scope),
    a word that no other rank ever writes, whatever the shape.
    Who waits: a program, before the first load of a tile of a peer's piece, acquires that flag at system scope. Tiles run in
    the order in which peers push: own shard first, straight from x, then index + 1, index + 2, ...
    What bounds the epoch: program 0 acquires every peer's flags before it ends, tiles or none, so that whoever starts the
    next call knows that all peers have started this one.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N // 2 if GATED else BLOCK_N)
    tiles = tiles_m * tiles_n
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        step = t // tiles
        chunk = gathered_chunk(index, step, world)
        tile_m, tile_n = tile_of(t % tiles, tiles_m, tiles_n, GROUP_M)
        lap = t // tl.num_programs(0)
        a = x
        dl.trace_start("wait", lap, chunk)
        if step > 0:
            token = dl.wait(flags + tile_m // piece_tiles * world + chunk, 1, "sys", "acquire", epoch, cmp="ge")
            a = dl.consume_token(gathered, token) + chunk.to(tl.int64) * pitch * k
        dl.trace_stop("wait", lap)
        multiply(a, weight, bias, out, chunk, tile_m, tile_n, lap, m, n, k, stride_w, HAS_BIAS, GATED, EVEN_K, PRECISION,
                 BLOCK_M, BLOCK_N, BLOCK_K)
    if tl.program_id(0) == 0:
        last = flags + (pieces - 1) * world
        dl.wait(last, index, "sys", "acquire", epoch, cmp="ge")
        dl.wait(last + index + 1, world - 1 - index, "sys", "acquire", epoch, cmp="ge")
