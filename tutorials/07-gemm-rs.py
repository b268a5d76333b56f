# SPDX-FileCopyrightText: Copyright (c) triton_dist contributors
# SPDX-License-Identifier: MIT
"""A GEMM whose sums are scattered while it runs
=============================================

.. code-block:: bash

    bash launch.sh 07-gemm-rs.py

A row-parallel linear layer multiplies its own columns and wants only its own rows of the sum over ranks. A GEMM first and a
reduce-scatter after it would leave the links idle, then the tensor cores. You will write one kernel in which

* tiles for peers come first, and go straight to the rank that sums them, each with a flag,
* tiles for oneself come last, and wait for the peers' tiles of the same place, which have arrived meanwhile.

`triton_dist.ops.gemm_rs` does this as a ring, so that each link carries a tile once, and by warp-specialised cores.
"""
import torch
import triton
import triton.language as tl

import triton_dist
import triton_dist.language as dl
from triton_dist import ops
from triton_dist.runtime.backend import backend
from triton_dist.runtime.groups import resolve
from triton_dist.testing import assert_matches, milliseconds, plot, random_tensor

# %%
# A tile of the product
# ---------------------


@triton_dist.jit
def product(x, weight, row, column, rows, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    m_at, n_at = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for at in range(0, k, BLOCK_K):
        inner = at + tl.arange(0, BLOCK_K)
        left = tl.load(x + m_at[:, None] * k + inner[None, :], mask=(m_at < rows)[:, None] & (inner < k)[None, :], other=0.0)
        right = tl.load(weight + n_at[None, :] * k + inner[:, None], mask=(n_at < n)[None, :] & (inner < k)[:, None], other=0.0)
        total = tl.dot(left, right, total)
    return total


# %%
# The kernel
# ----------
#
# Tile t of rank r's rows, computed by rank s, goes to slot [s, t] of r's inbox, in fp32. Its flag is at the same place, holds
# the number of the call, and has one writer. Programs take tiles in an order in which everything that they send comes before
# everything that they wait for: then no rank can wait for a tile that is behind a wait of its sender.
#
# The inbox is double, by the parity of the call: rank r may still sum call n while call n + 1 arrives. A half has room for `room`
# tiles of each rank, as many as the largest call has. So halves and flags lie at the same places in calls of any size.


@triton_dist.jit(do_not_specialize=["call"])
def gemm_rs(x, weight, out, inbox, flags, room, call, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
            BLOCK_K: tl.constexpr):
    me, world = dl.rank(), dl.num_ranks()
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tl.cdiv(m, BLOCK_M) * tiles_n
    local = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    half = inbox + call % 2 * world * room * BLOCK_M * BLOCK_N
    for t in range(tl.program_id(0), tiles * world, tl.num_programs(0)):
        owner, tile = (me + 1 + t // tiles) % world, t % tiles
        row, column = tile // tiles_n * BLOCK_M, tile % tiles_n * BLOCK_N
        total = product(x + owner * m * k, weight, row, column, m, n, k, BLOCK_M, BLOCK_N, BLOCK_K)
        if owner != me:
            slot = me * room + tile
            tl.store(dl.symm_at(half, owner) + slot * BLOCK_M * BLOCK_N + local, total)
            dl.notify(flags + slot, owner, call)
        else:
            for hop in range(1, world):
                slot = (me + hop) % world * room + tile
                token = dl.wait(flags + slot, 1, "sys", "acquire", call, "ge")
                total += tl.load(dl.consume_token(half, token) + slot * BLOCK_M * BLOCK_N + local)
            rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
            tl.store(out + rows[:, None] * n + columns[None, :], total.to(out.dtype.element_ty),
                     mask=(rows < m)[:, None] & (columns < n)[None, :])


# %%
# A check and a plot
# ------------------
#
# .. image:: /tutorial_plots/07-gemm-rs.png
#    :alt: milliseconds over the rows of a rank, of this kernel and of ops.gemm_rs


def main() -> None:
    triton_dist.initialize_distributed()
    group, on_gpu = resolve(), triton_dist.device().type == "cuda"
    n, k, block = (4096, 4096, 128) if on_gpu else (48, 64, 32)
    sizes = [256, 1024, 2048] if on_gpu else [32, 64]                        # rows of a rank
    tiles = triton.cdiv(sizes[-1], block) * triton.cdiv(n, block)
    inbox = triton_dist.create_symm_tensor((2 * group.size * tiles * block * block,), torch.float32, name="tiles of peers")
    flags = triton_dist.create_symm_tensor((group.size * tiles,), torch.int32, name="tile is there")
    weight, calls = random_tensor(n, k, dtype=torch.bfloat16, seed=50 + group.rank), [0]

    def ours(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        m = len(x) // group.size
        mine, out = triton.cdiv(m, block) * triton.cdiv(n, block), torch.empty(m, n, dtype=x.dtype, device=x.device)
        gemm_rs[(min(mine * group.size, backend().num_sms()),)](x, weight, out, inbox, flags, tiles, calls[0], m, n, k,
                                                                BLOCK_M=block, BLOCK_N=block, BLOCK_K=64 if on_gpu else 32)
        return out

    worst, times = 0.0, {"this kernel": [], "ops.gemm_rs": []}
    for m in sizes:
        x = random_tensor(m * group.size, k, dtype=torch.bfloat16, seed=group.rank)
        reference = sum(random_tensor(m * group.size, k, dtype=torch.bfloat16, seed=r).double()
                        @ random_tensor(n, k, dtype=torch.bfloat16, seed=50 + r).double().t() for r in range(group.size))
        mine = slice(m * group.rank, m * (group.rank + 1))
        for _ in range(2):
            out = ours(x)
            triton_dist.synchronize()
            worst = max(worst, assert_matches(out, reference[mine], k=k * group.size))
        times["this kernel"].append(milliseconds(lambda: ours(x), group, 10 if on_gpu else 1))
        times["ops.gemm_rs"].append(milliseconds(lambda: ops.gemm_rs(x, weight), group, 10 if on_gpu else 1))
    print(f"rank {group.rank}: sums are right, relative error {worst:.1e}", flush=True)
    plot("07-gemm-rs", sizes, times, group, "rows a rank")
    triton_dist.finalize_distributed()


if __name__ == "__main__":
    main()

# sphinx_gallery_thumbnail_path = 'tutorial_plots/07-gemm-rs.png'
