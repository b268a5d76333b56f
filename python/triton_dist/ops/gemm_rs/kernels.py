# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""The portable GEMM-RS kernel: a ring of tiles inside one kernel."""
import triton.language as tl

import triton_dist.language as dl
from triton_dist.ops.device.gemm import matmul_tile, tile_of
from triton_dist.ops.device.order import ring_chunk
from triton_dist.ops.device.packets import count_call, this_epoch
from triton_dist.runtime.jit import jit
from triton_dist.runtime.launch_metadata import leading, product


@jit(do_not_specialize=["m"], launch_metadata=product(lambda args: leading(args["x"]), passes=2))
def gemm_rs_kernel(x, weight, bias, out, slots, flags, control, team, half, m, n, k, pitch, stride_x, stride_w,
                   HAS_BIAS: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):
    """out [m, n] = this rank's rows of the sum over ranks of x [world * m, k] @ weight [n, k]^T, plus bias [n].

    The partial sum of chunk c starts at rank c + 1 and travels to rank c; at step s rank r works on chunk r - 1 - s.
    Who writes: a tile's program stores its sum into rows from step * pitch of `slots` of the next rank, then releases
    the epoch into flags[step, tile, epoch & 1] there (system scope). At the last step the sum goes to `out`.
    Who waits: the program of the same tile one step later acquires that flag at system scope before it adds the slot.
    What bounds the epoch: slots and flags alternate between two halves by the epoch's parity. The chain of a tile passes
    through every rank, so that whoever finishes knows that all peers have started.
    """
    index = dl.team_rank(team)
    world = dl.team_size(team)
    successor = dl.team_world_rank(team, (index + 1) % world)
    epoch = this_epoch(control)
    slots_in = slots + (epoch & 1).to(tl.int64) * half
    slots_out = dl.symm_at(slots, successor) + (epoch & 1).to(tl.int64) * half
    flags += epoch & 1
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        step = t // tiles
        tile = t % tiles
        chunk = ring_chunk(index, step, world)
        tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        lap = t // tl.num_programs(0)
        dl.trace_start("mma", lap, chunk)
        acc = matmul_tile(x + chunk.to(tl.int64) * m * stride_x, stride_x, tl.minimum(rows, m - 1), weight, stride_w,
                          tl.minimum(cols, n - 1), k, BLOCK_K, EVEN_K, PRECISION)
        where = rows.to(tl.int64)[:, None] * n + cols[None, :]
        dl.trace_stop("mma", lap)
        if step > 0:
            dl.trace_start("wait", lap, (index + world - 1) % world)
            token = dl.wait(flags + 2 * ((step - 1) * tiles + tile), 1, "sys", "acquire", epoch)
            dl.trace_stop("wait", lap)
            slot = dl.consume_token(slots_in, token) + (step - 1).to(tl.int64) * pitch * n
            acc += tl.load(slot + where, mask=inside, other=0.0).to(tl.float32)
        if step < world - 1:
            slot = slots_out + step.to(tl.int64) * pitch * n
            dl.trace_start("push", lap, successor)
            tl.store(slot + where, acc.to(slots.dtype.element_ty), mask=inside)
            dl.notify(flags + 2 * (step * tiles + tile), successor, epoch)
            dl.trace_stop("push", lap)
        else:
            if HAS_BIAS:
                acc += tl.load(bias + tl.minimum(cols, n - 1)).to(tl.float32)[None, :]
            dl.trace_start("store", lap, chunk)
            tl.store(out + where, acc.to(out.dtype.element_ty), mask=inside)
            dl.trace_stop("store", lap)
    count_call(control, epoch)
