# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""An AllGather that hides behind the GEMM that needs it.

    bash launch.sh 06-ag-gemm.py

Every rank has rows x [m, k] of a matrix and a weight [n, k]; it wants all rows times its weight. A collective first and a
matmul after it would leave the tensor cores idle while data moves. Here both are one kernel: its first programs push x to the
peers and notify a flag behind it, and all programs then take tiles, those of the own rows first. A tile waits for the flag of
the rank whose rows it needs; by the time it does, they have mostly arrived.

`triton_dist.ops.ag_gemm` does this with copy engines, a warp-specialised core and several flags a shard; the idea is the same.
"""
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, random_tensor


@triton_dist.jit
def push(x, gathered, flags, peer, elements, call, BLOCK: tl.constexpr):
    """Stores x into this rank's chunk of the peer's `gathered`, then the call's number into this rank's flag there."""
    target = dl.symm_at(gathered, peer) + dl.rank() * elements
    for at in range(0, elements, BLOCK):
        offsets = at + tl.arange(0, BLOCK)
        inside = offsets < elements
        tl.store(target + offsets, tl.load(x + offsets, mask=inside), mask=inside)
    dl.notify(flags + dl.rank(), peer, call)


@triton_dist.jit
def ag_gemm(x, gathered, weight, out, flags, call, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_K: tl.constexpr):
    """out [world * m, n] = all_gather(x [m, k]) @ weight [n, k]^T.

    Who writes flags[r] of a rank: rank r, once a call, with the call's number. Who waits: the tiles of chunk r, at system
    scope because a peer writes. Programs that push never wait before they have pushed, so every rank makes progress.
    """
    program, world, me = tl.program_id(0), dl.num_ranks(), dl.rank()
    for hop in range(program, world, tl.num_programs(0)):
        push(x, gathered, flags, (me + hop) % world, m * k, call, BLOCK=1024)
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tiles = tiles_m * tiles_n
    for t in range(program, tiles * world, tl.num_programs(0)):
        chunk = (me - t // tiles + world) % world                 # in the order in which peers push to us
        token = dl.wait(flags + chunk, 1, "sys", "acquire", call)
        a = dl.consume_token(gathered, token) + chunk * m * k
        rows = (t % tiles) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        cols = (t % tiles) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for at in range(0, k, BLOCK_K):
            inner = at + tl.arange(0, BLOCK_K)
            left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows < m)[:, None] & (inner < k)[None, :], other=0.0)
            right = tl.load(weight + cols[None, :] * k + inner[:, None], mask=(cols < n)[None, :] & (inner < k)[:, None],
                            other=0.0)
            acc = tl.dot(left, right, acc)
        tl.store(out + (chunk * m + rows)[:, None] * n + cols[None, :], acc.to(out.dtype.element_ty),
                 mask=(rows < m)[:, None] & (cols < n)[None, :])


def main() -> None:
    triton_dist.initialize_distributed()
    group = resolve()
    m, n, k = (1024, 4096, 4096) if triton_dist.device().type == "cuda" else (96, 80, 64)
    block = 128 if triton_dist.device().type == "cuda" else 32
    gathered = triton_dist.create_symm_tensor((group.size * m, k), torch.bfloat16, name="gathered")
    flags = triton_dist.create_symm_tensor((group.size,), torch.int32, name="shard arrived")
    weight = random_tensor(n, k, dtype=torch.bfloat16, seed=100 + group.rank)
    out = weight.new_empty(group.size * m, n)
    for call in range(1, 4):
        x = random_tensor(m, k, dtype=torch.bfloat16, seed=10 * call + group.rank)
        tiles = triton.cdiv(m, block) * triton.cdiv(n, block) * group.size
        # A program that waits must not keep one that pushes from running: no more of them than fit at a time.
        ag_gemm[(min(tiles, backend().num_sms()),)](x, gathered, weight, out, flags, call, m, n, k, BLOCK_M=block,
                                                    BLOCK_N=block, BLOCK_K=64 if block == 128 else 32)
        triton_dist.synchronize()
        rows = torch.cat([random_tensor(m, k, dtype=torch.bfloat16, seed=10 * call + r) for r in range(group.size)])
        error = assert_matches(out, rows.double() @ weight.double().t(), k=k)
        group.barrier()                                           # nobody pushes the next call into rows still being read
    print(f"rank {group.rank}: {group.size} x {m} rows gathered and multiplied, relative error {error:.1e}")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()
